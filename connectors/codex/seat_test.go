package codex_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/codex"
	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/onpty"
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

// running is a launch in a world.
type running struct {
	*onpty.Seat
	w *world
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

// run starts a process on a terminal.
func (w *world) run(req sdk.LaunchRequest, spec sdk.LaunchSpec) *running {
	w.t.Helper()
	return &running{w: w, Seat: onpty.Run(w.t, onpty.Config{
		Req: req, Spec: spec, Facts: codex.Info().Connector, Patience: patience,
		Explain: func() string { return fmt.Sprintf("there are %+v", w.roster.View().Rows) },
		Failed: func(*onpty.Seat) {
			log, _ := os.ReadFile(filepath.Join(req.Dir, "app-server.log"))
			w.t.Logf("log of the server: %s", onpty.Tail(string(log), 2000))
		},
	})}
}

// press presses keys until a fact: the server tells what goes on before the terminal program has drawn it, and a key that
// comes in between is lost.
func (r *running) press(keys, what string, fact func() bool) {
	r.w.t.Helper()
	var pressed time.Time
	r.Await(what, func() bool {
		if fact() {
			return true
		}
		if time.Since(pressed) > 3*time.Second {
			r.Type(keys)
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
	p, err := r.w.roster.Await(ctx, func(p wire.Presence) bool { return p.Card.ID == r.Req.Principal && match(p) })
	if err != nil {
		r.w.t.Fatalf("%s: %v; there are %+v", what, err, r.w.roster.View().Rows)
	}
	return p
}

func (r *running) showsStatus(status string) wire.Presence {
	r.w.t.Helper()
	return r.shows(status, func(p wire.Presence) bool { return p.Status == status })
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

// end asks the seat to end, waits for the end of everything it started, and reaps as the host does, and again.
func (r *running) end() *os.ProcessState {
	r.w.t.Helper()
	if err := r.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.w.t.Fatal(err)
	}
	state := r.AwaitEnd()
	r.shows("offline", func(p wire.Presence) bool { return p.Status == wire.StatusOffline })
	r.Reap(r.w.connector, "material.json") // the host's own
	return state
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
