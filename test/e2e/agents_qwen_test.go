package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// qwenSetUp gives the user of the host settings of the program, as he has them for his shell.
func qwenSetUp(t testing.TB, w *harness.World, stub *stubmodel.Server) {
	t.Helper()
	dir := filepath.Join(w.Home, ".qwen")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	model := map[string]any{"id": "stub-model", "name": "Stub", "baseUrl": stub.BaseURL(), "envKey": "OPENAI_API_KEY"}
	putJSON(t, filepath.Join(dir, "settings.json"), map[string]any{
		"$version":       3,
		"security":       map[string]any{"auth": map[string]any{"selectedType": "openai"}},
		"model":          map[string]any{"name": "stub-model"},
		"modelProviders": map[string]any{"openai": []any{model}},
		"privacy":        map[string]any{"usageStatisticsEnabled": false},
		// Else it has an agent beside the turn ask the model what is worth to be remembered.
		"memory": map[string]bool{"enableManagedAutoMemory": false, "enableManagedAutoDream": false, "enableAutoSkill": false},
	})
	w.Setenv("OPENAI_API_KEY", "stub-key")
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
