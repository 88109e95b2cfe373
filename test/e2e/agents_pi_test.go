package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

func piSetUp(t testing.TB, w *harness.World, stub *stubmodel.Server) {
	t.Helper()
	w.Setenv("PI_OFFLINE", "1")
	dir := filepath.Join(w.Home, ".pi", "agent")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	model := map[string]any{
		"id": "stub-model", "name": "Stub", "reasoning": true, "input": []string{"text"}, "contextWindow": 100000, "maxTokens": 8000,
		"cost": map[string]int{"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
	}
	putJSON(t, filepath.Join(dir, "models.json"), map[string]any{"providers": map[string]any{"stub": map[string]any{
		"baseUrl": stub.BaseURL(), "api": "openai-completions", "apiKey": "stub", "models": []any{model},
	}}})
	putJSON(t, filepath.Join(dir, "settings.json"), map[string]any{"defaultProvider": "stub", "defaultModel": "stub-model"})
}

func piProgram() realProgram {
	return realProgram{
		agent: agents.Pi, connector: "pi", options: "  permissions: allow\n",
		setUp:     piSetUp,
		meshTool:  func(tool string) string { return tool },
		interrupt: "esc", every: patientPress,
		model:   "stub/stub-model",
		process: "", // it writes its own title over its command line
	}
}

// proves: CONN-1, READY-1, READY-2, CAT-2, SPAWN-23
func TestRealPi(t *testing.T) { liveAsAgent(t, piProgram()) }
