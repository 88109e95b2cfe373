package bridge

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerUID is the user at the other end.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("look at peer: %w", err)
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return -1, fmt.Errorf("look at peer: %w", err)
	}
	if cerr != nil {
		return -1, fmt.Errorf("look at peer: %w", cerr)
	}
	return int(cred.Uid), nil
}
