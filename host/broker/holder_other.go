//go:build !linux

package broker

import (
	"errors"
	"fmt"
	"syscall"
)

func isAddrInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

// holder cannot name the process here; lsof can.
func holder(port int) string {
	return fmt.Sprintf("another process (find it with: lsof -nP -iTCP:%d -sTCP:LISTEN)", port)
}
