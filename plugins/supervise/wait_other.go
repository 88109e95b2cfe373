//go:build !linux

package supervise

import (
	"errors"

	"golang.org/x/sys/unix"
)

// waitExit waits until a child has ended, and leaves it a zombie: until it is reaped its pid, which is the
// number of its group, cannot be given to anyone else.
func waitExit(pid int) {
	kq, err := unix.Kqueue()
	if err != nil {
		return // it is waited for when it is reaped
	}
	defer unix.Close(kq)
	var change unix.Kevent_t
	unix.SetKevent(&change, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change.Fflags = unix.NOTE_EXIT
	for {
		_, err := unix.Kevent(kq, []unix.Kevent_t{change}, make([]unix.Kevent_t, 1), nil)
		if !errors.Is(err, unix.EINTR) {
			return // ended, or had ended already
		}
	}
}
