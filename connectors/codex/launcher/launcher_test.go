package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/program"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/standin"
)

// The real program is tested one directory up. The program here is a stand-in for what the real one does rarely or
// only on a bad day: dying early, refusing, ignoring signals.

func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "launcher":
			os.Exit(Main(os.Args[2:], "test", os.Stderr))
		case "app-server":
			serve(os.Getenv("FAKE_SERVE"), strings.TrimPrefix(os.Args[3], "unix://"))
		case "resume":
			attach(os.Getenv("FAKE_ATTACH"))
		}
	}
	os.Exit(m.Run())
}

func serve(mode, path string) {
	standin.Say("serve pid %d", os.Getpid())
	switch mode {
	case "die":
		fmt.Println("cannot read config.toml: \x1b[31mbroken\x1b[0m")
		os.Exit(3)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			talk(c, mode)
		}))
	}()
	if mode == "stubborn" {
		select {}
	}
	standin.UntilSignal("serve")
	os.Exit(0)
}

func talk(c *websocket.Conn, mode string) {
	ctx := context.Background()
	send := func(v any) {
		p, _ := json.Marshal(v)
		_ = c.Write(ctx, websocket.MessageText, p)
	}
	for {
		_, p, err := c.Read(ctx)
		if err != nil {
			return
		}
		var m struct {
			ID     *int            `json:"id"`
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		}
		if json.Unmarshal(p, &m) != nil {
			standin.Say("not JSON: %s", p)
			continue
		}
		if m.Method == "initialize" {
			m.Params = nil // it is long
		}
		standin.Say("%s %s", m.Method, m.Params)
		switch {
		case m.ID == nil:
		case mode == "silent" && m.Method != "initialize", mode == "silent to a prompt" && m.Method == "turn/start":
		case mode == "refuse" && strings.HasPrefix(m.Method, "thread/"):
			send(map[string]any{"id": *m.ID, "error": map[string]any{"code": -32600, "message": "no rollout found"}})
		case strings.HasPrefix(m.Method, "thread/"):
			send(map[string]any{"method": "thread/started", "params": map[string]any{"thread": map[string]any{"id": "t1", "source": "cli"}}})
			send(map[string]any{"id": 0, "method": "item/commandExecution/requestApproval", "params": map[string]any{}}) // nothing for us
			send(map[string]any{"id": *m.ID, "result": map[string]any{"thread": map[string]any{"id": "t1"}}})
		default:
			send(map[string]any{"id": *m.ID, "result": map[string]any{}})
		}
	}
}

func attach(mode string) {
	standin.Say("%s", strings.Join(os.Args[1:], " "))
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "COTAL_") {
			standin.Say("attach env %s", kv)
		}
	}
	switch mode {
	case "exit7":
		os.Exit(7)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		standin.Say("attach up")
		select {}
	}
	standin.UntilSignal("attach")
	os.Exit(5)
}

type launched struct {
	*standin.Launcher
	dir string
}

// launch runs a plan on a mesh that is away, which holds nothing up.
func launch(t *testing.T, p plan.Plan, env ...string) *launched {
	t.Helper()
	return launchOn(t, "nats://127.0.0.1:1", "x", p, env...)
}

func launchOn(t *testing.T, url, token string, p plan.Plan, env ...string) *launched {
	t.Helper()
	dir, err := os.MkdirTemp("", "cx") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return launchIn(t, dir, url, token, p, env...)
}

func launchIn(t *testing.T, dir, url, token string, p plan.Plan, env ...string) *launched {
	t.Helper()
	p.Version, p.Home, p.Store, p.Cwd = plan.Version, filepath.Join(dir, "home"), filepath.Join(dir, "store"), dir
	if p.Session != "" {
		p.Rollout = filepath.Join(p.Store, "rollout")
	}
	var err error
	if p.Binary, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(p.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	who, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	body, err := wire.LaunchMaterial{
		Servers: url, Token: token,
		Seat: &wire.LaunchSeat{Space: "main", Name: "n", ID: who.Principal(), LifecycleUID: who.UID},
	}.Encode()
	material := put("material.json", body, err)
	data, err := json.Marshal(p)
	file := put("launcher.json", data, err)
	env = append(env, wire.LaunchMaterialEnv+"="+material)
	return &launched{dir: dir, Launcher: standin.Start(t, dir, file, env...)}
}

// end waits for the launcher and checks that its server and its sockets have gone before it.
func (r *launched) end(code int) {
	r.T.Helper()
	r.End(code)
	if left, err := filepath.Glob(filepath.Join(r.dir, "*.sock")); err != nil || len(left) != 0 {
		r.T.Errorf("sockets left: %v, %v", left, err)
	}
}

// A directory whose path leaves no room for sockets has them elsewhere, wherever the user's place for them is.
func TestASeatWithALongPathHasItsSocketsInTheUsersPlace(t *testing.T) {
	run, err := os.MkdirTemp("", "cx") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 90))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := launchIn(t, dir, "nats://127.0.0.1:1", "x", plan.Plan{Action: plan.ActionNew}, "XDG_RUNTIME_DIR="+run)
	r.Await("attach up")
	for _, name := range []string{plan.APISocket, plan.ToolsSocket} {
		path, err := private.FindSocket(dir, name)
		if err != nil || filepath.Dir(path) != filepath.Join(run, "cotal") {
			t.Errorf("%s is at %s, %v", name, path, err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Type() != os.ModeSocket {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
	_ = r.Cmd.Process.Signal(syscall.SIGTERM)
	r.end(5)
	if left, err := os.ReadDir(filepath.Join(run, "cotal")); err != nil || len(left) != 0 {
		t.Errorf("sockets left: %v, %v", left, err)
	}
}

func TestAForkIsMadeThenAskedThenShown(t *testing.T) {
	r := launch(t, plan.Plan{Action: plan.ActionFork, Session: "t0", Prompt: "go on", Model: "m", Effort: "high"},
		"FAKE_ATTACH=exit7", "COTAL_NAME=n", "COTAL_SEAT_NONCE=abc")
	r.end(7) // the terminal program's code
	var got []string
	for line := range strings.Lines(r.Said()) {
		if !strings.HasPrefix(line, "serve") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		"initialize", "initialized",
		`thread/fork {"config":{"model_reasoning_effort":"high"},"cwd":"` + r.dir + `","model":"m","threadId":"t0"}`,
		`thread/name/set {"name":"n","threadId":"t1"}`,
		`turn/start {"input":[{"text":"go on","type":"text"}],"threadId":"t1"}`,
		"resume --remote unix://" + r.dir + "/codex.sock t1",
		"attach env COTAL_SEAT_NONCE=abc",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it did\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAServerThatDiesIsQuoted(t *testing.T) {
	r := launch(t, plan.Plan{Action: plan.ActionNew, Prompt: "x"}, "FAKE_SERVE=die")
	r.end(1)
	for _, want := range []string{"ended while it was starting: exit status 3", "cannot read config.toml: [31mbroken"} {
		if !strings.Contains(r.Stderr.String(), want) {
			t.Errorf("stderr lacks %q:\n%q", want, r.Stderr.String())
		}
	}
}

func TestASessionThatIsRefusedIsNamed(t *testing.T) {
	r := launch(t, plan.Plan{Action: plan.ActionOpen, Session: "t0"}, "FAKE_SERVE=refuse")
	r.end(1)
	if want := "open session t0: thread/resume: no rollout found"; !strings.Contains(r.Stderr.String(), want) {
		t.Errorf("stderr lacks %q:\n%s", want, r.Stderr.String())
	}
	if strings.Contains(r.Said(), "resume --remote") {
		t.Error("the terminal program was started all the same")
	}
}

func TestASignalGoesToBothAndTheTerminalsCodeComesBack(t *testing.T) {
	r := launch(t, plan.Plan{Action: plan.ActionNew})
	r.Await("attach up")
	if err := r.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.end(5)
	for _, want := range []string{"attach TERM", "serve TERM"} {
		if !strings.Contains(r.Said(), want) {
			t.Errorf("no %q in:\n%s", want, r.Said())
		}
	}
}

func TestASignalDuringTheBootEndsIt(t *testing.T) {
	r := launch(t, plan.Plan{Action: plan.ActionNew}, "FAKE_SERVE=silent")
	r.Await("thread/start")
	if err := r.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.end(143)
}

// The mesh has the seat's presence from before its first turn on.
func TestABootThatEndsAfterTheSeatHasJoinedSaysGoodbye(t *testing.T) {
	const token, space = "test-token-0123456789", "main"
	b, err := broker.Start(t.Context(), broker.Config{StoreDir: t.TempDir(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	c, err := bus.Connect(t.Context(), bus.Config{URL: b.URL(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetUpMessaging(t.Context(), space, func(string) bool { return false }, func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	peer, err := mesh.Connect(t.Context(), mesh.Config{URL: b.URL(), Token: token, Space: space, Name: "peer"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	roster, err := peer.WatchPresence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(roster.Close)
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	r := launchOn(t, b.URL(), token, plan.Plan{Action: plan.ActionNew, Prompt: "x"}, "FAKE_SERVE=silent to a prompt")
	r.Await("turn/start")
	if _, err := roster.Await(ctx, func(p wire.Presence) bool { return p.Card.Name == "n" }); err != nil {
		t.Fatal(err)
	}
	if err := r.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.end(143)
	begin := time.Now()
	if _, err := roster.Await(ctx, func(p wire.Presence) bool { return p.Card.Name == "n" && p.Status == wire.StatusOffline }); err != nil {
		t.Fatal(err)
	}
	if busy.Over(begin, 2*time.Second) { // the record ends by itself after six
		t.Errorf("it was shown for %s after its end", time.Since(begin))
	}
}

func TestAServersEndEndsATerminalThatIgnoresTERM(t *testing.T) {
	r := launch(t, plan.Plan{Action: plan.ActionNew}, "FAKE_ATTACH=stubborn")
	r.Await("attach up")
	if err := syscall.Kill(r.Server(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.end(137)
}

func TestAServerThatCrashedIsNotHiddenByATerminalThatLeftWithoutComplaint(t *testing.T) {
	ended := func(text string) *program.Child {
		c, err := program.Start(exec.Command("/bin/sh", "-c", text))
		if err != nil {
			t.Fatal(err)
		}
		<-c.Exited()
		return c
	}
	for name, c := range map[string]struct {
		server string
		signal os.Signal // that is still to be looked at
		asked  bool
		code   int
		fails  bool
	}{
		"a server that crashed is the reason":          {"exit 3", nil, false, 3, true},
		"a server that ended by itself is one as well": {"exit 0", nil, false, 1, true},
		"one that was asked to end is none":            {"exit 3", nil, true, 0, false},
		"nor one that a signal reached first":          {"kill -TERM $$", syscall.SIGTERM, false, 0, false},
		"what Ctrl-C means is the program's business":  {"exit 3", syscall.SIGINT, false, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			log, err := program.OpenLog(filepath.Join(t.TempDir(), "log"), maxLog)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			signals := make(chan os.Signal, 1)
			if c.signal != nil {
				signals <- c.signal
			}
			r := &run{signals: signals, server: ended(c.server), log: log}
			if code, err := r.outcome(ended("exit 0"), c.asked); code != c.code || (err != nil) != c.fails {
				t.Errorf("code %d, %v; want %d, and an error: %v", code, err, c.code, c.fails)
			}
		})
	}
}

func TestATerminalsEndEndsAServerThatIgnoresTERM(t *testing.T) {
	r := launch(t, plan.Plan{Action: plan.ActionNew}, "FAKE_SERVE=stubborn", "FAKE_ATTACH=exit7")
	r.end(7)
}

func TestWithoutLaunchMaterialNothingIsStarted(t *testing.T) {
	dir := t.TempDir()
	plan := filepath.Join(dir, "launcher.json")
	if err := os.WriteFile(plan, []byte(`{"version":1,"binary":"/b","home":"/h","store":"/s","cwd":"/c","action":"new"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(wire.LaunchMaterialEnv, "")
	var stderr bytes.Buffer
	if code := Main([]string{plan}, "test", &stderr); code != exitUsage || !strings.Contains(stderr.String(), wire.LaunchMaterialEnv) {
		t.Errorf("code %d, %s; want %d and the name of the variable", code, stderr.String(), exitUsage)
	}
}
