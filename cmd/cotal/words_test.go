package main

import (
	"testing"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestASpawnInTmuxSaysHowToLeave(t *testing.T) {
	s := spawned{Name: "a", Result: &wire.SpawnResult{Agent: "command", Mode: "tmux"}}
	if got := s.line(); got != "spawned a (no role), agent command on tmux; attach: cotal attach a (C-b d detaches)" {
		t.Errorf("it says %q", got)
	}
	f := spawnFlags{name: "a b", agent: "command", given: func(string) bool { return false }}
	if _, err := f.request(nil, []string{"true"}); cli.CodeOf(err) != cli.Usage {
		t.Errorf("a name with a space: %v", err)
	}
}

func TestShornScreens(t *testing.T) {
	for in, want := range map[string]string{"\r\n\r\n  a\r\nb  \r\n\r\n": "  a\r\nb\n", "": "\n", "a": "a\n"} {
		if got := string(shorn([]byte(in))); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
