package host

import (
	"context"
	"time"

	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// lives is what gives the lives of seats what they have on the mesh, and takes it away again.
type lives struct {
	*provision.Provisioner
	*retire.Retirer
	sweeper *retire.Sweeper
}

// sweepEvery is how often it is looked what dead processes have left of lives, and sweepAgain how soon when the mesh did
// not say, or the runtimes had not said yet which seats there are.
const (
	sweepEvery = 10 * time.Minute
	sweepAgain = 15 * time.Second
)

// openLives prepares the lives of seats; in an open space they have none. Nothing is swept yet.
func (h *Host) openLives() (seat.Lives, error) {
	if h.auth == nil {
		return nil, nil
	}
	l := &lives{}
	var err error
	l.Retirer, err = retire.New(retire.Config{
		Auth: h.auth, Space: h.cfg.Space, Instance: h.inst.ID, Epoch: h.inst.Epoch, Store: h.auth.store, Log: h.log.Named("retire"),
		Reap: func(ctx context.Context, ref wire.RuntimeRef) error { return h.seats.Reap(ctx, ref) },
	})
	if err != nil {
		return nil, err
	}
	h.lives = l // it is closed from here on
	l.Provisioner, err = provision.New(provision.Config{
		Auth: h.auth, Space: h.cfg.Space, Instance: h.inst.ID, Incarnation: wire.NewUID(), Store: h.auth.store, Dir: h.auth.store.Dir(),
		Retire: l.Retirer, Log: h.log.Named("provision"),
	})
	if err != nil {
		return nil, err
	}
	l.sweeper = retire.NewSweeper(retire.SweeperConfig{
		Rows: l.Rows, Row: l.Row, Retire: l.Retire, Instance: h.inst.ID,
		Live: func(life provision.Life) bool { return h.seats.HasLife(life) },
		May:  func(context.Context) error { return h.lease.Check() }, Log: h.log.Named("sweep"),
	})
	return l, nil
}

// sweep brings to its end what dead processes have left, behind ready: until then nobody gets the names of it.
func (h *Host) sweep(ctx context.Context) {
	if h.lives == nil {
		return
	}
	for kind := retire.SweepStartup; ; {
		listed := h.seats.Listed() // before slots are read: as many as were left alone then
		// It logs by itself why it came to no plan. Without a mesh it comes to none.
		swept := h.bus.Connected() && h.lives.sweeper.Sweep(ctx, kind) == nil
		var wait time.Duration
		kind, wait = nextSweep(kind, swept, listed)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// nextSweep is the sweep that follows one of a kind, and the wait before it. swept: that one came to a plan; listed: it was
// known which seats there are. Otherwise any slot may be that of one of them, and all were left alone.
func nextSweep(kind string, swept, listed bool) (next string, wait time.Duration) {
	switch {
	case !swept:
		return kind, sweepAgain
	case !listed:
		return retire.SweepAdoption, sweepAgain
	}
	return retire.SweepScheduled, sweepEvery
}

// reconciliation is how the sweeps stand; nil where there are no lives.
func (h *Host) reconciliation() *wire.StaticReconciliation {
	if h.lives == nil {
		return nil
	}
	st := h.lives.sweeper.Status()
	return &st
}

// closeSweeper lets no sweep begin any more, and closeRetirement no end of a life.
func (l *lives) closeSweeper() {
	if l != nil && l.sweeper != nil {
		l.sweeper.Stop()
	}
}

func (l *lives) closeRetirement() {
	if l != nil && l.Retirer != nil {
		l.Retirer.Close()
	}
}
