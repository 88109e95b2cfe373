package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// HostOptions says how a host is started.
type HostOptions struct {
	Args       []string // further arguments of serve, after --open (unless the world is authenticated) --root <workspace>
	Env        []string // further variables, K=V
	Failpoints string   // COTAL_FAILPOINTS of this host, its plugins and its seats
}

// Host is one cotal-host process.
type Host struct {
	PID   int
	Boot  time.Duration // from the request to start it until it said "ready"; 0 before
	w     *World
	begun time.Time

	stdout, stderr string // files
}

// Start starts a host and waits until it said "ready"; otherwise the test fails.
func (w *World) Start(o HostOptions) *Host {
	w.t.Helper()
	h := w.Launch(o)
	if err := h.WaitReady(DefaultWait); err != nil {
		w.t.Fatalf("start host: %v\nstderr:\n%s", err, h.Stderr())
	}
	return h
}

// Launch starts a host and waits for nothing.
func (w *World) Launch(o HostOptions) *Host {
	w.t.Helper()
	args := []string{"serve"}
	if !w.auth {
		args = append(args, "--open")
	}
	args = append(append(args, "--root", w.Root), o.Args...)
	if w.broker != nil {
		args = append(args, w.broker.args()...)
	}
	return w.LaunchProgram(filepath.Join(w.Bin, "cotal-host"), args, o)
}

// LaunchProgram starts any program below the warden, in the workspace. Its output is kept and shown
// when the test fails.
func (w *World) LaunchProgram(path string, args []string, o HostOptions) *Host {
	w.t.Helper()
	w.mu.Lock()
	n := len(w.hosts) + 1
	w.mu.Unlock()
	h := w.launch(fmt.Sprintf("host%d", n), path, args, o)
	w.mu.Lock()
	w.hosts = append(w.hosts, h)
	w.mu.Unlock()
	return h
}

// launch starts a program whose output goes to the files name.out and name.err of the world.
func (w *World) launch(name, path string, args []string, o HostOptions) *Host {
	w.t.Helper()
	h := &Host{
		w: w, begun: time.Now(),
		stdout: filepath.Join(w.Dir, name+".out"), stderr: filepath.Join(w.Dir, name+".err"),
	}
	env := w.Environ(o.Env...)
	if o.Failpoints != "" {
		env = append(env, "COTAL_FAILPOINTS="+o.Failpoints)
	}
	r, err := w.warden.call(wardenRequest{
		Op: "start", Path: path, Args: args, Env: env, Dir: w.Root, Stdout: h.stdout, Stderr: h.stderr,
	})
	if err != nil {
		w.t.Fatalf("start %s: %v", filepath.Base(path), err)
	}
	h.PID = r.PID
	return h
}

// WaitReady waits for the line that says the host serves.
func (h *Host) WaitReady(d time.Duration) error {
	deadline := time.Now().Add(d)
	for {
		for line := range strings.Lines(h.Stdout()) {
			if saysReady(line) {
				h.Boot = time.Since(h.begun)
				return nil
			}
		}
		if e, ended := h.WaitExit(time.Millisecond); ended {
			return fmt.Errorf("the host ended before it was ready: %v", e)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %v", d)
		}
	}
}

func saysReady(line string) bool {
	rest, ok := strings.CutPrefix(line, "ready")
	return ok && rest != "" && (rest[0] < 'a' || rest[0] > 'z') && strings.HasSuffix(rest, "\n")
}

// Stdout returns what the host has printed so far.
func (h *Host) Stdout() string { return read(h.stdout) }

// Stderr returns what the host has logged to standard error so far.
func (h *Host) Stderr() string { return read(h.stderr) }

func read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// Running reports whether the process has not ended.
func (h *Host) Running() bool {
	_, ended := h.w.warden.wait(h.PID, 0)
	return !ended
}

// WaitExit waits for the end of the process; false when it still runs after d.
func (h *Host) WaitExit(d time.Duration) (Exit, bool) { return h.w.warden.wait(h.PID, d) }

// Signal sends a signal to the host alone. A host that has ended is left alone.
func (h *Host) Signal(sig syscall.Signal) {
	h.w.t.Helper()
	if !h.Running() {
		return
	}
	if _, err := h.w.warden.call(wardenRequest{Op: "signal", PID: h.PID, Signal: int(sig)}); err != nil && h.Running() {
		h.w.t.Fatalf("send %v to the host: %v", sig, err)
	}
}

// Kill ends the host with SIGKILL, the host alone, and waits until it is gone.
func (h *Host) Kill() {
	h.w.t.Helper()
	h.Signal(syscall.SIGKILL)
	if _, ok := h.WaitExit(DefaultWait); !ok {
		h.w.t.Fatalf("host %d still runs after SIGKILL", h.PID)
	}
}

// AwaitCrash waits until the host was killed by a failpoint that was armed with crash.
func (h *Host) AwaitCrash() {
	h.w.t.Helper()
	e, ok := h.WaitExit(DefaultWait)
	if !ok {
		h.w.t.Fatalf("the host was expected to crash and still runs")
	}
	if e.Signal != syscall.SIGKILL {
		h.w.t.Fatalf("the host was expected to be killed by its failpoint and ended with %v", e)
	}
}

// Stop sends SIGTERM, which spares the seats, and waits for a clean end.
func (h *Host) Stop() {
	h.w.t.Helper()
	h.Signal(syscall.SIGTERM)
	if e, ok := h.WaitExit(DefaultWait); !ok || e.Code != 0 {
		h.w.t.Fatalf("stop host: ended %v, %v; want exit code 0", ok, e)
	}
}
