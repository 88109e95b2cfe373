package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// qwenSetUp gives the user of the host settings of the program, as he has them for his shell.
func qwenSetUp(t testing.TB, w *harness.World, stub *stubmodel.Server) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(w.Home, ".qwen"), 0o700); err != nil {
		t.Fatal(err)
	}
	qwenSettings(t, w, stub.BaseURL())
	w.Setenv("OPENAI_API_KEY", "stub-key")
}

func qwenSettings(t testing.TB, w *harness.World, baseURL string) {
	t.Helper()
	model := map[string]any{"id": "stub-model", "name": "Stub", "baseUrl": baseURL, "envKey": "OPENAI_API_KEY"}
	putJSON(t, filepath.Join(w.Home, ".qwen", "settings.json"), map[string]any{
		"$version":       3,
		"security":       map[string]any{"auth": map[string]any{"selectedType": "openai"}},
		"model":          map[string]any{"name": "stub-model"},
		"modelProviders": map[string]any{"openai": []any{model}},
		"privacy":        map[string]any{"usageStatisticsEnabled": false},
		// Else it has an agent beside the turn ask the model what is worth to be remembered.
		"memory": map[string]bool{"enableManagedAutoMemory": false, "enableManagedAutoDream": false, "enableAutoSkill": false},
	})
}

func qwenProgram() realProgram {
	return realProgram{
		agent: agents.Qwen, connector: "qwen", options: "  permissions: ask\n",
		setUp:    qwenSetUp,
		meshTool: func(tool string) string { return "mcp__cotal__" + tool },
		asks: func(file string) string {
			return `TOOLCALL run_shell_command {"command":"touch ` + file + `","is_background":false,"description":"make a file"}`
		},
		allow:     "enter",
		interrupt: "esc", every: patientPress,
		clear:   "ctrl-u",
		model:   "stub-model",
		process: filepath.Base(agents.Qwen.Binary),
	}
}

// proves: CONN-1, READY-1, READY-2, CAT-2, SPAWN-23
func TestRealQwen(t *testing.T) { liveAsAgent(t, qwenProgram()) }

// A seat that is killed goes on in its session. It has the operator's shared server, with its variable, beside the
// user's settings, which stay as they are.
//
// proves: CONN-1, SPAWN-19, SPAWN-22, ENVMCP-1
func TestRealQwen_GoesOnInItsSession(t *testing.T) {
	s := newScenario(t, qwenProgram(), "model: stub-model\nlaunchOptions:\n  permissions: allow\n")
	settings := filepath.Join(s.w.Home, ".qwen", "settings.json")
	before, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(s.w.Dir, "shared")
	s.w.Setenv("SHARED_WORD", "told")
	s.w.Write(".cotal/config.toml", fmt.Sprintf("[connectors.qwen.mcpServers.probe]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"echo $0 >%s; cat >/dev/null\", \"${SHARED_WORD}\"]\n", shared))
	s.serve()
	s.spawns(realSeat, "--prompt", "--begin with a dash")
	s.asked("--begin with a dash")
	s.shown(wire.StatusIdle)
	s.sharedServerRan(shared, "told")
	s.goesOn("begin with a dash")
	s.w.CLI("stop", realSeat).OK()
	if after, err := os.ReadFile(settings); err != nil || string(after) != string(before) {
		t.Errorf("the user's settings are %s, %v; they were %s", after, err, before)
	}
}

// A turn that fails is over, and what the program says of it is the condition that others see.
func TestRealQwen_SaysWhyATurnFailed(t *testing.T) {
	provider := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusUnauthorized) // others are tried again for minutes
		_, _ = io.WriteString(rw, `{"error":{"message":"this is what the provider says","type":"invalid_request_error"}}`)
	}))
	t.Cleanup(provider.Close)
	s := newScenario(t, qwenProgram(), "")
	qwenSettings(t, s.w, provider.URL+"/v1")
	s.serve()
	s.spawns(realSeat, "--prompt", "say it")
	await(t, agentWait, "ps says why the turn failed", func() (bool, string) {
		row, _ := s.w.Seat(realSeat)
		return row.Mesh == wire.StatusIdle && row.Condition != nil && row.Condition.Code == "auth" && row.MeshBy == "hook",
			fmt.Sprintf("%s (%s) %+v\n%s", row.Mesh, row.MeshBy, row.Condition, s.screen())
	})
	s.w.CLI("stop", realSeat).OK()
}
