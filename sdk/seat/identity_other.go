//go:build !linux

package seat

import "syscall"

// SelfIdentity is not supported here.
func SelfIdentity() (Identity, error) { return Identity{}, ErrUnsupported }

// IdentityOf is not supported here.
func IdentityOf(int) (Identity, error) { return Identity{}, ErrUnsupported }

// Check answers Unknown: without an exact identity neither life nor death can be proven.
func Check(Identity) (Liveness, string) { return Unknown, ErrUnsupported.Error() }

// SignalExact is not supported here.
func SignalExact(Identity, syscall.Signal) error { return ErrUnsupported }

// FindByNonce is not supported here.
func FindByNonce(string) ([]Proc, error) { return nil, ErrUnsupported }

// SearchNonce is not supported here.
func SearchNonce(string) (found, hidden []Proc, err error) { return nil, nil, ErrUnsupported }

// Descendants is not supported here.
func Descendants(int) ([]Proc, error) { return nil, ErrUnsupported }

// ReadProc is not supported here.
func ReadProc(int) (Stat, error) { return Stat{}, ErrUnsupported }

// Stat is what /proc/<pid>/stat says of a process.
type Stat struct {
	Comm       string
	State      byte
	PPID       int
	Session    int
	TTY        int
	StartTicks uint64
}
