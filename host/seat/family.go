package seat

import (
	"cmp"
	"errors"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// spawnedBy reports whether a seat was spawned by exactly this life.
func spawnedBy(row journal.SeatRow, principal, uid string) bool {
	c, _, ok := goal.Key(row.RequestID).Split()
	return ok && uid != "" && c.UID == uid && c.Principal() == principal
}

// causeBy is the door by which a seat leaves when by asks for its end.
func (s *Set) causeBy(by wire.Caller, row journal.SeatRow) string {
	switch {
	case by.UID == row.UID && by.Principal() == row.Principal:
		return causeSelf
	case spawnedBy(row, by.Principal(), by.UID) && s.isSeat(by):
		return causeParent
	}
	return causeRequested
}

// isSeat reports whether somebody is a seat of this host.
func (s *Set) isSeat(c wire.Caller) bool {
	_, err := s.target(wire.Target{Owner: c.Owner, Actor: c.Actor, LifecycleUID: c.UID})
	return err == nil
}

// endChildren ends the seats that a life had spawned, at once, once its own end is proved. They stay seats of
// this host, with their names, until their ends are proved too; and theirs end then.
func (s *Set) endChildren(parent journal.SeatRow) {
	s.mu.Lock()
	var children []*actor
	for _, a := range s.byID {
		if row := a.snapshot().Row; spawnedBy(row, parent.Principal, parent.UID) && row.UID != parent.UID {
			children = append(children, a)
		}
	}
	s.mu.Unlock()
	for _, a := range children {
		a.background(func() {
			a.log.Info("ending with who spawned it", "parent", cmp.Or(parent.Alias, parent.Principal))
			_, err := a.stop(s.life, ending{mode: sdk.StopNow, cause: causeReap, by: parent.Principal})
			if err != nil && !errors.Is(err, errHostGone) {
				a.log.Warn("end seat with who spawned it", "err", err)
			}
		})
	}
}

// orphans ends what was spawned by lives whose end an earlier host recorded (over), and no more.
func (s *Set) orphans(over map[lived]bool) {
	s.mu.Lock()
	gone := map[lived]bool{}
	for _, a := range s.byID {
		row := a.snapshot().Row
		if a.snapshot().State == Exited {
			gone[lived{row.Principal, row.UID}] = true
		}
		if c, _, ok := goal.Key(row.RequestID).Split(); ok && over[lived{c.Principal(), c.UID}] {
			gone[lived{c.Principal(), c.UID}] = true
		}
	}
	s.mu.Unlock()
	for l := range gone {
		s.endChildren(journal.SeatRow{Principal: l.principal, UID: l.uid})
	}
}
