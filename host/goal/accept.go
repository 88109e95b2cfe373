package goal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Crash points of an acceptance, in order.
var (
	fpIntended = failpoint.New("host.goal.intended") // in the journal, and the mesh knows nothing
	fpIndexed  = failpoint.New("host.goal.indexed")
	fpBound    = failpoint.New("host.goal.bound")
	fpRecorded = failpoint.New("host.goal.recorded")
)

// Waits of an acceptance.
const (
	standWait  = 2 * time.Second // for the record of a goal that somebody else is just accepting
	standEvery = 5 * time.Millisecond
	claimTries = 5
)

// standing is what the mesh tells of a goal now.
type standing struct {
	bind *wire.GoalBind
	idx  *wire.GoalIndex
	spec *wire.GoalSpec
	fact *wire.GoalResultFact

	idxRev, specRev uint64
	specRaw         []byte
}

// read takes the parts in an order in which no change between two reads can look like a goal that is not
// there: the index entry comes before the record, and goes after the terminal came.
func (s *Store) read(ctx context.Context, ref wire.GoalRef) (st standing, err error) {
	if st.bind, err = s.readBind(ctx, ref); err != nil {
		return st, err
	}
	if e, err := s.cfg.Records.Get(ctx, ref.Key().Spec()); err == nil {
		spec, err := wire.DecodeGoalSpec(ref, e.Value)
		if err != nil {
			return st, err
		}
		st.spec, st.specRev, st.specRaw = &spec, e.Rev, e.Value
	} else if !errors.Is(err, bus.ErrAbsent) {
		return st, err
	}
	if e, err := s.cfg.Records.Get(ctx, ref.IndexKey()); err == nil {
		idx, err := wire.DecodeGoalIndex(ref, e.Value)
		if err != nil {
			return st, err
		}
		st.idx, st.idxRev = &idx, e.Rev
	} else if !errors.Is(err, bus.ErrAbsent) {
		return st, err
	}
	st.fact, err = s.readResult(ctx, ref)
	return st, err
}

func (s *Store) readBind(ctx context.Context, ref wire.GoalRef) (*wire.GoalBind, error) {
	p, err := s.cfg.Records.GetFact(ctx, ref.Bind(s.cfg.Records.Space()))
	if errors.Is(err, bus.ErrAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := wire.DecodeGoalBind(ref.ID, p)
	return &b, err
}

func (s *Store) readResult(ctx context.Context, ref wire.GoalRef) (*wire.GoalResultFact, error) {
	p, err := s.cfg.Records.GetFact(ctx, ref.Result(s.cfg.Records.Space()))
	if errors.Is(err, bus.ErrAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := wire.DecodeGoalResult(ref.ID, p)
	return &f, err
}

// stands says what a second use of a goal id means.
type stands int

const (
	standsNot   stands = iota // nobody accepted it, or what was begun was given up: it may be accepted
	standsOther               // it was accepted for another request
	standsSame                // it was accepted: answer the same again
	standsSoon                // another host is just accepting it
)

// judge decides that. mine is the instance that asks, which does not hold the goal itself.
func (st standing) judge(fingerprint, mine string) stands {
	switch {
	case st.bind != nil && st.bind.Reuse(fingerprint) == wire.GoalConflict,
		st.bind == nil && st.fact != nil && st.fact.Fingerprint != fingerprint:
		return standsOther
	case st.bind == nil && st.fact != nil:
		return standsSame // it is being forgotten: the terminal goes last
	case st.bind != nil && (st.spec != nil || st.fact != nil):
		return standsSame
	case st.idx != nil && st.idx.InstanceID != mine:
		return standsSoon
	default:
		// A bind without record is of a host that died before it could answer: the same request may go on.
		return standsNot
	}
}

// Recall returns the acceptance of an earlier submission under this id, by whichever host of the space and
// whichever incarnation, if there was one.
//
// Errors, all not-executed: failed-precondition (the id was used for another request, or the goal is at its
// end and what was accepted is not told any more), unavailable (that cannot be read now).
func (s *Store) Recall(ctx context.Context, k Key, fingerprint string) (wire.Acceptance, bool, error) {
	ref := k.ref()
	s.mu.Lock()
	live := s.live[k]
	s.mu.Unlock()
	if live != nil {
		if live.acc.Fingerprint != fingerprint {
			return wire.Acceptance{}, false, otherRequest(ref)
		}
		return live.acc, true, nil
	}
	row, have, err := s.Lookup(k)
	if err != nil {
		return wire.Acceptance{}, false, wire.Refuse(wire.CodeUnavailable, "look up goal: %v", err)
	}
	if have && (row.Local || row.Committed) {
		if row.Fingerprint != fingerprint {
			return wire.Acceptance{}, false, otherRequest(ref)
		}
		return row.Acceptance, true, nil
	}
	if s.local() {
		return wire.Acceptance{}, false, nil
	}
	if have && row.InOutbox() {
		s.push(k)
	}
	for give := time.Now().Add(standWait); ; {
		st, err := s.read(ctx, ref)
		if err != nil {
			return wire.Acceptance{}, false, wire.Refuse(wire.CodeUnavailable, "look up goal %s: %v", ref.ID, err)
		}
		switch st.judge(fingerprint, s.cfg.InstanceID) {
		case standsOther:
			return wire.Acceptance{}, false, otherRequest(ref)
		case standsSame:
			acc, err := rebuild(ref, st.idx, st.spec, st.fact)
			if have && (err != nil || acc.UID == row.Acceptance.UID) {
				return row.Acceptance, true, nil // the same, with what the mesh has no place for
			}
			return acc, err == nil, err
		case standsNot:
			if have {
				return wire.Acceptance{}, false, wire.Refuse(wire.CodeUnavailable,
					"it is not known yet whether an earlier request with id %s was accepted; ask again in a moment", ref.ID)
			}
			return wire.Acceptance{}, false, nil
		}
		if !pause(ctx, standEvery) || time.Now().After(give) {
			_, err := rebuild(ref, st.idx, nil, nil)
			return wire.Acceptance{}, false, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Bind accepts a goal on the mesh, after Accept made it durable here: index entry, bind, record, each
// create-only. When won is false another host was first and the goal is its own; its acceptance is the answer, and the
// caller forgets the goal and everything it reserved. Only who won may ever settle the goal.
//
// Errors are *wire.Error. When one says not-executed the mesh has nothing of it. Else that is not known, and
// the caller settles the goal as one that was not started: commit finds out whether anybody has to be told.
func (s *Store) Bind(ctx context.Context, k Key) (won bool, acc wire.Acceptance, err error) {
	row, ok, err := s.Lookup(k)
	if err != nil || !ok {
		return false, acc, wire.Refuse(wire.CodeUnavailable, "read the goal back: %v", err)
	}
	if row.Local {
		s.mu.Lock()
		s.live[k] = &footing{acc: row.Acceptance}
		s.mu.Unlock()
		return true, row.Acceptance, nil
	}
	_ = fpIntended.Hit()
	ref := k.ref()
	value, err := indexOf(ref, row, s.cfg.InstanceID)
	if err != nil {
		return false, acc, wire.Refuse(wire.CodeInternal, "%v", err)
	}
	f := &footing{acc: row.Acceptance}
	f.index, err = s.claim(ctx, ref, value)
	switch {
	case errors.Is(err, errTaken):
		return s.lost(ctx, k, row.Fingerprint)
	case errors.Is(err, bus.ErrNotWritten):
		return false, acc, wire.Refuse(wire.CodeUnavailable, "accept the goal: %v", err)
	case err != nil:
		return false, acc, wire.Fail(wire.CodeUnavailable, "accept the goal: %v", err)
	}
	_ = fpIndexed.Hit()
	switch err := s.bind(ctx, ref, row.Fingerprint); {
	case errors.Is(err, errTaken):
		if err := s.unclaim(ctx, ref, f.index); err != nil {
			return false, acc, wire.Fail(wire.CodeFailedPrecondition, "%s (and the mesh did not answer: %v)", otherRequest(ref).Message, err)
		}
		return false, acc, otherRequest(ref)
	case err != nil:
		return false, acc, wire.Fail(wire.CodeUnavailable, "accept the goal: %v", err)
	}
	_ = fpBound.Hit()
	switch err := s.record(ctx, ref, row, f); {
	case errors.Is(err, errTaken):
		// It was accepted and is at its end: that is why its index entry was free.
		if err := s.unclaim(ctx, ref, f.index); err != nil {
			return false, acc, wire.Fail(wire.CodeUnavailable, "accept the goal: %v", err)
		}
		return s.lost(ctx, k, row.Fingerprint)
	case err != nil:
		return false, acc, wire.Fail(wire.CodeUnavailable, "accept the goal: %v", err)
	}
	_ = fpRecorded.Hit()
	s.mu.Lock()
	s.live[k] = f
	s.mu.Unlock()
	return true, row.Acceptance, nil
}

// Restore takes note of a goal whose journal row was lost and whose seat was found by its directory, so that
// a retry of the same request finds its acceptance and starts nothing twice. What the mesh says of it counts;
// command and guess are what the seat's directory says.
func (s *Store) Restore(ctx context.Context, k Key, command, seatID string, guess wire.Acceptance) error {
	row := journal.GoalRow{
		ID: string(k), Command: command, Fingerprint: guess.Fingerprint, Acceptance: guess,
		Accepted: time.Now().UTC().Truncate(time.Millisecond), Local: true,
	}
	if !s.local() {
		ref := k.ref()
		st, err := s.read(ctx, ref)
		if err != nil {
			s.cfg.Log.Warn("a found goal cannot be read on the mesh", "op", string(k), "err", err)
		}
		// A goal that the mesh knows nothing of, its store being lost as well, is remembered here alone.
		row.Local = err == nil && st.bind == nil && st.spec == nil
		if st.spec != nil {
			acc, err := rebuild(ref, st.idx, st.spec, st.fact)
			if err != nil {
				acc = guess
			}
			row = rowOf(ref, *st.spec, acc)
		}
	}
	row.SeatID = seatID
	return s.cfg.Journal.Update(ctx, func(tx *journal.Tx) error {
		switch old, err := tx.Goal(row.ID); {
		case err == nil && old.Result != nil:
			return nil
		case err == nil:
			old.SeatID = seatID
			return tx.PutGoal(old)
		case !errors.Is(err, journal.ErrNotFound):
			return fmt.Errorf("restore goal: %w", err)
		}
		return tx.PutGoal(row)
	})
}

// errTaken says that a goal is another host's, or another request's.
var errTaken = errors.New("the goal is taken")

// lost returns the acceptance of whoever was first.
func (s *Store) lost(ctx context.Context, k Key, fingerprint string) (bool, wire.Acceptance, error) {
	ref := k.ref()
	for give := time.Now().Add(standWait); ; {
		st, err := s.read(ctx, ref)
		if err != nil {
			return false, wire.Acceptance{}, wire.Refuse(wire.CodeUnavailable, "read the acceptance of goal %s: %v", ref.ID, err)
		}
		switch st.judge(fingerprint, s.cfg.InstanceID) {
		case standsOther:
			return false, wire.Acceptance{}, otherRequest(ref)
		case standsSame:
			acc, err := rebuild(ref, st.idx, st.spec, st.fact)
			return false, acc, err
		}
		if !pause(ctx, standEvery) || time.Now().After(give) {
			_, err := rebuild(ref, st.idx, nil, nil)
			return false, wire.Acceptance{}, err
		}
	}
}

// claim writes the index entry, create-only: from then on a successor finds the goal. An entry of this
// instance whose goal was never recorded is of an acceptance that a crash cut off, and is taken over.
func (s *Store) claim(ctx context.Context, ref wire.GoalRef, value []byte) (rev uint64, err error) {
	sent := false // some attempt may have been written
	defer func() {
		if sent && errors.Is(err, bus.ErrNotWritten) {
			err = fmt.Errorf("%w: whether an earlier try was written is not known", bus.ErrUnavailable)
		}
	}()
	for range claimTries {
		rev, err = s.cfg.Records.Create(ctx, ref.IndexKey(), value)
		switch {
		case err == nil:
			return rev, nil
		case errors.Is(err, bus.ErrUnavailable) && !errors.Is(err, bus.ErrNotWritten):
			sent = true
		case !errors.Is(err, bus.ErrConflict):
			return 0, err
		}
		e, gerr := s.cfg.Records.Get(ctx, ref.IndexKey())
		switch {
		case errors.Is(gerr, bus.ErrAbsent):
			continue
		case gerr != nil:
			return 0, errors.Join(err, gerr)
		case bytes.Equal(e.Value, value):
			return e.Rev, nil // the answer to an earlier try was lost
		}
		idx, derr := wire.DecodeGoalIndex(ref, e.Value)
		if derr != nil {
			return 0, derr
		}
		if idx.InstanceID != s.cfg.InstanceID {
			return 0, errTaken
		}
		switch _, err := s.cfg.Records.Get(ctx, ref.Key().Spec()); {
		case err == nil:
			return 0, errTaken // of ours, and accepted: what stands is the answer
		case !errors.Is(err, bus.ErrAbsent):
			return 0, err
		}
		if err = s.unclaim(ctx, ref, e.Rev); err != nil {
			return 0, err
		}
	}
	return 0, cmp.Or(err, errTaken)
}

// unclaim takes an index entry of ours back.
func (s *Store) unclaim(ctx context.Context, ref wire.GoalRef, rev uint64) error {
	err := s.cfg.Records.Delete(ctx, ref.IndexKey(), rev)
	if errors.Is(err, bus.ErrConflict) {
		if _, gerr := s.cfg.Records.Get(ctx, ref.IndexKey()); errors.Is(gerr, bus.ErrAbsent) {
			return nil
		}
	}
	return err
}

// bind ties the goal id to this submission; the first one stands. That the same one stands is success.
func (s *Store) bind(ctx context.Context, ref wire.GoalRef, fingerprint string) error {
	value, err := wire.GoalBind{GoalID: ref.ID, Fingerprint: fingerprint}.Encode()
	if err != nil {
		return err
	}
	_, err = s.cfg.Records.PutFact(ctx, ref.Bind(s.cfg.Records.Space()), value)
	if err == nil {
		return nil
	}
	have, gerr := s.readBind(ctx, ref)
	switch {
	case gerr != nil:
		return errors.Join(err, gerr)
	case have == nil:
		return err
	case have.Reuse(fingerprint) == wire.GoalConflict:
		return errTaken
	}
	return nil
}

// record writes the goal's record, spec and status. Another spec under the same id is another acceptance.
func (s *Store) record(ctx context.Context, ref wire.GoalRef, row journal.GoalRow, f *footing) error {
	spec, err := specOf(ref, row)
	if err != nil {
		return err
	}
	if f.spec, err = s.cfg.Records.Create(ctx, ref.Key().Spec(), spec); err != nil {
		e, gerr := s.cfg.Records.Get(ctx, ref.Key().Spec())
		switch {
		case gerr != nil:
			return errors.Join(err, gerr)
		case !bytes.Equal(e.Value, spec):
			return errTaken
		}
		f.spec = e.Rev
	}
	status, err := wire.GoalStatus{State: wire.GoalAccepted, ObservedSpecRevision: f.spec}.Encode()
	if err != nil {
		return err
	}
	// A status that is there already is further on. Without one the goal stands all the same: it is made
	// when the goal goes on.
	if f.status, err = s.cfg.Records.Create(ctx, ref.Key().Status(), status); err != nil && !errors.Is(err, bus.ErrConflict) {
		s.cfg.Log.Debug("status of a goal is not recorded", "op", string(keyOfRef(ref)), "err", err)
	}
	return nil
}
