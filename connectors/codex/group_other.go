//go:build !linux

package codex

import (
	"context"
	"os/exec"
	"syscall"
)

// runGroup runs cmd in a process group of its own and ends the whole group when cmd exits or ctx ends.
func runGroup(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // none left is fine
	stop := context.AfterFunc(ctx, kill)
	defer stop()
	err := cmd.Wait()
	kill()
	return err
}
