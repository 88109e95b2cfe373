package seat_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// byPresence boots a host whose connector counts an agent as ready once it joined the mesh.
func byPresence(t *testing.T, window time.Duration) (*world, *roster) {
	t.Helper()
	w := newWorld(t)
	w.facts(func(f *sdk.ConnectorFacts) {
		f.ReadyBy, f.ReadinessTimeoutMs = sdk.ReadyByPresence, int(window.Milliseconds())
	})
	r := newRoster(seat.ViewCurrent)
	w.withRoster(r)
	return w, r
}

// facts changes what the connector says of itself.
func (w *world) facts(change func(*sdk.ConnectorFacts)) {
	w.plugins.mu.Lock()
	defer w.plugins.mu.Unlock()
	info := w.plugins.facts["command"]
	change(&info.Connector)
	w.plugins.facts["command"] = info
}

func principal(acc wire.Acceptance) string { return acc.Owner + "." + acc.Actor }

// begin spawns a seat and waits until its process runs.
func (w *world) begin(name, script string) (string, wire.Acceptance) {
	w.t.Helper()
	id := wire.NewID()
	acc, err := w.spawn(id, w.args(name, script))
	if err != nil {
		w.t.Fatal(err)
	}
	w.awaitStatus(name, "running")
	return id, acc
}

// phases are those a follower of the goal was told.
func (e *events) phases(id string) (out []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.all[id] {
		out = append(out, p.Phase)
	}
	return out
}

// Only the presence of exactly the new life makes a seat ready.
//
// proves: READY-1, READY-2, READY-11, READY-12
func TestOnlyTheExactLifeOnTheMeshIsReady(t *testing.T) {
	w, r := byPresence(t, time.Minute)
	id, acc := w.begin("ada", `[{"hang": true}]`)
	if acc.ReadinessDeadlineMs != time.Minute.Milliseconds() {
		t.Errorf("the acceptance names %d ms", acc.ReadinessDeadlineMs)
	}
	gone := present("ada", principal(acc), acc.UID)
	gone.Status = wire.StatusOffline
	others := []wire.Presence{
		present("ada", "local.somebody", acc.UID),       // its name and life, another principal
		present("ada", principal(acc), wire.NewUID()),   // its name and principal, another life
		present("ada", "local.somebody", wire.NewUID()), // its name
		gone,
	}
	for _, p := range others {
		r.set(seat.ViewCurrent, p)
		w.never("ready by "+p.Card.ID+" "+p.LifecycleUID+" "+p.Status, func() bool { return w.result(id).Result != nil })
	}
	r.set(seat.ViewCurrent, append(others[:3:3], present("whatever", principal(acc), acc.UID))...)
	end := w.terminal(id)
	if end.State != wire.GoalSucceeded {
		t.Fatalf("%s %+v", end.State, end.Error)
	}
	w.eventually("its phases were told in order", func() (bool, string) {
		got := w.events.phases(id)
		return slices.Equal(got, []string{wire.PhaseHandoff, wire.PhaseLaunched, wire.PhasePresence, wire.PhaseTerminal}), strings.Join(got, " ")
	})
	var data map[string]any
	if err := json.Unmarshal(end.Data, &data); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{"name": "ada", "agent": "command", "id": principal(acc), "mode": "pty", "lifecycleUid": acc.UID} {
		if data[key] != want {
			t.Errorf("%s is %v, want %v", key, data[key], want)
		}
	}
	for key, value := range data {
		if value == nil {
			t.Errorf("%s is null", key)
		}
	}
	if _, ok := data["role"]; ok {
		t.Error("a role that it does not have")
	}
}

// never waits for a moment in which something must not come about. The moment is short: what is looked for
// would come at once.
func (w *world) never(what string, check func() bool) {
	w.t.Helper()
	for end := time.Now().Add(60 * time.Millisecond); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if check() {
			w.t.Fatal(what)
		}
	}
}

// An agent that is on the mesh before anybody waits for it is seen all the same.
//
// proves: READY-3
func TestAJoinBeforeTheWaitIsSeen(t *testing.T) {
	w, r := byPresence(t, time.Minute)
	gate := filepath.Join(w.dir, "gate")
	if err := failpoint.Arm("host.spawn.committed=1*pause(" + gate + ")"); err != nil {
		t.Fatal(err)
	}
	defer failpoint.Disarm()
	id := wire.NewID()
	acc, err := w.spawn(id, w.args("quick", `[{"hang": true}]`))
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("the process runs and nobody knows yet", func() (bool, string) { _, err := os.Stat(gate + ".reached"); return err == nil, "" })
	r.set(seat.ViewCurrent, present("quick", principal(acc), acc.UID))
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if end := w.terminal(id); end.State != wire.GoalSucceeded {
		t.Errorf("%s %+v", end.State, end.Error)
	}
}

// An agent that ends before it is ready has failed, with its last words and nothing else of its output; nothing
// of it is left.
//
// proves: READY-4
func TestAnExitBeforeReadinessFailsWithTheLastWords(t *testing.T) {
	w, _ := byPresence(t, time.Minute)
	id := wire.NewID()
	if _, err := w.spawn(id, w.args("short", `[{"print": "one\n\u001b[31mno key for \u001b]0;title\u0007`+strings.Repeat("x", 300)+`\u001b[0m\n"}, {"exit": 3}]`)); err != nil {
		t.Fatal(err)
	}
	end := w.terminal(id)
	if end.State != wire.GoalFailed || end.Error == nil || end.Error.Outcome != wire.OutcomeExecuted {
		t.Fatalf("%s %+v", end.State, end.Error)
	}
	_, last, found := strings.Cut(end.Error.Message, "its last line was: ")
	if !found || !strings.Contains(end.Error.Message, "exited on launch with code 3") || !strings.HasPrefix(last, "no key for xxx") || len([]rune(last)) > 160 ||
		strings.ContainsFunc(end.Error.Message, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		t.Errorf("%q", end.Error.Message)
	}
	w.run2nd("short")
}

// run2nd proves that a name is free.
func (w *world) run2nd(name string) {
	w.t.Helper()
	if _, err := w.spawn(wire.NewID(), w.args(name, `[{"hang": true}]`)); err != nil {
		w.t.Errorf("the name is not free: %v", err)
	}
}

// A window that passes decides nothing about the seat: it is kept, its end is still watched, and the text says
// what to do and what not.
//
// proves: READY-5, READY-10
func TestAnUncertainSeatIsKeptAndWatched(t *testing.T) {
	w, _ := byPresence(t, 200*time.Millisecond)
	gate := filepath.Join(w.dir, "go")
	id, _ := w.begin("slow", `[{"waitFile": "`+gate+`"}, {"exit": 4}]`)
	end := w.terminal(id)
	if end.State != wire.GoalUncertain {
		t.Fatalf("%s %+v", end.State, end.Error)
	}
	for _, part := range []string{"did not join the mesh within 200ms", "cotal attach slow", "cotal ps", "do not stop it only because"} {
		if !strings.Contains(end.Error.Message, part) {
			t.Errorf("%q lacks %q", end.Error.Message, part)
		}
	}
	if r := w.row("slow"); r.Status != "running" {
		t.Errorf("it is %s", r.Status)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := w.awaitStatus("slow", "exited"); r.Exit == nil || r.Exit.Code == nil || *r.Exit.Code != 4 {
		t.Errorf("%+v", r.Exit)
	}
	if again := w.result(id).Result; again == nil || again.State != wire.GoalUncertain {
		t.Errorf("its end changed the terminal: %+v", again)
	}
}

// A stop while the readiness is awaited cancels the spawn, and the wait is over.
//
// proves: READY-8, READY-9
func TestAStopWhileReadinessIsAwaitedCancels(t *testing.T) {
	w, r := byPresence(t, time.Minute)
	id, acc := w.begin("late", `[{"hang": true}]`)
	if _, err := w.stop(acc, true); err != nil {
		t.Fatal(err)
	}
	end := w.terminal(id)
	if end.State != wire.GoalCancelled || !strings.Contains(string(end.Data), `"cancelledBy":"stopped-requested"`) {
		t.Errorf("%s %s", end.State, end.Data)
	}
	r.set(seat.ViewCurrent, present("late", principal(acc), acc.UID)) // too late
	w.never("a second terminal", func() bool { return w.events.terminals(id) > 1 })
}

// A runtime that tells of no exit is asked for it, in time to decide the readiness.
//
// proves: READY-6, READY-7, EXIT-2, EXIT-10
func TestExitsAreAskedForWhereNobodyTellsOfThem(t *testing.T) {
	for name, c := range map[string]struct {
		window, poll time.Duration
		ends         bool
		want         string
	}{
		"an exit within the window is found by asking":                   {time.Minute, 20 * time.Millisecond, true, wire.GoalFailed},
		"an exit that was not asked for yet is found when it closes":     {300 * time.Millisecond, time.Hour, true, wire.GoalFailed},
		"without an exit the seat is uncertain one look later, and kept": {100 * time.Millisecond, 200 * time.Millisecond, false, wire.GoalUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.facts(func(f *sdk.ConnectorFacts) {
				f.ReadyBy, f.ReadinessTimeoutMs = sdk.ReadyByPresence, int(c.window.Milliseconds())
			})
			w.exitPoll = c.poll
			mux := &elsewhere{root: w.seatRoot, runs: map[string]bool{}}
			w.plugins.other = mux
			w.plugins.also("mux", nil)
			w.withRoster(newRoster(seat.ViewCurrent))
			args := w.args("pane", `[{"hang": true}]`)
			args.Runtime = "mux"
			id := wire.NewID()
			begin := time.Now()
			if _, err := w.spawn(id, args); err != nil {
				t.Fatal(err)
			}
			w.awaitStatus("pane", "running")
			if c.ends {
				mux.end()
			}
			end := w.terminal(id)
			if end.State != c.want {
				t.Fatalf("%s %+v", end.State, end.Error)
			}
			if c.ends && strings.Contains(end.Error.Message, "last line") {
				t.Errorf("words that nobody can know: %s", end.Error.Message)
			}
			if d := time.Since(begin); !c.ends && d < c.window+c.poll {
				t.Errorf("uncertain after %s", d)
			}
			if status := w.row("pane").Status; !c.ends && status != "running" {
				t.Errorf("it is %s", status)
			}
		})
	}
}

// end ends everything that runs there, without a word to anybody.
func (e *elsewhere) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.runs)
}

// A host that dies while it waits leaves the decision to the next one, which takes presence for readiness and
// the mere process for nothing.
//
// proves: READY-2
func TestTheNextHostGoesOnWaitingForTheMesh(t *testing.T) {
	w, r := byPresence(t, time.Minute)
	id, acc := w.begin("steady", `[{"hang": true}]`)
	w.crash()
	w.boot()
	w.awaitStatus("steady", "running")
	w.never("it is ready because it runs", func() bool { return w.result(id).Result != nil })
	r.set(seat.ViewCurrent, present("steady", principal(acc), acc.UID))
	if end := w.terminal(id); end.State != wire.GoalSucceeded {
		t.Errorf("%s %+v", end.State, end.Error)
	}
}

// A seat that was unknown when its host came is decided once its runtime answers again.
//
// proves: READY-2
func TestASpawnIsDecidedOnceItsRuntimeAnswersAgain(t *testing.T) {
	w, r := byPresence(t, time.Minute)
	id, acc := w.begin("held", `[{"hang": true}]`)
	w.crash()
	w.plugins.setDown(sdk.Errorf(sdk.ErrUnavailable, "the runtime is away"))
	w.boot()
	w.awaitStatus("held", "unknown")
	w.plugins.setDown(nil)
	w.awaitStatus("held", "running")
	w.never("it is ready because it runs", func() bool { return w.result(id).Result != nil })
	r.set(seat.ViewCurrent, present("held", principal(acc), acc.UID))
	if end := w.terminal(id); end.State != wire.GoalSucceeded {
		t.Errorf("%s %+v", end.State, end.Error)
	}
}
