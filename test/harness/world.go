package harness

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/diskfull"
)

// World is one workspace with everything its hosts touch: nothing in it is shared with another test
// or with the user's own hosts. Several hosts may run in it one after the other, or at once.
type World struct {
	Dir        string // short, under /tmp: holds all of the following
	Root       string // workspace root
	SeatRoot   string // COTAL_SEAT_ROOT
	RuntimeDir string // XDG_RUNTIME_DIR; sockets are in its subdirectory cotal
	Home       string // HOME
	Bin        string // binaries under test

	t       testing.TB
	warden  *warden
	mu      sync.Mutex
	env     map[string]string
	hosts   []*Host
	broker  *Broker // nil: every host has its own inside
	disks   []*diskfull.Disk
	orphans string // why an orphan check is left out
	auth    bool   // its hosts serve with credentials

	leftoverWait time.Duration // how long the last processes may take to be gone
}

// New makes a world and registers its end: see the orphan check in the package text.
func New(t testing.TB) *World {
	t.Helper()
	return newWorld(t, Bin(t))
}

// NewAuthenticated is New of a world whose hosts serve with credentials, as serve does where it is not told --open. Every
// client of the harness connects with the operator's.
func NewAuthenticated(t testing.TB) *World {
	t.Helper()
	w := New(t)
	w.auth = true
	return w
}

func newWorld(t testing.TB, bin string) *World {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ct") // short: a socket path has room for about 100 bytes
	if err != nil {
		t.Fatalf("create world: %v", err)
	}
	w := &World{
		Dir: dir, Root: filepath.Join(dir, "ws"), SeatRoot: filepath.Join(dir, "seats"),
		RuntimeDir: filepath.Join(dir, "run"), Home: filepath.Join(dir, "home"), Bin: bin, t: t,
		leftoverWait: 5 * time.Second,
	}
	for _, d := range []string{w.Root, w.SeatRoot, w.RuntimeDir, w.Home} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatalf("create world: %v", err)
		}
	}
	w.env = map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": w.Home, "USER": "tester", "SHELL": "/bin/sh", "LANG": "C.UTF-8",
		"TERM": "xterm-256color", "XDG_RUNTIME_DIR": w.RuntimeDir, "COTAL_SEAT_ROOT": w.SeatRoot,
	}
	for _, name := range []string{"GOCOVERDIR", "TMPDIR"} {
		if v := os.Getenv(name); v != "" {
			w.env[name] = v
		}
	}
	w.warden = startWarden(t, dir)
	if _, err := w.warden.call(wardenRequest{Op: "list"}); err != nil {
		w.warden.close()
		t.Fatalf("start warden: %v", err)
	}
	t.Cleanup(w.end)
	return w
}

// Setenv sets a variable for every host and CLI call from now on.
func (w *World) Setenv(name, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.env[name] = value
}

// Environ is the environment of hosts and CLI calls: nothing of the test's own but PATH, TMPDIR and
// GOCOVERDIR.
func (w *World) Environ(extra ...string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	env := make([]string, 0, len(w.env)+len(extra))
	for k, v := range w.env {
		env = append(env, k+"="+v)
	}
	return append(env, extra...)
}

// Path returns a path in the workspace.
func (w *World) Path(elem ...string) string {
	return filepath.Join(append([]string{w.Root}, elem...)...)
}

// Write writes a file in the workspace, making its directory.
func (w *World) Write(name, text string) string {
	w.t.Helper()
	path := w.Path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		w.t.Fatalf("write %s: %v", name, err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatalf("write %s: %v", name, err)
	}
	return path
}

// Persona writes .cotal/agents/<ref>.md.
func (w *World) Persona(ref, text string) string {
	w.t.Helper()
	return w.Write(filepath.Join(".cotal", "agents", ref+".md"), text)
}

// SocketDir is where the sockets of seats are.
func (w *World) SocketDir() string { return filepath.Join(w.RuntimeDir, "cotal") }

// SmallDisk puts directories of this world, which must be empty, on a disk of size bytes. Only in a
// process that diskfull.Private made, and before the first host is started.
func (w *World) SmallDisk(size int, dirs ...string) *diskfull.Disk {
	w.t.Helper()
	d, err := diskfull.Small(filepath.Join(w.Dir, fmt.Sprintf("disk%d", len(w.disks)+1)), size, dirs...)
	if d != nil {
		w.disks = append(w.disks, d)
	}
	if err != nil {
		w.t.Fatalf("make a small disk: %v", err)
	}
	return d
}

// Procs lists every process that this world has running, whoever its parent is now. Zombies, which
// only wait for their parent, are left out.
func (w *World) Procs() []Proc {
	w.t.Helper()
	r, err := w.warden.call(wardenRequest{Op: "list"})
	if err != nil {
		w.t.Fatalf("list processes: %v", err)
	}
	live := r.Procs[:0]
	for _, p := range r.Procs {
		if p.State != "Z" {
			live = append(live, p)
		}
	}
	return live
}

// ProcsLike lists those whose command line holds text.
func (w *World) ProcsLike(text string) []Proc {
	w.t.Helper()
	var found []Proc
	for _, p := range w.Procs() {
		if strings.Contains(p.Args, text) {
			found = append(found, p)
		}
	}
	return found
}

// Alive reports whether a process of this world still runs.
func (w *World) Alive(pid int) bool {
	w.t.Helper()
	for _, p := range w.Procs() {
		if p.PID == pid {
			return true
		}
	}
	return false
}

// Signal sends a signal to one process of this world. A process that the world did not start, or
// that is gone, fails the test.
func (w *World) Signal(pid int, sig syscall.Signal) {
	w.t.Helper()
	if _, err := w.warden.call(wardenRequest{Op: "signal", PID: pid, Signal: int(sig)}); err != nil {
		w.t.Fatalf("send %v: %v", sig, err)
	}
}

// TrySignal sends a signal to one process of this world; one that is gone, or that the world did not
// start, is an error.
func (w *World) TrySignal(pid int, sig syscall.Signal) error {
	_, err := w.warden.call(wardenRequest{Op: "signal", PID: pid, Signal: int(sig)})
	return err
}

// KillPID sends SIGKILL to one process of this world and waits until it is gone.
func (w *World) KillPID(pid int) {
	w.t.Helper()
	w.Signal(pid, syscall.SIGKILL)
	w.AwaitGone(pid)
}

// KillRest ends a process that may be ending by itself just now, and waits until it is gone.
func (w *World) KillRest(pid int) {
	w.t.Helper()
	_, _ = w.warden.call(wardenRequest{Op: "signal", PID: pid, Signal: int(syscall.SIGKILL)}) // refused when it is gone
	w.AwaitGone(pid)
}

// AwaitGone waits until a process is gone.
func (w *World) AwaitGone(pid int) {
	w.t.Helper()
	Eventually(w.t, DefaultWait, fmt.Sprintf("process %d is gone", pid), func() (bool, string) {
		return !w.Alive(pid), "it runs"
	})
}

// AllowOrphans leaves the orphan check out, with the reason. Everything is still killed at the end.
func (w *World) AllowOrphans(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.orphans = why
}

// Leftovers lists what a stopped world must not have: processes, seat directories, sockets.
func (w *World) Leftovers() []string {
	w.t.Helper()
	var left []string
	for _, p := range w.Procs() {
		left = append(left, "process "+p.String())
	}
	entries, _ := os.ReadDir(w.SeatRoot)
	for _, e := range entries {
		left = append(left, "seat directory "+filepath.Join(w.SeatRoot, e.Name()))
	}
	_ = filepath.WalkDir(w.RuntimeDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			left = append(left, "socket "+path)
		}
		return nil
	})
	return left
}

// AssertNothingLeft fails the test unless everything in this world is gone: no process, no seat
// directory, no socket.
func (w *World) AssertNothingLeft() {
	w.t.Helper()
	if ok, left := stretched(w.leftoverWait, func() (bool, string) {
		l := w.Leftovers()
		return len(l) == 0, strings.Join(l, "\n  ")
	}); !ok {
		w.t.Errorf("left behind:\n  %s", left)
	}
}

// end is the cleanup of a world.
func (w *World) end() {
	defer func() {
		w.warden.close()
		if w.t.Failed() {
			w.dumpLogs()
		}
		for _, d := range w.disks {
			if err := d.Unmount(); err != nil {
				w.t.Errorf("remove world: %v", err)
			}
		}
		if os.Getenv("COTAL_TEST_KEEP") != "" {
			w.t.Logf("kept: %s", w.Dir)
			return
		}
		if err := os.RemoveAll(w.Dir); err != nil {
			w.t.Errorf("remove world: %v", err)
		}
	}()
	w.mu.Lock()
	why := w.orphans
	hosts := append([]*Host(nil), w.hosts...)
	w.mu.Unlock()
	if why != "" || w.t.Failed() || len(hosts) == 0 {
		return
	}
	if b := w.broker; b != nil {
		if b.Cont(); !b.Running() {
			b.Restart()
		}
	}
	var running *Host
	for _, h := range hosts {
		if h.Running() {
			running = h
		}
	}
	if running == nil {
		if w.broker == nil && len(w.Leftovers()) == 0 {
			return
		}
		running = w.Launch(HostOptions{})
		if err := running.WaitReady(DefaultWait); err != nil {
			w.t.Errorf("orphan check: start a host: %v", err)
			return
		}
	}
	for _, h := range hosts {
		if h != running && h.Running() {
			h.Signal(syscall.SIGTERM)
		}
	}
	if r := w.Host("stop", "--with-agents"); r.Code != 0 {
		w.t.Errorf("orphan check: %v", r)
		return
	}
	if _, ok := running.WaitExit(DefaultWait); !ok {
		w.t.Errorf("orphan check: the host still runs after stop --with-agents answered")
	}
	if w.broker != nil {
		w.broker.Kill()
	}
	w.AssertNothingLeft()
}

// dumpLogs shows what the processes of a failed test said.
func (w *World) dumpLogs() {
	for i, h := range w.hosts {
		w.t.Logf("host %d (pid %d) stdout:\n%s", i+1, h.PID, tail(h.stdout))
		w.t.Logf("host %d (pid %d) stderr:\n%s", i+1, h.PID, tail(h.stderr))
	}
	for _, dir := range []string{w.Path(".cotal", "host", "log"), w.SeatRoot} {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && (strings.HasSuffix(path, ".log") || d.Name() == "exit.json") {
				if text := tail(path); text != "" {
					w.t.Logf("%s:\n%s", path, text)
				}
			}
			return nil
		})
	}
}

func tail(path string) string {
	const most = 16 << 10
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if len(text) > most {
		text = append([]byte("...\n"), text[len(text)-most:]...)
	}
	return string(text)
}
