// Package lease holds the liveness lease of one manager instance by evidence.
//
// The lease is a row under the instance's id in a bucket whose rows the broker drops after wire.LeaseTTL
// (wire.ManagerLease, bus.Leases). It says that a process of this instance lived that long ago. Two questions are kept
// apart. Who holds it is decided by what stands in the row, never by a write that was not answered: a lost answer,
// a slow broker or an outage is no loss. Whether anything new may be started is decided by the clock of the holder:
// no longer than a TTL after the beginning of the last renewal that was acknowledged, since from then on another
// process may hold it. So at no time do two processes start something for one instance. What runs already is never ended
// for a lease.
//
// What a holder does on each verdict:
//
//	held            everything
//	held-unrenewed  the same, until its TTL is over; the row is written again with the revision that was read
//	unreadable      the same, until its TTL is over
//	gone            nothing new; the row is created again, and then the registry is asked whether another incarnation was there
//	replaced        nothing at all: Lost is called once, and the row is not touched again
//
// A lease that is being released is never acquired again.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Places where the life of a lease may be cut short.
var (
	fpAcquiring = failpoint.New("host.lease.acquiring") // decided to take it, and nothing is written
	fpAcquired  = failpoint.New("host.lease.acquired")  // written, and nobody was told
	fpRenewing  = failpoint.New("host.lease.renewing")
	fpRenewed   = failpoint.New("host.lease.renewed")
	fpReread    = failpoint.New("host.lease.reread") // a renewal was not acknowledged, and the row was read
	fpReturned  = failpoint.New("host.lease.returned")
	fpReleasing = failpoint.New("host.lease.releasing") // the row was read, and is about to be deleted
	fpReleased  = failpoint.New("host.lease.released")
)

// Errors.
var (
	// ErrHeld: another process holds the lease of this instance. See *HeldError.
	ErrHeld = errors.New("another host holds the lease of this instance")
	// ErrUnproven: this process cannot prove at the moment that it holds its lease.
	ErrUnproven = errors.New("this host cannot prove that it still holds its lease")
	// ErrReleased: the lease was released, or is being.
	ErrReleased = errors.New("the lease was released")
)

// HeldError names who holds the lease.
type HeldError struct {
	Row wire.ManagerLease // zero when the row cannot be read
	how string            // how that is known
	why error
}

// Error names the holder, and what can be done.
func (e *HeldError) Error() string {
	if e.Row.Holder == "" {
		return fmt.Sprintf("%v, whoever it is: %v; find out who writes that row, and stop it", ErrHeld, e.why)
	}
	return fmt.Sprintf("%v: process %d (runtime %s, workspace %s, since %s) %s. Stop that one, with cotal-host stop --root %s on its machine; "+
		"a second host of the space needs a workspace of its own, which is not a copy of another one's .cotal/host",
		ErrHeld, e.Row.PID, e.Row.Runtime, e.Row.Root, time.UnixMilli(e.Row.Since).Format(time.DateTime), e.how, e.Row.Root)
}

// Is reports ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Store keeps the leases of a space; bus.Leases implements it.
type Store interface {
	Get(ctx context.Context, instanceID string) (bus.LeaseRow, error)
	Create(ctx context.Context, instanceID string, value []byte) (uint64, error)
	Update(ctx context.Context, instanceID string, value []byte, rev uint64) (uint64, error)
	Delete(ctx context.Context, instanceID string, rev uint64) error
	// Remade reports whether rows of living holders may have been lost with their bucket.
	Remade() bool
}

// Config says what is held, and by whom.
type Config struct {
	Store Store
	Self  wire.ManagerLease // completed by Self
	Space string            // for messages
	// Own: the store is inside this process, which holds the lock of the workspace. Whoever wrote into it from this
	// workspace in an earlier epoch has let go of that lock, wherever its process was: as in a container that was
	// restarted.
	Own bool
	// Fence says whether this incarnation still is the registered one. It is asked after the lease was away and is
	// held again, before anything new is started. An error that Over recognises ends the lease; any other one is asked
	// again. Nil: nothing is registered.
	Fence func(context.Context) error
	Over  func(error) bool
	// Lost is told, once, that another process holds the lease, or that another incarnation is registered. It is
	// called from a goroutine of its own.
	Lost func(error)
	// Waiting is told, once, that Acquire has to wait for the lease of another process to age.
	Waiting func(row wire.ManagerLease, atMost time.Duration)
	// Up gets a value when the server was lost and is back: then the lease is renewed at once.
	Up  <-chan struct{}
	Log hclog.Logger

	// TTL, Every and Attempt are those of the contract unless a test shortens them.
	TTL, Every, Attempt time.Duration
	// Now reads the clocks, and Process says whether the process of a row lives; both for tests.
	Now     func() Moment
	Process func(row, self wire.ManagerLease) seat.Liveness
}

// Lease is the lease of this instance as this process has it. Safe for concurrent use.
type Lease struct {
	cfg   Config
	value []byte
	turn  chan struct{} // a token: whoever has it exchanges with the store

	stop  context.CancelFunc // of the renewals
	kept  sync.WaitGroup
	begin sync.Once

	mu       sync.Mutex
	verdict  Verdict
	why      string // of the verdict
	entered  Moment // when it became so
	rev      uint64 // 0: the row is to be created
	renewed  Moment // beginning of the last write that was acknowledged
	ever     bool   // there was one
	checked  bool   // the registry was asked since the lease was away
	stopping bool
	lost     error
	changed  chan struct{} // closed and made anew with every change
}

// New makes a lease that is not acquired yet.
func New(cfg Config) (*Lease, error) {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.TTL == 0 {
		cfg.TTL = wire.LeaseTTL
	}
	if cfg.Every == 0 {
		cfg.Every = wire.LeaseRenew
	}
	if cfg.Attempt == 0 {
		cfg.Attempt = wire.LeaseAttempt
	}
	if cfg.Now == nil {
		cfg.Now = now
	}
	if cfg.Process == nil {
		cfg.Process = process
	}
	if cfg.Self.Claim == "" {
		return nil, errors.New("make lease: the row has no claim; complete it with Self")
	}
	value, err := cfg.Self.Encode()
	if err != nil {
		return nil, fmt.Errorf("make lease: %w", err)
	}
	return &Lease{
		cfg: cfg, value: value, turn: make(chan struct{}, 1), verdict: Unheld, entered: cfg.Now(), checked: true, changed: make(chan struct{}),
	}, nil
}

// pollFirst and pollMost are between two looks at the lease of another process. One that is on its way out needs
// milliseconds.
const (
	pollFirst = 10 * time.Millisecond
	pollMost  = 250 * time.Millisecond
)

// Acquire takes the lease, once, before anything is served. It waits for the lease of another process to age where
// neither its death nor its life can be proved: for a TTL at most.
//
// Errors: *HeldError (errors.Is ErrHeld); bus.ErrUnavailable and bus.ErrStoreUnfit, and then Start goes on with it; that
// of ctx.
func (l *Lease) Acquire(ctx context.Context) error {
	if !l.take(ctx) {
		return fmt.Errorf("acquire lease: %w", ctx.Err())
	}
	defer l.give()
	if err := l.acquire(ctx); err != nil {
		return fmt.Errorf("acquire lease of instance %s: %w", l.cfg.Self.InstanceID, err)
	}
	return nil
}

func (l *Lease) acquire(ctx context.Context) error {
	var first Sight
	var since time.Duration // when first was seen, by the clock that only goes
	looked, told := false, false
	for poll := pollFirst; ; poll = min(2*poll, pollMost) {
		seen := l.look(ctx)
		at := l.cfg.Now().Mono
		f := found{seen: seen, process: l.process(seen), remade: l.cfg.Store.Remade()}
		switch {
		case !looked || first.Rev != seen.Rev:
			// A row that went away, or came, is not one that was renewed.
			f.moved = looked && first.Rev != 0 && seen.Rev != 0
			first, since, looked = seen, at, true
		default:
			f.aged = at-since >= l.cfg.TTL
		}
		switch approach(f, l.cfg.Self) {
		case stepTake:
			_ = fpAcquiring.Hit()
			begin := l.cfg.Now()
			rev, err := l.write(ctx, seen.Rev)
			switch {
			case err == nil:
				_ = fpAcquired.Hit()
				l.confirm(rev, begin)
				return nil
			case errors.Is(err, bus.ErrConflict):
				continue // somebody was quicker, or the answer to our own write was lost: look
			default:
				l.note(Unheld, err)
				return err
			}
		case stepRefuse:
			how := "is alive"
			if f.moved {
				how = "renews it"
			}
			return &HeldError{Row: seen.Row, how: how, why: seen.Err}
		case stepFail:
			l.note(Unheld, seen.Err)
			return seen.Err
		}
		if !told && l.cfg.Waiting != nil && f.process != seat.Alive {
			l.cfg.Waiting(seen.Row, l.cfg.TTL)
		}
		told = true
		t := time.NewTimer(poll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		if l.over() {
			return ErrReleased
		}
	}
}

// Start renews the lease from now on, and acquires it where Acquire could not, until Release, Abandon or its loss.
func (l *Lease) Start() {
	l.begin.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		l.mu.Lock()
		l.stop = cancel
		stopping := l.stopping
		l.mu.Unlock()
		if stopping {
			cancel()
			return
		}
		l.kept.Go(func() { l.keep(ctx) })
	})
}

func (l *Lease) keep(ctx context.Context) {
	tick := time.NewTicker(l.cfg.Every)
	defer tick.Stop()
	last := l.cfg.Now()
	for {
		select {
		case <-tick.C:
		case <-l.cfg.Up:
		case <-ctx.Done():
			return
		}
		at := l.cfg.Now()
		if gap := at.Since(last); gap > l.cfg.TTL {
			l.cfg.Log.Warn("this process did not run, or the clock was set; the lease is looked at before anything new is started", "gap", gap.Round(time.Millisecond).String())
		}
		l.Renew(ctx)
		last = l.cfg.Now()
		if l.over() {
			return
		}
	}
}

// Renew makes one renewal now, or none when one is being made: two would compare-and-set against the same revision,
// and one would lose to a conflict of its own making. What came of it is in Status.
func (l *Lease) Renew(ctx context.Context) {
	select {
	case l.turn <- struct{}{}:
		defer l.give()
	default:
		return
	}
	if l.over() {
		return
	}
	if l.Status().Verdict == Unheld {
		err := l.acquire(ctx)
		if errors.Is(err, ErrHeld) {
			l.lose(err)
		}
		return
	}
	l.renew(ctx)
}

// renewTries is how often a renewal is tried: again with what was read when the one before was not acknowledged.
const renewTries = 3

func (l *Lease) renew(ctx context.Context) {
	// What is not known is looked at before it is written.
	look := l.Status().Verdict == Unreadable
	for range renewTries {
		if l.over() { // a stop that began meanwhile: the row is not put back
			return
		}
		var err error
		if !look {
			begin, rev := l.cfg.Now(), l.revision()
			if err = fpRenewing.Hit(); err == nil {
				rev, err = l.write(ctx, rev)
			}
			if err == nil {
				_ = fpRenewed.Hit()
				l.confirm(rev, begin)
				l.recheck(ctx)
				return
			}
		}
		look = false
		// A write that was not acknowledged may have happened. What stands there decides.
		seen := l.look(ctx)
		_ = fpReread.Hit()
		v := judge(seen, l.cfg.Self, l.process(seen))
		switch v {
		case Unreadable:
			l.note(v, errors.Join(err, seen.Err))
			return
		case Replaced:
			l.lose(&HeldError{Row: seen.Row, how: "has taken it"})
			return
		case HeldUnrenewed, Gone:
			l.adopt(v, seen.Rev, err)
		}
	}
}

// recheck asks the registry once after the lease was away: another incarnation may have come and gone meanwhile.
func (l *Lease) recheck(ctx context.Context) {
	l.mu.Lock()
	due := !l.checked
	l.mu.Unlock()
	if !due {
		return
	}
	_ = fpReturned.Hit()
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Attempt)
	defer cancel()
	var err error
	if l.cfg.Fence != nil {
		err = l.cfg.Fence(ctx)
	}
	switch {
	case err == nil:
		l.mu.Lock()
		l.checked = true
		l.announce()
		l.mu.Unlock()
	case l.cfg.Over != nil && l.cfg.Over(err):
		l.lose(err)
	default:
		l.cfg.Log.Warn("the lease is held again, and the registry does not say yet whether this host still is the registered one", "err", err)
	}
}

// write writes the row over a revision; 0 creates it.
func (l *Lease) write(ctx context.Context, rev uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Attempt)
	defer cancel()
	if rev == 0 {
		return l.cfg.Store.Create(ctx, l.cfg.Self.InstanceID, l.value)
	}
	return l.cfg.Store.Update(ctx, l.cfg.Self.InstanceID, l.value, rev)
}

func (l *Lease) look(ctx context.Context) Sight {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Attempt)
	defer cancel()
	row, err := l.cfg.Store.Get(ctx, l.cfg.Self.InstanceID)
	return sight(l.cfg.Self.InstanceID, row, err)
}

func (l *Lease) process(s Sight) seat.Liveness {
	if s.Rev == 0 || s.Err != nil {
		return seat.Unknown
	}
	if l.cfg.Own && s.Row.Root == l.cfg.Self.Root && s.Row.Epoch > 0 && s.Row.Epoch < l.cfg.Self.Epoch {
		return seat.Dead
	}
	return l.cfg.Process(s.Row, l.cfg.Self)
}

// take waits for the turn to exchange with the store.
func (l *Lease) take(ctx context.Context) bool {
	select {
	case l.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *Lease) give() { <-l.turn }
