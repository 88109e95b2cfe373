package seat

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// What a row says of the mesh, for every kind of view and record.
//
// proves: SEAT-1, SEAT-2, SEAT-3, SEAT-5, SEAT-6
func TestMeshOf(t *testing.T) {
	rec := wire.Presence{
		Card:   wire.AgentCard{ID: "local.a", Name: "ada", Meta: map[string]json.RawMessage{"provider": json.RawMessage(`"acme"`)}},
		Status: wire.StatusWorking, TS: 1, LifecycleUID: "u1", ActiveAt: 7,
		Condition: &wire.PresenceCondition{Code: "rate_limit", Message: "later"},
	}
	with := func(change func(*wire.Presence)) wire.Presence {
		p := rec
		change(&p)
		return p
	}
	cases := []struct {
		name     string
		state    string
		rec      wire.Presence
		mesh     string
		view     string
		activeAt int64
		provider string
		cond     string
	}{
		{"a life that is there", ViewCurrent, rec, "working", "current", 7, "acme", "rate_limit"},
		{"a stale view tells what was so, and that it is stale", ViewStale, rec, "working", "stale", 7, "acme", "rate_limit"},
		{"before the bucket was read nothing is known", ViewUnpopulated, rec, "absent", "unpopulated", 0, "", ""},
		{"one that is gone, in a current view", ViewCurrent, with(func(p *wire.Presence) { p.Status = wire.StatusOffline }), "offline", "current", 7, "acme", "rate_limit"},
		{"another life of its principal is somebody else", ViewCurrent, with(func(p *wire.Presence) { p.LifecycleUID = "u2" }), "absent", "current", 0, "", ""},
		{"its name under another principal is somebody else", ViewCurrent, with(func(p *wire.Presence) { p.Card.ID = "local.b" }), "absent", "current", 0, "", ""},
		{"what nobody said is not invented", ViewCurrent, with(func(p *wire.Presence) { p.Card.Meta, p.Condition, p.ActiveAt = nil, nil, 0 }), "working", "current", 0, "", ""},
		{"a provider that is no text is none", ViewCurrent, with(func(p *wire.Presence) {
			p.Card.Meta = map[string]json.RawMessage{"provider": json.RawMessage(`7`)}
		}), "working", "current", 7, "", "rate_limit"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := meshOf(View{Rows: []wire.Presence{c.rec}, State: c.state}, "local.a", "u1", &c.rec)
			if got.mesh != c.mesh || got.view != c.view || got.activeAt != c.activeAt || got.provider != c.provider || got.condition.Code != c.cond || got.reported != (c.cond != "") {
				t.Errorf("%+v", got)
			}
			if got.offlineSince != 0 { // the times of a view are its watcher's; without them nobody knows since when
				t.Errorf("offline since %d", got.offlineSince)
			}
		})
	}
}

// many is a set of n running seats without processes, and all of them on the mesh.
func many(tb testing.TB, n int) (*Set, *fixedRoster) {
	tb.Helper()
	r := &fixedRoster{changed: make(chan struct{})}
	r.view.State = ViewCurrent
	s := New(Config{Roster: r, Space: "main", InstanceID: "i"})
	tb.Cleanup(s.Close)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range n {
		name := fmt.Sprintf("agent-%d", i)
		s.add(s.newActor(journal.SeatRow{
			SeatID: fmt.Sprintf("%032d", i), UID: wire.NewUID(), Alias: name, Principal: "local." + name, Agent: "claude", Runtime: "pty",
			Cwd: "/srv/project/" + name, State: journal.RowState(Running), Started: time.Now(), Created: time.Now(),
			RequestID: "local.alice." + wire.NewUID() + "/" + wire.NewID(),
		}))
		r.view.Rows = append(r.view.Rows, wire.Presence{Card: wire.AgentCard{ID: "local." + name, Name: name}, Status: wire.StatusIdle, LifecycleUID: s.byAlias[name].snapshot().Row.UID})
	}
	return s, r
}

type fixedRoster struct {
	view    View
	changed chan struct{}
}

func (r *fixedRoster) View() View               { return r.view }
func (r *fixedRoster) Changed() <-chan struct{} { return r.changed }
func (r *fixedRoster) Await(ctx context.Context, _ func(wire.Presence) bool) (wire.Presence, error) {
	<-ctx.Done()
	return wire.Presence{}, ctx.Err()
}

// A record counts for nobody but the seat it is of, also when another one claims its life.
func TestAListingTakesNobodysRecordForAnother(t *testing.T) {
	s, r := many(t, 2)
	r.view.Rows = slices.Clone(r.view.Rows)
	r.view.Rows[0].LifecycleUID = r.view.Rows[1].LifecycleUID // agent-0 says that it is agent-1's life
	slices.Reverse(r.view.Rows)
	if rows := s.Rows(); rows[0].Mesh != "absent" || rows[1].Mesh != "idle" {
		t.Errorf("%s, %s", rows[0].Mesh, rows[1].Mesh)
	}
}

// A list of rows shows every change at once, and keeps what did not change.
func TestRowsAreMadeAnewWhenSomethingChanged(t *testing.T) {
	s, r := many(t, 3)
	r.view.Rows[1].Condition = &wire.PresenceCondition{Code: "auth"}
	first := s.Rows()
	if len(first) != 3 || first[0].Mesh != "idle" || first[1].Condition == nil {
		t.Fatalf("%+v", first)
	}
	a := s.byAlias["agent-0"]
	a.note("something")
	second := s.Rows()
	if second[0].Reason != "something" || second[1].Condition != first[1].Condition {
		t.Errorf("after a change of one seat: %q; the other row was made anew: %v", second[0].Reason, second[1].Condition != first[1].Condition)
	}
	r.view.Rows = slices.Clone(r.view.Rows)
	r.view.Rows[2].Status = wire.StatusWorking
	close(r.changed)
	r.changed = make(chan struct{})
	if third := s.Rows(); third[2].Mesh != "working" || third[1].Condition != first[1].Condition {
		t.Errorf("after a change of the mesh: %+v", third[2])
	}
	r.view.State = ViewStale // by time alone
	begin := time.Now()
	for s.Rows()[0].MeshView != ViewStale {
		if busy.Over(begin, 10*time.Second) {
			t.Fatal("a view that grew old is not shown as stale")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if now := s.Rows(); now[0].UptimeMs <= first[0].UptimeMs {
		t.Errorf("the uptime stands still: %d", now[0].UptimeMs)
	}
}

func BenchmarkRows(b *testing.B) {
	for _, n := range []int{32, 500} {
		s, _ := many(b, n)
		b.Run(fmt.Sprintf("seats=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Rows()
			}
		})
		b.Run(fmt.Sprintf("seats=%d/one-changed", n), func(b *testing.B) {
			a := s.byAlias["agent-1"]
			for b.Loop() {
				a.note("x")
				s.Rows()
			}
		})
	}
}
