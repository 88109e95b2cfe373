package supervise

import (
	"errors"

	"golang.org/x/sys/unix"
)

// waitExit waits until a child has ended, and leaves it a zombie: until it is reaped its pid, which is the
// number of its group, cannot be given to anyone else.
func waitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
