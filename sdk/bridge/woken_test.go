package bridge_test

import (
	"context"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
)

// Claude Code runs the hook of a prompt for a turn that a hook in the background began, and passes nothing of what it
// prints on to the model. A message that came meanwhile was taken for read and never seen.
func TestAMessageThatComesWhileATurnIsBegunWithAnotherIsNotLost(t *testing.T) {
	w := newWorld(t)
	ann, bob := w.joined(w.seat("ann"), bridge.Options{}), w.joined(w.seat("bob"), bridge.Options{})
	ann.until("cotal_roster", nil, "bob")
	wake := func(word string, read bool) {
		t.Helper()
		ann.call("cotal_dm", map[string]any{"to": "bob", "text": word})
		given := ""
		ok, err := bridge.Next(t.Context(), bob.l, patience, bridge.WakerFunc(func(_ context.Context, n bridge.Notice) (bool, error) {
			given = n.Text
			return read, nil
		}))
		if err != nil || !ok || !strings.Contains(given, word) {
			t.Fatalf("woken with %q: %v, %v", given, ok, err)
		}
	}
	hook(t, bob.l, "SessionStart", `{}`, false)
	wake("first", true)
	ann.call("cotal_dm", map[string]any{"to": "bob", "text": "second"})
	bob.until("cotal_inbox", map[string]any{"peek": true}, "second")
	if out := hook(t, bob.l, "UserPromptSubmit", `{}`, true); out != nil {
		t.Errorf("the hook of a prompt that nobody typed prints %s", out)
	}
	if out := hook(t, bob.l, "Stop", `{}`, true); !strings.Contains(string(out), "second") {
		t.Errorf("the end of the turn prints %s, without the message", out)
	}
	// A prompt that a person types has what its hook prints, and so has a line that the host types.
	hook(t, bob.l, "Stop", `{}`, false)
	wake("third", false)
	if out := hook(t, bob.l, "UserPromptSubmit", `{}`, true); !strings.Contains(string(out), "third") {
		t.Errorf("a prompt that was typed brings %s", out)
	}
}
