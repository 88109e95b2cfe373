package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

func claudeSetUp(_ testing.TB, w *harness.World, stub *stubmodel.Server) {
	for name, value := range map[string]string{
		"ANTHROPIC_BASE_URL":                       strings.TrimSuffix(stub.BaseURL(), "/v1"),
		"ANTHROPIC_AUTH_TOKEN":                     "stub-token",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1",
	} {
		w.Setenv(name, value)
	}
}

func claudeProgram() realProgram {
	return realProgram{
		agent: agents.Claude, connector: "claude", options: "  permissions: ask\n",
		setUp:    claudeSetUp,
		meshTool: func(tool string) string { return "mcp__cotal__" + tool },
		asks: func(file string) string {
			return `TOOLCALL Bash {"command":"touch ` + file + `","description":"make a file"}`
		},
		allow:     "enter",
		interrupt: "esc", every: patientPress,
		model:   "sonnet",
		process: filepath.Base(agents.Claude.Binary),
		// A seat has a configuration of its own: nothing of the user's is written.
		left: func(t *testing.T, w *harness.World) []string {
			t.Helper()
			found, err := filepath.Glob(filepath.Join(w.Home, ".claude*"))
			if err != nil {
				t.Fatal(err)
			}
			return found
		},
	}
}

// proves: READY-1, READY-2, CONN-1, CAT-2, SPAWN-23
func TestRealClaude(t *testing.T) { liveAsAgent(t, claudeProgram()) }

// A program that is killed leaves background commands of its agent in sessions of their own. They end with it, and the
// seat goes on in the session that it was in; when it is gone, its session can be resumed, where it was held.
//
// proves: CONN-1, SPAWN-19, SPAWN-22, ENVMCP-1
func TestRealClaude_GoesOnInItsSession(t *testing.T) {
	s := newScenario(t, claudeProgram(), "model: sonnet\nvariant: low\nlaunchOptions:\n  permissions: allow\n")
	w := s.w
	w.Setenv("IS_SANDBOX", "1") // this test may run as root, and the seat is never to ask
	// Its directory is one of a repository and reached through a link: the program asks whether it is trusted under
	// its real path, and a question would keep the seat off the mesh.
	if r := w.Run(t.Context(), "/usr/bin/env", "git", "init", "--quiet"); r.Code != 0 {
		t.Fatal(r)
	}
	if err := os.Mkdir(w.Path("sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(w.Path("sub"), w.Path("link")); err != nil {
		t.Fatal(err)
	}
	// What the operator shares with seats of this connector, and a variable that it refers to.
	shared := filepath.Join(w.Dir, "shared")
	w.Setenv("SHARED_WORD", "told")
	w.Write(".cotal/config.toml", fmt.Sprintf("[connectors.claude.mcpServers.probe]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"echo $0 >%s; cat >/dev/null\", \"${SHARED_WORD}\"]\n", shared))
	s.serve()
	s.spawns(realSeat, "--cwd", "link", "--prompt", "--begin with a dash")
	if r := s.asked("--begin with a dash"); !strings.Contains(r.Turn.Model, "sonnet") || r.Turn.Effort != "low" {
		t.Errorf("the model was %s with effort %q, want sonnet with low", r.Turn.Model, r.Turn.Effort)
	}
	s.shown(wire.StatusIdle)
	s.sharedServerRan(shared, "told")
	s.say(`TOOLCALL Bash {"command":"sleep 7777","run_in_background":true,"description":"wait"}`)
	await(t, agentWait, "the agent runs a command in the background", func() (bool, string) {
		return len(w.ProcsLike("sleep 7777")) > 0, w.CLI("logs", realSeat).Stdout
	})
	s.shown(wire.StatusIdle)
	id := s.session(s.row.ID)
	s.goesOn("begin with a dash")
	if left := w.ProcsLike("sleep 7777"); len(left) > 0 {
		t.Errorf("what ran in the background is left: %v", left)
	}
	s.shown(wire.StatusIdle)
	w.CLI("stop", realSeat).OK()
	if r := w.CLI("spawn", realSeat, "--resume", id, "--detach"); r.Code == 0 || !strings.Contains(r.Stderr, "--cwd "+w.Path("sub")) {
		t.Errorf("a session of another directory: %v; want the directory named", r)
	}
	if err := os.Remove(shared); err != nil {
		t.Fatal(err)
	}
	s.spawns(realSeat, "--share-tools", "none", "--cwd", "sub", "--resume", id, "--prompt", "HISTORY of what is gone")
	if r := s.asked("HISTORY of what is gone"); !strings.Contains(r.Reply, "begin with a dash") || !strings.Contains(r.Reply, "of the session") {
		t.Errorf("a session of a seat that is gone was resumed without its history: %s", r.Reply)
	}
	if _, err := os.Stat(shared); err == nil {
		t.Error("a seat that is to share nothing has the shared MCP server")
	}
	w.CLI("stop", realSeat).OK()
}

// A turn that fails is over, and what the program says of it is the condition that others see.
func TestRealClaude_SaysWhyATurnFailed(t *testing.T) {
	provider := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusNotFound) // others are tried again for minutes
		_, _ = io.WriteString(rw, `{"type":"error","error":{"type":"not_found_error","message":"model: nosuch"}}`)
	}))
	t.Cleanup(provider.Close)
	s := newScenario(t, claudeProgram(), "")
	s.w.Setenv("ANTHROPIC_BASE_URL", provider.URL)
	s.serve()
	s.spawns(realSeat, "--prompt", "say it")
	await(t, agentWait, "ps says why the turn failed", func() (bool, string) {
		row, _ := s.w.Seat(realSeat)
		return row.Mesh == wire.StatusIdle && row.Condition != nil && row.Condition.Code == "model" && row.MeshBy == "hook",
			fmt.Sprintf("%s (%s) %+v\n%s", row.Mesh, row.MeshBy, row.Condition, s.screen())
	})
	s.w.CLI("stop", realSeat).OK()
}

// With config: user a seat has the user's configuration, all of it, and its sessions are his; its state is known as
// well.
func TestRealClaude_InTheUsersConfiguration(t *testing.T) {
	s := newScenario(t, claudeProgram(), "launchOptions:\n  config: user\n")
	w := s.w
	for file, text := range map[string]string{
		".claude.json":      fmt.Sprintf(`{"hasCompletedOnboarding":true,"projects":{%q:{"hasTrustDialogAccepted":true}}}`, w.Root),
		".claude/CLAUDE.md": "MEMORY-OF-THE-USER\n",
	} {
		path := filepath.Join(w.Home, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.serve()
	s.spawns(realSeat, "--prompt", "say mine")
	if r := s.asked("say mine"); !given(r, "MEMORY-OF-THE-USER") {
		t.Error("the user's memory did not reach the model")
	}
	s.shown(wire.StatusIdle)
	s.isInterrupted()
	w.CLI("stop", realSeat).OK()
	found, err := filepath.Glob(filepath.Join(w.Home, ".claude", "projects", "*", "*.jsonl"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the user has the sessions %v (%v), want the seat's", found, err)
	}
	id := strings.TrimSuffix(filepath.Base(found[0]), ".jsonl")
	s.spawns(realSeat, "--resume", id, "--prompt", "HISTORY of mine")
	if r := s.asked("HISTORY of mine"); !strings.Contains(r.Reply, "say mine") {
		t.Errorf("the fork answered %s, without the history", r.Reply)
	}
	w.CLI("stop", realSeat).OK()
}
