package lease

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Self completes the row of this process: its number, what makes that number exact where the system tells, a fresh
// claim, and the time. The caller says the rest.
func Self(row wire.ManagerLease) (wire.ManagerLease, error) {
	row.PID, row.Claim, row.Since = os.Getpid(), wire.NewUID(), time.Now().UnixMilli()
	id, err := seat.SelfIdentity()
	switch {
	case errors.Is(err, seat.ErrUnsupported): // nobody can prove that this process is dead; its lease ages
		return row, nil
	case err != nil:
		return row, fmt.Errorf("identify this process: %w", err)
	}
	row.StartTicks, row.BootID, row.PIDSpace = id.StartTicks, id.BootID, pidSpace()
	return row, nil
}

// pidSpace names the namespace in which process numbers of this process count: those of a container are not those of
// its machine, and share its boot.
func pidSpace() string {
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return name
}

// process says whether the process that wrote a row lives. It is known only of one of this boot and this namespace of
// process numbers; all others may live on another machine.
func process(row, self wire.ManagerLease) seat.Liveness {
	if row.StartTicks == 0 || row.BootID == "" || row.BootID != self.BootID || row.PIDSpace == "" || row.PIDSpace != self.PIDSpace {
		return seat.Unknown
	}
	live, _ := seat.Check(seat.Identity{PID: row.PID, StartTicks: row.StartTicks, BootID: row.BootID})
	return live
}

// Moment is a reading of both clocks of a machine. The one stands still while the machine sleeps, the other is set by
// people.
type Moment struct {
	Mono time.Duration // since some moment in the life of this process
	Wall time.Time
}

var begun = time.Now()

// now reads the clocks.
func now() Moment {
	t := time.Now()
	return Moment{Mono: t.Sub(begun), Wall: t.Round(0)}
}

// Since is the longer of the times that passed by either clock: a lease that may be over counts as over.
func (m Moment) Since(earlier Moment) time.Duration {
	return max(m.Mono-earlier.Mono, m.Wall.Sub(earlier.Wall))
}
