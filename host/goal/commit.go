package goal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Crash points of a terminal, in order.
var (
	fpDecided   = failpoint.New("host.goal.decided")   // in the journal, and the mesh knows nothing
	fpCommitted = failpoint.New("host.goal.committed") // the result fact is there
	fpShown     = failpoint.New("host.goal.shown")     // the record says it too
	fpCleared   = failpoint.New("host.goal.cleared")   // the index entry is gone
)

// Bounds of the work on goals.
const (
	pushLimit    = 8 // commits on their way at once
	commitLimit  = 15 * time.Second
	moveTimeout  = 5 * time.Second
	moveTries    = 5
	closeTimeout = 2 * time.Second
)

// pushDelay is the wait before attempt n (from 0) to reach the mesh again.
func pushDelay(n int) time.Duration { return min(100*time.Millisecond<<min(n, 10), 5*time.Second) }

var (
	// errNotOurs says that the mesh did not accept a goal for this host: there is nothing to end.
	errNotOurs = errors.New("the mesh has no such goal of this host")
	// errNotOpen says that nothing is committed before the host is registered.
	errNotOpen = errors.New("the host is not registered yet")
)

// push takes the end of one goal out of the outbox, in the background, however long that takes.
func (s *Store) push(k Key) {
	s.mu.Lock()
	busy := s.fence == nil || s.pushing[k]
	if !busy {
		s.pushing[k] = true
	}
	s.mu.Unlock()
	if busy {
		return // Open pushes everything; and one that is on its way reads what is decided
	}
	started := s.background(func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.pushing, k)
		}()
		for attempt := 0; ; attempt++ {
			select {
			case s.room <- struct{}{}:
			case <-s.life.Done():
				return
			}
			ctx, cancel := context.WithTimeout(s.life, commitLimit)
			err := s.pushOnce(ctx, k)
			cancel()
			<-s.room
			var werr *wire.Error
			switch {
			case err == nil || s.life.Err() != nil:
				return
			case errors.As(err, &werr) && werr.Code == wire.CodeExpired:
				// Whoever took over settles the goal: its index entry stays for them.
				s.cfg.Log.Error("this host was superseded; the end of a goal stays in its outbox", "op", string(k), "err", err)
				return
			case attempt == 0 && errors.Is(err, bus.ErrUnavailable):
				s.cfg.Log.Info("the mesh does not take the end of a goal; it is kept and tried again", "op", string(k), "err", err)
			case !errors.Is(err, bus.ErrUnavailable):
				s.cfg.Log.Warn("commit goal", "op", string(k), "attempt", attempt, "err", err)
			}
			if !s.rest(pushDelay(attempt)) {
				return
			}
		}
	})
	if !started {
		s.mu.Lock()
		delete(s.pushing, k)
		s.mu.Unlock()
	}
}

// pushOnce commits one goal of the outbox and notes here what stands on the mesh.
func (s *Store) pushOnce(ctx context.Context, k Key) error {
	row, ok, err := s.Lookup(k)
	if err != nil {
		return err
	}
	if !ok || !row.InOutbox() {
		return nil
	}
	landed, err := s.commit(ctx, k, row)
	switch {
	case errors.Is(err, errNotOurs):
		s.forget(k)
		return s.cfg.Journal.Update(ctx, func(tx *journal.Tx) error { return s.Forget(tx, k) })
	case err != nil:
		return err
	}
	return s.cfg.Journal.Update(ctx, func(tx *journal.Tx) error { return tx.CommitGoal(string(k), landed) })
}

func (s *Store) forget(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.phases, k)
	delete(s.live, k)
}

// commit gives a goal its one terminal on the mesh, and is the only thing that does: fence, result fact,
// record, index entry, in this order. It returns the terminal that stands, which is the first one whoever
// decided it. It may be repeated at any point.
//
// Errors: errNotOurs, bus.ErrUnavailable, expired (*wire.Error: another incarnation took over).
func (s *Store) commit(ctx context.Context, k Key, row journal.GoalRow) (wire.GoalResult, error) {
	ref := k.ref()
	s.mu.Lock()
	fence := s.fence
	var f *footing
	if have := s.live[k]; have != nil {
		own := *have
		f = &own
	}
	s.mu.Unlock()
	if fence == nil {
		return wire.GoalResult{}, errNotOpen
	}
	if err := fence(ctx); err != nil {
		return wire.GoalResult{}, err
	}
	if f == nil {
		var err error
		if f, err = s.owned(ctx, ref, row); err != nil {
			return wire.GoalResult{}, err
		}
	}
	fact, err := s.putResult(ctx, ref, row)
	if err != nil {
		return wire.GoalResult{}, err
	}
	_ = fpCommitted.Hit()
	landed := resultOf(fact)
	s.ended(k, landed)
	if err := s.finish(ctx, ref, fact.State, f); err != nil {
		return wire.GoalResult{}, err
	}
	return landed, nil
}

// owned makes sure that a goal which this process did not accept itself was accepted for this host, and
// brings an acceptance to its end that a crash cut off after its bind.
func (s *Store) owned(ctx context.Context, ref wire.GoalRef, row journal.GoalRow) (*footing, error) {
	st, err := s.read(ctx, ref)
	if err != nil {
		return nil, err
	}
	f := &footing{acc: row.Acceptance, index: st.idxRev, spec: st.specRev}
	mine, err := specOf(ref, row)
	if err != nil {
		return nil, err
	}
	switch st.holder(s.cfg.InstanceID, row.Fingerprint, mine) {
	case heldHere:
		return f, nil
	case heldUnrecorded:
		return f, s.record(ctx, ref, row, f)
	case heldClaimed:
		if err := s.unclaim(ctx, ref, st.idxRev); err != nil {
			return nil, err
		}
	}
	return nil, errNotOurs
}

// holder is whose a goal is that this host began to accept.
type holder string

const (
	heldHere       holder = "here"       // accepted by this host
	heldUnrecorded holder = "unrecorded" // bound by this host, and not recorded yet
	heldClaimed    holder = "claimed"    // only its index entry was written, or the bind went to another request
	heldElsewhere  holder = "elsewhere"
)

// holder decides that. spec is what this host would have recorded.
func (st standing) holder(instanceID, fingerprint string, spec []byte) holder {
	ours := st.idx != nil && st.idx.InstanceID == instanceID
	bound := st.bind != nil && st.bind.Reuse(fingerprint) == wire.GoalSame
	switch {
	case st.idx != nil && !ours: // that of a sibling which accepted in the same millisecond has the same words
		return heldElsewhere
	case bytes.Equal(st.specRaw, spec), st.spec != nil && ours && bound && st.fact == nil:
		return heldHere
	case st.spec == nil && ours && bound:
		return heldUnrecorded
	case ours && (st.spec == nil || st.fact != nil):
		return heldClaimed // the entry is of an attempt that lost
	default:
		return heldElsewhere
	}
}

// putResult puts the result fact, create-only, and returns the one that stands.
func (s *Store) putResult(ctx context.Context, ref wire.GoalRef, row journal.GoalRow) (wire.GoalResultFact, error) {
	data, err := dataOf(*row.Result, row.Acceptance)
	if err != nil {
		return wire.GoalResultFact{}, err
	}
	by := wire.Committer{InstanceID: s.cfg.InstanceID, Epoch: s.cfg.Epoch}
	fact, err := wire.NewGoalResult(ref.ID, row.Fingerprint, row.Result.State, data, by, time.Now().UnixMilli())
	if err != nil {
		return fact, err
	}
	value, err := fact.Encode()
	if err != nil {
		return fact, err
	}
	_, err = s.cfg.Records.PutFact(ctx, ref.Result(s.cfg.Records.Space()), value)
	if err == nil {
		return fact, nil
	}
	// Lost, or its answer was: what stands decides.
	have, gerr := s.readResult(ctx, ref)
	switch {
	case gerr != nil:
		return fact, errors.Join(err, gerr)
	case have == nil:
		return fact, err
	}
	epoch := row.Acceptance.Executor.Epoch
	if err := have.Of(wire.GoalSpec{GoalID: ref.ID, Fingerprint: row.Fingerprint, AcceptedEpoch: &epoch}); err != nil {
		return fact, fmt.Errorf("the terminal that stands is none of this goal: %w", err)
	}
	return *have, nil
}

// finish follows a result fact: the record says it, and the index entry goes.
func (s *Store) finish(ctx context.Context, ref wire.GoalRef, state string, f *footing) error {
	to := wire.GoalStatus{State: state, ObservedSpecRevision: f.spec}
	if err := s.setStatus(ctx, ref, to, f.status); err != nil {
		return err
	}
	_ = fpShown.Hit()
	if f.index == 0 {
		e, err := s.cfg.Records.Get(ctx, ref.IndexKey())
		if errors.Is(err, bus.ErrAbsent) {
			return nil
		}
		if err != nil {
			return err
		}
		idx, err := wire.DecodeGoalIndex(ref, e.Value)
		if err != nil || idx.InstanceID != s.cfg.InstanceID {
			return err
		}
		f.index = e.Rev
	}
	if err := s.unclaim(ctx, ref, f.index); err != nil {
		f.index = 0 // it changed: look again
		return err
	}
	_ = fpCleared.Hit()
	return nil
}

// move changes the status of a goal that this process accepted.
func (s *Store) move(ctx context.Context, k Key, to wire.GoalStatus) error {
	s.mu.Lock()
	f := s.live[k]
	if f == nil {
		s.mu.Unlock()
		return nil // at its end, or not accepted here
	}
	rev := f.status
	to.ObservedSpecRevision = f.spec
	s.mu.Unlock()
	return s.setStatus(ctx, k.ref(), to, rev)
}

// setStatus makes the status of a goal's record what it is to be, unless it is further on already. rev is its
// revision, as far as known.
func (s *Store) setStatus(ctx context.Context, ref wire.GoalRef, to wire.GoalStatus, rev uint64) error {
	key := ref.Key().Status()
	value, err := to.Encode()
	if err != nil {
		return err
	}
	for range moveTries {
		if rev != 0 {
			next, err := s.cfg.Records.Update(ctx, key, value, rev)
			if err == nil {
				s.mu.Lock()
				if f := s.live[keyOfRef(ref)]; f != nil {
					f.status = next
				}
				s.mu.Unlock()
				return nil
			}
			if !errors.Is(err, bus.ErrConflict) {
				return err
			}
		}
		e, err := s.cfg.Records.Get(ctx, key)
		if errors.Is(err, bus.ErrAbsent) {
			if _, err = s.cfg.Records.Create(ctx, key, value); err == nil || !errors.Is(err, bus.ErrConflict) {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		have, err := wire.DecodeGoalStatus(e.Value)
		if err != nil {
			return err
		}
		if !wire.GoalMove(have.State, to.State) {
			return nil
		}
		rev = e.Rev
	}
	return fmt.Errorf("status of goal %s: %w", ref.ID, bus.ErrConflict)
}
