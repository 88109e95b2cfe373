package goal

import (
	"context"
	"errors"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Bounds of what is done to old goals at a time.
const (
	evictEvery = time.Minute
	evictReads = 200
)

// fate is what becomes of a terminal with time.
type fate string

const (
	fateStay  fate = "stay"  // nothing yet, or it is another host's affair
	fateEvict fate = "evict" // its data goes, and how it ended stays
	fateDrop  fate = "drop"  // nothing is left of the goal, and its id is free
)

// fateOf decides that. age is that of the message: of a terminal since it was committed, of what is left of one since
// its data went.
func fateOf(f wire.GoalResultFact, mine string, age, retention time.Duration) fate {
	switch {
	case f.Committer == nil || f.Committer.InstanceID != mine:
		return fateStay
	case f.Evicted() && age >= wire.IdempotencyHorizon:
		return fateDrop
	case !f.Evicted() && age >= retention:
		return fateEvict
	}
	return fateStay
}

// evictLoop goes through the terminals of this host, again and again, a bounded number at a time.
func (s *Store) evictLoop() {
	for s.rest(evictEvery) {
		ctx, cancel := context.WithTimeout(s.life, evictEvery)
		err := s.Evict(ctx)
		cancel()
		if err != nil && s.life.Err() == nil {
			s.cfg.Log.Info("what is left of old goals stays; it is tried again", "err", err)
		}
	}
}

// Evict does one step of what becomes of old goals: the data of terminals that this host committed goes after
// Config.Retention, which leaves how they ended; a horizon later the rest goes, with record and bind, and the goal
// id is free. Each call looks at a bounded number of terminals and goes on where the last one stopped. It may be cut
// off anywhere: what is left is found by the next, of this process or another. One call at a time.
//
// Errors: bus.ErrUnavailable, expired (*wire.Error: another incarnation took over).
func (s *Store) Evict(ctx context.Context) error {
	s.mu.Lock()
	fence := s.fence
	s.mu.Unlock()
	if s.local() {
		return nil
	}
	if fence == nil {
		return errNotOpen
	}
	if err := fence(ctx); err != nil {
		return err
	}
	var lost error // of one goal, which does not keep the others
	for range evictReads {
		m, err := s.cfg.Records.NextFact(ctx, wire.EndpointManager, wire.FactGoalResult, s.evictFrom)
		if errors.Is(err, bus.ErrAbsent) {
			s.evictFrom = 0
			return lost
		}
		if err != nil {
			return err
		}
		age := s.cfg.Now().Sub(m.At)
		if age < min(s.cfg.Retention, wire.IdempotencyHorizon) {
			s.evictFrom = 0 // all that follow are younger
			return lost
		}
		if err := s.evict(ctx, m, age); err != nil {
			lost = err
		}
		s.evictFrom = m.Seq + 1
	}
	return lost
}

func (s *Store) evict(ctx context.Context, m bus.Fact, age time.Duration) error {
	ref := wire.GoalRef{Endpoint: m.Subject.Endpoint, Caller: m.Subject.Caller, ID: m.Subject.ID}
	fact, err := wire.DecodeGoalResult(ref.ID, m.Value)
	if err != nil {
		s.cfg.Log.Debug("a terminal cannot be read; it stays", "op", string(keyOfRef(ref)), "err", err)
		return nil
	}
	switch fateOf(fact, s.cfg.InstanceID, age, s.cfg.Retention) {
	case fateEvict:
		value, err := fact.Evict().Encode()
		if err != nil {
			return err
		}
		return s.cfg.Records.EvictFact(ctx, m.Subject, value, m.Seq)
	case fateDrop:
		return s.drop(ctx, ref, m)
	}
	return nil
}

// drop removes what is left of a goal. The terminal goes last: while it is there nobody takes the id for new, and
// whoever comes after a crash finds by it what is to be done. A goal whose seat is still there is left alone.
func (s *Store) drop(ctx context.Context, ref wire.GoalRef, m bus.Fact) error {
	k := keyOfRef(ref)
	held := false
	err := s.cfg.Journal.View(func(tx *journal.Tx) error {
		row, err := tx.Goal(string(k))
		if err == nil && row.SeatID != "" {
			_, err = tx.Seat(row.SeatID)
			held = !errors.Is(err, journal.ErrNotFound)
			return nil
		}
		if errors.Is(err, journal.ErrNotFound) {
			return nil
		}
		return err
	})
	if err != nil || held {
		return err
	}
	if err := s.cfg.Records.DropGoal(ctx, ref); err != nil {
		return err
	}
	bind, err := s.cfg.Records.LastFact(ctx, ref.Bind(s.cfg.Records.Space()))
	if err == nil {
		err = s.cfg.Records.DropFact(ctx, bind.Seq)
	}
	if err != nil && !errors.Is(err, bus.ErrAbsent) {
		return err
	}
	// The row goes before the terminal: nobody can have accepted the id anew, and made another row, until then.
	err = s.cfg.Journal.Update(ctx, func(tx *journal.Tx) error { return s.Forget(tx, k) })
	if err != nil {
		return err
	}
	return s.cfg.Records.DropFact(ctx, m.Seq)
}
