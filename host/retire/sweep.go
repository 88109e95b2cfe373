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
	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Kinds of sweeps.
const (
	SweepStartup   = "startup"
	SweepAdoption  = "post-adoption" // it was not known at the one before which seats there are
	SweepScheduled = "scheduled"
)

// Dispositions of a slot that could not be brought to its end.
const (
	RetryScheduled = "retry-scheduled"
	Retrying       = "retrying"
	Recovered      = "recovered"
	Refused        = "refused"         // it is not as it was when the sweep began
	RefusedForeign = "refused-foreign" // another operation or another host has it
	RetryExhausted = "retry-exhausted"
)

// States of all sweeps together.
const (
	SweepIdle      = "idle"
	SweepRunning   = "running"
	SweepRetryWait = "retry-wait"
	SweepRetrying  = "retrying"
	SweepRecovered = "recovered"
	SweepFailed    = "failed"
)

// retryDelays are the waits before the second and every later attempt.
var retryDelays = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}

// sweepAtOnce is how many slots are brought to their end at a time.
const sweepAtOnce = 4

// SweeperConfig of a Sweeper.
type SweeperConfig struct {
	// Rows reads every slot of the space, and Row one of them.
	Rows func(ctx context.Context) ([]Row, error)
	Row  func(ctx context.Context, key wire.Key) (Row, error)
	// Retire ends a life.
	Retire func(ctx context.Context, l provision.Life) error
	// Instance is the id of this host's instance.
	Instance string
	// Live says whether a seat of this process has a life, from before its slot is written until after its end:
	// a slot is looked at first, and this is asked then.
	Live func(l provision.Life) bool
	// May says whether this process still is the host of the instance, as far as it knows: it is asked before slots are
	// read, behind that, and before each attempt, since a host may be frozen anywhere. nil: always. What a host does not
	// know yet the Retirer finds out.
	May func(ctx context.Context) error
	Log hclog.Logger
	Now func() time.Time
}

// Sweeper finds what dead processes of this instance left behind, and brings it to its end. While a slot is not
// retired its alias is fenced; every other one can be used.
type Sweeper struct {
	cfg  SweeperConfig
	life context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	running int
	last    *Sweep
	items   map[string]*item // by owner.alias
}

// Sweep is one look at all slots.
type Sweep struct {
	Kind               string
	Started, Completed time.Time
	// Err: it came to no plan. Without it a sweep of nothing found nothing.
	Err string
	// Attempted are those that had to be brought to their end.
	Attempted, Succeeded, Failed int
	// Foreign, Adopted and Retired are those that were left alone.
	Foreign, Adopted, Retired int
}

// item is one slot that is brought to its end.
type item struct {
	life        provision.Life
	phase       string
	attempts    int
	disposition string
	err         string
	next        time.Time
	recovered   time.Time
	remedy      string
	running     bool
}

// NewSweeper returns a Sweeper. Nothing is looked at yet.
func NewSweeper(cfg SweeperConfig) *Sweeper {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.May == nil {
		cfg.May = func(context.Context) error { return nil }
	}
	s := &Sweeper{cfg: cfg, items: map[string]*item{}}
	s.life, s.stop = context.WithCancel(context.Background())
	return s
}

// Stop lets no attempt begin any more, and waits for those that run.
func (s *Sweeper) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
}

// Plan is what a sweep does with a slot.
type Plan string

// Plans.
const (
	PlanForeign Plan = "foreign" // another host's: it is never changed
	PlanAdopted Plan = "adopted" // a seat of this process has it
	PlanRetired Plan = "retired" // it is over
	PlanRetire  Plan = "retire"  // nobody has it: it is brought to its end
	PlanRefuse  Plan = "refuse"  // it cannot be read, which is not that it is not there
)

// PlanSlot decides about one slot as it was read. live says whether a seat of this process has the life.
func PlanSlot(row Row, instance string, live func(provision.Life) bool) Plan {
	switch {
	case row.Err != nil:
		return PlanRefuse
	case row.Slot.OwnerInstanceID != instance:
		return PlanForeign
	case row.Slot.Phase == wire.SlotRetired:
		return PlanRetired
	case live(provision.LifeOf(row.Slot)):
		return PlanAdopted
	}
	return PlanRetire
}

// Sweep looks at all slots, and returns when every one that has to be brought to its end has had one attempt. What
// failed is tried again after 1 s, 5 s and 30 s, and then at every later sweep.
//
// Errors: ErrStopped; why it came to no plan, that of May among it. The single failures are in Status.
func (s *Sweeper) Sweep(ctx context.Context, kind string) error {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return fmt.Errorf("sweep slots: %w", ErrStopped)
	}
	s.running++
	s.wg.Add(1)
	defer s.wg.Done()
	sweep := &Sweep{Kind: kind, Started: s.cfg.Now()}
	s.last = sweep
	for key, it := range s.items {
		if it.disposition == Recovered {
			delete(s.items, key)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()

	rows, err := s.rows(ctx)
	var due []*item
	if err == nil {
		due = s.plan(sweep, rows)
		var g errgroup.Group
		g.SetLimit(sweepAtOnce)
		for _, it := range due {
			g.Go(func() error { s.attempt(ctx, it); return nil })
		}
		_ = g.Wait()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	sweep.Completed = s.cfg.Now()
	if err != nil {
		sweep.Err = err.Error()
		s.cfg.Log.Error("left-over slots cannot be looked at", "err", err)
		return fmt.Errorf("sweep slots: %w", err)
	}
	for _, it := range due {
		if it.disposition == Recovered {
			sweep.Succeeded++
			continue
		}
		sweep.Failed++
		s.schedule(it) // only now: a retry would tell of a sweep that is not told of yet
	}
	if sweep.Attempted > 0 {
		s.cfg.Log.Info("left-over slots", "op", kind, "attempted", sweep.Attempted, "succeeded", sweep.Succeeded, "failed", sweep.Failed)
	}
	return nil
}

// rows reads all slots, as the host of the instance before and behind it: what another one has begun since is not known here.
func (s *Sweeper) rows(ctx context.Context) ([]Row, error) {
	if err := s.cfg.May(ctx); err != nil {
		return nil, err
	}
	rows, err := s.cfg.Rows(ctx)
	if err == nil {
		err = s.cfg.May(ctx)
	}
	return rows, err
}

// end has one try at the end of a life.
func (s *Sweeper) end(ctx context.Context, l provision.Life) error {
	if err := s.cfg.May(ctx); err != nil {
		return err
	}
	return s.cfg.Retire(ctx, l)
}

// plan fences the aliases that are to be brought to their end.
func (s *Sweeper) plan(sweep *Sweep, rows []Row) []*item {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []*item
	ours := map[string]bool{} // that are ours to end
	for _, row := range rows {
		key := nameOf(row)
		plan := PlanSlot(row, s.cfg.Instance, s.cfg.Live)
		ours[key] = plan == PlanRefuse || plan == PlanRetire
		switch plan {
		case PlanForeign:
			sweep.Foreign++
		case PlanAdopted:
			sweep.Adopted++
		case PlanRetired:
			sweep.Retired++
		case PlanRefuse:
			sweep.Attempted++
			sweep.Failed++
			s.items[key] = &item{
				life: provision.Life{Alias: row.Key.Qualifiers[1], Caller: wire.Caller{Owner: row.Key.Qualifiers[0]}}, attempts: 1,
				disposition: Refused, err: row.Err.Error(),
				remedy: "the slot cannot be read; restore the records of the space from a backup",
			}
		case PlanRetire:
			it := s.items[key]
			if it == nil || it.life.UID != row.Slot.LifecycleUID {
				it = &item{life: provision.LifeOf(row.Slot)}
				s.items[key] = it
			}
			it.phase = row.Slot.Phase
			if it.running || it.disposition == RetryScheduled {
				continue // it has an attempt already, or will have one
			}
			it.running = true
			sweep.Attempted++
			due = append(due, it)
		}
	}
	for key, it := range s.items {
		if !ours[key] && !it.running && it.disposition != RetryScheduled {
			delete(s.items, key) // its end came otherwise, or it is nothing of ours any more
		}
	}
	return due
}

func nameOf(row Row) string { return strings.Join(row.Key.Qualifiers, ".") }

// attempt has one try, and notes what became of it.
func (s *Sweeper) attempt(ctx context.Context, it *item) {
	s.mu.Lock()
	it.attempts++
	life := it.life
	s.mu.Unlock()
	err := s.end(ctx, life)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(it, err)
}

// settle notes the end of one attempt.
func (s *Sweeper) settle(it *item, err error) {
	it.running, it.next = false, time.Time{}
	if err == nil {
		it.disposition, it.err, it.remedy, it.recovered = Recovered, "", "", s.cfg.Now()
		return
	}
	it.err = err.Error()
	it.disposition, it.remedy = dispose(err, it.attempts)
}

// dispose says how it goes on with a slot after an attempt that failed.
func dispose(err error, attempts int) (disposition, remedy string) {
	switch {
	case errors.Is(err, ErrForeign):
		return RefusedForeign, "let the operation that has it come to its end, then restart the host"
	case errors.Is(err, errChanged):
		return Refused, "look at `cotal slots`; the next start of the host looks again"
	case attempts > len(retryDelays):
		return RetryExhausted, "remove the cause, then restart the host"
	}
	return RetryScheduled, ""
}

// errChanged: a slot is not any more what the sweep found.
var errChanged = errors.New("the slot changed since the sweep")

// schedule has the next attempt begin after its wait, if there is one.
func (s *Sweeper) schedule(it *item) {
	if it.disposition != RetryScheduled || s.stopped {
		return
	}
	wait := retryDelays[it.attempts-1]
	it.next = s.cfg.Now().Add(wait)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
			s.retry(it)
		case <-s.life.Done():
		}
	}()
}

// retry has one more try, after a fresh look at the slot. The look counts as the attempt also when it fails.
func (s *Sweeper) retry(it *item) {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return
	}
	it.attempts++
	it.running, it.disposition, it.next = true, Retrying, time.Time{}
	life := it.life
	s.mu.Unlock()
	err := s.again(life)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		it.running = false
		return // cut short by our own end: that says nothing about the slot
	}
	s.settle(it, err)
	s.schedule(it)
}

func (s *Sweeper) again(l provision.Life) error {
	row, err := s.cfg.Row(s.life, l.Slot())
	if errors.Is(err, bus.ErrAbsent) {
		return fmt.Errorf("%w: it is gone", errChanged)
	}
	if err != nil {
		return err
	}
	if row.Err == nil && row.Slot.LifecycleUID == l.UID && row.Slot.Phase == wire.SlotRetired {
		return nil // by somebody else
	}
	switch plan := PlanSlot(row, s.cfg.Instance, s.cfg.Live); {
	case row.Err != nil:
		return row.Err
	case row.Slot.LifecycleUID != l.UID:
		return fmt.Errorf("%w: it is of life %s now", errChanged, row.Slot.LifecycleUID)
	case plan == PlanForeign:
		return fmt.Errorf("%w: its slot is of host %s", ErrForeign, row.Slot.OwnerInstanceID)
	case plan == PlanAdopted:
		return fmt.Errorf("%w: a seat of this host has it now", errChanged)
	}
	return s.end(s.life, l)
}

// Last is the latest sweep; nil before the first.
func (s *Sweeper) Last() *Sweep {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		return nil
	}
	last := *s.last
	return &last
}

// Status is what status tells of the sweeps.
func (s *Sweeper) Status() wire.StaticReconciliation {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := wire.StaticReconciliation{Failures: []wire.SlotFailure{}}
	dispositions := []string{}
	for _, it := range s.items {
		dispositions = append(dispositions, it.disposition)
		if it.disposition == "" {
			continue // under way, for the first time
		}
		out.Failures = append(out.Failures, wire.SlotFailure{
			Alias: it.life.Alias, Actor: it.life.Actor, LifecycleUID: it.life.UID, Phase: it.phase, Attempts: it.attempts,
			MaxAttempts: len(retryDelays) + 1, Disposition: it.disposition, LastError: it.err, NextRetryAt: millis(it.next),
			RecoveredAt: millis(it.recovered), Remedy: it.remedy,
		})
	}
	slices.SortFunc(out.Failures, func(a, b wire.SlotFailure) int { return strings.Compare(a.Alias, b.Alias) })
	failed := false
	if l := s.last; l != nil {
		failed = l.Err != ""
		out.LastSweep = &wire.StaticSweep{
			Kind: l.Kind, StartedAt: millis(l.Started), CompletedAt: millis(l.Completed), Attempted: l.Attempted, Succeeded: l.Succeeded, Failed: l.Failed,
		}
	}
	out.State = stateOf(failed, s.running, dispositions)
	return out
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// stateOf is how all of it stands, the worst first: a sweep that came to no plan is not one that found nothing.
func stateOf(failed bool, running int, dispositions []string) string {
	has := func(of ...string) bool {
		return slices.ContainsFunc(dispositions, func(d string) bool { return slices.Contains(of, d) })
	}
	switch {
	case failed:
		return SweepFailed
	case has(Retrying):
		return SweepRetrying
	case has(RetryScheduled):
		return SweepRetryWait
	case has(Refused, RefusedForeign, RetryExhausted):
		return SweepFailed
	case running > 0:
		return SweepRunning
	case has(Recovered):
		return SweepRecovered
	}
	return SweepIdle
}
