package seat_test

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

	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// TestFieldE7_WhatIsDrawnOnTheScreenIsNoState: a program that redraws itself, with the mark of its work missing in
// some of the pictures, is what the mesh says that it is.
func TestFieldE7_WhatIsDrawnOnTheScreenIsNoState(t *testing.T) {
	w, r := byPresence(t, time.Minute)
	id, acc := w.begin("ada", `[{"tick": {"everyMs": 5, "text": "\u001b[2J\u001b[H> idle, waiting for your input (press ? for help)\r\n"}}]`)
	working := present("ada", principal(acc), acc.UID)
	working.Status = wire.StatusWorking
	r.set(seat.ViewCurrent, working)
	w.terminal(id)
	drawn := func() uint64 {
		t.Helper()
		row, err := w.set.Inspect(t.Context(), "ada")
		if err != nil {
			t.Fatal(err)
		}
		if row.Mesh != wire.StatusWorking || row.Condition != nil {
			t.Fatalf("it is shown %s %+v", row.Mesh, row.Condition)
		}
		return row.Output
	}
	const picture = 60 // bytes, at least
	before := drawn()
	w.eventually("it has redrawn itself forty times", func() (bool, string) {
		now := drawn()
		return now-before > 40*picture, fmt.Sprint(now - before)
	})
}

// TestFieldF10_ARestartThatWaitsSaysForHowLong, and that the first one does not wait.
func TestFieldF10_ARestartThatWaitsSaysForHowLong(t *testing.T) {
	w := newWorld(t)
	w.restartWait = time.Hour
	w.crash()
	w.boot()
	acc := w.supervised("flapping", 5, nil)
	w.next(w.kill("flapping"))
	w.kill("flapping")
	row := w.awaitStatus("flapping", "starting")
	if want := "ended by SIGKILL; started again in 30s (2 of 5 within 10m0s)"; row.Reason != want {
		t.Errorf("its reason is %q, want %q", row.Reason, want)
	}
	if _, err := w.stop(acc, false); err != nil {
		t.Error(err)
	}
}

// TestFieldF13_ASessionIsKnownUntilItsReopeningIsConfirmed: the process that was to reopen it never says which one it
// is in, and neither the end of the host in between nor the end of that process makes the seat start blank.
func TestFieldF13_ASessionIsKnownUntilItsReopeningIsConfirmed(t *testing.T) {
	w := newWorld(t)
	c := w.talks(func(f *sdk.ConnectorFacts) { f.SupportsSessionContinuation, f.SupportsFreshStart = true, true })
	r := newRoster(seat.ViewCurrent)
	w.withRoster(r)
	acc := w.run("talker", `[{"hang": true}]`)
	there := present("talker", principal(acc), acc.UID)
	there.Card.Meta = map[string]json.RawMessage{"sessionId": json.RawMessage(`"ses_9"`)}
	r.set(seat.ViewCurrent, there)
	w.plugins.mu.Lock()
	w.plugins.runtime = &stuck{Runtime: w.plugins.runtime, fails: sdk.Errorf(sdk.ErrUnproven, "the directory is busy")}
	w.plugins.mu.Unlock()
	old := w.kill("talker")
	w.eventually("the reopening has begun", func() (bool, string) {
		row := w.row("talker")
		return strings.Contains(row.Reason, "the directory is busy"), row.Status + " " + row.Reason
	})
	r.set(seat.ViewCurrent) // nobody says anything of a session from here on
	w.crash()
	w.boot()
	w.next(old)
	w.next(w.kill("talker"))
	reqs := c.requests()
	if len(reqs) != 3 {
		t.Fatalf("%d launches, want 3", len(reqs))
	}
	for i, req := range reqs[1:] {
		if req.Continue != "ses_9" {
			t.Errorf("process %d goes on with session %q, want ses_9", i+2, req.Continue)
		}
	}
}

// TestFieldF1_AForkInWhichNothingWasSaidIsMadeAgain: no session is known to go on with, and a blank one would be silent
// about what it was forked from.
func TestFieldF1_AForkInWhichNothingWasSaidIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	c := w.talks(func(f *sdk.ConnectorFacts) { f.SupportsSessionContinuation, f.SupportsFreshStart = true, true })
	r := newRoster(seat.ViewCurrent)
	w.withRoster(r)
	source, prompt := "ses_source", "do this"
	acc := w.supervised("fork", 5, func(a *wire.SpawnArgs) { a.Resume, a.Prompt = &source, &prompt })
	w.next(w.kill("fork"))
	w.crash()
	w.boot() // and the next host does the same, of a fork that is on the mesh and tells of nothing
	r.set(seat.ViewCurrent, present("fork", principal(acc), acc.UID))
	w.next(w.kill("fork"))
	there := present("fork", principal(acc), acc.UID)
	there.Card.Meta = map[string]json.RawMessage{"sessionId": json.RawMessage(`"ses_fork"`)}
	r.set(seat.ViewCurrent, there)
	w.next(w.kill("fork"))
	for i, req := range c.requests() {
		want := [2]string{source, ""}
		if i == 3 {
			want = [2]string{"", "ses_fork"}
		}
		if got := [2]string{req.Resume, req.Continue}; got != want || (req.Prompt != "") != (i == 0) {
			t.Errorf("process %d: fork and session %q, prompt %q; want %q", i+1, got, req.Prompt, want)
		}
	}
	if n := len(c.requests()); n != 4 {
		t.Errorf("%d launches, want 4", n)
	}
}

// A host that was away does not know what was said in a fork meanwhile, and a conversation that was cleared is over: what
// it was forked from would come back as if nothing had happened since, and so would the session before it.
func TestWhatASeatWasForkedFromDoesNotComeBackInPlaceOfLaterWork(t *testing.T) {
	w := newWorld(t)
	c := w.talks(func(f *sdk.ConnectorFacts) { f.SupportsSessionContinuation, f.SupportsFreshStart = true, true })
	r := newRoster(seat.ViewCurrent)
	w.withRoster(r)
	source := "ses_source"
	fork := func(a *wire.SpawnArgs) { a.Resume = &source }
	cleared := w.supervised("cleared", 5, fork)
	tell := func(session string) {
		there := present("cleared", principal(cleared), cleared.UID)
		there.Card.Meta = map[string]json.RawMessage{"sessionId": json.RawMessage(session)}
		r.set(seat.ViewCurrent, there)
	}
	tell(`"ses_fork"`)
	w.next(w.kill("cleared")) // goes on in ses_fork
	tell(`""`)
	w.next(w.kill("cleared"))
	w.supervised("away", 5, fork)
	r.set(seat.ViewCurrent)
	w.crash()
	w.boot()
	w.next(w.kill("away"))
	want := [][2]string{{source, ""}, {"", "ses_fork"}, {"", ""}, {source, ""}, {"", ""}}
	var got [][2]string
	for _, req := range c.requests() {
		got = append(got, [2]string{req.Resume, req.Continue})
	}
	if !slices.Equal(got, want) {
		t.Errorf("forks and sessions %q, want %q", got, want)
	}
}

// TestFieldF14_AnAgentIsAskedToEndAndHasItsTime, and a stop tells an end in that time from one that was cut short.
func TestFieldF14_AnAgentIsAskedToEndAndHasItsTime(t *testing.T) {
	for name, c := range map[string]struct {
		graceMs int
		needs   string // seconds
		clean   bool
	}{
		"its time is enough":     {60_000, "0.3", true},
		"its time is too little": {100, "30", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.facts(func(f *sdk.ConnectorFacts) { f.StopGraceMs = c.graceMs })
			done := filepath.Join(w.dir, "done")
			args := w.args("writer", "")
			args.LaunchOptions["argv"] = []any{"/bin/sh", "-c", "trap 'sleep " + c.needs + "; echo whole > " + done + "; exit 0' TERM; echo armed; while :; do sleep 0.02; done"}
			id := wire.NewID()
			acc, err := w.spawn(id, args)
			if err != nil {
				t.Fatal(err)
			}
			w.terminal(id)
			w.eventually("it is ready to be asked", func() (bool, string) {
				row, err := w.set.Inspect(context.Background(), "writer")
				return err == nil && row.Output > 0, fmt.Sprint(err)
			})
			reply, err := w.stop(acc, true)
			if err != nil || reply.Report == nil || reply.Report.Exit == nil {
				t.Fatalf("%+v, %v", reply, err)
			}
			text, rerr := os.ReadFile(done)
			exit := reply.Report.Exit
			clean := exit.Signal == "" && exit.Code != nil && *exit.Code == 0
			if clean != c.clean || (rerr == nil && string(text) == "whole\n") != c.clean {
				t.Errorf("it ended with %v by %q and left %q (%v); want a clean end: %v", exit.Code, exit.Signal, text, rerr, c.clean)
			}
		})
	}
}

// TestFieldF19_AFinishedSeatIsFinal although it is one that is started again, and nothing of it is in the way of the
// next one of its name.
func TestFieldF19_AFinishedSeatIsFinal(t *testing.T) {
	w := newWorld(t)
	c := w.talks(func(f *sdk.ConnectorFacts) { f.SupportsSessionContinuation, f.SupportsFreshStart = true, true })
	r := newRoster(seat.ViewCurrent)
	w.withRoster(r)
	gate := filepath.Join(w.dir, "go")
	acc := w.supervised("once", 3, func(a *wire.SpawnArgs) {
		a.LaunchOptions["argv"] = []any{filepath.Join(bundle, "cotal-fakeagent"), `[{"waitFile": "` + gate + `"}, {"exit": 0}]`}
	})
	there := present("once", principal(acc), acc.UID)
	there.Card.Meta = map[string]json.RawMessage{"sessionId": json.RawMessage(`"ses_1"`)}
	r.set(seat.ViewCurrent, there)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.awaitStatus("once", "exited")
	r.set(seat.ViewCurrent)
	for range 3 {
		w.crash()
		w.boot()
		if row := w.row("once"); row.Status != "exited" || row.Exit == nil || row.Exit.Code == nil || *row.Exit.Code != 0 {
			t.Errorf("behind a restart it is %s %+v", row.Status, row.Exit)
		}
	}
	if n := len(c.requests()); n != 1 {
		t.Errorf("it was launched %d times", n)
	}
	session := "ses_1"
	w.supervised("once", 3, func(a *wire.SpawnArgs) { a.Resume = &session })
	if reqs := c.requests(); reqs[len(reqs)-1].Resume != session {
		t.Errorf("its session is reopened as %q", reqs[len(reqs)-1].Resume)
	}
}
