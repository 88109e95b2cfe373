//go:build unix

package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// server is the warden process. One mutex is held around fork and around reaping, so that a child
// that ends at once is never reaped before its pid is known.
type server struct {
	mu      sync.Mutex
	started map[int]bool
	spawned chan struct{}
	ended   atomic.Bool
	outMu   sync.Mutex
	out     *json.Encoder
}

// serveWarden answers requests until standard input ends, then kills everything below. Without a
// request to end before, the test process was killed: nobody else will remove dir.
func serveWarden(in io.Reader, out io.Writer, dir string) {
	becomeSubreaper()
	if signal.Ignored(syscall.SIGHUP) {
		// Under nohup everything it starts would ignore a hangup too. What is handled here is not ignored there.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	s := &server{started: map[int]bool{}, spawned: make(chan struct{}, 1), out: json.NewEncoder(out)}
	go s.reap()
	dec := json.NewDecoder(bufio.NewReader(in))
	for {
		var req wardenRequest
		if err := dec.Decode(&req); err != nil {
			break
		}
		go s.handle(req)
	}
	_ = s.killAll()
	if !s.ended.Load() && os.Getenv("COTAL_TEST_KEEP") == "" {
		_ = os.RemoveAll(dir)
	}
}

func (s *server) send(r wardenReply) {
	s.outMu.Lock()
	defer s.outMu.Unlock()
	_ = s.out.Encode(r)
}

func (s *server) handle(req wardenRequest) {
	r := wardenReply{ID: req.ID}
	var err error
	switch req.Op {
	case "start":
		r.PID, err = s.start(req)
	case "list":
		r.Procs, err = descendants()
	case "signal":
		err = s.signal(req.PID, syscall.Signal(req.Signal))
	case "end":
		s.ended.Store(true)
		err = s.killAll()
	default:
		err = fmt.Errorf("unknown request %q", req.Op)
	}
	if err != nil {
		r.Error = err.Error()
	}
	s.send(r)
}

func (s *server) start(req wardenRequest) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	const flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	stdout, err := os.OpenFile(req.Stdout, flags, 0o600)
	if err != nil {
		return 0, err
	}
	defer stdout.Close()
	stderr, err := os.OpenFile(req.Stderr, flags, 0o600)
	if err != nil {
		return 0, err
	}
	defer stderr.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec(req.Path, append([]string{req.Path}, req.Args...), &syscall.ProcAttr{
		Dir: req.Dir, Env: req.Env, Files: []uintptr{null.Fd(), stdout.Fd(), stderr.Fd()},
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", req.Path, err)
	}
	s.started[pid] = true
	select {
	case s.spawned <- struct{}{}:
	default:
	}
	return pid, nil
}

// reap waits for children for ever: those that were started, and those that were inherited.
func (s *server) reap() {
	for {
		if !awaitChild() { // no child at all, so nothing below either: the next one can only be started
			<-s.spawned
			continue
		}
		for s.reapOne() {
		}
	}
}

func (s *server) reapOne() bool {
	var status syscall.WaitStatus
	s.mu.Lock()
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	mine := err == nil && s.started[pid]
	delete(s.started, pid)
	s.mu.Unlock()
	if err != nil || pid <= 0 {
		return false
	}
	if mine { // about an inherited one nobody asked
		e := Exit{Code: status.ExitStatus()}
		if status.Signaled() {
			e.Signal = status.Signal()
		}
		s.send(wardenReply{PID: pid, Exited: &e})
	}
	return true
}

// signal reaches descendants only, so that no mistake of a test can hit a foreign process.
func (s *server) signal(pid int, sig syscall.Signal) error {
	s.mu.Lock() // nothing is reaped meanwhile: a pid in the list still belongs to that process
	defer s.mu.Unlock()
	procs, err := descendants()
	if err != nil {
		return err
	}
	for _, p := range procs {
		if p.PID == pid {
			if err := syscall.Kill(pid, sig); err != nil || sig != syscall.SIGSTOP {
				return err
			}
			return AwaitStopped(pid)
		}
	}
	return fmt.Errorf("process %d was not started by this test, or is gone", pid)
}

func (s *server) killAll() error {
	var left []Proc
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		s.mu.Lock()
		procs, err := descendants()
		left = left[:0]
		for _, p := range procs {
			if p.State != "Z" {
				left = append(left, p)
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			}
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		<-time.After(time.Millisecond)
	}
	return fmt.Errorf("cannot kill: %v", left)
}
