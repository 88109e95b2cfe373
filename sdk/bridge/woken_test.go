package bridge

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Claude Code runs the hook of a prompt for a turn that a hook in the background began, and passes nothing of what it
// prints on to the model. A message that came meanwhile was taken for read and never seen.
func TestAMessageThatComesWhileATurnIsBegunWithAnotherIsNotLost(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(*Bridge)
		want  string // the hook that brings the message
	}{
		{"a turn that was begun with messages", func(b *Bridge) { b.begun(true) }, "Stop"},
		{"a turn that a line of the host's began", func(b *Bridge) { b.begun(false) }, "UserPromptSubmit"},
		{"a turn that a person began", func(*Bridge) {}, "UserPromptSubmit"},
		{"a turn that a person began, behind one that was begun with messages", func(b *Bridge) {
			b.begun(true)
			for _, hook := range []string{"UserPromptSubmit", "Stop"} {
				b.onFrame(frame{Event: Event{Name: hook}})
			}
		}, "UserPromptSubmit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &Bridge{}
			c.begin(b)
			b.box.put(item{urgent: true, m: mesh.Message{Kind: wire.MessageDirect, Message: wire.Message{ID: "1", Parts: mesh.Text("second")}}})
			got := ""
			for _, hook := range []string{"UserPromptSubmit", "Stop"} {
				if a, _ := b.onFrame(frame{Event: Event{Name: hook}, Deliver: true}); strings.Contains(string(a.Output), "second") {
					got = fmt.Sprint(got, hook)
				}
			}
			if got != c.want {
				t.Errorf("the message comes with %q, want %s", got, c.want)
			}
		})
	}
}
