// Package goal holds the durable actions of a host. A goal is accepted together with the row it is
// about, in one commit, and ends in exactly one terminal: Settle is the only place that writes one,
// and the first terminal wins.
package goal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Key identifies a goal: the caller's triple and the goal id the caller chose. Two callers that
// choose the same id hold two goals.
type Key string

// KeyOf returns the key of a caller's goal.
func KeyOf(c wire.Caller, id string) Key {
	return Key(c.Owner + "." + c.Actor + "." + c.UID + "/" + id)
}

// Split returns the caller and the goal id of a key. ok is false when the key is malformed.
func (k Key) Split() (c wire.Caller, id string, ok bool) {
	triple, id, ok := strings.Cut(string(k), "/")
	parts := strings.Split(triple, ".")
	if !ok || len(parts) != 3 || id == "" {
		return wire.Caller{}, "", false
	}
	return wire.Caller{Owner: parts[0], Actor: parts[1], UID: parts[2]}, id, true
}

// Publisher tells followers about progress. A lost event is harmless: the durable result decides.
type Publisher func(c wire.Caller, goalID string, p wire.GoalProgress)

// Store accepts and settles goals in the journal.
type Store struct {
	journal *journal.Journal
	publish Publisher

	mu     sync.Mutex
	phases map[Key]string // of goals without a terminal; memory only
	// settling holds goals whose terminal is being committed together with the state it is about. It
	// is hidden until that state is shown too, or a caller could see "succeeded" and then a seat that
	// does not run yet.
	settling map[Key]int
}

// NewStore returns a store over j. publish may be nil.
func NewStore(j *journal.Journal, publish Publisher) *Store {
	if publish == nil {
		publish = func(wire.Caller, string, wire.GoalProgress) {}
	}
	return &Store{journal: j, publish: publish, phases: map[Key]string{}, settling: map[Key]int{}}
}

// Accept writes the acceptance inside the caller's transaction.
func (s *Store) Accept(tx *journal.Tx, k Key, seatID string, a wire.Acceptance, deadline time.Time) error {
	return tx.PutGoal(journal.GoalRow{
		ID: string(k), Fingerprint: a.Fingerprint, Acceptance: a, SeatID: seatID,
		Deadline: deadline, Accepted: time.Now(),
	})
}

// Settle writes the terminal of a goal inside the caller's transaction and returns the one that
// stands. A goal that is unknown (the journal was lost) is left alone. Call Announce once the
// transaction is durable.
func (s *Store) Settle(tx *journal.Tx, k Key, result wire.GoalResult) (landed wire.GoalResult, first bool, err error) {
	landed, first, err = tx.SettleGoal(string(k), result)
	if errors.Is(err, journal.ErrNotFound) {
		return result, false, nil
	}
	if err != nil {
		return landed, false, fmt.Errorf("settle goal: %w", err)
	}
	return landed, first, nil
}

// Hide keeps a terminal that is about to be committed out of Result until show is called.
func (s *Store) Hide(k Key) (show func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settling[k]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.settling[k]--; s.settling[k] == 0 {
			delete(s.settling, k)
		}
	}
}

// Announce publishes a terminal that is durable.
func (s *Store) Announce(k Key, result wire.GoalResult) {
	s.mu.Lock()
	delete(s.phases, k)
	s.mu.Unlock()
	if c, id, ok := k.Split(); ok {
		s.publish(c, id, wire.GoalProgress{Phase: wire.PhaseTerminal, State: result.State})
	}
}

// Phase publishes progress of a goal that has no terminal yet.
func (s *Store) Phase(k Key, phase string) {
	s.mu.Lock()
	s.phases[k] = phase
	s.mu.Unlock()
	if c, id, ok := k.Split(); ok {
		s.publish(c, id, wire.GoalProgress{Phase: phase})
	}
}

// Lookup returns the row of a goal, if the journal has one.
func (s *Store) Lookup(k Key) (row journal.GoalRow, ok bool, err error) {
	err = s.journal.View(func(tx *journal.Tx) error {
		row, err = tx.Goal(string(k))
		return err
	})
	if errors.Is(err, journal.ErrNotFound) {
		return row, false, nil
	}
	return row, err == nil, err
}

// Result answers goal-result. A goal that is not known has no result, which proves nothing.
func (s *Store) Result(_ context.Context, c wire.Caller, id string) (wire.GoalResultReply, error) {
	k := KeyOf(c, id)
	reply := wire.GoalResultReply{GoalID: id}
	s.mu.Lock()
	reply.Phase = s.phases[k]
	hidden := s.settling[k] > 0
	s.mu.Unlock()
	row, ok, err := s.Lookup(k)
	if err != nil {
		return wire.GoalResultReply{}, fmt.Errorf("read goal: %w", err)
	}
	if !ok || hidden {
		return reply, nil
	}
	if reply.Result = row.Result; row.Result != nil {
		reply.Phase = wire.PhaseTerminal
	}
	return reply, nil
}
