package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// opencodeConfig is a configuration of the program with nothing but a provider that stands in for its model.
func opencodeConfig(baseURL string) map[string]any {
	model := map[string]any{"name": "Stub", "tool_call": true, "reasoning": true, "limit": map[string]int{"context": 100000, "output": 8000}}
	return map[string]any{
		"model": "stub/stub-model", "small_model": "stub/stub-model", "enabled_providers": []string{"stub"}, "share": "disabled",
		"provider": map[string]any{"stub": map[string]any{
			"npm": "@ai-sdk/openai-compatible", "name": "Stub",
			"options": map[string]any{"baseURL": baseURL, "apiKey": "stub"},
			"models":  map[string]any{"stub-model": model, "other-model": model},
		}},
	}
}

// opencodeHome is a home of the program in dir. What it would otherwise install into its configuration directory is
// there, so that no registry is asked while the test runs.
func opencodeHome(t testing.TB, dir string) {
	t.Helper()
	dir = filepath.Join(dir, ".config", "opencode")
	if err := os.MkdirAll(filepath.Join(dir, "node_modules"), 0o700); err != nil {
		t.Fatal(err)
	}
	plugin := map[string]any{"@opencode-ai/plugin": agents.OpenCode.Version}
	putJSON(t, filepath.Join(dir, "package.json"), map[string]any{"dependencies": plugin})
	putJSON(t, filepath.Join(dir, "package-lock.json"), map[string]any{"lockfileVersion": 3, "packages": map[string]any{"": map[string]any{"dependencies": plugin}}})
}

func putJSON(t testing.TB, path string, v any) {
	t.Helper()
	p, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
}

// opencodeSetUp gives the user of the host a configuration of the program, as he has it in his shell.
func opencodeSetUp(t testing.TB, w *harness.World, stub *stubmodel.Server) {
	t.Helper()
	opencodeHome(t, w.Home)
	putJSON(t, filepath.Join(w.Home, ".config", "opencode", "opencode.json"), opencodeConfig(stub.BaseURL()))
}

func opencodeProgram() realProgram {
	return realProgram{
		agent: agents.OpenCode, connector: "opencode", options: "  permissions: ask\n",
		setUp:    opencodeSetUp,
		meshTool: func(tool string) string { return "cotal_" + tool },
		// A shell of its own: the program would ask a second question about a file outside of the directory.
		asks: func(file string) string {
			return `TOOLCALL bash {"command":"sh -c 'touch ` + file + `'","description":"make a file"}`
		},
		allow:     "enter",
		interrupt: "esc", every: time.Second, // it takes two, not at once and not far from each other
		model:   "stub/other-model",
		process: filepath.Base(agents.OpenCode.Binary),
	}
}

// proves: READY-1, READY-2, CONN-1, CAT-2, SPAWN-23
func TestRealOpenCode(t *testing.T) { liveAsAgent(t, opencodeProgram()) }

// A seat of a pinned model that is killed goes on in its session and with its model, on the mesh as before; a message
// that comes before anybody said anything wakes it. The operator's MCP server is there, with its variable.
//
// proves: CONN-1, SPAWN-19, SPAWN-22, ENVMCP-1, ENVMCP-2
func TestRealOpenCode_GoesOnInItsSession(t *testing.T) {
	s := newScenario(t, opencodeProgram(), "model: stub/other-model\nvariant: high\nlaunchOptions:\n  permissions: allow\n")
	w := s.w
	// A server of the operator's that leaves a mark and is none otherwise.
	mark := filepath.Join(w.Dir, "mark")
	w.Setenv("MARK_TOKEN", `to"ken`)
	w.Write(".cotal/config.toml", fmt.Sprintf("[connectors.opencode.mcpServers.marker]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"echo $TOKEN > %s\"]\nenv = { TOKEN = \"${MARK_TOKEN}\" }\n", mark))
	s.serve()
	if r := w.CLI("spawn", realSeat, "--detach", "--share-tools", "files"); r.Code == 0 || !strings.Contains(r.Stderr, `shares marker with seats of connector opencode`) {
		t.Errorf("a server that nobody declared: %v", r)
	}
	s.spawns(realSeat)
	s.shown(wire.StatusIdle)
	s.sharedServerRan(mark, `to"ken`)
	if _, err := s.client.SendDirect(t.Context(), s.row.ID, "the first word is lynx"); err != nil {
		t.Fatal(err)
	}
	woken := s.request("is given the message", func(r stubmodel.Request) bool { return r.Done && !r.Side && given(r, "the first word is lynx") })
	if woken.Turn.Model != "other-model" || woken.Turn.Effort != "high" {
		t.Errorf("woken, it asked model %q with effort %q, want other-model with high", woken.Turn.Model, woken.Turn.Effort)
	}
	s.shown(wire.StatusIdle)
	if r := s.goesOn("the first word is lynx"); r.Turn.Model != "other-model" || r.Turn.Effort != "high" {
		t.Errorf("it goes on with model %q and effort %q, was other-model and high", r.Turn.Model, r.Turn.Effort)
	}
	w.CLI("stop", realSeat).OK()
}

// What a person has in the input field while a message wakes the agent stays there, and is sent when he sends it.
func TestRealOpenCode_KeepsADraftWhenItIsWoken(t *testing.T) {
	s := newScenario(t, opencodeProgram(), "")
	w := s.w
	s.serve()
	s.spawns(realSeat)
	screen := attach(t, w, s.row)
	for _, draft := range []string{"a draft before there is a session", "a draft in a session"} {
		await(t, agentWait, "the draft is typed", func() (bool, string) {
			r := w.CLI("input", realSeat, "--text", draft, "--no-enter")
			return r.Code == 0, r.String()
		})
		await(t, agentWait, "the draft is on the screen", func() (bool, string) { return screen.shows(draft) })
		if _, err := s.client.SendDirect(t.Context(), s.row.ID, "to whom it has "+draft); err != nil {
			t.Fatal(err)
		}
		s.request("is given the message", func(r stubmodel.Request) bool { return r.Done && !r.Side && given(r, "to whom it has "+draft) })
		s.shown(wire.StatusIdle)
		w.CLI("input", realSeat, "--keys", "enter").OK()
		s.request("sends the draft", func(r stubmodel.Request) bool { return r.Done && !r.Side && r.Turn.LastUser() == draft })
		s.shown(wire.StatusIdle)
	}
	w.CLI("stop", realSeat).OK()
}

// A model that nobody offers ends the launch, and the refusal says what there is.
//
// proves: CONN-2
func TestRealOpenCode_AModelThatNobodyOffersIsRefused(t *testing.T) {
	s := newScenario(t, opencodeProgram(), "model: stub/no-such-model\n")
	s.serve()
	r := s.w.CLI("spawn", realSeat, "--detach", "--timeout", "2m")
	if r.Code == 0 {
		t.Fatalf("it was launched: %v", r)
	}
	if want := `"stub/no-such-model" is not offered`; !strings.Contains(r.Stdout+r.Stderr, want) {
		t.Errorf("the refusal lacks %s:\n%v", want, r)
	}
	if asked := s.stub.Requests(); len(asked) > 0 {
		t.Errorf("a model was asked: %+v", asked)
	}
}

// A turn that fails is over, and what the program's server says of it is the condition that others see. A person's
// next turn forgets it.
//
// proves: CONN-1
func TestRealOpenCode_SaysWhyATurnFailed(t *testing.T) {
	var status atomic.Int32
	status.Store(http.StatusUnauthorized)
	provider := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(rw, `{"error":{"message":"this is what the provider says","type":"nobody_knows"}}`)
	}))
	t.Cleanup(provider.Close)
	s := newScenario(t, opencodeProgram(), "")
	w := s.w
	putJSON(t, filepath.Join(w.Home, ".config", "opencode", "opencode.json"), opencodeConfig(provider.URL+"/v1"))
	s.serve()
	s.spawns(realSeat, "--prompt", "say it")
	says := func(mesh, code string) {
		t.Helper()
		await(t, agentWait, "ps says "+mesh+" and "+code, func() (bool, string) {
			row, _ := w.Seat(realSeat)
			return row.Mesh == mesh && row.Condition != nil && row.Condition.Code == code && strings.Contains(row.Condition.Message, "what the provider says") && row.MeshBy == "program",
				fmt.Sprintf("%s (%s) %+v\n%s", row.Mesh, row.MeshBy, row.Condition, w.CLI("logs", realSeat).Stdout)
		})
	}
	says(wire.StatusIdle, "auth")
	status.Store(http.StatusTooManyRequests) // which the program tries again, for as long as it takes
	w.CLI("input", realSeat, "--text", "say it again").OK()
	await(t, agentWait, "ps says that it tries again", func() (bool, string) {
		row, _ := w.Seat(realSeat)
		return row.Mesh == wire.StatusWorking && row.Condition != nil && (row.Condition.Code == "rate_limit" || row.Condition.Code == "retrying"),
			fmt.Sprintf("%s (%s) %+v\n%s", row.Mesh, row.MeshBy, row.Condition, w.CLI("logs", realSeat).Stdout)
	})
	w.CLI("stop", realSeat).OK()
}
