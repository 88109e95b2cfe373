package opencode_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/connectors/opencode"
	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
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

// running is a launch on a plain pty that answers no terminal query.
type running struct {
	w      *world
	req    sdk.LaunchRequest
	spec   sdk.LaunchSpec
	cmd    *exec.Cmd
	pty    *os.File
	nonce  string
	api    api.Record
	exited chan struct{}

	mu     sync.Mutex
	output bytes.Buffer
	modes  terminal.ModeScanner
}

func (w *world) launch(change func(*sdk.LaunchRequest)) *running {
	w.t.Helper()
	req := w.request(change)
	spec, err := w.connector.BuildLaunch(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	r := &running{w: w, req: req, spec: spec, nonce: wire.NewNonce(), exited: make(chan struct{})}
	if r.api, err = api.ReadRecord(filepath.Join(req.Dir, api.RecordFile)); err != nil {
		w.t.Fatal(err)
	}
	r.cmd = &exec.Cmd{Path: spec.Path, Args: append([]string{spec.Path}, spec.Args...), Dir: req.Cwd}
	r.cmd.Env = append(append([]string(nil), spec.Env...), "COTAL_SEAT_NONCE="+r.nonce)
	if r.pty, err = pty.StartWithSize(r.cmd, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
		w.t.Fatal(err)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(writerFunc(func(p []byte) (int, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.modes.Write(p)
			return r.output.Write(p)
		}), r.pty) // ends with EIO once the terminal has no user
	}()
	go func() {
		defer close(r.exited)
		_ = r.cmd.Wait() // the state says what happened
	}()
	w.t.Cleanup(func() {
		for _, p := range r.left() {
			if p.Identity.PID != r.cmd.Process.Pid {
				_ = seat.SignalExact(p.Identity, syscall.SIGKILL)
			}
		}
		_ = r.cmd.Process.Kill()
		<-r.exited
		_ = r.pty.Close()
		<-drained
		if w.t.Failed() {
			w.t.Logf("end of the screen of %s: %q", filepath.Base(spec.Path), tail(r.screen(), 1200))
		}
	})
	return r
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (r *running) screen() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.output.String()
}

// await polls for a fact.
func (r *running) await(what string, fact func() bool) {
	r.w.t.Helper()
	begin := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !fact() {
		if <-tick.C; busy.Over(begin, patience) {
			r.w.t.Fatalf("waited %s for %s", time.Since(begin).Round(time.Second), what)
		}
	}
}

// awaitReady waits until the input field has the focus: paste mode is on and the cursor is shown. What is
// typed before that is lost.
func (r *running) awaitReady() {
	r.w.t.Helper()
	r.await("the input field", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.modes.Modes()&(terminal.BracketedPaste|terminal.CursorHidden) == terminal.BracketedPaste
	})
}

// submit types text as the host does: a paste, the connector's pause, Return.
func (r *running) submit(text string) {
	r.w.t.Helper()
	r.awaitReady() // it hides the cursor while it draws, and while it asks something
	r.write("\x1b[200~" + text + "\x1b[201~")
	gap := time.NewTimer(time.Duration(opencode.Info().Connector.Input.SubmitDelayMs) * time.Millisecond)
	<-gap.C // not a wait for a fact: the pause is the fact under test
	r.write("\r")
}

func (r *running) write(s string) {
	r.w.t.Helper()
	if _, err := r.pty.WriteString(s); err != nil {
		r.w.t.Fatalf("type: %v", err)
	}
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

// left lists the processes that carry this launch's nonce.
func (r *running) left() []seat.Proc {
	procs, err := seat.FindByNonce(r.nonce)
	if err != nil {
		r.w.t.Errorf("find processes: %v", err)
	}
	return procs
}

// awaitEnd waits for the end of everything the launch started and returns the exit state.
func (r *running) awaitEnd() *os.ProcessState {
	r.w.t.Helper()
	r.await("the exit", func() bool {
		select {
		case <-r.exited:
			return true
		default:
			return false
		}
	})
	r.await("the end of its descendants", func() bool { return len(r.left()) == 0 })
	return r.cmd.ProcessState
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func itoa(n int) string { return strconv.Itoa(n) }

// awaitIdle waits until no session of the program is at work.
func (r *running) awaitIdle() {
	r.w.t.Helper()
	r.await("an idle session", func() bool {
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

// reap removes the launch's files as the host does, and again.
func (r *running) reap() {
	r.w.t.Helper()
	req := sdk.LeftoverRequest{SeatID: r.req.SeatID, Dir: r.req.Dir, Cwd: r.req.Cwd, WorkspaceRoot: r.req.WorkspaceRoot}
	for i, want := range []sdk.ReapOutcome{sdk.ReapExited, sdk.ReapAbsent} {
		report, err := r.w.connector.Reap(r.w.t.Context(), req)
		if err != nil || report.Outcome != want || len(report.Evidence) == 0 {
			r.w.t.Errorf("reap %d: %+v, %v, want %s with evidence", i+1, report, err, want)
		}
	}
	if left, err := os.ReadDir(r.req.Dir); err != nil || len(left) != 0 {
		r.w.t.Errorf("files left in the seat's directory: %v, %v", left, err)
	}
}
