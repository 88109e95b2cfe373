package mesh

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// States of a View.
const (
	// ViewCurrent: who is not in the view is not there, and who is offline in it is offline.
	ViewCurrent = "current"
	// ViewStale: the view has heard nothing for longer than a record lives, or has only just begun to hear
	// again. What it shows was so; that somebody is missing in it says nothing.
	ViewStale = "stale"
	// ViewUnpopulated: the records that were there at the beginning are not all read yet.
	ViewUnpopulated = "unpopulated"
)

// keepOffline is how many participants that are gone a view remembers, the latest: a program that is
// restarted all day must not fill it.
const keepOffline = 256

// rosterSettle is how long a view that was interrupted leaves everybody to be heard again: a client looks for its
// server every five seconds at the most, and needs a moment to be let in.
const rosterSettle = wire.PresenceWindow + 2*wire.PresenceHeartbeat

// rosterState is what a view knows, and what follows from it at a given moment. It has no clock of its own.
type rosterState struct {
	rows    map[string]*rosterRow
	full    bool      // everything that was there at the beginning is read
	heard   time.Time // when the server last said something
	settled time.Time // before that, what is missing may have been missed by us
	next    time.Time // nothing changes by itself before that; zero: nothing at all
}

type rosterRow struct {
	p       wire.Presence // as it was written
	beat    time.Time     // when it was last written, by our own clock
	offline time.Time     // since when it is gone; zero while it is there
}

// armed begins to listen. Behind an interruption of any length nobody's absence counts until everybody has had
// the time to be heard again: what interrupted us may have interrupted them.
func (s *rosterState) armed(interrupted bool, now time.Time) {
	s.heard = now
	if interrupted {
		s.settled = now.Add(rosterSettle)
	}
	s.next = now
}

// hear takes in that the server said something. A longer silence before it is an interruption, even when
// nothing else was noticed: a process that was stopped finds what it missed in its buffers, one by one.
func (s *rosterState) hear(now time.Time) {
	if now.Sub(s.heard) > watchSilence {
		s.settled = now.Add(rosterSettle)
		s.next = now
	}
	s.heard = now
}

// put takes a record in that was written age ago; it reports whether more changed than the heartbeat.
func (s *rosterState) put(key string, p wire.Presence, age time.Duration, now time.Time) bool {
	if s.rows == nil {
		s.rows = map[string]*rosterRow{}
	}
	row := s.rows[key]
	beat := now.Add(-age)
	if row == nil {
		row = &rosterRow{}
		s.rows[key] = row
	}
	old, was := row.p, row.offline
	if beat.After(row.beat) || p.LifecycleUID != old.LifecycleUID {
		row.beat = beat
	}
	row.p, row.offline = p, time.Time{}
	if p.Status == wire.StatusOffline {
		row.offline = beat
		if !was.IsZero() && old.Status == wire.StatusOffline {
			row.offline = was
		}
	}
	s.soon(row.beat.Add(wire.PresenceWindow))
	old.TS = p.TS
	return was.IsZero() != row.offline.IsZero() || !reflect.DeepEqual(old, p)
}

// remove takes in that a key was deleted.
func (s *rosterState) remove(key string, now time.Time) bool {
	row := s.rows[key]
	if row == nil || !row.offline.IsZero() {
		return false
	}
	row.offline = now
	return true
}

func (s *rosterState) soon(t time.Time) {
	if s.next.IsZero() || t.Before(s.next) {
		s.next = t
	}
}

// state is how much the view is worth.
func (s *rosterState) state(now time.Time) string {
	switch {
	case !s.full:
		return ViewUnpopulated
	case now.Sub(s.heard) > wire.PresenceWindow, now.Before(s.settled):
		return ViewStale
	}
	return ViewCurrent
}

// tick lets time do what it does: whoever was silent for a window, while the view itself went on hearing, is
// gone. It reports whether anybody went, and sets next.
func (s *rosterState) tick(now time.Time) bool {
	changed, gone := false, 0
	s.next = time.Time{}
	st := s.state(now)
	if s.full {
		// From current to stale by silence, and from stale to current when everybody had the time.
		switch st {
		case ViewCurrent:
			s.soon(s.heard.Add(wire.PresenceWindow + 1))
		case ViewStale:
			if now.Before(s.settled) {
				s.soon(s.settled)
			}
		}
	}
	for _, row := range s.rows {
		if !row.offline.IsZero() {
			gone++
			continue
		}
		if end := row.beat.Add(wire.PresenceWindow); st == ViewCurrent {
			if s.heard.After(end) {
				row.offline = end
				changed = true
				gone++
			} else {
				s.soon(end.Add(1)) // if that is over already, the next word of the server decides
			}
		}
	}
	for ; gone > keepOffline; gone-- {
		oldest := ""
		for key, row := range s.rows {
			if !row.offline.IsZero() && (oldest == "" || row.offline.Before(s.rows[oldest].offline)) {
				oldest = key
			}
		}
		delete(s.rows, oldest)
		changed = true
	}
	return changed
}

// due reports whether tick could change anything.
func (s *rosterState) due(now time.Time) bool { return !s.next.IsZero() && !now.Before(s.next) }

// listing is the rows as they are shown. It is never changed: what changes is made anew.
type listing struct {
	rows  []wire.Presence
	times []seen
	index map[string]int // principal -> row
}

type seen struct{ beat, offline time.Time }

// list returns the rows by name and id, those that are gone as offline. prev is the listing before, whose order
// is kept while nobody came, went or changed a name: heartbeats come all the time, and a space may be large.
func (s *rosterState) list(prev listing) listing {
	l := listing{rows: make([]wire.Presence, 0, len(s.rows)), times: make([]seen, 0, len(s.rows)), index: prev.index}
	add := func(row *rosterRow) {
		p := row.p
		if !row.offline.IsZero() {
			p.Status, p.StatusSince = wire.StatusOffline, 0
		}
		l.rows = append(l.rows, p)
		l.times = append(l.times, seen{row.beat, row.offline})
	}
	if len(prev.rows) == len(s.rows) && prev.index != nil {
		for i := range prev.rows {
			row := s.rows[prev.rows[i].Card.ID]
			if row == nil || row.p.Card.Name != prev.rows[i].Card.Name {
				break
			}
			add(row)
		}
		if len(l.rows) == len(s.rows) {
			return l
		}
		l.rows, l.times = l.rows[:0], l.times[:0]
	}
	all := make([]*rosterRow, 0, len(s.rows))
	for _, row := range s.rows {
		all = append(all, row)
	}
	slices.SortFunc(all, func(a, b *rosterRow) int {
		return cmp.Or(cmp.Compare(a.p.Card.Name, b.p.Card.Name), cmp.Compare(a.p.Card.ID, b.p.Card.ID))
	})
	l.index = make(map[string]int, len(all))
	for i, row := range all {
		add(row)
		l.index[row.p.Card.ID] = i
	}
	return l
}
