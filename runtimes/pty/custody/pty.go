//go:build linux

package custody

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminalPair is the seat's end of the terminal and, until the agent was executed, the agent's: a
// master whose slave nobody holds reads EIO.
type terminalPair struct {
	fd    int // raw master, for ioctl: File.Fd would make it blocking
	file  *os.File
	raw   syscall.RawConn // the same descriptor, with the runtime's poller
	slave int             // -1 once closed
}

func openTerminal(rows, cols uint16) (*terminalPair, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New("open /dev/ptmx: " + err.Error())
	}
	p := &terminalPair{fd: fd, file: os.NewFile(uintptr(fd), "/dev/ptmx"), slave: -1}
	if err := p.setUp(rows, cols); err != nil {
		p.close()
		return nil, errors.New("set up terminal: " + err.Error())
	}
	return p, nil
}

func (p *terminalPair) setUp(rows, cols uint16) (err error) {
	if p.raw, err = p.file.SyscallConn(); err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(p.fd, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	// TIOCGPTPEER finds the slave whatever is mounted on /dev/pts here.
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return errno
	}
	p.slave = int(slave)
	t, err := p.modes()
	if err != nil {
		return err
	}
	t.Iflag |= unix.IUTF8 // erase in line editing takes a whole character
	if err := unix.IoctlSetTermios(p.slave, unix.TCSETS, t); err != nil {
		return err
	}
	return p.resize(rows, cols)
}

func (p *terminalPair) resize(rows, cols uint16) error {
	return unix.IoctlSetWinsize(p.fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
}

// modes returns the terminal settings the agent has chosen.
func (p *terminalPair) modes() (*unix.Termios, error) { return unix.IoctlGetTermios(p.fd, unix.TCGETS) }

// foreground returns the foreground process group, 0 when there is none.
func (p *terminalPair) foreground() int {
	pgid, err := unix.IoctlGetInt(p.fd, unix.TIOCGPGRP)
	if err != nil || pgid <= 1 {
		return 0
	}
	return pgid
}

func (p *terminalPair) closeSlave() {
	if p.slave >= 0 {
		_ = unix.Close(p.slave)
		p.slave = -1
	}
}

func (p *terminalPair) close() {
	p.closeSlave()
	_ = p.file.Close()
}
