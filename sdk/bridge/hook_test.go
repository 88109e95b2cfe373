package bridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func hook(t *testing.T, l bridge.Launch, name, text string, deliver bool) (out []byte) {
	t.Helper()
	var print func([]byte) error
	if deliver {
		print = func(p []byte) error {
			out = p
			return nil
		}
	}
	if err := bridge.Relay(t.Context(), l, bridge.ParseEvent(name, []byte(text)), print); err != nil {
		t.Fatalf("hook %s: %v", name, err)
	}
	return out
}

// What the hooks of a program tell is what others see, and goes with it.
func TestHooksAreWhatOthersSee(t *testing.T) {
	w := newWorld(t)
	_, roster := w.observer()
	a := w.joined(w.seat("ann", func(m *wire.LaunchMaterial) { m.ControlToken = "s3cret" }), bridge.Options{})
	sees := func(what, status, code string) {
		t.Helper()
		await(t, roster, what, func(p wire.Presence) bool {
			got := ""
			if p.Condition != nil {
				got = p.Condition.Code
			}
			return p.Card.ID == a.l.ID && p.Status == status && got == code
		})
	}
	sees("at first", wire.StatusIdle, "")
	hook(t, a.l, "SessionStart", `{"session_id":"s1","model":"m1"}`, false)
	await(t, roster, "session and model", func(p wire.Presence) bool {
		return p.Card.ID == a.l.ID && p.Card.MetaString("sessionId") == "s1" && p.Card.MetaString("model") == "m1" && p.ActiveAt > 0
	})
	hook(t, a.l, "UserPromptSubmit", `{}`, false)
	sees("a turn", wire.StatusWorking, "")
	hook(t, a.l, "PermissionRequest", `{"tool_name":"Bash"}`, false)
	sees("a question", wire.StatusWaiting, "approval")
	hook(t, a.l, "PostToolUse", `{}`, false)
	sees("an answer", wire.StatusWorking, "")
	hook(t, a.l, "StopFailure", `{"error":"overloaded"}`, false)
	sees("a failure", wire.StatusIdle, "overloaded")
	hook(t, a.l, "UserPromptSubmit", `{}`, false)
	hook(t, a.l, "Stop", `{}`, false)
	sees("the end of a turn", wire.StatusIdle, "")
	a.call("cotal_status", map[string]any{"status": "waiting", "activity": "for bob"})
	sees("what the agent says itself", wire.StatusWaiting, "")
	hook(t, a.l, "SessionEnd", `{"reason":"logout"}`, false)
	sees("the end of the session", wire.StatusOffline, "")
	hook(t, a.l, "SessionStart", `{}`, false)
	sees("another session of the same process", wire.StatusIdle, "")
}

// A program does not wait for the hook of a notification. One that comes behind the hook of what happened after it says
// nothing any more: an agent that works would be shown idle, or waiting for an answer that was given.
func TestANotificationThatWasOvertakenSaysNothing(t *testing.T) {
	w := newWorld(t)
	_, roster := w.observer()
	a := w.joined(w.seat("ann"), bridge.Options{})
	sees := func(what, status string) {
		t.Helper()
		await(t, roster, what, func(p wire.Presence) bool { return p.Card.ID == a.l.ID && p.Status == status })
	}
	at := func(second int, more string) string {
		return fmt.Sprintf(`{"timestamp":"2026-11-30T11:14:%02d.250Z"%s}`, second, more)
	}
	const idle, asks = `,"notification_type":"idle_prompt"`, `,"notification_type":"permission_prompt"`
	hook(t, a.l, "UserPromptSubmit", at(20, ""), false)
	for model, kind := range map[string]string{"m1": idle, "m2": asks} { // the model tells the record that this made
		hook(t, a.l, "Notification", at(19, kind+`,"model":"`+model+`"`), false)
		p := await(t, roster, "the record behind it", func(p wire.Presence) bool { return p.Card.ID == a.l.ID && p.Card.MetaString("model") == model })
		if p.Status != wire.StatusWorking {
			t.Errorf("behind %s it is shown %s", kind, p.Status)
		}
	}
	hook(t, a.l, "Notification", at(22, asks), false)
	sees("one in time", wire.StatusWaiting)
	hook(t, a.l, "Notification", `{"notification_type":"idle_prompt"}`, false)
	sees("one that does not say when", wire.StatusIdle)
}

// Messages come with what a hook prints, once, and are read then.
func TestAHookBringsMessages(t *testing.T) {
	w := newWorld(t)
	ann, bob := w.joined(w.seat("ann"), bridge.Options{}), w.joined(w.seat("bob"), bridge.Options{})
	ann.until("cotal_roster", nil, "bob")
	hook(t, bob.l, "UserPromptSubmit", `{}`, true)
	if out := hook(t, bob.l, "Stop", `{}`, true); out != nil {
		t.Fatalf("a hook prints %s with nothing to bring", out)
	}
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "wake up"})
	bob.until("cotal_inbox", map[string]any{"peek": true}, "wake up")
	if out := hook(t, bob.l, "Stop", `{}`, false); out != nil {
		t.Fatalf("a program that reads no hooks is given %s", out)
	}
	var block struct{ Decision, Reason string }
	if err := json.Unmarshal(hook(t, bob.l, "Stop", `{}`, true), &block); err != nil || block.Decision != "block" || !strings.Contains(block.Reason, "wake up") {
		t.Errorf("got %+v, %v", block, err)
	}
	if out := hook(t, bob.l, "Stop", `{}`, true); out != nil {
		t.Errorf("a message is brought twice: %s", out)
	}
	if text := bob.call("cotal_inbox", nil); !strings.Contains(text, "no unread") {
		t.Errorf("a message that was brought is unread: %s", text)
	}
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "context"})
	bob.until("cotal_inbox", map[string]any{"peek": true}, "context")
	var more struct {
		HookSpecificOutput struct{ HookEventName, AdditionalContext string }
	}
	if err := json.Unmarshal(hook(t, bob.l, "UserPromptSubmit", `{}`, true), &more); err != nil || more.HookSpecificOutput.HookEventName != "UserPromptSubmit" || !strings.Contains(more.HookSpecificOutput.AdditionalContext, "context") {
		t.Errorf("got %+v, %v", more, err)
	}
}

// What a hook could not print is unread, and comes with the next.
func TestAHookThatFailsLosesNoMessage(t *testing.T) {
	w := newWorld(t)
	ann, bob := w.joined(w.seat("ann"), bridge.Options{}), w.joined(w.seat("bob"), bridge.Options{})
	ann.until("cotal_roster", nil, "bob")
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "wake up"})
	bob.until("cotal_inbox", map[string]any{"peek": true}, "wake up")
	closed := errors.New("nobody reads")
	if err := bridge.Relay(t.Context(), bob.l, bridge.Event{Name: "Stop"}, func([]byte) error { return closed }); !errors.Is(err, closed) {
		t.Errorf("%v", err)
	}
	bob.until("cotal_inbox", map[string]any{"peek": true}, "wake up")
	if out := hook(t, bob.l, "Stop", `{}`, true); !strings.Contains(string(out), "wake up") {
		t.Errorf("the next hook prints %s", out)
	}
}

// An idle agent is woken by a direct message, a working one is left alone until its turn ends, and a program that can
// take nothing now is asked again.
func TestAnIdleAgentIsWoken(t *testing.T) {
	w := newWorld(t)
	woken := make(chan string, 8)
	refuse := make(chan struct{}, 1)
	waker := bridge.WakerFunc(func(_ context.Context, n bridge.Notice) (bool, error) {
		select {
		case <-refuse:
			return false, bridge.ErrNotNow
		default:
		}
		woken <- n.Text
		return true, nil
	})
	ann, bob := w.joined(w.seat("ann"), bridge.Options{}), w.joined(w.seat("bob"), bridge.Options{Waker: waker})
	ann.until("cotal_roster", nil, "bob")
	got := func(want string) {
		t.Helper()
		select {
		case text := <-woken:
			if !strings.Contains(text, want) {
				t.Errorf("woken by %s", text)
			}
		case <-time.After(patience):
			t.Fatalf("not woken by %q", want)
		}
	}
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "first"})
	got("first")
	hook(t, bob.l, "UserPromptSubmit", `{}`, false)
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "second"})
	bob.until("cotal_inbox", map[string]any{"peek": true}, "second")
	select {
	case text := <-woken:
		t.Fatalf("a working agent is woken by %s", text)
	default:
	}
	hook(t, bob.l, "Stop", `{}`, false)
	got("second")
	refuse <- struct{}{}
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "third"})
	got("third")
}

// A hook whose bridge is away, hangs or is somebody else's is over in its time, with an error and nothing to print.
func TestAHookNeverHoldsItsProgramUp(t *testing.T) {
	dir, err := os.MkdirTemp("", "cb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	hung, err := net.Listen("unix", filepath.Join(dir, "hung.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	for name, path := range map[string]string{"away": filepath.Join(dir, "none.sock"), "hangs": filepath.Join(dir, "hung.sock")} {
		for _, event := range []string{"SessionStart", "Stop"} {
			begin := time.Now()
			var out []byte
			err := bridge.Relay(t.Context(), bridge.Launch{Socket: path}, bridge.Event{Name: event}, func(p []byte) error { out = p; return nil })
			if err == nil || out != nil {
				t.Errorf("a bridge that is %s: %s, %v", name, out, err)
			}
			if took := time.Since(begin); took > bridge.RelayBudget+5*time.Second {
				t.Errorf("a bridge that is %s holds the program up for %s", name, took)
			}
		}
	}
}

// Whoever is not the seat's own hook gets no answer, and the bridge goes on.
func TestTheControlSocketAnswersItsOwnHooksOnly(t *testing.T) {
	w := newWorld(t)
	a := w.joined(w.seat("ann", func(m *wire.LaunchMaterial) { m.ControlToken = "s3cret" }), bridge.Options{})
	st, err := os.Stat(a.l.Socket)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", st.Mode(), err)
	}
	for name, text := range map[string]string{
		"no token":      `{"event":{"name":"Stop"}}` + "\n",
		"another token": `{"token":"x","event":{"name":"Stop"}}` + "\n",
		"no JSON":       "hello\n",
		"a long frame":  `{"token":"s3cret","event":{"name":"` + strings.Repeat("x", 70<<10) + `"}}` + "\n",
	} {
		c, err := net.Dial("unix", a.l.Socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = c.Write([]byte(text)) // it may be cut off
		var got bytes.Buffer
		_, _ = got.ReadFrom(c)
		c.Close()
		if got.Len() > 0 {
			t.Errorf("%s is answered with %s", name, got.String())
		}
	}
	hook(t, a.l, "Stop", `{}`, false)
}
