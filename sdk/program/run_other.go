//go:build !linux

package program

import (
	"context"
	"os/exec"
	"syscall"
)

// Run runs cmd in a process group of its own and ends the whole group when cmd exits or ctx ends, whatever its
// programs started. cmd.WaitDelay bounds the wait for pipes that one of them, gone to another group, still holds.
func Run(ctx context.Context, cmd *exec.Cmd) error {
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
