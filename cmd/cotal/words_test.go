package main

import (
	"strings"
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

func TestAChannelThatIsNoneIsMended(t *testing.T) {
	for name, want := range map[string]string{
		"#team": "; write team", "my team": "; write my-team", "team.>": "dots", "a..b": "dots", "": "dots", "über": "dots",
	} {
		if got := noChannel(name); !strings.HasSuffix(got, want) || strings.Contains(got, "@#") {
			t.Errorf("%q: %s", name, got)
		}
	}
}

func TestAMessageThatNobodyReadsIsNoted(t *testing.T) {
	for name, c := range map[string]struct {
		row  wire.AgentRow
		note bool
	}{
		"a seat whose program has not joined":     {wire.AgentRow{Name: "a", Mesh: "absent"}, true},
		"one whose program has left":              {wire.AgentRow{Name: "a", Mesh: "offline", MeshView: "current"}, true},
		"one that is there":                       {wire.AgentRow{Name: "a", Mesh: "idle"}, false},
		"one of which the host cannot tell":       {wire.AgentRow{Name: "a", Mesh: "absent", MeshView: "stale"}, false},
		"one of a host that says nothing of that": {wire.AgentRow{Name: "a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if note := offMesh(c.row); (note != "") != c.note || c.note && !strings.Contains(note, "cotal input a --text") {
				t.Errorf("%q", note)
			}
		})
	}
}

func TestWhoIsCalledThatOnTheRoster(t *testing.T) {
	who := func(name, id, kind, role, status string) wire.Presence {
		return wire.Presence{Status: status, Card: wire.AgentCard{Name: name, ID: id, Kind: kind, Role: role}}
	}
	rows := []wire.Presence{
		who("ann", "local.A", "", "", "idle"), who("two", "local.B", "", "", "idle"), who("two", "local.C", wire.CardEndpoint, "tool", "idle"),
		who("gone", "local.D", "", "", wire.StatusOffline), who("manager@vm", "local.M", wire.CardEndpoint, wire.EndpointManager, "idle"),
	}
	for name, c := range map[string]struct {
		id   string
		code cli.Code
	}{
		"ann": {"local.A", cli.OK}, "two": {"", cli.Refused}, "gone": {"", cli.OK}, "nobody": {"", cli.OK}, "manager@vm": {"", cli.Refused},
	} {
		if id, err := called(name, rows); id != c.id || cli.CodeOf(err) != c.code {
			t.Errorf("%s: %q, %v", name, id, err)
		}
	}
}

func TestACancelledSpawnHadNoReason(t *testing.T) {
	end := goalTerminal{GoalResult: wire.GoalResult{State: wire.GoalCancelled, Data: []byte(`{"cancelledBy":"stopped-requested"}`)}}
	if got := end.reasonOf(); got != "its seat was ended before it was ready (stopped-requested)" {
		t.Error(got)
	}
}

func TestAPersonaWithoutAConnectorIsNoted(t *testing.T) {
	there := []wire.ConnectorStatus{{Agent: "command"}, {Agent: "opencode"}}
	if note := noAgent("a", "opencode", there); note != "" {
		t.Error(note)
	}
	if note := noAgent("a", "claude", there); !strings.Contains(note, `"claude"`) || !strings.Contains(note, "--agent command or opencode") {
		t.Error(note)
	}
}

func TestWhoWatchesAndTypesIsToldWhy(t *testing.T) {
	if got := watchText(true, "Ctrl-]", "a"); strings.Contains(got, "--take-over") {
		t.Error(got)
	}
	if got := watchText(false, "Ctrl-]", "a"); !strings.Contains(got, "cotal attach --take-over a") {
		t.Error(got)
	}
}
