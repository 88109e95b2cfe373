//go:build !linux

package supervise

import (
	"os/exec"
	"syscall"
)

// waitAndKillGroup waits for the process and then kills what is left of its group. Here it cannot
// wait without reaping; a group that was given the number anew in that moment would be hit.
func waitAndKillGroup(cmd *exec.Cmd) error {
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return err
}
