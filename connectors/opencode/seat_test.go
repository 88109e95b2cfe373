package opencode_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/opencode"
	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/onpty"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// patience bounds every wait for the real program: booting it took 30 s on a loaded machine.
const patience = 120 * time.Second

// world is one home of the program, with a stub for its model.
type world struct {
	t         *testing.T
	stub      *stubmodel.Server
	connector *opencode.Connector
	binary    string
	root      string
}

func newWorld(t *testing.T, binary string) *world {
	t.Helper()
	stub, err := stubmodel.Start(stubmodel.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stub.Close)
	w := &world{t: t, stub: stub, binary: binary, root: t.TempDir(), connector: &opencode.Connector{}}
	if err := w.connector.Configure(t.Context(), sdk.PluginConfig{BundleDir: harness.Bin(t), StateDir: w.dir("state")}); err != nil {
		t.Fatal(err)
	}
	model := map[string]any{"name": "Stub", "tool_call": true, "reasoning": true, "limit": map[string]int{"context": 100000, "output": 8000}}
	w.file("opencode.json", map[string]any{
		"small_model": "stub/stub-model", "model": "stub/stub-model", "enabled_providers": []string{"stub"}, "share": "disabled",
		"instructions": []string{w.path("base.md")},
		"agent":        map[string]any{"build": map[string]any{"model": "stub/stub-model"}},
		"provider": map[string]any{"stub": map[string]any{
			"npm": "@ai-sdk/openai-compatible", "name": "Stub",
			"options": map[string]any{"baseURL": stub.BaseURL(), "apiKey": "stub"},
			"models":  map[string]any{"stub-model": model, "other-model": model},
		}},
	})
	if err := os.WriteFile(w.path("base.md"), []byte("INSTRUCTIONS-OF-THE-USER\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// The program installs a package into its configuration directory in the background. What it looks
	// for stands there already, so that the test needs no registry.
	plugin := map[string]any{"@opencode-ai/plugin": "1.18.33"}
	w.dir("home/.config/opencode/node_modules")
	w.file("home/.config/opencode/package.json", map[string]any{"dependencies": plugin})
	w.file("home/.config/opencode/package-lock.json", map[string]any{"lockfileVersion": 3, "packages": map[string]any{"": map[string]any{"dependencies": plugin}}})
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.root, name) }

func (w *world) dir(name string) string {
	w.t.Helper()
	if err := os.MkdirAll(w.path(name), 0o700); err != nil {
		w.t.Fatal(err)
	}
	return w.path(name)
}

func (w *world) file(name string, v any) {
	w.t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.path(name), data, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// request is a launch request as the host makes it.
func (w *world) request(change func(*sdk.LaunchRequest)) sdk.LaunchRequest {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	id := wire.NewCustodyID()
	req := sdk.LaunchRequest{
		SeatID: id, Space: "main", Name: "worker", WorkspaceRoot: w.root, Cwd: w.dir("project"), Dir: w.dir("seat-" + id),
		BaseEnv: []string{
			"PATH=/usr/local/bin:/usr/bin:/bin", "TERM=xterm-256color", "COLORTERM=truecolor", "LANG=C.UTF-8",
			"TMPDIR=" + w.dir("tmp"), "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1",
		},
		Binaries:      map[string]string{"opencode": w.binary},
		LaunchOptions: map[string]any{"home": w.dir("home"), "config": "opencode.json"},
		Ports:         []int{l.Addr().(*net.TCPAddr).Port},
		Secrets:       []string{wire.NewCustodyID() + wire.NewCustodyID()},
	}
	if change != nil {
		change(&req)
	}
	return req
}

// running is a launch in a world.
type running struct {
	*onpty.Seat
	w   *world
	api api.Record
}

func (w *world) launch(change func(*sdk.LaunchRequest)) *running {
	w.t.Helper()
	req := w.request(change)
	spec, err := w.connector.BuildLaunch(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	rec, err := api.ReadRecord(filepath.Join(req.Dir, api.RecordFile))
	if err != nil {
		w.t.Fatal(err)
	}
	return &running{w: w, api: rec, Seat: onpty.Run(w.t, onpty.Config{Req: req, Spec: spec, Facts: opencode.Info().Connector, Patience: patience})}
}

// asked waits until the model was asked with text in the last user turn.
func (r *running) asked(text string) stubmodel.Request {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(r.w.t.Context(), busy.Limit(patience))
	defer cancel()
	got, err := r.w.stub.Wait(ctx, stubmodel.Asked(text))
	if err != nil {
		r.w.t.Fatal(err)
	}
	return got
}

// get asks the program's API with the seat's password.
func (r *running) get(path string, out any) {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(r.w.t.Context(), busy.Limit(patience))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url(path), nil)
	if err != nil {
		r.w.t.Fatal(err)
	}
	req.SetBasicAuth(r.api.User, r.api.Password)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		r.w.t.Fatalf("GET %s: HTTP %d: %v", path, resp.StatusCode, err)
	}
}

func (r *running) url(path string) string { return "http://127.0.0.1:" + itoa(r.api.Port) + path }

func itoa(n int) string { return strconv.Itoa(n) }

// awaitIdle waits until no session of the program is at work.
func (r *running) awaitIdle() {
	r.w.t.Helper()
	r.Await("an idle session", func() bool {
		var busy map[string]any
		r.get("/session/status", &busy)
		return len(busy) == 0
	})
}

// messages is the raw JSON of a session's messages.
func (r *running) messages(session string) string {
	r.w.t.Helper()
	var raw json.RawMessage
	r.get("/session/"+session+"/message", &raw)
	return string(raw)
}
