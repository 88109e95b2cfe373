package main

import "golang.org/x/sys/unix"

// flushTTY throws away unread input; the argument 1 is FREAD.
func flushTTY(fd int) { _ = unix.IoctlSetPointerInt(fd, unix.TIOCFLUSH, 1) }
