package custodied

import (
	"context"
	"fmt"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Terminal is what a runtime knows of a seat's terminal beside custody. Nothing of it decides what a seat
// is; only what End says of a server of the seat's own is part of the proof that nothing lives. Bare is the
// terminal of which custody knows everything.
type Terminal interface {
	// ReadPlace reads what the runtime keeps in the seat's directory. It is called whenever the seat was
	// read.
	ReadPlace()
	// Running completes the status of a seat that lives.
	Running(ctx context.Context, st *sdk.SeatStatus)
	// Carry completes what custody told of a seat that lives by what was last told of it.
	Carry(st *sdk.SeatStatus, last sdk.SeatStatus)
	// Ended completes the exit record of a seat in memory.
	Ended(ctx context.Context, x *record.Exit)
	// LastWord is what is said of how a lost custody process ended, for a sentence; it may be empty.
	LastWord(ctx context.Context) string
	// Starting names what lives of a start that was interrupted before custody wrote a record, or nothing.
	Starting(ctx context.Context) string
	// End ends what outlives custody, and proves it; how is empty when there was nothing.
	End(ctx context.Context) (how string, err error)
	// Sockets are the paths to remove with the seat, beside that of custody.
	Sockets() []string
}

// Bare is a terminal that custody holds itself.
type Bare struct{}

// These are the methods of Terminal: there is nothing to add.
func (Bare) ReadPlace()                               {}
func (Bare) Running(context.Context, *sdk.SeatStatus) {}
func (Bare) Carry(*sdk.SeatStatus, sdk.SeatStatus)    {}
func (Bare) Ended(context.Context, *record.Exit)      {}
func (Bare) LastWord(context.Context) string          { return "" }
func (Bare) Starting(context.Context) string          { return "" }
func (Bare) End(context.Context) (string, error)      { return "", nil }
func (Bare) Sockets() []string                        { return nil }

// Kind is a runtime whose seats are custodied.
type Kind struct {
	Name          string // of the plugin
	HandleVersion uint32
	Points
}

// Points are the places where a test may stop, fail or kill a runtime. One that is nil is never hit.
type Points struct {
	AdoptBegin, AdoptWelcomed, AdoptCommit, AdoptCommitted *failpoint.Point
	AdoptLost, AdoptSwept, AdoptRecorded                   *failpoint.Point

	ReapBegin, ReapTerm, ReapKill, ReapExited, ReapAcked, ReapGone *failpoint.Point
	ReapServer, ReapScanned, ReapSocket, ReapRenamed, ReapRemoved  *failpoint.Point
}

func hit(p *failpoint.Point) error {
	if p == nil {
		return nil
	}
	return p.Hit()
}

// Unavailable is sdk.ErrUnavailable that may be tried again.
func Unavailable(format string, args ...any) error {
	e := sdk.Errorf(sdk.ErrUnavailable, format, args...).(*sdk.Error)
	e.Retryable = true
	return e
}

// Unproven is sdk.ErrUnproven: something may live.
func Unproven(format string, args ...any) error {
	return &sdk.Error{Code: sdk.ErrUnproven, Outcome: sdk.OutcomeUnknown, Retryable: true, Detail: fmt.Sprintf(format, args...)}
}

// IdentityOf and SeatIdentity turn process identities into each other.
func IdentityOf(id seat.Identity) sdk.Identity {
	return sdk.Identity{PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID}
}

// SeatIdentity is the inverse of IdentityOf.
func SeatIdentity(id sdk.Identity) seat.Identity {
	return seat.Identity{PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID}
}
