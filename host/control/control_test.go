package control

import (
	"slices"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Who may see a terminal may type into it, and nobody else: the two commands are admitted by the same rule.
//
// proves: INPUT-5
func TestInputIsAdmittedAsTheTerminalIs(t *testing.T) {
	commands, err := Commands(Deps{})
	if err != nil {
		t.Fatal(err)
	}
	input, terminal := commands[wire.CmdInput], commands[wire.CmdTerminal]
	if !input.Targeted || !terminal.Targeted || len(input.Modes) == 0 || !slices.Equal(input.Modes, terminal.Modes) {
		t.Errorf("input is admitted by %v, terminal by %v", input.Modes, terminal.Modes)
	}
	if input.Read || !terminal.Read {
		t.Error("input changes something, and terminal does not")
	}
	// What would have no effect or too much is refused before a handler runs.
	for args, bad := range map[string]bool{
		`{"text":"x"}`: false, `{"keys":["esc"]}`: false, `{}`: true, `{"text":""}`: true, `{"text":"x","keys":["esc"]}`: true, `{"text":"x","enter":"yes"}`: true, `{"txt":"x"}`: true,
	} {
		if err := input.CheckArgs([]byte(args)); (err != nil) != bad || err != nil && err.Outcome != wire.OutcomeNotExecuted {
			t.Errorf("%s: %v", args, err)
		}
	}
}
