package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

func watchPresence(t *testing.T, w *harness.World) (*mesh.Client, *mesh.Roster) {
	t.Helper()
	cfg := w.MeshConfig("watcher")
	cfg.Reconnect = true
	c, err := mesh.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r, err := c.WatchPresence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return c, r
}

func awaitPresence(t *testing.T, r *mesh.Roster, what string, match func(wire.Presence) bool) wire.Presence {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(harness.DefaultWait))
	defer cancel()
	p, err := r.Await(ctx, match)
	if err != nil {
		v := r.View()
		t.Fatalf("%s: %v; the view is %s with %+v", what, err, v.State, v.Rows)
	}
	return p
}

// A seat's program finds in its environment all that it needs to join as the seat, and readiness is that it did.
//
// proves: READY-2, SEAT-3
func TestPresence_ASeatJoinsAsWhoItWasLaunchedAs(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.UsePresence(0)
	w.Start(harness.HostOptions{})
	c, roster := watchPresence(t, w)
	awaitPresence(t, roster, "the host appears", func(p wire.Presence) bool {
		return p.Card.Kind == wire.CardEndpoint && p.Card.Role == wire.EndpointManager && p.Status == wire.StatusIdle
	})
	said := w.Path("said")
	l, err := harness.Launch(t.Context(), c, w.PresenceArgs("worker", fmt.Sprintf(
		`[{"join": {"activity": "reading"}}, {"hear": {"channel": "dev", "file": %q}}, {"say": {"channel": "dev", "text": "here"}},
		 {"waitFile": %q}, {"status": {"status": "working", "condition": "retrying"}}, {"waitFile": %q}, {"leave": true}, {"hang": true}]`,
		said, w.Path("work"), w.Path("go"))))
	if err != nil {
		t.Fatal(err)
	}
	ours := func(status string) func(wire.Presence) bool {
		return func(p wire.Presence) bool {
			return p.Card.ID == l.Result.ID && p.LifecycleUID == l.Result.LifecycleUID && p.Status == status
		}
	}
	p := awaitPresence(t, roster, "the seat joins", ours(wire.StatusIdle))
	if p.Card.Name != "worker" || p.Activity != "reading" {
		t.Errorf("its record: %+v", p)
	}
	// The material is private and goes with the seat.
	row := w.Inspect("worker")
	file := w.SeatRoot + "/" + row.SeatID + "/launch/material.json"
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", file, st, err)
	}
	if _, err := c.SendChannel(t.Context(), "dev", "hello"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.DefaultWait, "both messages are heard", func() (bool, string) {
		text, _ := os.ReadFile(said)
		return strings.Contains(string(text), "worker: here\n") && strings.Contains(string(text), "watcher: hello\n"), string(text)
	})
	w.Write("work", "")
	if p := awaitPresence(t, roster, "it works", ours(wire.StatusWorking)); p.Condition == nil || p.Condition.Code != "retrying" {
		t.Errorf("its record: %+v", p)
	}
	w.Write("go", "")
	awaitPresence(t, roster, "it leaves", ours(wire.StatusOffline))
	w.CLI("stop", "worker").OK()
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", file, err)
	}
}

// A program on the mesh as somebody else, or as another life, is not the seat that was launched.
//
// proves: READY-1, READY-2
func TestPresence_SomebodyElseIsNotTheSeat(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.UsePresence(1500 * time.Millisecond)
	w.Start(harness.HostOptions{})
	c, roster := watchPresence(t, w)
	for name, join := range map[string]string{"other_life": `{"uid": "other"}`, "other_principal": `{"principal": "other"}`} {
		id := wire.NewID()
		var acc wire.Acceptance
		_, err := c.Call(t.Context(), mesh.Call{
			Endpoint: wire.EndpointManager, Command: wire.CmdSpawn, ID: id, Deadline: harness.DefaultWait,
			Args: w.PresenceArgs(name, `[{"join": `+join+`}, {"hang": true}]`),
		}, &acc)
		if err != nil {
			t.Fatal(err)
		}
		awaitPresence(t, roster, name+" is on the mesh", func(p wire.Presence) bool { return p.Card.Name == name && p.Status == wire.StatusIdle })
		var reply wire.GoalResultReply
		harness.Eventually(t, harness.DefaultWait, name+": the goal has its terminal", func() (bool, string) {
			_, err := c.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id}}, &reply)
			return err == nil && reply.Result != nil, fmt.Sprint(err)
		})
		if reply.Result.State != wire.GoalUncertain {
			t.Errorf("%s: its goal ended %s", name, reply.Result.State)
		}
		if row := w.Inspect(name); row.Status != "running" {
			t.Errorf("%s: the seat is %s", name, row.Status)
		}
		w.CLI("stop", name).OK()
	}
}

// What is sent to a seat waits until its program looks, if it was sent before the program was there.
func TestPresence_AMessageToASeatWaitsForItsProgram(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	got := w.Path("got")
	w.SpawnFake("worker", fmt.Sprintf(`[{"waitFile": %q}, {"join": {}}, {"inbox": {"count": 2, "file": %q}}, {"hang": true}]`, w.Path("go"), got))
	w.CLI("send", "@worker", "before", "you", "came").OK()
	w.Write("go", "")
	w.CLI("send", "@worker", "and after").OK()
	harness.Eventually(t, harness.DefaultWait, "both messages arrive", func() (bool, string) {
		text, _ := os.ReadFile(got)
		return strings.Contains(string(text), ": before you came\n") && strings.Contains(string(text), ": and after\n"), string(text)
	})
	w.CLI("stop", "worker").OK()
}

// A host that was away takes nobody for gone who is only on the way back, or who was there all the time.
//
// proves: SEAT-2
func TestPresence_AHostThatCameBackJudgesNobodyTooEarly(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		long, external bool
		strike         func(w *harness.World, h *harness.Host, b *harness.Broker)
	}{
		"it was killed": {strike: func(w *harness.World, h *harness.Host, _ *harness.Broker) {
			h.Kill()
			w.Start(harness.HostOptions{})
		}},
		"it was killed, its broker was not": {long: true, external: true, strike: func(w *harness.World, h *harness.Host, _ *harness.Broker) {
			h.Kill()
			w.Start(harness.HostOptions{})
		}},
		"it was stopped for longer than presence lasts": {long: true, strike: func(_ *harness.World, h *harness.Host, _ *harness.Broker) {
			h.Signal(syscall.SIGSTOP)
			<-time.After(2 * wire.PresenceWindow)
			h.Signal(syscall.SIGCONT)
		}},
		"its broker was killed": {long: true, external: true, strike: func(_ *harness.World, _ *harness.Host, b *harness.Broker) {
			b.Kill()
			b.Restart()
		}},
		"its broker was stopped for longer than presence lasts": {long: true, external: true, strike: func(_ *harness.World, _ *harness.Host, b *harness.Broker) {
			b.Stop()
			<-time.After(2 * wire.PresenceWindow)
			b.Cont()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.long && os.Getenv("COTAL_LONG") == "" {
				t.Skip("COTAL_LONG is not set")
			}
			t.Parallel()
			w := harness.New(t)
			w.UsePresence(0)
			var b *harness.Broker
			if tc.external {
				b = w.StartBroker()
			}
			h := w.Start(harness.HostOptions{})
			c, _ := watchPresence(t, w)
			if _, err := harness.Launch(t.Context(), c, w.PresenceArgs("worker", `[{"join": {}}, {"hang": true}]`)); err != nil {
				t.Fatal(err)
			}
			tc.strike(w, h, b)
			seen := map[string]int{}
			current := 0
			harness.Eventually(t, 2*harness.DefaultWait, "the seat is seen on the mesh again", func() (bool, string) {
				r := w.CLI("ps", "--json")
				if r.Code != 0 {
					return false, r.String() // the broker is on its way back, too
				}
				var row wire.AgentRow // the one line that there is
				r.JSON(&row)
				seen[row.Mesh+" "+row.MeshView]++
				if row.MeshView != mesh.ViewCurrent {
					return false, row.MeshView
				}
				if row.Mesh != wire.StatusIdle {
					t.Fatalf("a verdict about a seat that lives: %+v", row)
				}
				current++
				return current > 3 && seen["idle "+mesh.ViewCurrent] > 3, row.Mesh
			})
			t.Log(seen)
			w.CLI("stop", "worker").OK()
		})
	}
}
