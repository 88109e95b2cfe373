//go:build linux

package custody

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// terminalPair is the seat's end of the terminal and, until the agent was executed, the agent's: a
// master whose slave nobody holds reads EIO.
type terminalPair struct {
	fd    int      // raw master, for ioctl: File.Fd would make it blocking
	file  *os.File // the same descriptor, with the runtime's poller
	slave int      // -1 once closed
}

func openTerminal(rows, cols uint16) (*terminalPair, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New("open /dev/ptmx: " + err.Error())
	}
	slave, err := openSlave(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	p := &terminalPair{fd: fd, slave: slave}
	err = p.resize(rows, cols)
	if err == nil {
		err = p.utf8()
	}
	if err != nil {
		_ = unix.Close(fd)
		_ = unix.Close(slave)
		return nil, errors.New("set up terminal: " + err.Error())
	}
	p.file = os.NewFile(uintptr(fd), "/dev/ptmx")
	return p, nil
}

func openSlave(master int) (int, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, errors.New("unlock terminal: " + err.Error())
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	// TIOCGPTPEER finds the slave whatever is mounted on /dev/pts here.
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if errno == 0 {
		return int(fd), nil
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return -1, errors.New("number of terminal: " + err.Error())
	}
	slave, err := unix.Open("/dev/pts/"+strconv.Itoa(n), flags, 0)
	if err != nil {
		return -1, errors.New("open /dev/pts/" + strconv.Itoa(n) + ": " + err.Error())
	}
	return slave, nil
}

func (p *terminalPair) resize(rows, cols uint16) error {
	return unix.IoctlSetWinsize(p.fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
}

// utf8 makes erase in line editing take a whole character.
func (p *terminalPair) utf8() error {
	t, err := unix.IoctlGetTermios(p.slave, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag |= unix.IUTF8
	return unix.IoctlSetTermios(p.slave, unix.TCSETS, t)
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
