package main

import (
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A program may start a hook with a pipe, write nothing into it and keep it open: the event is told all the same.
func TestAHookThatIsGivenNothingOverAnOpenPipeTellsItsName(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil).
		Connect(t.Context(), &mcp.CommandTransport{Command: p.bridge("mcp")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p.sees("it joins", is(wire.StatusIdle))
	for range 5 { // on a busy machine what is left of a hook's time may be too short
		cmd := p.bridge("hook", "UserPromptSubmit")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := p.gone(cmd, "its time"); err != nil {
			t.Errorf("the hook: %v", err)
		}
		in.Close()
		if v := p.roster.View(); len(v.Rows) > 0 {
			if row, ok := v.Row(p.id); ok && row.Status == wire.StatusWorking {
				break
			}
		}
	}
	p.sees("its turn begins", is(wire.StatusWorking))
}
