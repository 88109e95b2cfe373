package lease

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Life is what the lease of an instance says to others.
type Life string

// Values of Life.
const (
	// Live: the lease is held; a process of the instance lived within the last TTL.
	Live Life = "live"
	// Lapsed: nobody holds it. That is no proof that any process is dead: one that was stopped, or cut off, may go on.
	Lapsed Life = "lapsed"
	// Uncertain: it is not known what stands there, and neither of the others may be concluded.
	Uncertain Life = "uncertain"
)

// Observed is the lease of one instance as another process sees it.
type Observed struct {
	InstanceID string
	Life       Life
	Row        wire.ManagerLease // of a live one
	Rev        uint64            // of the row: one that moves is being renewed
	Err        error             // of an uncertain one
}

// Reader reads leases; bus.Leases implements it.
type Reader interface {
	Get(ctx context.Context, instanceID string) (bus.LeaseRow, error)
	List(ctx context.Context) ([]bus.LeaseRow, error)
}

// Observe looks at the lease of an instance, from the leader of its bucket.
func Observe(ctx context.Context, r Reader, instanceID string) Observed {
	ctx, cancel := context.WithTimeout(ctx, wire.LeaseAttempt)
	defer cancel()
	row, err := r.Get(ctx, instanceID)
	return observed(instanceID, sight(instanceID, row, err))
}

// ObserveAll looks at the leases that are held in the space.
//
// Errors: those of bus.Leases.List, and then they are not all of them.
func ObserveAll(ctx context.Context, r Reader) ([]Observed, error) {
	rows, err := r.List(ctx)
	out := make([]Observed, 0, len(rows))
	for _, row := range rows {
		out = append(out, observed(row.InstanceID, sight(row.InstanceID, row, nil)))
	}
	return out, err
}

func observed(instanceID string, s Sight) Observed {
	o := Observed{InstanceID: instanceID, Row: s.Row, Rev: s.Rev, Err: s.Err}
	switch {
	case s.Err != nil:
		o.Life = Uncertain
	case s.absent():
		o.Life = Lapsed
	default:
		o.Life = Live
	}
	return o
}
