//go:build linux

package custody_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func rawDial(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// refusal reads one ERROR frame and then the end of the connection.
func refusal(t *testing.T, f *os.File) *seat.Error {
	t.Helper()
	var all []byte
	buf := make([]byte, 4096)
	for {
		n, err := f.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil || n == 0 {
			break
		}
	}
	typ, p, n, err := seat.NextFrame(all)
	if err != nil || n == 0 || typ != seat.TypeError {
		t.Fatalf("answer %q: %v", all, err)
	}
	_, e, err := seat.DecodeError(p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAWrongTokenIsRefused(t *testing.T) {
	h := prepared(t)
	cfg := h.config(seat.RoleOutput)
	cfg.Token = append([]byte(nil), cfg.Token...)
	cfg.Token[31] ^= 1
	if _, err := seat.Dial(testContext(t), cfg); !errors.Is(err, seat.ErrBadToken) {
		t.Errorf("dial: %v", err)
	}
	cfg.Token = nil
	if _, err := seat.Dial(testContext(t), cfg); !errors.Is(err, seat.ErrBadToken) {
		t.Errorf("dial without: %v", err)
	}
}

func TestAPeerThatSaysNothingIsClosedAfterFiveSeconds(t *testing.T) {
	h := prepared(t)
	f := rawDial(t, h.launch.Socket)
	start := time.Now()
	n, err := f.Read(make([]byte, 1))
	if n != 0 || err == nil {
		t.Errorf("read %d %v", n, err)
	}
	if d := time.Since(start); d < 4*time.Second || d > busy.Limit(15*time.Second) {
		t.Errorf("closed after %v", d)
	}
}

func TestMalformedFramesEndTheConnectionAndNothingElse(t *testing.T) {
	h := prepared(t)
	hello := func(edit func(*seat.Hello)) []byte {
		x := seat.Hello{VersionMin: 1, VersionMax: 1, From: seat.FromLive}
		copy(x.Token[:], h.launch.Token)
		edit(&x)
		return seat.AppendHello(nil, x)
	}
	for _, c := range []struct {
		name string
		p    []byte
		code seat.Code
	}{
		{"a first frame that is not HELLO", seat.AppendRequest(nil, seat.TypeCommit, 1, nil), seat.CodeProtocol},
		{"a HELLO that is cut", seat.AppendFrame(nil, seat.TypeHello, []byte{0, 1}), seat.CodeProtocol},
		{"a version from the future", hello(func(x *seat.Hello) { x.VersionMin, x.VersionMax = 7, 9 }), seat.CodeVersion},
		{"an empty version range", hello(func(x *seat.Hello) { x.VersionMin, x.VersionMax = 2, 1 }), seat.CodeProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := rawDial(t, h.launch.Socket)
			if _, err := f.Write(c.p); err != nil {
				t.Fatal(err)
			}
			if e := refusal(t, f); e.Code != c.code || e.Outcome != seat.OutcomeNotExecuted {
				t.Errorf("%+v", e)
			}
		})
	}
	for _, p := range [][]byte{{0xff, 0xff, 0xff, 0xff, 1}, {0, 0, 0, 0}, []byte("GET / HTTP/1.0\r\n\r\n" + strings.Repeat("x", 2000))} {
		f := rawDial(t, h.launch.Socket)
		_, _ = f.Write(p)
		_ = f.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 100)
		for {
			if n, err := f.Read(buf); err != nil || n == 0 {
				break
			}
		}
	}
	// After HELLO: an unknown type ends the connection, unless it may be ignored.
	f := rawDial(t, h.launch.Socket)
	p := hello(func(*seat.Hello) {})
	p = seat.AppendFrame(p, 0x99, []byte("news from the future"))
	p = seat.AppendRequest(p, seat.TypeGet, 7, nil)
	p = seat.AppendFrame(p, 0x19, nil)
	if _, err := f.Write(p); err != nil {
		t.Fatal(err)
	}
	var types []seat.Type
	var all []byte
	buf := make([]byte, 4096)
	for {
		n, err := f.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil || n == 0 {
			break
		}
	}
	for {
		typ, _, n, err := seat.NextFrame(all)
		if err != nil || n == 0 {
			break
		}
		types, all = append(types, typ), all[n:]
	}
	if len(types) != 3 || types[0] != seat.TypeWelcome || types[1] != seat.TypeStatus || types[2] != seat.TypeError {
		t.Errorf("answers %x", types)
	}
	if st := h.status(); st.State != seat.StatePrepared {
		t.Errorf("state %v", st.State)
	}
}

func TestAHostWithAnOlderEpochIsRefused(t *testing.T) {
	h := prepared(t, func(l *seat.Launch) { l.Fence = 5 })
	at := func(f uint64) func(*seat.DialConfig) { return func(c *seat.DialConfig) { c.Fence = f } }
	if _, err := seat.Dial(testContext(t), seat.DialConfig{Socket: h.launch.Socket, Token: h.launch.Token, Role: seat.RoleControl, Fence: 4}); !errors.Is(err, seat.ErrStaleFence) {
		t.Fatalf("dial: %v", err)
	}
	old := h.dial(seat.RoleControl|seat.RoleInput, at(5))
	if st := h.dial(seat.RoleControl, at(6)).Welcome(); st.Fence != 6 {
		t.Errorf("fence %d", st.Fence)
	}
	ctx := testContext(t)
	if _, err := old.Commit(ctx); !errors.Is(err, seat.ErrStaleFence) {
		t.Errorf("commit: %v", err)
	}
	if err := old.Signal(ctx, seat.ActionKill); !errors.Is(err, seat.ErrStaleFence) {
		t.Errorf("signal: %v", err)
	}
	if err := old.AckExit(ctx); !errors.Is(err, seat.ErrStaleFence) {
		t.Errorf("ack: %v", err)
	}
	if _, err := old.Input(ctx, []byte("x")); !errors.Is(err, seat.ErrStaleFence) {
		t.Errorf("input: %v", err)
	}
	if err := old.Resize(ctx, 9, 9); !errors.Is(err, seat.ErrStaleFence) {
		t.Errorf("resize: %v", err)
	}
	if st := h.dial(seat.RoleOutput).Welcome(); st.State != seat.StatePrepared { // a viewer has no fence
		t.Errorf("state %v", st.State)
	}
}

func TestAViewerMayNotControl(t *testing.T) {
	h := prepared(t)
	c := h.dial(seat.RoleInput | seat.RoleTerminal)
	ctx := testContext(t)
	if _, err := c.Commit(ctx); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("commit: %v", err)
	}
	if err := c.Signal(ctx, seat.ActionTerm); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("signal: %v", err)
	}
	if err := c.AckExit(ctx); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("ack: %v", err)
	}
	if _, err := c.Input(ctx, []byte("x")); !errors.Is(err, seat.ErrNotRunning) {
		t.Errorf("input to a prepared seat: %v", err)
	}
}

func TestAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	h := prepared(t)
	for _, p := range []string{filepath.Dir(h.launch.Socket), h.launch.Socket} {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan *seat.Error, 1)
	go func() {
		runtime.LockOSThread() // the thread is another user from now on and ends with this goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			got <- nil
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: h.launch.Socket})
		}
		if err != nil {
			got <- nil
			return
		}
		f := os.NewFile(uintptr(fd), "other")
		defer f.Close()
		got <- refusal(t, f)
	}()
	if e := <-got; e == nil || e.Code != seat.CodeUID {
		t.Errorf("%+v", e)
	}
}

func TestTheSocketAndTheFilesAreForTheOwnerAlone(t *testing.T) {
	h := prepared(t)
	for _, p := range []string{h.launch.Socket, filepath.Join(h.dir, "seat.json"), filepath.Join(h.dir, "seat.log")} {
		st, err := os.Stat(p)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", p, st.Mode(), err)
		}
	}
}

// Viewers cannot take the places that a host needs to stop the seat.
func TestManyViewersAreRefusedAndDoNotLockTheHostOut(t *testing.T) {
	h := prepared(t)
	var conns []*seat.Conn
	for range 48 {
		conns = append(conns, h.dial(seat.RoleOutput))
	}
	if _, err := seat.Dial(testContext(t), h.config(seat.RoleOutput)); !errors.Is(err, seat.ErrLimit) {
		t.Errorf("one viewer more: %v", err)
	}
	host, err := seat.Dial(testContext(t), h.config(seat.RoleControl))
	if err != nil {
		t.Fatalf("the host is locked out: %v", err)
	}
	_ = host.Close()
	_ = conns[0].Close()
	h.eventually("a free place", func() error {
		c, err := seat.Dial(testContext(t), h.config(seat.RoleOutput))
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}
