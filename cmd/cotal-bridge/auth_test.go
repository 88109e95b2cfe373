//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// tools is the bridge of a seat of a host, as the agent program in it has it.
type tools struct {
	t *testing.T
	s *mcp.ClientSession
}

// toolsOf starts cotal-bridge with what a seat was launched with.
func toolsOf(t *testing.T, w *harness.World, row wire.AgentRow) *tools {
	t.Helper()
	cmd := exec.Command(filepath.Join(w.Bin, "cotal-bridge"), "mcp")
	cmd.Env = w.Environ(wire.LaunchMaterialEnv + "=" + filepath.Join(w.SeatRoot, row.SeatID, "launch", "material.json"))
	cmd.Stderr = os.Stderr
	s, err := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &tools{t, s}
}

// call calls a tool; failed says that its result is an error.
func (x *tools) call(name string, args map[string]any) (text string, failed bool) {
	x.t.Helper()
	r, err := x.s.CallTool(x.t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return err.Error(), true
	}
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text += t.Text
		}
	}
	return text, r.IsError
}

// until calls a tool until its text has something in it.
func (x *tools) until(name string, args map[string]any, has string) {
	x.t.Helper()
	harness.Eventually(x.t, harness.DefaultWait, name+" says "+has, func() (bool, string) {
		text, _ := x.call(name, args)
		return strings.Contains(text, has), text
	})
}

// An agent that may spawn does with its credential all that its tools offer: it defines and lists personas, starts a team
// mate, talks to it, and ends it. A seat that it did not spawn it cannot end, nor can an agent that may not spawn.
//
// proves: AUTHZ-3
func TestAnAgentLeadsATeamWithItsCredential(t *testing.T) {
	w := harness.NewAuthenticated(t)
	w.Start(harness.HostOptions{})
	bridge := filepath.Join(w.Bin, "cotal-bridge")
	w.Persona("lead", "---\nname: lead\nagent: command\ncapabilities: [spawn]\nallowSubscribe: [team]\nallowPublish: [team]\nsubscribe: [team]\nlaunchOptions:\n  argv: [sleep, \"600\"]\n---\nYou lead.\n")
	w.Persona("mate", "---\nname: mate\nagent: command\nrole: work\nallowSubscribe: [team]\nsubscribe: [team]\nlaunchOptions:\n  argv: ["+bridge+", run, --file, "+w.Path("heard")+", --, sleep, \"600\"]\n---\nYou work.\n")
	w.CLI("spawn", "lead", "--detach").OK()
	stranger := w.Spawn("stranger", "sleep", "600")
	lead, plain := toolsOf(t, w, w.Inspect("lead")), toolsOf(t, w, stranger)
	lead.until("cotal_orientation", nil, "Channels you read: team.")

	done := func(name string, args map[string]any, want string) {
		t.Helper()
		if text, failed := lead.call(name, args); failed || !strings.Contains(text, want) {
			t.Errorf("%s: %t %s", name, failed, text)
		}
	}
	refused := func(x *tools, name string, args map[string]any, want string) {
		t.Helper()
		begin := time.Now()
		if text, failed := x.call(name, args); !failed || !strings.Contains(text, want) {
			t.Errorf("%s after %v: %t %s", name, time.Since(begin), failed, text)
		}
	}
	done("cotal_personas", nil, `"mate"`)
	done("cotal_persona", map[string]any{"name": "writer", "prompt": "You write.", "announce": "team"}, "persona writer is saved")
	done("cotal_spawn", map[string]any{"name": "mate"}, "mate (local.")
	lead.until("cotal_roster", nil, "mate, role work")
	row := w.Inspect("mate")
	if row.Spawner != w.Inspect("lead").ID {
		t.Errorf("mate was spawned by %s", row.Spawner)
	}
	done("cotal_dm", map[string]any{"to": "mate", "text": "for you alone"}, "sent to mate")
	done("cotal_send", map[string]any{"channel": "team", "text": "for all of you"}, "sent to channel team")
	done("cotal_anycast", map[string]any{"role": "work", "text": "for any of you"}, "sent to one of the role")
	harness.Eventually(t, harness.DefaultWait, "mate hears all of it", func() (bool, string) {
		text, err := os.ReadFile(w.Path("heard"))
		heard := string(text)
		return err == nil && strings.Contains(heard, "for you alone") && strings.Contains(heard, "for all of you") && strings.Contains(heard, "for any of you"), heard
	})
	done("cotal_history", map[string]any{"channel": "team"}, "there is a new persona: writer")

	refused(lead, "cotal_despawn", map[string]any{"name": "stranger"}, "may not despawn seat stranger")
	refused(lead, "cotal_spawn", map[string]any{"name": "nobody"}, "nobody")
	refused(lead, "cotal_send", map[string]any{"channel": "ops", "text": "x"}, "you may not post to channel ops; you may post to: team")
	refused(plain, "cotal_spawn", map[string]any{"name": "mate"}, "cotal_spawn")
	refused(plain, "cotal_send", map[string]any{"channel": "team", "text": "x"}, "you may post to: none")
	done("cotal_despawn", map[string]any{"name": "mate"}, "mate is being stopped")
	w.AwaitStatus("mate", "exited")
	if text, failed := plain.call("cotal_despawn", nil); failed || !strings.Contains(text, "you are being stopped") {
		t.Errorf("a seat ends itself: %t %s", failed, text)
	}
	w.AwaitStatus("stranger", "exited")
}
