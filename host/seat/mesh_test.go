package seat_test

import (
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A seat on a real mesh: what it says there is what decides its spawn and what its row tells, and when the view
// of the mesh grows old, the row says that instead of a verdict, and nothing is done to the seat.
//
// proves: READY-1, SEAT-1, SEAT-2, SEAT-3, SEAT-6, E10
func TestASeatOnARealMesh(t *testing.T) {
	t.Parallel()
	const token = "test-token-0123456789"
	srv, err := broker.Start(t.Context(), broker.Config{StoreDir: t.TempDir(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	b, err := bus.Connect(t.Context(), bus.Config{URL: srv.URL(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	err = b.SetUpMessaging(t.Context(), "main", func(string) bool { return false }, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	view, err := b.WatchPresence(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(view.Close)

	w := newWorld(t)
	w.facts(func(f *sdk.ConnectorFacts) { f.ReadyBy, f.ReadinessTimeoutMs = sdk.ReadyByPresence, 60_000 })
	w.withRoster(view)
	id, acc := w.begin("ada", `[{"hang": true}]`)
	w.shows("ada", "nobody has joined yet", func(r wire.AgentRow) bool { return r.Mesh == "absent" && r.MeshView == seat.ViewCurrent })

	join := func(uid string) *mesh.Presence {
		t.Helper()
		c, err := mesh.Connect(t.Context(), mesh.Config{
			URL: srv.URL(), Token: token, Space: "main", Name: "ada", Reconnect: true,
			Caller: wire.Caller{Owner: acc.Owner, Actor: acc.Actor, UID: uid},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		p, err := c.Join(t.Context(), mesh.JoinConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	other := join(wire.NewUID()) // another life of the same principal
	w.eventually("the other life is seen", func() (bool, string) {
		p, ok := view.View().Row(principal(acc))
		return ok && p.LifecycleUID != acc.UID, ""
	})
	w.never("it is taken for the seat", func() bool { return w.result(id).Result != nil || w.row("ada").Mesh != "absent" })
	if err := other.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	self := join(acc.UID)
	if end := w.terminal(id); end.State != wire.GoalSucceeded {
		t.Fatalf("%s %+v", end.State, end.Error)
	}
	w.shows("ada", "it is there", func(r wire.AgentRow) bool { return r.Mesh == wire.StatusIdle && r.MeshView == seat.ViewCurrent })
	if err := self.SetCondition(t.Context(), &wire.PresenceCondition{Code: "rate_limit", Message: "later"}); err != nil {
		t.Fatal(err)
	}
	w.shows("ada", "what its program reports", func(r wire.AgentRow) bool {
		return r.Condition != nil && r.Condition.Code == "rate_limit" && r.Condition.Message == "later"
	})
	begun := time.Now().Add(-time.Second)
	if err := self.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	row := w.shows("ada", "it left", func(r wire.AgentRow) bool { return r.Mesh == wire.StatusOffline && r.OfflineSince != 0 })
	if since := time.UnixMilli(row.OfflineSince); since.Before(begun) || since.After(time.Now().Add(time.Second)) {
		t.Errorf("it left at %s", since)
	}
	srv.Shutdown()
	row = w.shows("ada", "the view has grown old", func(r wire.AgentRow) bool { return r.MeshView == seat.ViewStale })
	if row.OfflineSince != 0 || row.Status != "running" {
		t.Errorf("a verdict from a view that is stale: %+v", row)
	}
}

// shows waits for a row that a check accepts.
func (w *world) shows(name, what string, ok func(wire.AgentRow) bool) wire.AgentRow {
	w.t.Helper()
	var r wire.AgentRow
	w.eventually(what, func() (bool, string) {
		r = w.row(name)
		return ok(r), r.Mesh + " " + r.MeshView
	})
	return r
}
