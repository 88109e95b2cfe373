//go:build linux || darwin

package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

func ioctl(req uintptr, arg unsafe.Pointer) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, os.Stdin.Fd(), req, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

// setRaw switches every translation of the terminal off, or the usual ones back on.
func setRaw(raw bool) error {
	var t syscall.Termios
	if err := ioctl(ioctlGetTermios, unsafe.Pointer(&t)); err != nil {
		return fmt.Errorf("get terminal modes: %w", err)
	}
	if raw {
		t.Iflag &^= syscall.IGNBRK | syscall.BRKINT | syscall.PARMRK | syscall.ISTRIP | syscall.INLCR |
			syscall.IGNCR | syscall.ICRNL | syscall.IXON
		t.Oflag &^= syscall.OPOST
		t.Lflag &^= syscall.ECHO | syscall.ECHONL | syscall.ICANON | syscall.ISIG | syscall.IEXTEN
		t.Cc[syscall.VMIN], t.Cc[syscall.VTIME] = 1, 0
	} else {
		t.Iflag |= syscall.ICRNL | syscall.IXON
		t.Oflag |= syscall.OPOST
		t.Lflag |= syscall.ECHO | syscall.ICANON | syscall.ISIG | syscall.IEXTEN
	}
	if err := ioctl(ioctlSetTermios, unsafe.Pointer(&t)); err != nil {
		return fmt.Errorf("set terminal modes: %w", err)
	}
	return nil
}

func printSize() error {
	show := func() error {
		var size struct{ rows, cols, x, y uint16 }
		if err := ioctl(syscall.TIOCGWINSZ, unsafe.Pointer(&size)); err != nil {
			return fmt.Errorf("get terminal size: %w", err)
		}
		return say(fmt.Sprintf("size %dx%d\n", size.rows, size.cols))
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for range changed {
			_ = show()
		}
	}()
	return show()
}
