package bridge_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// TestFieldE7_AStatusFileThatFlickersEndsNoTurn: what a program writes of itself while it changes its mind counts once
// it stands.
func TestFieldE7_AStatusFileThatFlickersEndsNoTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, roster := w.observer()
	for n := range 20 {
		if flickers(t, w, roster, fmt.Sprintf("ann%d", n)) {
			return
		}
	}
	t.Fatal("this machine lets nobody write a file every 200 ms for two seconds")
}

// flickers runs a seat whose status file changes all the time. It reports false when the machine did not let it change
// all the time: then it stood, and nothing was shown.
func flickers(t *testing.T, w *world, roster *mesh.Roster, name string) bool {
	t.Helper()
	file := filepath.Join(t.TempDir(), "status.json")
	a := w.joined(w.seat(name), bridge.Options{StatusFile: file})
	say := func(status string) {
		t.Helper()
		text, err := json.Marshal(map[string]any{"status": status, "statusUpdatedAt": time.Now().UnixMilli() + 1})
		if err == nil {
			err = os.WriteFile(file+".new", text, 0o600)
		}
		if err == nil {
			err = os.Rename(file+".new", file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	hook(t, a.l, "UserPromptSubmit", `{}`, false)
	await(t, roster, "a turn", func(p wire.Presence) bool { return p.Card.ID == a.l.ID && p.Status == wire.StatusWorking })
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	for end := last.Add(1800 * time.Millisecond); time.Now().Before(end); <-tick.C { // three looks at the file
		say("idle")
		if time.Since(last) > 200*time.Millisecond { // well below the time between two looks
			return false
		}
		last = time.Now()
		if p, _ := roster.View().Row(a.l.ID); p.Status != wire.StatusWorking {
			t.Fatalf("it is shown %s by %s in the middle of its turn", p.Status, by(p))
		}
	}
	p := await(t, roster, "what the file has come to", func(p wire.Presence) bool { return p.Card.ID == a.l.ID && p.Status == wire.StatusIdle })
	if by(p) != bridge.ByFile {
		t.Errorf("it is known by %q", by(p))
	}
	return true
}

// TestFieldE9_BeingThereIsNotGettingOn: a program of which nothing is heard is there all the same, and its record says
// when it last did anything.
func TestFieldE9_BeingThereIsNotGettingOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, roster := w.observer()
	a := w.joined(w.seat("ann"), bridge.Options{})
	ours := func(f func(p wire.Presence) bool) func(wire.Presence) bool {
		return func(p wire.Presence) bool { return p.Card.ID == a.l.ID && f(p) }
	}
	hook(t, a.l, "UserPromptSubmit", `{}`, false)
	began := await(t, roster, "a turn", ours(func(p wire.Presence) bool { return p.Status == wire.StatusWorking && p.ActiveAt > 0 }))
	later := await(t, roster, "a heartbeat", ours(func(p wire.Presence) bool {
		return p.TS >= began.TS+wire.PresenceHeartbeat.Milliseconds()/2
	}))
	if later.ActiveAt != began.ActiveAt || later.Status != wire.StatusWorking {
		t.Errorf("a heartbeat counts as work: active at %d, then at %d and %s", began.ActiveAt, later.ActiveAt, later.Status)
	}
	hook(t, a.l, "PostToolUse", `{}`, false)
	await(t, roster, "work", ours(func(p wire.Presence) bool { return p.ActiveAt > began.ActiveAt }))
}

// TestFieldF2_ASessionInWhichNothingWasSaidIsToldToNobody: there is none yet that could be reopened or forked.
func TestFieldF2_ASessionInWhichNothingWasSaidIsToldToNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, roster := w.observer()
	a := w.joined(w.seat("ann"), bridge.Options{})
	tells := func(what, status, session string) {
		t.Helper()
		await(t, roster, what, func(p wire.Presence) bool {
			return p.Card.ID == a.l.ID && p.Status == status && by(p) == bridge.ByHook && p.Card.MetaString("sessionId") == session
		})
	}
	hook(t, a.l, "SessionStart", `{"session_id":"s1","source":"startup"}`, false)
	tells("a session begins", wire.StatusIdle, "")
	hook(t, a.l, "UserPromptSubmit", `{"session_id":"s1"}`, false)
	tells("something is said in it", wire.StatusWorking, "s1")
	hook(t, a.l, "Stop", `{"session_id":"s1"}`, false)
	tells("its turn ends", wire.StatusIdle, "s1")
	hook(t, a.l, "SessionStart", `{"session_id":"s2","source":"clear"}`, false)
	tells("it is cleared", wire.StatusIdle, "")
	// Not as before: who would start the program again knows the last one, and that one is left.
	await(t, roster, "the one that was cleared is taken back", func(p wire.Presence) bool {
		return p.Card.ID == a.l.ID && string(p.Card.Meta["sessionId"]) == `""`
	})
}

// TestFieldE14_AMessageSentAgainIsReadOnce, also when the first one was read in between; and until it was read, it is
// not taken for it.
func TestFieldE14_AMessageSentAgainIsReadOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := w.observer()
	bob := w.joined(w.seat("bob"), bridge.Options{})
	m := wire.Message{ID: wire.NewID(), To: bob.l.ID, Parts: mesh.Text("do it once")}
	send := func(m wire.Message) {
		t.Helper()
		if _, err := c.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		send(m)
	}
	if text := bob.until("cotal_inbox", map[string]any{"peek": true}, "do it once"); strings.Count(text, "do it once") != 1 {
		t.Errorf("it waits more than once: %s", text)
	}
	bob.until("cotal_inbox", nil, "do it once")
	send(m)
	send(wire.Message{ID: wire.NewID(), To: bob.l.ID, Parts: mesh.Text("and this")})
	if text := bob.until("cotal_inbox", nil, "and this"); strings.Contains(text, "do it once") {
		t.Errorf("it is read again: %s", text)
	}
	if text := bob.call("cotal_inbox", nil); !strings.Contains(text, "no unread messages") {
		t.Errorf("it comes again: %s", text)
	}
}
