// Package retire ends the life of a seat on its mesh, for good and with proof: its credentials are refused by every
// server, its process is gone, its durables and files are taken away, and only then its alias is free. Whoever
// interrupts that, or finds it interrupted, goes on under the same operation, whose id follows from the life.
//
// The order, each step under the condition that the one before it holds:
//
//	slot terminalizing → gate frozen → head retiring
//	→ credentials revoked and connections ended, process reaped, file removed, durables removed (each is tried,
//	  whatever became of the others; all of them have to succeed)
//	→ slot says so → nothing is owed → frontier → gate retired → head retired → slot retired
//
// A name is held from the moment its end is decided until the last of these.
package retire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Errors of Retire.
var (
	// ErrForeign: the slot is another instance's, or another operation holds the life. Nothing was changed.
	ErrForeign = errors.New("it is not ours to end")
	// ErrPending: the end is decided and goes on; the caller did not wait for it.
	ErrPending = errors.New("its end is not complete yet")
	// ErrReplaced: another process is the host of this instance now. Nothing was changed.
	ErrReplaced = errors.New("another process is the host of this instance now")
	// ErrStopped: this host goes down. Whoever comes next goes on.
	ErrStopped = errors.New("the host stops")
)

// Bounds of the parts of one attempt. None of them ends the hold of a name.
const (
	recordsBound     = 15 * time.Second
	revokeBound      = 30 * time.Second
	reapBound        = 30 * time.Second
	deprovisionBound = 15 * time.Second
)

// Authority is what of the authority of the space is used here.
type Authority interface {
	With(ctx context.Context, r trust.Request, do func(context.Context, *bus.Bus) error) error
	Open(ctx context.Context, r trust.Request) (b *bus.Bus, end func(), err error)
	Revoke(ctx context.Context, of trust.Life) (trust.Revoked, error)
}

// Config of a Retirer.
type Config struct {
	Auth     Authority
	Space    string
	Instance string // id of this host's instance
	// Epoch is that of this process. Once a later one is registered, nothing is ended by this one: what its successor
	// has begun is not known here. 0: nobody registers.
	Epoch uint64
	Store trust.SecretStore
	// Reap ends what is found by a custody reference. It returns nil only with proof that no process of it is
	// left; that nothing was ever started is such a proof.
	Reap func(ctx context.Context, ref wire.RuntimeRef) error
	// Retired is told of every life that came to its end here. May be nil.
	Retired func(provision.Life)
	Log     hclog.Logger
	Now     func() time.Time
}

// Hold is a name whose holder is on its way out.
type Hold struct {
	Life  provision.Life
	OpID  string
	Since time.Time
	// Authority, Footprint and Lifecycle say which of the three are done. The name is free when all are.
	Authority, Footprint, Lifecycle bool
	Running                         bool   // an attempt is under way
	LastError                       string // of the last attempt
	Attempts                        int
}

// Retirer ends lives. At most one attempt runs for a life; whoever asks meanwhile waits for that one.
type Retirer struct {
	cfg  Config
	life context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	holds   map[string]*hold // by alias
	flights map[flightKey]*flight
}

type hold struct{ Hold }

type flightKey struct{ alias, uid string }

// flight is one attempt. err is set before done is closed.
type flight struct {
	done chan struct{}
	err  error
}

// New returns a Retirer. It reaches for nothing yet.
func New(cfg Config) (*Retirer, error) {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Retired == nil {
		cfg.Retired = func(provision.Life) {}
	}
	switch {
	case cfg.Auth == nil || cfg.Store == nil || cfg.Reap == nil:
		return nil, errors.New("open retirement: no authority, no store, or nobody who reaps")
	case !wire.ValidUID(cfg.Instance):
		return nil, fmt.Errorf("open retirement: instance id %q is not 26 to 32 characters [a-z0-9]", cfg.Instance)
	}
	r := &Retirer{cfg: cfg, holds: map[string]*hold{}, flights: map[flightKey]*flight{}}
	r.life, r.stop = context.WithCancel(context.Background())
	return r, nil
}

// Close lets no attempt begin any more, ends those that run, and waits for them.
func (r *Retirer) Close() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.stop()
	r.wg.Wait()
}

// Retire ends a life, and returns when nothing of it is left. From the moment it is called until then the name is
// held; an error leaves it held. It is idempotent: a life that is over is success. One of which the mesh has no trace is
// not: whoever lost its rows has lost who may end its credentials, too. It goes on when ctx ends.
//
// Errors: ErrForeign, ErrReplaced, ErrPending, ErrStopped, bus.ErrCorrupt; what keeps the single parts from their end, each named.
func (r *Retirer) Retire(ctx context.Context, l provision.Life) error { return r.end(ctx, l, false) }

// Discard is Retire of a life whose provisioning failed, so that there may be no trace of it. Then it is over.
//
// Errors: as of Retire.
func (r *Retirer) Discard(ctx context.Context, l provision.Life) error { return r.end(ctx, l, true) }

func (r *Retirer) end(ctx context.Context, l provision.Life, draft bool) error {
	f, err := r.fly(l, draft)
	if err != nil {
		return err
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return fmt.Errorf("retire %s: %w: %w", l.Alias, ErrPending, context.Cause(ctx))
	}
}

// Redrive has another try at the end of whoever holds a name, or waits for the one that is under way. A name that
// nobody holds is success.
//
// Errors: as of Retire.
func (r *Retirer) Redrive(ctx context.Context, alias string) error {
	h, ok := r.Held(alias)
	if !ok {
		return nil
	}
	return r.Retire(ctx, h.Life)
}

// Clear makes an alias free, as far as that is ours: whoever was on its way out, in this process or an earlier one,
// gets another try. live says whether a seat of this process has a life.
//
// Errors: a *provision.HeldError (a seat that lives has it, or another host's), as of Retire, those of Row.
func (r *Retirer) Clear(ctx context.Context, owner, alias string, live func(provision.Life) bool) error {
	if err := r.Redrive(ctx, alias); err != nil {
		return err
	}
	row, err := r.Row(ctx, wire.SlotKey(owner, alias))
	switch {
	case errors.Is(err, bus.ErrAbsent):
		return nil
	case err != nil:
		return err
	}
	switch PlanSlot(row, r.cfg.Instance, live) {
	case PlanRetired:
		return nil
	case PlanRetire:
		return r.Retire(ctx, provision.LifeOf(row.Slot))
	case PlanRefuse:
		return fmt.Errorf("read slot of %s: %w", alias, row.Err)
	}
	return &provision.HeldError{Slot: row.Slot, Foreign: row.Slot.OwnerInstanceID != r.cfg.Instance}
}

// Held says who holds a name on its way out.
func (r *Retirer) Held(alias string) (Hold, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, ok := r.holds[alias]
	if !ok {
		return Hold{}, false
	}
	return h.Hold, true
}

// Holds lists all of them, by alias.
func (r *Retirer) Holds() []Hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Hold, 0, len(r.holds))
	for _, h := range r.holds {
		out = append(out, h.Hold)
	}
	slices.SortFunc(out, func(a, b Hold) int { return strings.Compare(a.Life.Alias, b.Life.Alias) })
	return out
}

// fly joins the attempt that is under way, or begins one.
func (r *Retirer) fly(l provision.Life, draft bool) (*flight, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := flightKey{l.Alias, l.UID}
	if f, ok := r.flights[key]; ok {
		return f, nil
	}
	if r.stopped {
		return nil, fmt.Errorf("retire %s: %w", l.Alias, ErrStopped)
	}
	h, ok := r.holds[l.Alias]
	if !ok || h.Life.UID != l.UID {
		// A late attempt for a life before the one that holds the name now has its own end, and holds nothing.
		h = &hold{Hold{Life: l, OpID: wire.RetirementOpID(l.UID), Since: r.cfg.Now()}}
		if !ok {
			r.holds[l.Alias] = h
		}
	}
	h.Running, h.Attempts = true, h.Attempts+1
	f := &flight{done: make(chan struct{})}
	r.flights[key] = f
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		err := r.drive(r.life, &barrier{r: r, l: l, hold: h, draft: draft})
		if err != nil && r.life.Err() != nil {
			err = fmt.Errorf("%w: %w", ErrStopped, err)
		}
		if err != nil {
			err = fmt.Errorf("retire %s: %w", l.Alias, err)
			r.cfg.Log.Warn("the end of a seat is not complete; its name is held", "seat", l.Alias, "uid", l.UID, "err", err)
		}
		r.land(key, f, h, err)
		if err == nil {
			r.cfg.Retired(l)
		}
		close(f.done)
	}()
	return f, nil
}

// land settles the hold of an attempt that is over. Only the life that the hold is of gives it up.
func (r *Retirer) land(key flightKey, f *flight, h *hold, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.err = err
	delete(r.flights, key)
	h.Running = false
	var held *provision.HeldError
	if err != nil && !errors.As(err, &held) {
		h.LastError = err.Error()
		return
	}
	// It is over, or another host's, which is not for us to hold.
	if now, ok := r.holds[key.alias]; ok && now.Life.UID == key.uid {
		delete(r.holds, key.alias)
	}
}

// note changes a hold.
func (r *Retirer) note(set func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	set()
}
