package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// codexSetUp gives the user of the host a configuration of the program, as he has it for his shell.
func codexSetUp(t testing.TB, w *harness.World, stub *stubmodel.Server) {
	t.Helper()
	home := filepath.Join(w.Home, ".codex")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`model = "stub-model"
model_provider = "stub"

[model_providers.stub]
name = "Stub"
base_url = %q
env_key = "OPENAI_API_KEY"
wire_api = "responses"
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
`, stub.BaseURL())
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Setenv("OPENAI_API_KEY", "stub-key")
}

func codexProgram() realProgram {
	return realProgram{
		agent: agents.Codex, connector: "codex", options: "  permissions: ask\n",
		setUp:    codexSetUp,
		meshTool: func(tool string) string { return "mcp__cotal__" + tool },
		// Within its sandbox it asks nobody.
		asks: func(file string) string {
			return `TOOLCALL exec_command {"cmd":"touch ` + file + `","sandbox_permissions":"require_escalated","justification":"to make a file"}`
		},
		allow:     "enter",
		interrupt: "esc", every: patientPress,
		model:   "gpt-5.5",
		process: agents.Codex.Binary,
		// A seat has a home of its own: nothing is written into the user's.
		left: func(t *testing.T, w *harness.World) []string {
			t.Helper()
			found, err := filepath.Glob(filepath.Join(w.Home, ".codex", "*"))
			if err != nil {
				t.Fatal(err)
			}
			if len(found) == 1 && filepath.Base(found[0]) == "config.toml" {
				return nil
			}
			return found
		},
	}
}

// proves: READY-1, READY-2, CONN-1, CAT-2, SPAWN-23
func TestRealCodex(t *testing.T) { liveAsAgent(t, codexProgram()) }

// A seat that is killed goes on in its session, with its model and effort; when it is gone, its session can be resumed.
//
// proves: CONN-1, SPAWN-22
func TestRealCodex_GoesOnInItsSession(t *testing.T) {
	s := newScenario(t, codexProgram(), "model: other-model\nvariant: low\nlaunchOptions:\n  permissions: allow\n")
	s.serve()
	s.spawns(realSeat, "--prompt", "--begin with a dash")
	if r := s.asked("--begin with a dash"); r.Turn.Model != "other-model" || r.Turn.Effort != "low" {
		t.Errorf("the model was %s with effort %q, want other-model with low", r.Turn.Model, r.Turn.Effort)
	}
	s.shown(wire.StatusIdle)
	id := s.session(s.row.ID)
	if r := s.goesOn("begin with a dash"); r.Turn.Model != "other-model" || r.Turn.Effort != "low" {
		t.Errorf("it goes on with model %s and effort %q, was other-model and low", r.Turn.Model, r.Turn.Effort)
	}
	s.w.CLI("stop", realSeat).OK()
	s.spawns(realSeat, "--resume", id, "--prompt", "HISTORY of what is gone")
	if r := s.asked("HISTORY of what is gone"); !strings.Contains(r.Reply, "begin with a dash") || !strings.Contains(r.Reply, "of the session") {
		t.Errorf("a session of a seat that is gone was resumed without its history: %s", r.Reply)
	}
	s.w.CLI("stop", realSeat).OK()
}
