package seat

import "errors"

// Identity identifies a process beyond the reuse of its number.
type Identity struct {
	PID        int
	StartTicks uint64 // field 22 of /proc/<pid>/stat
	BootID     string // /proc/sys/kernel/random/boot_id
}

// Proc is one process found by FindByNonce, SearchNonce or Descendants.
type Proc struct {
	Identity
	PPID    int
	Session int // SearchNonce only
	TTY     int // SearchNonce only: device number of the controlling terminal, 0 for none
	Comm    string
}

// Liveness is the verdict of Check.
type Liveness uint8

// Verdicts. Unknown is a value: it is never read as either of the others.
const (
	Unknown Liveness = iota
	Alive
	Dead
)

// String returns the verdict as a word.
func (l Liveness) String() string {
	switch l {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	}
	return "unknown"
}

// ErrProcessGone is returned by IdentityOf and SignalExact when the process is proven dead.
var ErrProcessGone = errors.New("seat: process is gone")

// ErrUnsupported is returned where this system cannot answer.
var ErrUnsupported = errors.New("seat: process identity is not supported on this system")
