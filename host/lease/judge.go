package lease

import (
	"errors"
	"fmt"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Verdict is how a process stands to the lease of its instance.
type Verdict string

// Verdicts. Only Replaced and Released are for good.
const (
	Unheld        Verdict = "unheld"         // not acquired yet
	Held          Verdict = "held"           // the last renewal was acknowledged
	HeldUnrenewed Verdict = "held-unrenewed" // the row is ours, and could not be written again
	Gone          Verdict = "gone"           // nobody that may live holds it: it is acquired again
	Unreadable    Verdict = "unreadable"     // what stands there is not known
	Replaced      Verdict = "replaced"       // another process holds it
	Released      Verdict = "released"       // it was given back, or is left to age
)

// Sight is what one look at the row of an instance showed. The zero value is a row that is not there.
type Sight struct {
	Row wire.ManagerLease // zero unless there is a readable row
	Rev uint64            // 0: no row
	// Err says why it is not known what stands there: the store did not answer, or (Rev is not 0) the row is not one.
	Err error
}

// sight makes one of what the store answered.
func sight(instanceID string, r bus.LeaseRow, err error) Sight {
	switch {
	case errors.Is(err, bus.ErrAbsent):
		return Sight{}
	case err != nil:
		return Sight{Err: err}
	}
	row, err := wire.DecodeManagerLease(instanceID, r.Value)
	if err != nil {
		return Sight{Rev: r.Rev, Err: fmt.Errorf("the row is not a lease: %w", err)}
	}
	return Sight{Row: row, Rev: r.Rev}
}

func (s Sight) absent() bool { return s.Rev == 0 && s.Err == nil }

// ours reports whether a process wrote the row itself. The number of a process is not enough: that of another machine,
// of another container or of a process before may be the same, so the claim says it, which is drawn for every process.
// A row without claim is nobody's here, and empty is never equal to empty.
func (s Sight) ours(self wire.ManagerLease) bool {
	return s.Rev != 0 && s.Err == nil && s.Row.Claim != "" && s.Row.Claim == self.Claim && s.Row.PID == self.PID
}

// judge decides how self stands to its lease by what it sees there. process says whether the process that the row
// names still lives; it is not looked at when the row is ours.
//
// A row that was left by a process which is proved dead holds nothing, unless its epoch is later than ours: then
// another incarnation has been, and ours is over.
func judge(s Sight, self wire.ManagerLease, process seat.Liveness) Verdict {
	switch {
	case s.Err != nil:
		return Unreadable
	case s.absent():
		return Gone
	case s.ours(self):
		return HeldUnrenewed
	case process == seat.Dead && s.Row.Epoch <= self.Epoch:
		return Gone
	}
	return Replaced
}

// step is what a process does next that does not hold the lease yet.
type step string

const (
	stepTake   step = "take"   // write the row, over the revision that is seen
	stepWait   step = "wait"   // look again in a moment
	stepRefuse step = "refuse" // another process holds it
	stepFail   step = "fail"   // the store does not answer
)

// found is what a process knows that comes to a lease.
type found struct {
	seen    Sight
	process seat.Liveness // of the process that the row names
	// moved: the row was written again while it was looked at.
	moved bool
	// aged: what is seen was seen for a whole TTL, by the clock of the one who looks.
	aged bool
	// remade: the rows of living holders may have been lost with their bucket.
	remade bool
}

// approach decides what a process does that comes to the lease of its instance at its start. It holds the workspace's
// lock by then.
//
// Evidence that the holder is gone ends the wait: its process is proved dead, or it did not renew for a whole TTL, in
// which it has stopped to count on its lease by its own clock. Evidence that it lives ends it too: it renewed, or its
// process lives in another workspace. One that lives and has the same workspace has let go of the lock: it is on its
// way out.
func approach(f found, self wire.ManagerLease) step {
	s := f.seen
	switch {
	case s.Err != nil && s.Rev == 0:
		return stepFail
	case s.absent():
		if f.remade && !f.aged {
			return stepWait
		}
		return stepTake
	case s.ours(self):
		return stepTake // the answer to our own write was lost
	case s.Err == nil && f.process == seat.Dead:
		return stepTake
	case f.moved:
		return stepRefuse
	case s.Err == nil && f.process == seat.Alive && s.Row.Root != self.Root:
		return stepRefuse
	case f.aged:
		return stepTake
	}
	return stepWait
}
