package harness

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// wardenEnv turns a copy of the test binary into a warden before any test runs. Its value is the
// directory of the world, which the warden removes when the test process is gone without doing so.
const wardenEnv = "COTAL_HARNESS_WARDEN"

func init() {
	if os.Getenv(wardenEnv) == "" {
		return
	}
	dir := os.Getenv(wardenEnv)
	os.Unsetenv(wardenEnv)
	serveWarden(os.Stdin, os.Stdout, dir)
	os.Exit(0)
}

// Proc is one process below the warden.
type Proc struct {
	PID   int    `json:"pid"`
	PPID  int    `json:"ppid"`
	Ticks uint64 `json:"ticks"` // start time, so that a reused pid is not taken for the same process
	State string `json:"state"` // R, S, D, Z, ...
	Args  string `json:"args"`
}

func (p Proc) String() string {
	return fmt.Sprintf("%d (parent %d, %s) %s", p.PID, p.PPID, p.State, p.Args)
}

// Exit is how a process ended.
type Exit struct {
	Code   int            `json:"code"` // -1 when a signal ended it
	Signal syscall.Signal `json:"signal"`
}

func (e Exit) String() string {
	if e.Signal != 0 {
		return "killed by " + e.Signal.String()
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

type wardenRequest struct {
	ID     int      `json:"id"`
	Op     string   `json:"op"` // start, signal, list, end
	Path   string   `json:"path,omitempty"`
	Args   []string `json:"args,omitempty"`
	Env    []string `json:"env,omitempty"`
	Dir    string   `json:"dir,omitempty"`
	Stdout string   `json:"stdout,omitempty"`
	Stderr string   `json:"stderr,omitempty"`
	PID    int      `json:"pid,omitempty"`
	Signal int      `json:"signal,omitempty"`
}

type wardenReply struct {
	ID    int    `json:"id"`
	PID   int    `json:"pid,omitempty"`
	Procs []Proc `json:"procs,omitempty"`
	Error string `json:"error,omitempty"`
	// Exited reports the end of a process that was started by op start; ID is 0.
	Exited *Exit `json:"exited,omitempty"`
}

// warden is the client of a warden process.
type warden struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu      sync.Mutex // guards what follows, never held over I/O but the write of one request line
	next    int
	waiting map[int]chan wardenReply
	exits   map[int]Exit
	ended   map[int]chan struct{}
	err     error
	done    chan struct{}
}

func startWarden(t testing.TB, dir string) *warden {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("find test binary: %v", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), wardenEnv+"="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the test run goes to the test alone
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("start warden: %v", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("start warden: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start warden: %v", err)
	}
	w := &warden{
		cmd: cmd, in: in, waiting: map[int]chan wardenReply{}, exits: map[int]Exit{},
		ended: map[int]chan struct{}{}, done: make(chan struct{}),
	}
	go w.read(out)
	return w
}

func (w *warden) read(out io.Reader) {
	dec := json.NewDecoder(bufio.NewReader(out))
	for {
		var r wardenReply
		if err := dec.Decode(&r); err != nil {
			w.mu.Lock()
			w.err = fmt.Errorf("warden is gone: %w", err)
			w.mu.Unlock()
			close(w.done)
			return
		}
		w.mu.Lock()
		if r.Exited != nil {
			w.exits[r.PID] = *r.Exited
			close(w.endedLocked(r.PID))
		} else if ch := w.waiting[r.ID]; ch != nil {
			delete(w.waiting, r.ID)
			ch <- r
		}
		w.mu.Unlock()
	}
}

func (w *warden) endedLocked(pid int) chan struct{} {
	ch := w.ended[pid]
	if ch == nil {
		ch = make(chan struct{})
		w.ended[pid] = ch
	}
	return ch
}

func (w *warden) call(req wardenRequest) (wardenReply, error) {
	ch := make(chan wardenReply, 1)
	w.mu.Lock()
	w.next++
	req.ID = w.next
	w.waiting[req.ID] = ch
	line, err := json.Marshal(req)
	if err == nil {
		_, err = w.in.Write(append(line, '\n'))
	}
	w.mu.Unlock()
	if err != nil {
		return wardenReply{}, fmt.Errorf("ask warden: %w", err)
	}
	select {
	case r := <-ch:
		if r.Error != "" {
			return r, errors.New(r.Error)
		}
		return r, nil
	case <-w.done:
		return wardenReply{}, w.err
	}
}

// wait returns how a started process ended, or false when it still runs after d.
func (w *warden) wait(pid int, d time.Duration) (Exit, bool) {
	w.mu.Lock()
	ch := w.endedLocked(pid)
	w.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ch:
	case <-w.done:
	case <-timer.C:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e, ok := w.exits[pid]
	return e, ok
}

// close ends everything below the warden, then the warden. The directory of the world is left.
func (w *warden) close() {
	_, _ = w.call(wardenRequest{Op: "end"})
	w.in.Close()
	<-w.done
	_ = w.cmd.Wait()
}
