package codex_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/connectors/codex"
	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// patience bounds every wait for the real program.
const patience = 90 * time.Second

const (
	space = "main"
	token = "test-token-0123456789"
)

// world is a workspace, an operator's home of the program, a mesh, and a stub of the model.
type world struct {
	t         testing.TB
	stub      *stubmodel.Server
	mesh      *broker.Broker
	peer      *mesh.Client
	roster    *mesh.Roster
	connector *codex.Connector
	binary    string
	root      string
}

func newWorld(t testing.TB, binary string) *world {
	t.Helper()
	stub, err := stubmodel.Start(stubmodel.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stub.Close)
	root, err := os.MkdirTemp("", "cx") // short: sockets are made in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	w := &world{t: t, stub: stub, binary: binary, root: root, connector: &codex.Connector{}}
	if err := w.connector.Configure(t.Context(), sdk.PluginConfig{BundleDir: harness.Bin(t), StateDir: w.dir("state")}); err != nil {
		t.Fatal(err)
	}
	w.dir("operator/.codex")
	w.file("operator/.codex/config.toml", fmt.Sprintf(`model = "stub-model"
model_provider = "stub"
developer_instructions = "INSTRUCTIONS-OF-THE-USER"

[model_providers.stub]
name = "Stub"
base_url = %q
env_key = "STUB_KEY"
wire_api = "responses"
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[mcp_servers.personal]
command = "/nonexistent/personal-server"
`, stub.BaseURL()))
	w.join()
	return w
}

// join makes a mesh with one participant.
func (w *world) join() {
	t := w.t
	t.Helper()
	var err error
	if w.mesh, err = broker.Start(t.Context(), broker.Config{StoreDir: w.dir("nats"), Token: token}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.mesh.Shutdown)
	c, err := bus.Connect(t.Context(), bus.Config{URL: w.mesh.URL(), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetUpMessaging(t.Context(), space, func(string) bool { return false }, func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if w.peer, err = mesh.Connect(t.Context(), mesh.Config{URL: w.mesh.URL(), Token: token, Space: space, Name: "peer", Reconnect: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.peer.Close)
	if w.roster, err = w.peer.WatchPresence(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.roster.Close)
}

func (w *world) path(name string) string { return filepath.Join(w.root, name) }

func (w *world) dir(name string) string {
	w.t.Helper()
	if err := os.MkdirAll(w.path(name), 0o700); err != nil {
		w.t.Fatal(err)
	}
	return w.path(name)
}

func (w *world) file(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) read(name string) string {
	w.t.Helper()
	data, err := os.ReadFile(w.path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}

// becomesTheOperators moves a session of a seat to the operator's, and returns where it is.
func (w *world) becomesTheOperators(session string) string {
	w.t.Helper()
	files, err := filepath.Glob(w.path(".cotal/codex/sessions/*/*/*/*" + session + ".jsonl"))
	if err != nil || len(files) != 1 {
		w.t.Fatalf("session %s is in %v, %v", session, files, err)
	}
	w.dir("operator/.codex/sessions/2026/01/02")
	name := "operator/.codex/sessions/2026/01/02/" + filepath.Base(files[0])
	if err := os.Rename(files[0], w.path(name)); err != nil {
		w.t.Fatal(err)
	}
	return name
}

// request is a launch request as the host makes it, with its launch material.
func (w *world) request(change func(*sdk.LaunchRequest)) sdk.LaunchRequest {
	w.t.Helper()
	id := wire.NewCustodyID()
	who, err := mesh.NewCaller()
	if err != nil {
		w.t.Fatal(err)
	}
	req := sdk.LaunchRequest{
		SeatID: id, Space: space, Name: "worker", Principal: who.Principal(), LifecycleUID: who.UID,
		WorkspaceRoot: w.root, Cwd: w.dir("project"), Dir: w.dir("s-" + id[:8]),
		BaseEnv: []string{
			"PATH=/usr/local/bin:/usr/bin:/bin", "TERM=xterm-256color", "COLORTERM=truecolor", "LANG=C.UTF-8",
			"HOME=" + w.dir("operator"), "TMPDIR=" + w.dir("tmp"), "STUB_KEY=stub",
		},
		Binaries: map[string]string{"codex": w.binary}, LaunchOptions: map[string]any{},
	}
	if change != nil {
		change(&req)
	}
	material, err := wire.LaunchMaterial{Servers: w.mesh.URL(), Token: token, Seat: &wire.LaunchSeat{
		Space: space, Name: req.Name, ID: req.Principal, LifecycleUID: req.LifecycleUID, Connector: "codex", Cwd: req.Cwd,
	}}.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(req.Dir, "material.json")
	if err := os.WriteFile(file, material, 0o600); err != nil {
		w.t.Fatal(err)
	}
	req.BaseEnv = sdk.SetEnv(req.BaseEnv, wire.LaunchMaterialEnv+"="+file)
	return req
}

// running is a launch on a plain pty that answers no terminal query.
type running struct {
	w      *world
	req    sdk.LaunchRequest
	cmd    *exec.Cmd
	pty    *os.File
	nonce  string
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
	return w.run(req, spec)
}

// run starts a process on a terminal and reads what it prints.
func (w *world) run(req sdk.LaunchRequest, spec sdk.LaunchSpec) *running {
	w.t.Helper()
	var err error
	r := &running{w: w, req: req, nonce: wire.NewNonce(), exited: make(chan struct{})}
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
			log, _ := os.ReadFile(filepath.Join(req.Dir, "app-server.log"))
			w.t.Logf("end of the screen: %q\nlog of the server: %s", tail(r.screen(), 3000), tail(string(log), 2000))
		}
	})
	return r
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func (r *running) screen() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.output.String()
}

// await polls for a fact.
func (r *running) await(what string, fact func() bool) {
	r.w.t.Helper()
	deadline := time.After(busy.Limit(patience))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !fact() {
		select {
		case <-tick.C:
		case <-deadline:
			r.w.t.Fatalf("waited for %s; there are %+v", what, r.w.roster.View().Rows)
		}
	}
}

// press presses keys until a fact: the server tells what goes on before the terminal program has drawn it, and a key that
// comes in between is lost.
func (r *running) press(keys, what string, fact func() bool) {
	r.w.t.Helper()
	var pressed time.Time
	r.await(what, func() bool {
		if fact() {
			return true
		}
		if time.Since(pressed) > 3*time.Second {
			r.write(keys)
			pressed = time.Now()
		}
		return false
	})
}

// shows waits until the mesh shows the agent like that.
func (r *running) shows(what string, match func(wire.Presence) bool) wire.Presence {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(r.w.t.Context(), busy.Limit(patience))
	defer cancel()
	p, err := r.w.roster.Await(ctx, func(p wire.Presence) bool { return p.Card.ID == r.req.Principal && match(p) })
	if err != nil {
		r.w.t.Fatalf("%s: %v; there are %+v", what, err, r.w.roster.View().Rows)
	}
	return p
}

func (r *running) showsStatus(status string) wire.Presence {
	r.w.t.Helper()
	return r.shows(status, func(p wire.Presence) bool { return p.Status == status })
}

// ready says whether the terminal program takes input.
func (r *running) ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.modes.Modes()&(terminal.BracketedPaste|terminal.CursorHidden) == terminal.BracketedPaste
}

// submit types text as the host does: a paste, the connector's pause, Return.
func (r *running) submit(text string) {
	r.w.t.Helper()
	r.await("the input field", func() bool {
		select {
		case <-r.exited:
			r.w.t.Fatalf("it ended: %s", r.cmd.ProcessState)
		default:
		}
		return r.ready()
	})
	r.write("\x1b[200~" + text + "\x1b[201~")
	gap := time.NewTimer(time.Duration(codex.Info().Connector.Input.SubmitDelayMs) * time.Millisecond)
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
	return r.request(stubmodel.Asked(text))
}

func (r *running) request(match func(stubmodel.Request) bool) stubmodel.Request {
	r.w.t.Helper()
	ctx, cancel := context.WithTimeout(r.w.t.Context(), busy.Limit(patience))
	defer cancel()
	got, err := r.w.stub.Wait(ctx, match)
	if err != nil {
		r.w.t.Fatal(err)
	}
	return got
}

// left lists the processes that carry this launch's nonce.
func (r *running) left() []seat.Proc {
	procs, err := seat.FindByNonce(r.nonce)
	if err != nil {
		r.w.t.Errorf("find processes: %v", err)
	}
	return procs
}

// end asks the seat to end, waits for the end of everything it started, and reaps as the host does, and again.
func (r *running) end() *os.ProcessState {
	r.w.t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.w.t.Fatal(err)
	}
	r.await("the exit", func() bool {
		select {
		case <-r.exited:
			return true
		default:
			return false
		}
	})
	r.await("the end of its descendants", func() bool { return len(r.left()) == 0 })
	r.shows("offline", func(p wire.Presence) bool { return p.Status == wire.StatusOffline })
	req := sdk.LeftoverRequest{SeatID: r.req.SeatID, Dir: r.req.Dir, Cwd: r.req.Cwd, WorkspaceRoot: r.req.WorkspaceRoot}
	for i, want := range []sdk.ReapOutcome{sdk.ReapExited, sdk.ReapAbsent} {
		report, err := r.w.connector.Reap(r.w.t.Context(), req)
		if err != nil || report.Outcome != want || len(report.Evidence) == 0 {
			r.w.t.Errorf("reap %d: %+v, %v, want %s with evidence", i+1, report, err, want)
		}
	}
	left, err := os.ReadDir(r.req.Dir)
	if err != nil || len(left) != 1 || left[0].Name() != "material.json" {
		r.w.t.Errorf("files left in the seat's directory: %v, %v; want the host's own alone", left, err)
	}
	return r.cmd.ProcessState
}

// hears waits for a direct message to the peer.
func (w *world) hears(q *mesh.Queue, text string) mesh.Message {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), busy.Limit(patience))
	defer cancel()
	for {
		d, err := q.Next(ctx)
		if err != nil {
			w.t.Fatalf("wait for a message: %v", err)
		}
		if err := d.Ack(ctx); err != nil {
			w.t.Error(err)
		}
		if strings.Contains(d.Text(), text) {
			return d.Message
		}
	}
}
