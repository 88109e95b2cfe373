//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// jsonLines decodes every line of an output.
func jsonLines[T any](t *testing.T, text string) []T {
	t.Helper()
	var out []T
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

// neverReady are the arguments of a spawn whose seat runs and never counts as ready.
func neverReady(name, script string, flags ...string) []string {
	args := append([]string{"spawn", "--agent", "command", "--name", name, "--opt", "probe=127.0.0.1:9"}, flags...)
	return append(args, "--", "sh", "-c", script)
}

func TestSpawn_JSONLinesSayHowFarItIsAndEndWithTheResult(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	r := w.CLI("spawn", "--agent", "command", "--name", "js", "--json", "--", "sleep", "600").OK()
	lines := strings.SplitAfter(strings.TrimSuffix(r.Stdout, "\n"), "\n")
	events := jsonLines[spawnEvent](t, strings.Join(lines[:len(lines)-1], ""))
	end := jsonLines[spawned](t, lines[len(lines)-1])[0]
	if events[0].Event != "accepted" || events[0].UID == "" || events[0].InstanceID != w.Endpoint().InstanceID || events[0].Name != "js" {
		t.Errorf("the first line is %+v", events[0])
	}
	var phases []string
	for _, e := range events[1:] {
		if e.Event != "phase" || e.GoalID != events[0].GoalID {
			t.Errorf("line %+v", e)
		}
		phases = append(phases, e.Phase)
	}
	// Events may be lost, and those that come are in order.
	if !slices.IsSortedFunc(phases, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) }) {
		t.Errorf("phases %v", phases)
	}
	if end.Event != "result" || end.State != wire.GoalSucceeded || end.Became != becameRunning && end.Became != becameJoined || end.Result == nil || end.Result.PID == 0 || end.UID != events[0].UID || end.GoalID != events[0].GoalID {
		t.Errorf("the last line is %+v", end)
	}
}

var order = []string{wire.PhaseHandoff, wire.PhaseLaunched, wire.PhasePresence}

// What exited before it was ready is told with the end of what it printed.
func TestSpawn_OneThatExitsIsToldWithItsLastOutput(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	script := `printf 'one\n\033[31mno model is configured\033[0m\n'; sleep 0.3; exit 3`
	r := w.CLI(neverReady("bad", script)...).Want(1)
	if r.Stdout != "" || !strings.Contains(r.Stderr, "the last output of bad:\n  | one\n  | no model is configured\n") || !strings.Contains(r.Stderr, "bad: exited\n") ||
		!strings.HasPrefix(lastLines(r.Stderr, 1)[0], "cotal: bad exited before it was ready: ") {
		t.Errorf("%v", r)
	}
	r = w.CLI(neverReady("bad", script, "--json")...).Want(1)
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	end := jsonLines[spawned](t, lines[len(lines)-1])[0]
	if end.Became != becameExited || end.State != wire.GoalFailed || end.Exit == nil || end.Exit.Code == nil || *end.Exit.Code != 3 || !slices.Equal(end.Output, []string{"one", "no model is configured"}) || end.Reason == "" {
		t.Errorf("%+v", end)
	}
}

// A goal is followed by another process of the same user, while the spawn that made it waits and after it was
// interrupted.
func TestGoal_IsFollowedByAnotherProcess(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	r := worldRig(t, w)
	release := w.Path("release")
	s := r.run(neverReady("late", "while [ ! -e "+release+" ]; do sleep 0.02; done; echo bye; exit 4", "--detach")...)
	s.see("launched")
	s.cmd.Process.Signal(os.Interrupt)
	code, shown := s.wait()
	_, rest, ok := strings.Cut(shown, "Follow it: cotal goal ")
	id, _, _ := strings.Cut(rest, " ")
	if code != 130 || !ok || !wire.ValidID(id) {
		t.Fatalf("exit code %d: %q", code, tail(shown))
	}
	if got := w.CLI("goal", id).OK(); !strings.Contains(got.Stdout, "state        pending\nphase        launched\n") {
		t.Errorf("%v", got)
	}
	followed := r.run("goal", id, "--follow")
	followed.see("launched")
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, shown := followed.wait(); code != 1 || !strings.Contains(shown, "state        failed") || !strings.Contains(shown, "reason ") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	got := jsonLines[goalReport](t, w.CLI("goal", id, "--json").Want(1).Stdout)
	if len(got) != 1 || got[0].Event != "goal" || got[0].State != wire.GoalFailed || got[0].Reason == "" {
		t.Errorf("%+v", got)
	}
	lines := jsonLines[goalReport](t, w.CLI("goal", id, "--follow", "--json").Want(1).Stdout)
	if end := lines[len(lines)-1]; end.Event != "goal" || end.State != wire.GoalFailed {
		t.Errorf("%+v", lines)
	}
}

func TestGoal_ThatNobodyKnowsProvesNothing(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	r := w.CLI("goal", wire.NewID(), "--json").Want(75)
	if got := jsonLines[goalReport](t, r.Stdout); len(got) != 1 || got[0].State != goalUnknown || !strings.Contains(r.Stderr, "look with cotal ps before you try again") {
		t.Errorf("%v", r)
	}
	w.CLI("goal", "not an id").Want(2)
	w.CLI("goal").Want(2)
	// Another user asks: the identity is kept in the state directory.
	end := jsonLines[spawned](t, lastLines(w.CLI("spawn", "--agent", "command", "--name", "a", "--json", "--", "sleep", "600").OK().Stdout, 1)[0])[0]
	if r := w.CLI("goal", end.GoalID).OK(); !strings.Contains(r.Stdout, "state        succeeded") || !strings.Contains(r.Stdout, "name         a\n") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("__complete", "goal", ""); !strings.Contains(r.Stdout, end.GoalID+"\tspawn of a, running") {
		t.Errorf("%v", r)
	}
	state := t.TempDir()
	w.Setenv("XDG_STATE_HOME", state)
	w.CLI("goal", end.GoalID).Want(75)
	file := filepath.Join(state, "cotal", "operator", "main.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := w.CLI("ps").Want(1); strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "rm "+file) {
		t.Errorf("a broken identity: %v", r)
	}
}

func TestOn_NamesOneHostOfTheSpace(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	id := w.Endpoint().InstanceID
	w.CLI("spawn", "--agent", "command", "--name", "a", "--on", id, "--", "sleep", "600").OK()
	if r := w.CLI("ps", "--on", id, "--json").OK(); !strings.Contains(r.Stdout, `"instanceId":"`+id) {
		t.Errorf("%v", r)
	}
	w.CLI("ps", "--on", id[:8]).Want(2)
	other := wire.NewUID()
	if r := w.CLI("ps", "--on", other).Want(3); !strings.Contains(r.Stderr, other) {
		t.Errorf("%v", r)
	}
	w.CLI("spawn", "--agent", "command", "--name", "b", "--on", other, "--", "sleep", "600").Want(3)
	if _, ok := w.Seat("b"); ok {
		t.Error("a spawn for another host ran here")
	}
	if r := w.CLI("__complete", "ps", "--on", ""); !strings.HasPrefix(r.Stdout, id+"\t1 seat, runtime pty") {
		t.Errorf("%v", r)
	}
}

// The host is killed while a spawn waits. The next one finds the seat, which then joins, and who waits hears of it. It
// was silent meanwhile: who waits is told that nobody answers, and what is waited for.
func TestSpawn_TheWaitOutlivesTheHost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		broker bool
		gone   string
	}{
		"with the server in it":      {false, "note: the mesh is gone: nothing is connected to nats://"},
		"beside a server that stays": {true, "note: no host serves space main now; waiting for a host that says what became of it, "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outliveHost(t, c.broker, c.gone)
		})
	}
}

func outliveHost(t *testing.T, broker bool, gone string) {
	w := harness.New(t)
	w.UsePresence(0)
	if broker {
		w.StartBroker()
	}
	h := w.Start(harness.HostOptions{})
	r := worldRig(t, w)
	release := w.Path("release")
	s := r.run(presenceSpawn(w, "late", `[{"waitFile": "`+release+`"}, {"join": {}}, {"hang": true}]`, "--detach")...)
	s.see("launched")
	h.Kill()
	s.see(gone)
	w.Start(harness.HostOptions{})
	s.see("note: a host answers again")
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, shown := s.wait()
	notes := strings.Count(shown, "note: ")
	if strings.Contains(shown, "note: "+noAnswer) {
		notes-- // the host was killed while it was asked; why it does not answer turned out later
	}
	if code != 0 || !strings.Contains(shown, ", joined; attach: cotal attach late") || notes != 2 {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
}

// An answer that was lost with its host was told as "does not answer", and that the host is gone was never told.
func TestFollow_WhyNobodyAnswersIsToldWhenItIsKnown(t *testing.T) {
	t.Parallel()
	gone := fmt.Errorf("ask: %w", mesh.ErrNoResponder)
	lost := context.DeadlineExceeded
	const nobody, silent, back = "no host serves space main now", noAnswer, "a host answers again"
	for name, c := range map[string]struct {
		heard []error
		noted []string
	}{
		"answers alone are no news":                          {[]error{nil, nil}, nil},
		"who is gone is told once":                           {[]error{gone, gone, nil, nil}, []string{nobody, back}},
		"a lost answer, and then it is known why":            {[]error{lost, gone, gone, nil}, []string{silent, nobody, back}},
		"a lost answer says no more than what is known":      {[]error{gone, lost, gone, nil}, []string{nobody, back}},
		"lost answers alone":                                 {[]error{lost, lost, nil}, []string{silent, back}},
		"a refusal is an answer":                             {[]error{gone, wire.Refuse(wire.CodeUnavailable, "busy")}, []string{nobody, back}},
		"who goes twice is told twice":                       {[]error{gone, nil, gone, nil}, []string{nobody, back, nobody, back}},
		"a lost answer after a host came back is news again": {[]error{gone, nil, lost, nil}, []string{nobody, back, silent, back}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var noted []string
			f := &follower{c: &cli.Client{Endpoint: wire.Endpoint{Space: "main"}}, note: func(text string) {
				text, _, _ = strings.Cut(text, ";")
				noted = append(noted, text)
			}}
			for _, err := range c.heard {
				f.heard(err, time.Time{})
			}
			if !slices.Equal(noted, c.noted) {
				t.Errorf("noted %q, want %q", noted, c.noted)
			}
		})
	}
}

// presenceSpawn are the arguments of a spawn whose seat is ready when it has joined the mesh.
func presenceSpawn(w *harness.World, name, script string, flags ...string) []string {
	args := append([]string{"spawn", "--agent", harness.PresenceAgent, "--name", name}, flags...)
	return append(append(args, "--"), w.FakeAgent(script)...)
}

// The words of a spawn whose readiness is presence: joined, exited before it joined, uncertain.
func TestSpawn_EndsWithTheTruthAboutWhoJoins(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.UsePresence(1500 * time.Millisecond)
	w.Start(harness.HostOptions{})
	r := w.CLI(presenceSpawn(w, "ann", `[{"join": {"status": "working", "activity": "reads"}}, {"hang": true}]`)...).OK()
	if !strings.Contains(r.Stdout, ", joined; attach: cotal attach ann") || !strings.Contains(r.Stderr, "ann: joined\n") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("roster").OK(); !strings.Contains(r.Stdout, "working  reads\n") {
		t.Errorf("%v", r)
	}
	end := jsonLines[spawned](t, lastLines(w.CLI(presenceSpawn(w, "bea", `[{"join": {}}, {"hang": true}]`, "--json")...).OK().Stdout, 1)[0])[0]
	if end.Became != becameJoined {
		t.Errorf("%+v", end)
	}
	r = w.CLI(presenceSpawn(w, "cid", `[{"print": "no key"}, {"exit": 3}]`)...).Want(1)
	if !strings.Contains(r.Stderr, "cid: exited\n") || !strings.Contains(r.Stderr, "  | no key\n") {
		t.Errorf("%v", r)
	}
	// One that does not join in time is kept, and what to do is said.
	r = w.CLI(presenceSpawn(w, "dan", `[{"print": "thinking"}, {"hang": true}]`, "--json")...).Want(75)
	end = jsonLines[spawned](t, lastLines(r.Stdout, 1)[0])[0]
	if end.Became != becameUncertain || end.Reason == "" || !strings.Contains(r.Stderr, "look: cotal inspect dan   cotal logs dan   end it: cotal stop dan; do not spawn it again before") {
		t.Errorf("%v", r)
	}
	if row, ok := w.Seat("dan"); !ok || row.Status != "running" {
		t.Errorf("the seat is %+v", row)
	}
	if r := w.CLI("goal", end.GoalID).Want(75); !strings.Contains(r.Stdout, "state        uncertain\nreason ") {
		t.Errorf("%v", r)
	}
	harness.Eventually(t, harness.DefaultWait, "the host's own view of the mesh is good enough to say who works", func() (bool, string) {
		out := w.CLI("ps").OK().Stdout
		return strings.Contains(out, "working") && strings.Contains(out, "not in roster"), out
	})
}
