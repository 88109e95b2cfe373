package goal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Crash points of the look through the goal index.
var (
	fpScanned    = failpoint.New("host.goal.scanned")
	fpReconciled = failpoint.New("host.goal.reconciled") // everything is decided, and nothing is accepted yet
)

// Open lets ends go to the mesh from here on: those in the outbox at once. fence is asked before each, and
// says whether this incarnation still is the one that is registered.
func (s *Store) Open(fence func(context.Context) error) error {
	s.mu.Lock()
	first := s.fence == nil
	s.fence = fence
	s.mu.Unlock()
	if first && !s.local() {
		s.background(s.evictLoop)
	}
	var due []Key
	err := s.cfg.Journal.View(func(tx *journal.Tx) error {
		return tx.Goals(func(r journal.GoalRow) error {
			if r.InOutbox() {
				due = append(due, Key(r.ID))
			}
			return nil
		})
	})
	for _, k := range due {
		s.push(k)
	}
	if err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	return nil
}

// Reconcile looks through the goal index for what an earlier incarnation of this instance left, and lets
// goals be accepted once everything is decided. An entry that cannot be decided is logged and does not keep
// the others, or new goals, waiting. While the store cannot be read it goes on trying; it returns when ctx
// or the store ends.
//
// Call it after the seats are taken back: what drives a goal still is known then.
func (s *Store) Reconcile(ctx context.Context) {
	for attempt := 0; ; attempt++ {
		err := s.reconcileOnce(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil || s.life.Err() != nil {
			return
		}
		s.cfg.Log.Warn("look through the goals of this host", "attempt", attempt, "err", err)
		if !errors.Is(err, bus.ErrUnavailable) {
			break // what is unreadable stays so, and is of goals that nobody drives
		}
		if !s.rest(pushDelay(attempt)) || ctx.Err() != nil {
			return
		}
	}
	_ = fpReconciled.Hit()
	s.mu.Lock()
	s.closed = ""
	s.mu.Unlock()
}

func (s *Store) reconcileOnce(ctx context.Context) error {
	filter, err := wire.KeyFilter(wire.KindGoalIndex, wire.EndpointManager)
	if err != nil {
		return err
	}
	entries, err := s.cfg.Records.Scan(ctx, filter)
	if err != nil {
		return err
	}
	_ = fpScanned.Hit()
	var lost error
	for _, e := range entries {
		if err := s.reconcile(ctx, e); errors.Is(err, bus.ErrUnavailable) {
			lost = err
		} else if err != nil {
			name, _ := e.Key.Encode()
			s.cfg.Log.Warn("a goal of the index cannot be decided", "op", name, "err", err)
		}
	}
	return lost
}

// due is what is to be done with an entry of the goal index.
type due string

const (
	dueSibling due = "sibling" // another instance's, dead or alive: its own affair
	dueDriven  due = "driven"  // a seat drives it, or its end is in the outbox
	dueAbandon due = "abandon" // never bound: the entry goes
	dueLeave   due = "leave"   // never recorded: whoever submits it again takes it over
	dueClear   due = "clear"   // at its end: record and entry follow
	dueSettle  due = "settle"  // nobody drives it: uncertain, at its deadline
	dueKeep    due = "keep"    // it names no deadline, so nobody but its own host can say when it is over
)

// decide is the whole of the boot reconcile for one entry. driven says whether this process has a seat or
// an end for the goal.
func decide(st standing, mine string, driven bool) due {
	switch {
	case st.idx == nil || st.idx.InstanceID != mine:
		return dueSibling
	case driven:
		return dueDriven
	case st.fact != nil:
		return dueClear
	case st.bind == nil && st.spec == nil:
		return dueAbandon
	case st.spec == nil:
		return dueLeave
	case st.spec.ReadyBy() == 0 && (st.idx.Allocated == nil || st.idx.Allocated.ReadinessDeadlineMs == 0):
		return dueKeep
	default:
		return dueSettle
	}
}

func (s *Store) reconcile(ctx context.Context, e bus.Entry) error {
	ref, ok := wire.GoalRefOf(e.Key)
	if !ok {
		return errors.New("its key is of no goal")
	}
	if idx, err := wire.DecodeGoalIndex(ref, e.Value); err != nil || idx.InstanceID != s.cfg.InstanceID {
		return err
	}
	k := keyOfRef(ref)
	driven, err := s.driven(k)
	if err != nil {
		return err
	}
	st, err := s.read(ctx, ref)
	if err != nil {
		return err
	}
	switch what := decide(st, s.cfg.InstanceID, driven); what {
	case dueAbandon:
		return s.unclaim(ctx, ref, st.idxRev)
	case dueClear:
		return s.finish(ctx, ref, st.fact.State, &footing{index: st.idxRev, spec: st.specRev})
	case dueSettle:
		return s.orphaned(ctx, ref, st)
	case dueKeep:
		s.cfg.Log.Warn("a goal names no deadline and nobody drives it; it stays as it is", "op", string(k))
	}
	return nil
}

// driven reports whether a seat or the outbox has the goal.
func (s *Store) driven(k Key) (bool, error) {
	row, ok, err := s.Lookup(k)
	if err != nil {
		return false, err
	}
	switch {
	case ok && row.Committed:
		return false, nil // at its end: what is left of it in the index goes
	case ok && row.SeatID == "" && row.Result == nil:
		return false, nil // an orphan that an earlier host took note of
	}
	return ok, nil
}

// orphaned takes note of a goal whose journal row was lost, and settles it when its time is over, unless its
// seat is found until then.
func (s *Store) orphaned(ctx context.Context, ref wire.GoalRef, st standing) error {
	acc, err := rebuild(ref, st.idx, st.spec, nil)
	if err != nil {
		// It has an end to come all the same; nobody will be told an identity that was made up.
		acc = wire.Acceptance{GoalID: ref.ID, Fingerprint: st.spec.Fingerprint, ReadinessDeadlineMs: st.spec.ReadinessDeadlineMs}
		if st.spec.AcceptedEpoch != nil {
			acc.Executor.Epoch = *st.spec.AcceptedEpoch
		}
	}
	row := rowOf(ref, *st.spec, acc)
	if row.Deadline.IsZero() {
		row.Deadline = row.Accepted.Add(time.Duration(acc.ReadinessDeadlineMs) * time.Millisecond)
	}
	k := keyOfRef(ref)
	err = s.cfg.Journal.Update(ctx, func(tx *journal.Tx) error {
		if _, err := tx.Goal(row.ID); err == nil {
			return nil
		}
		return tx.PutGoal(row)
	})
	if err != nil {
		return fmt.Errorf("take note of a goal: %w", err)
	}
	s.background(func() {
		if wait := time.Until(row.Deadline); wait > 0 && !s.rest(wait) {
			return
		}
		for attempt := 0; !s.settleOrphan(k, acc.Name); attempt++ {
			if !s.rest(pushDelay(attempt)) {
				return
			}
		}
	})
	return nil
}

// settleOrphan settles a goal that nobody drives. It reports false when that has to be tried again.
func (s *Store) settleOrphan(k Key, name string) bool {
	settled := false
	result := wire.GoalResult{State: wire.GoalUncertain, Error: &wire.Error{
		Code: wire.CodeDeadlineExceeded, Outcome: wire.OutcomeUnknown,
		Message: "the host that accepted this lost its memory of it, and no sign that " + orIt(name) +
			" is ready came in time; look whether it runs with ps and inspect, and do not spawn it again before",
	}}
	ctx, cancel := context.WithTimeout(s.life, commitLimit)
	defer cancel()
	err := s.cfg.Journal.Update(ctx, func(tx *journal.Tx) error {
		row, err := tx.Goal(string(k))
		if errors.Is(err, journal.ErrNotFound) || err == nil && (row.SeatID != "" || row.Result != nil) {
			return nil // its seat was found, and settles it
		}
		if err != nil {
			return err
		}
		_, settled, err = s.Settle(tx, k, result)
		return err
	})
	if err != nil {
		s.cfg.Log.Warn("settle a goal that nobody drives", "op", string(k), "err", err)
		return s.life.Err() != nil
	}
	if settled {
		s.Announce(k, result)
	}
	return true
}

func orIt(name string) string {
	if name == "" {
		return "it"
	}
	return name
}
