package codex

import (
	"context"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// runGroup runs cmd in a process group of its own and ends the whole group when cmd exits or ctx ends.
// The group is killed while its leader is still a zombie, so the number cannot have become another's.
func runGroup(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}()
	select {
	case <-exited:
	case <-ctx.Done():
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // none left is fine
	<-exited
	return cmd.Wait()
}
