package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// next asks once for messages, and says of them what verdict does.
func next(t *testing.T, l bridge.Launch, wait time.Duration, verdict func(bridge.Notice) (bool, error)) (bool, error) {
	t.Helper()
	return bridge.Next(t.Context(), l, wait, bridge.WakerFunc(func(_ context.Context, n bridge.Notice) (bool, error) { return verdict(n) }))
}

// Messages that somebody in the program takes over are read when that one says so, and not before.
func TestWhoTakesMessagesOverSaysWhatBecameOfThem(t *testing.T) {
	w := newWorld(t)
	ann, bob := w.joined(w.seat("ann"), bridge.Options{}), w.joined(w.seat("bob", func(m *wire.LaunchMaterial) { m.ControlToken = "s3cret" }), bridge.Options{})
	ann.until("cotal_roster", nil, "bob")
	if ok, err := next(t, bob.l, 20*time.Millisecond, nil); ok || err != nil {
		t.Fatalf("there is a message before there is one: %v", err)
	}
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "one"})
	refused := errors.New("no turn now")
	ok, err := next(t, bob.l, bridge.MaxNext, func(n bridge.Notice) (bool, error) {
		if !strings.Contains(n.Text, "one") || n.Count != 1 || strings.Contains(n.Nudge, "one") {
			t.Errorf("%+v", n)
		}
		return false, refused
	})
	if !ok || !errors.Is(err, refused) {
		t.Fatalf("%v, %v", ok, err)
	}
	bob.until("cotal_inbox", map[string]any{"peek": true}, "one")
	// The agent is told that there is something, and only once.
	if ok, err := next(t, bob.l, bridge.MaxNext, func(bridge.Notice) (bool, error) { return false, nil }); !ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	bob.until("cotal_inbox", map[string]any{"peek": true}, "one")
	hook(t, bob.l, "Stop", `{}`, false)
	if ok, err := next(t, bob.l, 20*time.Millisecond, func(bridge.Notice) (bool, error) { return false, nil }); ok || err != nil {
		t.Errorf("the agent is told twice of a message: %v", err)
	}
	if text := bob.call("cotal_inbox", nil); !strings.Contains(text, "one") {
		t.Errorf("a message of which the agent was told: %s", text)
	}
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "two"})
	if ok, err := next(t, bob.l, bridge.MaxNext, func(bridge.Notice) (bool, error) { return true, nil }); !ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	bob.until("cotal_inbox", nil, "no unread")
	// Whoever was woken is left alone until its program tells something.
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "three"})
	bob.until("cotal_inbox", map[string]any{"peek": true}, "three")
	hook(t, bob.l, "UserPromptSubmit", `{}`, false)
	if ok, err := next(t, bob.l, 20*time.Millisecond, nil); ok || err != nil {
		t.Errorf("a working agent is told: %v", err)
	}
	hook(t, bob.l, "Stop", `{}`, false)
	if ok, err := next(t, bob.l, bridge.MaxNext, func(n bridge.Notice) (bool, error) { return true, nil }); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// What wakes a program beside its bridge goes on when the bridge comes late, ends, and is another one.
func TestWhatWakesAProgramOutlivesItsBridge(t *testing.T) {
	w := newWorld(t)
	l := w.seat("bob")
	ann := w.joined(w.seat("ann"), bridge.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	texts, ended := make(chan string, 8), make(chan error, 1)
	go func() {
		ended <- bridge.WakeBy(ctx, l, bridge.WakerFunc(func(_ context.Context, n bridge.Notice) (bool, error) {
			texts <- n.Text
			return true, nil
		}))
	}()
	for _, text := range []string{"first", "second"} {
		b := bridge.Start(l, bridge.Options{})
		ann.until("cotal_dm", map[string]any{"to": "bob", "text": text}, "sent to")
		select {
		case got := <-texts:
			if !strings.Contains(got, text) {
				t.Errorf("woken by %s", got)
			}
		case <-time.After(patience):
			t.Errorf("not woken by %q", text)
		}
		b.Close()
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// by is how a status is known.
func by(p wire.Presence) string { return p.Card.MetaString(wire.MetaStateBy) }

// Others see how a state is known, and what ends a turn that no hook ends.
func TestOthersSeeHowAStateIsKnown(t *testing.T) {
	w := newWorld(t)
	_, roster := w.observer()
	file := filepath.Join(t.TempDir(), "status.json")
	a := w.joined(w.seat("ann"), bridge.Options{StatusFile: file})
	b := w.joined(w.seat("bob"), bridge.Options{Silence: time.Millisecond})
	sees := func(who *agent, what, status, known string) {
		t.Helper()
		await(t, roster, what, func(p wire.Presence) bool { return p.Card.ID == who.l.ID && p.Status == status && by(p) == known })
	}
	sees(a, "it is only supposed to be idle", wire.StatusIdle, "")
	a.call("cotal_status", map[string]any{"status": "working"})
	sees(a, "what it says itself", wire.StatusWorking, bridge.ByAgent)
	hook(t, a.l, "UserPromptSubmit", `{}`, false)
	sees(a, "what a hook says", wire.StatusWorking, bridge.ByHook)
	say := func(status string) {
		t.Helper()
		text, err := json.Marshal(map[string]any{"status": status, "statusUpdatedAt": time.Now().UnixMilli() + 1, "waitingFor": "dialog open"})
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	say("waiting")
	sees(a, "a question that no hook tells of", wire.StatusWaiting, bridge.ByFile)
	say("idle")
	sees(a, "a turn that was stopped by hand", wire.StatusIdle, bridge.ByFile)
	if err := bridge.Tell(t.Context(), a.l, bridge.Event{Name: bridge.EventStatus, Status: wire.StatusWaiting, Condition: "approval", Source: "server"}); err != nil {
		t.Fatal(err)
	}
	p := await(t, roster, "what its server says", func(p wire.Presence) bool { return p.Card.ID == a.l.ID && by(p) == bridge.ByProgram })
	if p.Status != wire.StatusWaiting || p.Condition == nil || p.Condition.Code != "approval" || p.Condition.Source != "server" {
		t.Errorf("%+v", p)
	}
	hook(t, b.l, "UserPromptSubmit", `{}`, false)
	sees(b, "a turn that tells nothing", wire.StatusIdle, bridge.BySilence)
}
