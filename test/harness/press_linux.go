package harness

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// unread is how many bytes were written to the master of a terminal and not read by its program; ok is false when tty
// is none.
func unread(tty io.Writer) (n int, ok bool) {
	f, isFile := tty.(*os.File)
	if !isFile {
		return 0, false
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, false
	}
	number, ioctlErr := 0, error(nil)
	if err := conn.Control(func(fd uintptr) { number, ioctlErr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN) }); err != nil || ioctlErr != nil {
		return 0, false
	}
	pts, err := unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, false // nobody has it any more
	}
	defer func() { _ = unix.Close(pts) }() // nothing was written
	n, err = unix.IoctlGetInt(pts, unix.TIOCINQ)
	return n, err == nil
}
