package broker

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv("COTAL_TEST_HOLD_PORT"); addr != "" {
		holdPort(addr)
		return
	}
	goleak.VerifyTestMain(m)
}

// holdPort is the other process of TestTakenPortNamesItsHolder.
func holdPort(addr string) {
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(l.Addr().String() + "\n")
	buf := make([]byte, 1)
	_, _ = os.Stdin.Read(buf) // until the test closes its end
}

const token = "test-token-0123456789"

func start(t testing.TB, cfg Config) *Broker {
	t.Helper()
	if cfg.Token == "" {
		cfg.Token = token
	}
	b, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	return b
}

func dial(t testing.TB, b *Broker, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(b.URL(), append([]nats.Option{nats.Token(token)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestBrokerServesOnLoopbackOnly(t *testing.T) {
	b := start(t, Config{StoreDir: t.TempDir()})
	if b.Port() == 0 || b.URL() != "nats://127.0.0.1:"+strconv.Itoa(b.Port()) {
		t.Fatalf("port %d, url %s", b.Port(), b.URL())
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.IsLoopback() || ip.IP.To4() == nil {
			continue
		}
		if c, err := net.DialTimeout("tcp4", net.JoinHostPort(ip.IP.String(), strconv.Itoa(b.Port())), time.Second); err == nil {
			c.Close()
			t.Errorf("the broker answers on %s", ip.IP)
		}
	}
	nc := dial(t, b)
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func TestEveryClientNeedsTheToken(t *testing.T) {
	b := start(t, Config{StoreDir: t.TempDir()})
	for name, opts := range map[string][]nats.Option{
		"none":                nil,
		"another":             {nats.Token("test-token-0123456788")},
		"a user and password": {nats.UserInfo("admin", token)},
	} {
		if nc, err := nats.Connect(b.URL(), opts...); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("with %s: %v, %v; want a refusal", name, nc, err)
		}
	}
	nc := dial(t, b, nats.InProcessServer(b.InProcess()))
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Config{StoreDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "no token") {
		t.Fatalf("a broker without token: %v", err)
	}
}

func TestStoreAndPortSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	b := start(t, Config{StoreDir: dir})
	nc := dial(t, b)
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "S", Subjects: []string{"s.>"}, Storage: nats.FileStorage}); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := js.Publish("s.a", []byte(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	port := b.Port()
	nc.Close()
	b.Shutdown()
	b.Shutdown() // twice is once

	b = start(t, Config{StoreDir: dir, Port: port})
	if b.Port() != port {
		t.Fatalf("port %d; want %d", b.Port(), port)
	}
	js, err = dial(t, b).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	info, err := js.StreamInfo("S")
	if err != nil || info.State.Msgs != 10 {
		t.Fatalf("stream after the restart: %+v, %v", info, err)
	}
}

func TestTakenPortNamesItsHolder(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "COTAL_TEST_HOLD_PORT=127.0.0.1:0")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_, p, err := net.SplitHostPort(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(t.TempDir(), "nats")
	b, err := Start(t.Context(), Config{StoreDir: store, Port: port, Token: token})
	if b != nil {
		b.Shutdown()
	}
	if !errors.Is(err, ErrPortTaken) {
		t.Fatalf("Start on a taken port: %v", err)
	}
	for _, want := range []string{"127.0.0.1:" + p, "pid " + strconv.Itoa(cmd.Process.Pid), filepath.Base(self), "remove the recorded port"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(store, "jetstream")); err == nil {
		t.Error("the store was touched although the port was taken")
	}
}

func TestUnusableStoreIsOneClearError(t *testing.T) {
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		dir  func(t *testing.T) string
		say  string
	}{
		{"a file stands in its place", func(t *testing.T) string {
			p := filepath.Join(t.TempDir(), "nats")
			write(p, "x")
			return p
		}, "nats"},
		{"a file stands where JetStream keeps its streams", func(t *testing.T) string {
			p := t.TempDir()
			write(filepath.Join(p, "jetstream"), "x")
			return p
		}, "move it away"},
		{"it is on a file system that takes no files", func(*testing.T) string { return "/proc/cotal" }, "/proc/cotal"},
		{"it is not given", func(*testing.T) string { return "" }, "no store directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := Start(t.Context(), Config{StoreDir: c.dir(t), Token: token})
			if b != nil {
				b.Shutdown()
			}
			if !errors.Is(err, ErrStore) || !strings.Contains(err.Error(), c.say) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("Start: %v; want one line of ErrStore saying %q", err, c.say)
			}
		})
	}
}

func TestDamagedStreamIsRefusedAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	b := start(t, Config{StoreDir: dir})
	js, err := dial(t, b).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	b.Shutdown()
	meta, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "S", "meta.inf"))
	if err != nil || len(meta) != 1 {
		t.Fatalf("meta files: %v, %v", meta, err)
	}
	if err := os.WriteFile(meta[0], []byte(`{"half":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err = Start(t.Context(), Config{StoreDir: dir, Token: token}); err == nil {
		b.Shutdown()
	}
	if !errors.Is(err, ErrStore) || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "move it away") {
		t.Fatalf("Start on a damaged store: %v", err)
	}
	if p, err := os.ReadFile(meta[0]); err != nil || string(p) != `{"half":` {
		t.Fatalf("the damaged file was changed: %q, %v", p, err)
	}
}

// A host killed between making a stream's directory and writing into it must come up again.
func TestHalfMadeStreamDirectoryDoesNotStopTheStart(t *testing.T) {
	dir := t.TempDir()
	b := start(t, Config{StoreDir: dir})
	js, err := dial(t, b).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	b.Shutdown()
	streams, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams"))
	if err != nil || len(streams) != 1 {
		t.Fatalf("stream directories: %v, %v", streams, err)
	}
	if err := os.Mkdir(filepath.Join(streams[0], "HALF"), 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, Config{StoreDir: dir})
}

func TestStartHonoursItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Config{StoreDir: t.TempDir(), Token: token}); !errors.Is(err, context.Canceled) {
		t.Fatalf("Start with an ended context: %v", err)
	}
}

func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		br, err := Start(b.Context(), Config{StoreDir: dir, Token: token})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		br.Shutdown()
		b.StartTimer()
	}
}
