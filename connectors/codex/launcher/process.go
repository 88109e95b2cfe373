package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is one process, in the launcher's own process group so that the terminal's signals and the seat's stop
// ladder reach it.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once it has been waited for
}

func start(cmd *exec.Cmd) (*child, error) {
	cmd.SysProcAttr = childAttr()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(c.exited)
		_ = cmd.Wait() // the state says what happened
	}()
	return c, nil
}

// signal is harmless once the process has been waited for.
func (c *child) signal(s os.Signal) { _ = c.cmd.Process.Signal(s) }

// over reports whether the process has ended. It is so before exited is closed, which waits for its output as well.
func (c *child) over() bool {
	return errors.Is(c.cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// end asks, waits, and kills.
func (c *child) end(grace time.Duration) {
	c.signal(syscall.SIGTERM)
	timer := time.AfterFunc(grace, func() { c.signal(syscall.SIGKILL) })
	defer timer.Stop()
	<-c.exited
}

func (c *child) state() string { return c.cmd.ProcessState.String() }

// code is the exit code, or 128 and the signal's number.
func (c *child) code() int {
	if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}

// cappedFile takes the first maxLog bytes and drops the rest, so that a talkative server fills no disk and is never
// held up.
type cappedFile struct {
	mu   sync.Mutex
	f    *os.File
	left int
	last []byte // at most 2 KiB, for the message about a failure
}

func openLog(path string) (*cappedFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return &cappedFile{f: f, left: maxLog}, nil
}

func (c *cappedFile) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = append(c.last, p...)
	c.last = c.last[max(0, len(c.last)-2048):]
	if n := min(len(p), c.left); n > 0 {
		_, _ = c.f.Write(p[:n]) // a full disk must not end the server
		c.left -= n
	}
	return len(p), nil
}

// tail is the end of the output, safe for a terminal.
func (c *cappedFile) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	clean := strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(c.last), ""))
	return strings.ReplaceAll(strings.TrimSpace(clean), "\n", "\r\n")
}

func (c *cappedFile) Close() { _ = c.f.Close() }
