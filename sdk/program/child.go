package program

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Child is a process that runs for as long as the caller wants: in the caller's own process group, so that the signals
// of the terminal and the stop ladder of the seat reach it.
type Child struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts cmd, sets its SysProcAttr and waits for it in the background. On Linux the child is told to end when the
// thread that started it does: call it from a goroutine that is locked to the main thread.
func Start(cmd *exec.Cmd) (*Child, error) {
	cmd.SysProcAttr = childAttr()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &Child{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(c.exited)
		_ = cmd.Wait() // the state says what happened
	}()
	return c, nil
}

// Exited is closed once the child and its output were waited for.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Ended reports whether Exited is closed.
func (c *Child) Ended() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// Signal is harmless once the process has been waited for.
func (c *Child) Signal(s os.Signal) { _ = c.cmd.Process.Signal(s) }

// Over reports whether the process has ended. It is so before Exited is closed, which waits for its output as well.
func (c *Child) Over() bool {
	return errors.Is(c.cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// End sends TERM, after grace KILL, and returns when Exited is closed.
func (c *Child) End(grace time.Duration) {
	c.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(grace, func() { c.Signal(syscall.SIGKILL) })
	defer timer.Stop()
	<-c.exited
}

// State says in words how it ended; call it after Exited.
func (c *Child) State() string { return c.cmd.ProcessState.String() }

// Code is the exit code, or 128 and the signal's number; call it after Exited.
func (c *Child) Code() int {
	if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}
