package supervise

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// waitAndKillGroup waits for the process and then kills what is left of its group. On the way it
// is left a zombie: until it is reaped its pid, which is the number of the group, cannot be given
// to anyone else.
func waitAndKillGroup(cmd *exec.Cmd) error {
	pid := cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	return cmd.Wait()
}
