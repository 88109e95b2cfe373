//go:build linux

package harness

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// probe is a testing.TB that records instead of failing, to show that a check can fail.
type probe struct {
	testing.TB
	failures []string
	cleanups []func()
}

func (p *probe) Errorf(format string, args ...any) { p.failures = append(p.failures, format) }
func (p *probe) Cleanup(f func())                  { p.cleanups = append(p.cleanups, f) }
func (p *probe) Failed() bool                      { return len(p.failures) > 0 }

func readPID(t *testing.T, file string) int {
	t.Helper()
	var pid int
	Eventually(t, DefaultWait, file+" holds a pid", func() (bool, string) {
		b, err := os.ReadFile(file)
		if err != nil {
			return false, err.Error()
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil, string(b)
	})
	return pid
}

func shell(w *World, script string) *Host {
	return w.LaunchProgram("/bin/sh", []string{"-c", script}, HostOptions{})
}

func TestWarden_ReportsExitCodesAndSignals(t *testing.T) {
	w := newWorld(t, "")
	w.AllowOrphans("there is no host here")
	if e, ok := shell(w, "exit 7").WaitExit(DefaultWait); !ok || e != (Exit{Code: 7}) {
		t.Fatalf("exit = %v, %v; want code 7", e, ok)
	}
	h := shell(w, "exec sleep 600")
	if _, ok := h.WaitExit(0); ok {
		t.Fatal("a running process is reported as ended")
	}
	h.Kill()
	if e, _ := h.WaitExit(0); e.Signal != syscall.SIGKILL || e.Code != -1 {
		t.Fatalf("exit = %v; want SIGKILL", e)
	}
}

// A daemon in a session of its own, without any variable of ours, whose parents are all gone: no scan
// of environments or process groups finds it.
const daemon = `setsid env -i /bin/sh -c 'echo $$ > daemon.pid; exec sleep 600' </dev/null >/dev/null 2>&1 & exit 0`

func TestWarden_FindsAndEndsADaemonThatHidItself(t *testing.T) {
	w := newWorld(t, "")
	w.AllowOrphans("there is no host here")
	h := shell(w, daemon)
	if _, ok := h.WaitExit(DefaultWait); !ok {
		t.Fatal("the shell did not end")
	}
	pid := readPID(t, w.Path("daemon.pid"))
	if !w.Alive(pid) {
		t.Fatalf("daemon %d is not listed: %v", pid, w.Procs())
	}
	// It writes its pid and executes sleep then: in between it has no arguments.
	Eventually(t, DefaultWait, "the daemon alone is left", func() (bool, string) {
		left := w.Leftovers()
		return len(left) == 1 && strings.Contains(left[0], "sleep 600"), strings.Join(left, "; ")
	})
	w.warden.close()
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Fatalf("daemon %d outlived the warden: %v", pid, err)
	}
}

func TestWarden_EndsEverythingWhenTheTestProcessIsGone(t *testing.T) {
	w := newWorld(t, "")
	w.AllowOrphans("there is no host here")
	shell(w, daemon)
	pid := readPID(t, w.Path("daemon.pid"))
	w.warden.in.Close() // what the kernel does when the test process dies
	Eventually(t, DefaultWait, "the daemon is gone", func() (bool, string) {
		return syscall.Kill(pid, 0) == syscall.ESRCH, "it runs"
	})
	Eventually(t, DefaultWait, "the directory is gone", func() (bool, string) {
		_, err := os.Stat(w.Dir)
		return os.IsNotExist(err), "it is there"
	})
}

func TestWarden_RefusesToSignalAForeignProcess(t *testing.T) {
	w := newWorld(t, "")
	w.AllowOrphans("there is no host here")
	if _, err := w.warden.call(wardenRequest{Op: "signal", PID: os.Getpid(), Signal: 0}); err == nil {
		t.Fatal("a signal to the test process itself was accepted")
	}
}

func TestAssertNothingLeft_CanFail(t *testing.T) {
	p := &probe{TB: t}
	w := newWorld(p, "")
	w.AllowOrphans("there is no host here")
	w.leftoverWait = 0
	defer func() {
		for _, f := range p.cleanups {
			f()
		}
	}()
	if err := os.MkdirAll(w.SocketDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	for what, leave := range map[string]func() func(){
		"a process": func() func() {
			h := shell(w, "exec sleep 600")
			return h.Kill
		},
		"a seat directory": func() func() {
			dir := filepath.Join(w.SeatRoot, "0123")
			os.Mkdir(dir, 0o700)
			return func() { os.Remove(dir) }
		},
		"a socket": func() func() {
			path := filepath.Join(w.SocketDir(), "a.sock")
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
				t.Fatal(err)
			}
			syscall.Close(fd)
			return func() { os.Remove(path) }
		},
	} {
		undo := leave()
		if left := w.Leftovers(); len(left) != 1 {
			t.Errorf("with %s left behind: leftovers = %v; want exactly one", what, left)
		}
		undo()
		if left := w.Leftovers(); len(left) != 0 {
			t.Errorf("after removing %s: leftovers = %v; want none", what, left)
		}
	}
	os.Mkdir(filepath.Join(w.SeatRoot, "left"), 0o700)
	w.AssertNothingLeft()
	if len(p.failures) != 1 {
		t.Errorf("AssertNothingLeft did not fail with a seat directory left: %v", p.failures)
	}
}

func TestWaitReady_SaysHowAHostEnded(t *testing.T) {
	w := newWorld(t, "")
	w.AllowOrphans("there is no host here")
	if err := shell(w, "echo readying; exit 3").WaitReady(DefaultWait); err == nil || !strings.Contains(err.Error(), "exit code 3") {
		t.Fatalf("err = %v; want one that names exit code 3", err)
	}
	h := shell(w, "echo ready; exec sleep 600")
	if err := h.WaitReady(DefaultWait); err != nil || h.Boot <= 0 || h.Boot > time.Minute {
		t.Fatalf("err = %v, boot = %v", err, h.Boot)
	}
}
