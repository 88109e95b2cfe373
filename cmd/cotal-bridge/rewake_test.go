package main

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A hook in the background ends when there is a message for an idle agent, in the way that begins a turn; while one of
// them waits, others have nothing to do.
func TestAHookInTheBackgroundEndsWithAMessage(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil).
		Connect(t.Context(), &mcp.CommandTransport{Command: p.bridge("mcp")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p.sees("it joins", is(wire.StatusIdle))
	type end struct {
		err  error
		text string
	}
	ended := make(chan end, 2)
	for range 2 {
		cmd := p.bridge("rewake")
		var text bytes.Buffer
		cmd.Stderr = &text
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			err := cmd.Wait()
			ended <- end{err, text.String()}
		}()
	}
	if one := <-ended; one.err != nil || one.text != "" {
		t.Fatalf("one of two ended with %v and wrote %q, want it to leave the waiting to the other", one.err, one.text)
	}
	if _, err := p.client.SendDirect(t.Context(), p.id, "wake up"); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if other := <-ended; !errors.As(other.err, &exit) || exit.ExitCode() != 2 || !strings.Contains(other.text, "wake up") {
		t.Errorf("the other ended with %v and wrote %q, want 2 and the message", other.err, other.text)
	}
	lost := p.bridge("rewake", "--material", "/no/such/file")
	lost.Stderr = nil
	if out, err := lost.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("one that cannot know its bridge: %v, %s", err, out)
	}
}
