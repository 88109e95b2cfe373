package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// An invariant that cannot be broken proves nothing: each is shown what breaks it.
func TestInvariantsSeeWhatBreaksThem(t *testing.T) {
	id, other := strings.Repeat("a", 32), strings.Repeat("b", 32)
	agent := func(pid int) harness.Proc { return harness.Proc{PID: pid, Args: "/bin/cotal-fakeagent [...]"} }
	custody := func(id string) harness.Proc { return harness.Proc{PID: 7, Args: "cotal-seat " + id} }
	running := wire.AgentRow{Name: "worker", SeatID: id, LifecycleUID: "u", Status: "running", PID: 1 << 30}
	for name, c := range map[string]struct {
		want   string
		census census
		before func(*testing.T, *world)
	}{
		"two agents with one nonce": {want: invOne, census: census{
			procs: []harness.Proc{agent(1), agent(2)}, nonces: map[int]string{1: "n", 2: "n"},
		}},
		"two seats of one life": {want: invOne, census: census{
			live: map[string]wire.AgentRow{id: running, other: running},
		}},
		"a seat that is listed running and is not": {want: invAlive, census: census{
			live: map[string]wire.AgentRow{id: running},
		}},
		"custody of a seat that is not listed": {want: invListed, census: census{procs: []harness.Proc{custody(id)}}},
		"custody of tmux of a seat that is not listed": {want: invListed, census: census{
			procs: []harness.Proc{{PID: 7, Args: "cotal-tmux-seat " + id}},
		}},
		"an agent of no seat":                        {want: invListed, census: census{procs: []harness.Proc{agent(1)}}},
		"a directory of no seat":                     {want: invListed, census: census{dirs: []string{id}}},
		"a process with the nonce of an ended seat":  {want: invNonce, census: census{procs: []harness.Proc{{PID: 1, Args: "sleep"}}, nonces: map[int]string{1: "n"}, seatOf: map[string]string{"n": id}}},
		"a process with a nonce that nobody knows":   {want: invNonce, census: census{procs: []harness.Proc{{PID: 1, Args: "sleep"}}, nonces: map[int]string{1: "n"}}},
		"a token of no live seat":                    {want: invSecret, before: func(t *testing.T, w *world) { put(t, filepath.Join(w.SeatRoot, id, "token"), "x") }},
		"a seat that was started and is not listed":  {want: invSeen, before: func(_ *testing.T, w *world) { w.promised = []promise{{name: "worker", uid: "u"}} }},
		"a seat that was stopped and is listed live": {want: invSeen, census: census{rows: []wire.AgentRow{running}}, before: func(_ *testing.T, w *world) { w.promised = []promise{{name: "worker", uid: "u", stopped: true}} }},
		"a seat that runs with another process": {want: invSeen, census: census{rows: []wire.AgentRow{running}}, before: func(_ *testing.T, w *world) {
			w.promised = []promise{{name: "worker", uid: "u", row: wire.AgentRow{PID: 5}}}
		}},
		"a goal that was accepted and is on no mesh": {want: invMesh, before: func(_ *testing.T, w *world) { w.accepted["g"] = wire.Acceptance{UID: "u"} }},
		"a goal whose record does not say its end": {
			want: invMesh, census: census{goals: map[string]recorded{"g": {accepted: true, status: "running", terminal: "failed"}}},
			before: func(_ *testing.T, w *world) { w.accepted["g"] = wire.Acceptance{UID: "u"} },
		},
		"a goal that is over and in the index": {
			want:   invMesh,
			census: census{goals: map[string]recorded{"g": {accepted: true, status: "failed", terminal: "failed"}}, index: []string{"g"}},
			before: func(_ *testing.T, w *world) { w.accepted["g"] = wire.Acceptance{UID: "u"} },
		},
		"a goal in the index that nobody was told was accepted": {want: invMesh, census: census{index: []string{"h"}}},
		"an empty record": {want: invState, before: func(t *testing.T, w *world) { put(t, filepath.Join(w.SeatRoot, id, "seat.json"), "") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.AllowOrphans("its files are made up")
			if c.before != nil {
				c.before(t, w)
			}
			for _, inv := range invariants {
				if found := inv.check(w, c.census); found != "" {
					if inv.name != c.want {
						t.Errorf("invariant %q was broken, by %s; want %q", inv.name, found, c.want)
					}
					return
				}
			}
			t.Errorf("no invariant saw it; want %q", c.want)
		})
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
