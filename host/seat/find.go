package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// listTimeout bounds the enumeration of seats by one runtime.
const listTimeout = 10 * time.Second

// foundByDirectory takes back our seats that nothing but their directory knows: those that the runtime for
// new seats lists, and those of any other runtime, by what this host wrote into their directories before it
// asked for anything. So a runtime that does not start costs its own seats alone, and hides none: they are
// taken back by name, and are unknown until it answers. The other runtimes are asked in the background.
func (s *Set) foundByDirectory(ctx context.Context) []*actor {
	found, err := s.listedBy(ctx, s.cfg.Runtime)
	if err != nil {
		s.cfg.Log.Error("list seats; no new ones until it succeeds", "plugin", s.cfg.Runtime, "err", err)
		s.setUnlisted(err)
		s.listLater(s.cfg.Runtime, err)
	}
	byIntent, err := s.intended()
	if err != nil {
		s.cfg.Log.Error("read seat directories; it is tried again, and what lives is not known before", "err", err)
		s.setUnread(true)
		s.readLater()
	}
	for _, name := range s.cfg.Plugins.Runtimes() {
		if name != s.cfg.Runtime {
			s.listLater(name, nil)
		}
	}
	return append(found, byIntent...)
}

func (s *Set) setUnlisted(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlisted = ""
	if err != nil {
		s.unlisted = err.Error()
	}
}

func (s *Set) setUnread(unread bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = unread
}

// Listed reports whether it is known which seats this machine has: HasLife says yes to every life until it is.
func (s *Set) Listed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unlisted == "" && !s.unread
}

// readLater reads the seat directories until they can be read, in the background.
func (s *Set) readLater() {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for attempt := 0; ; attempt++ {
			select {
			case <-time.After(retryDelay(attempt)):
			case <-s.life.Done():
				return
			}
			found, err := s.intended()
			if err != nil {
				continue
			}
			s.tookBackLate(found)
			s.setUnread(false)
			return
		}
	}()
}

// tookBackLate decides about seats that were found behind the start of this host.
func (s *Set) tookBackLate(found []*actor) {
	for _, v := range s.verdicts(s.life, found, false) {
		s.cfg.Log.Info("took back seat, late", "seat", v.Alias, "state", string(v.State), "pid", v.PID, "reason", v.Reason)
	}
}

// listLater asks a runtime for its seats until it answers, in the background. failed is why it did not the
// last time; nil asks at once.
func (s *Set) listLater(runtime string, failed error) {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		told := "" // the last reason
		if failed != nil {
			told = failed.Error()
		}
		for attempt := 0; ; attempt++ {
			if failed != nil {
				select {
				case <-time.After(retryDelay(attempt)):
				case <-s.life.Done():
					return
				}
			}
			var found []*actor
			if found, failed = s.listedBy(s.life, runtime); failed != nil {
				if failed.Error() != told && s.life.Err() == nil {
					told = failed.Error()
					s.cfg.Log.Warn("list seats; it is tried again, and those that nothing else knows are not seen before", "plugin", runtime, "err", failed)
				}
				if runtime == s.cfg.Runtime {
					s.setUnlisted(failed)
				}
				continue
			}
			s.tookBackLate(found)
			if runtime == s.cfg.Runtime {
				s.setUnlisted(nil)
			}
			return
		}
	}()
}

// listedBy takes back what a runtime lists and this host does not know, and counts foreign seats.
func (s *Set) listedBy(ctx context.Context, runtime string) ([]*actor, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	rt, info, err := s.cfg.Plugins.Runtime(ctx, runtime)
	if err != nil {
		return nil, err
	}
	l, ok := rt.(sdk.Lister)
	if !ok || !info.Has(sdk.CapList) {
		return nil, nil
	}
	list, err := l.List(ctx, sdk.ListRequest{InstanceID: s.cfg.InstanceID})
	if err != nil {
		return nil, err
	}
	var found []*actor
	foreign, unread, example := 0, 0, sdk.SeatListing{}
	for _, e := range list {
		switch row := s.rowFromListing(e, runtime); {
		case !e.Ours:
			foreign++
			if e.Problem != "" {
				if unread++; unread == 1 {
					example = e
				}
			}
		case row.Runtime != runtime: // its own runtime lists it, or its intent names it
		default:
			if a := s.takeBackNew(row); a != nil {
				found = append(found, a)
			}
		}
	}
	if unread > 0 { // one line for all: there may be thousands
		s.cfg.Log.Warn("seat directories cannot be read; they are left alone", "plugin", runtime, "count", unread, "seat", example.SeatID, "err", example.Problem)
	}
	s.mu.Lock()
	s.foreign[runtime] = foreign
	s.mu.Unlock()
	return found, nil
}

// intended takes back our seats whose directory names another runtime than the one for new seats.
func (s *Set) intended() ([]*actor, error) {
	entries, err := os.ReadDir(s.cfg.SeatRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list seat directories: %w", err)
	}
	var found []*actor
	for _, e := range entries {
		if !record.ValidID(e.Name()) {
			continue
		}
		in, err := record.ReadIntent(filepath.Join(s.cfg.SeatRoot, e.Name()))
		if err != nil || in.Owner.InstanceID != s.cfg.InstanceID || in.CustodyID != e.Name() || runtimeOf(in.Runtime) == s.cfg.Runtime {
			continue // what cannot be read is listed, with the problem, by the runtime it is of
		}
		row := s.rowFromListing(sdk.SeatListing{
			SeatID: in.CustodyID, Owner: sdk.SeatOwner(in.Owner), Ours: true, Nonce: in.Nonce, Fence: in.Fence, Form: in.Form, Created: in.Created,
		}, runtimeOf(in.Runtime))
		if a := s.takeBackNew(row); a != nil {
			found = append(found, a)
		}
	}
	return found, nil
}

// runtimeOf is the runtime an intent names.
func runtimeOf(intent string) string { return cmp.Or(intent, "pty") }

// takeBackNew takes a seat back unless it is known already.
func (s *Set) takeBackNew(row journal.SeatRow) *actor {
	s.mu.Lock()
	known := s.byID[row.SeatID] != nil || slices.ContainsFunc(s.ended, func(o *Snapshot) bool { return o.Row.SeatID == row.SeatID })
	s.mu.Unlock()
	if known || s.recordedEnd(row.SeatID) {
		return nil
	}
	return s.takeBack(row)
}

// recordedEnd reports whether the journal has the end of a seat that is not told of any more.
func (s *Set) recordedEnd(seatID string) (over bool) {
	_ = s.cfg.Journal.View(func(tx *journal.Tx) error { // what cannot be read is no end
		row, err := tx.Seat(seatID)
		over = err == nil && stateOf(row) == Ended
		return nil
	})
	return over
}

// rowFromListing rebuilds the row of a seat from its directory, as runtime listed it.
func (s *Set) rowFromListing(e sdk.SeatListing, runtime string) journal.SeatRow {
	f, err := launch.ParseForm(e.Form)
	if err != nil && len(e.Form) > 0 {
		s.cfg.Log.Warn("launch form of a found seat cannot be read; the seat is taken back without it", "seat", e.SeatID, "err", err)
	}
	return journal.SeatRow{
		SeatID: e.SeatID, UID: e.Owner.LifecycleUID, Alias: e.Owner.Alias, Principal: e.Owner.Principal, Nonce: e.Nonce,
		RequestID: e.Owner.RequestID, Fingerprint: e.Owner.Fingerprint, Persona: f.PersonaPath, Agent: f.Agent,
		Runtime: cmp.Or(f.Runtime, runtime), Role: f.Role, Model: f.Model, Variant: f.Variant, Cwd: f.Cwd, Grace: cmp.Or(f.GraceMs, sdk.DefaultStopGraceMs), Form: e.Form,
		ReadinessMs: f.ReadinessMs, ReadyBy: string(f.ReadyBy), State: journal.StateIntent, Created: e.Created, Started: e.Created,
	}
}
