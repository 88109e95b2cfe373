package seat_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/runtimes/pty"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// bundle holds the real custody program and the scripted agent, built once.
var bundle string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("/tmp", "ct")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		bundle = dir
		cmd := exec.Command("go", "build", "-o", dir+"/", "github.com/cotal-ai/cotal-host/cmd/cotal-seat", "github.com/cotal-ai/cotal-host/cmd/cotal-fakeagent")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// world is a workspace whose plugins run in this process: the runtime, the custody process and the
// agents are the real ones, only the process border of the plugins is missing.
type world struct {
	t           testing.TB
	dir, root   string
	seatRoot    string
	readsSeats  string // where the set looks for seat directories; default seatRoot
	instanceID  string
	epoch       uint64
	plugins     *inproc
	journal     *journal.Journal
	goals       *goal.Store
	set         *seat.Set
	events      *events
	caller      wire.Caller
	policy      authz.Policy
	material    func() (wire.LaunchMaterial, error)
	max         int
	roster      seat.Roster
	viewWait    time.Duration
	exitPoll    time.Duration
	cooling     time.Duration
	restartWait time.Duration
	lease       seat.Lease
	lives       seat.Lives

	closers []func() // run once the last host is gone

	logging sync.Mutex
	lines   []string
}

// inproc gives plugins without processes. A plugin can be taken away.
type inproc struct {
	mu      sync.Mutex
	runtime sdk.Runtime
	info    *sdk.Info        // instead of what the pty runtime announces
	others  map[string]error // further runtimes, and why each does not start
	other   sdk.Runtime      // what they are
	leaves  int              // after that many looks the others are gone; 0: never
	down    error
	conns   map[string]sdk.Connector
	facts   map[string]sdk.Info
}

func (p *inproc) Runtime(_ context.Context, name string) (sdk.Runtime, sdk.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.others[name]; err != nil {
		return nil, sdk.Info{}, err
	}
	if p.down != nil {
		return nil, sdk.Info{}, p.down
	}
	if _, ok := p.others[name]; ok {
		return p.other, sdk.Info{Name: name, Kind: sdk.KindRuntime}, nil
	}
	if p.info != nil {
		return p.runtime, *p.info, nil
	}
	return p.runtime, pty.Info(), nil
}

func (p *inproc) Runtimes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leaves > 0 {
		if p.leaves--; p.leaves == 0 {
			defer func() { p.others = nil }()
		}
	}
	return append(slices.Collect(maps.Keys(p.others)), "pty")
}

// also adds a runtime; err is why it does not start.
func (p *inproc) also(name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.others = map[string]error{name: err}
}

var errQuarantined = sdk.Errorf(sdk.ErrUnavailable, "plugin pty is quarantined")

func (p *inproc) Connector(_ context.Context, name string) (sdk.Connector, sdk.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.conns[name]
	if !ok {
		return nil, sdk.Info{}, sdk.Errorf(sdk.ErrNotFound, "no connector %q", name)
	}
	return c, p.facts[name], nil
}

func (p *inproc) setDown(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = err
}

// events collects progress.
type events struct {
	mu  sync.Mutex
	all map[string][]wire.GoalProgress
}

func (e *events) publish(_ wire.Caller, id string, p wire.GoalProgress) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[id] = append(e.all[id], p)
}

func (e *events) terminals(id string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.all[id] {
		if p.Phase == wire.PhaseTerminal {
			n++
		}
	}
	return n
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, dir: dir, root: filepath.Join(dir, "ws"), seatRoot: filepath.Join(dir, "seats"),
		instanceID: wire.NewUID(), caller: wire.Caller{Owner: "local", Actor: "tester", UID: wire.NewUID()},
		events: &events{all: map[string][]wire.GoalProgress{}}, max: 8,
	}
	if err := os.Mkdir(w.root, 0o700); err != nil {
		t.Fatal(err)
	}
	w.plugins = &inproc{
		conns: map[string]sdk.Connector{"command": command.Connector{}},
		facts: map[string]sdk.Info{"command": command.Info()},
	}
	w.boot()
	t.Cleanup(w.end)
	return w
}

// boot makes the next host over the same workspace: a new epoch, a new runtime instance.
func (w *world) boot() []seat.Verdict {
	w.t.Helper()
	w.epoch++
	rt := pty.New()
	err := rt.Configure(context.Background(), sdk.PluginConfig{
		Config: json.RawMessage(`{"seat_sha256": "` + digest(w.t, filepath.Join(bundle, "cotal-seat")) + `"}`), BundleDir: bundle, StateDir: filepath.Join(w.dir, "state"), SeatRoot: w.seatRoot, SocketDir: filepath.Join(w.dir, "s"),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.plugins.mu.Lock()
	w.plugins.runtime = rt
	w.plugins.mu.Unlock()
	if w.journal, err = journal.Open(filepath.Join(w.dir, "journal.db")); err != nil {
		w.t.Fatal(err)
	}
	w.goals = goal.NewStore(w.journal, w.events.publish)
	cfg := seat.Config{
		InstanceID: w.instanceID, Policy: w.policy, Material: w.material, Space: "main", Epoch: w.epoch, Root: w.root, SeatRoot: cmp.Or(w.readsSeats, w.seatRoot), EndedDir: filepath.Join(w.dir, "ended"), MaxSeats: w.max,
		Journal: w.journal, Goals: w.goals, Plugins: w.plugins, Agent: "command", Health: 50 * time.Millisecond,
		Log:      hclog.New(&hclog.LoggerOptions{Output: testWriter{w}, Level: hclog.Debug}),
		ViewWait: w.viewWait, ExitPoll: w.exitPoll, Cooling: w.cooling, RestartWait: cmp.Or(w.restartWait, 10*time.Millisecond), Lease: w.lease,
		Lives: w.lives,
	}
	if w.roster != nil {
		cfg.Roster = w.roster
	}
	w.set = seat.New(cfg)
	verdicts, err := w.set.Recover(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return verdicts
}

func digest(t testing.TB, path string) string {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(wire.Digest(p), "sha256:")
}

// testWriter shows a host's log with the test it belongs to.
type testWriter struct{ w *world }

func (l testWriter) Write(p []byte) (int, error) {
	l.w.t.Helper()
	l.w.t.Logf("%s", p)
	l.w.logging.Lock()
	defer l.w.logging.Unlock()
	l.w.lines = append(l.w.lines, string(p))
	return len(p), nil
}

// logs are the lines of the log that hold a text.
func (w *world) logs(text string) (found []string) {
	w.logging.Lock()
	defer w.logging.Unlock()
	for _, line := range w.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// crash ends the host without a word to its seats.
func (w *world) crash() {
	w.t.Helper()
	w.set.Close()
	if err := w.journal.Close(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) end() {
	w.plugins.setDown(nil)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, left := w.set.StopAll(ctx)
	for _, row := range left {
		w.t.Errorf("left at the end: %s: %s", row.Name, row.Reason)
	}
	w.crash()
	for _, end := range slices.Backward(w.closers) {
		end()
	}
	entries, _ := os.ReadDir(w.seatRoot)
	for _, e := range entries {
		w.t.Errorf("left behind: seat directory %s", e.Name())
	}
	os.RemoveAll(w.dir)
}

func (w *world) args(name, script string) wire.SpawnArgs {
	return wire.SpawnArgs{
		Name: name, Identity: name, Agent: "command",
		LaunchOptions: map[string]any{"argv": []any{filepath.Join(bundle, "cotal-fakeagent"), script}},
	}
}

// fingerprint is a stand-in for the one of the wire: equal for equal arguments.
func fingerprint(args wire.SpawnArgs) string {
	d, err := wire.DigestJSON(args)
	if err != nil {
		panic(err)
	}
	return d
}

func (w *world) spawn(id string, args wire.SpawnArgs) (wire.Acceptance, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return w.set.Spawn(ctx, w.caller, id, fingerprint(args), args)
}

// run spawns a seat and waits for its success.
func (w *world) run(name, script string) wire.Acceptance {
	w.t.Helper()
	id := wire.NewID()
	acc, err := w.spawn(id, w.args(name, script))
	if err != nil {
		w.t.Fatalf("spawn %s: %v", name, err)
	}
	if r := w.terminal(id); r.State != wire.GoalSucceeded {
		w.t.Fatalf("spawn %s ended %s: %+v", name, r.State, r.Error)
	}
	return acc
}

func (w *world) result(id string) wire.GoalResultReply {
	w.t.Helper()
	r, err := w.goals.Result(context.Background(), w.caller, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) terminal(id string) wire.GoalResult {
	w.t.Helper()
	var r wire.GoalResultReply
	w.eventually("goal "+id+" has a terminal", func() (bool, string) {
		r = w.result(id)
		return r.Result != nil, "phase " + r.Phase
	})
	return *r.Result
}

func (w *world) row(name string) wire.AgentRow {
	w.t.Helper()
	for _, r := range w.set.Rows() {
		if r.Name == name {
			return r
		}
	}
	return wire.AgentRow{}
}

func (w *world) awaitStatus(name, status string) wire.AgentRow {
	w.t.Helper()
	var r wire.AgentRow
	w.eventually(name+" is "+status, func() (bool, string) {
		r = w.row(name)
		return r.Status == status, r.Status + " " + r.Reason
	})
	return r
}

// stop ends a seat with proof.
func (w *world) stop(acc wire.Acceptance, graceful bool) (wire.DespawnReply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return w.set.Despawn(ctx, w.caller, wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID},
		wire.DespawnArgs{Graceful: &graceful, WaitForExit: true})
}

func (w *world) eventually(what string, check func() (bool, string)) {
	w.t.Helper()
	begin := time.Now()
	for {
		ok, how := check()
		if ok {
			return
		}
		if busy.Over(begin, 15*time.Second) {
			w.t.Fatalf("not within %s: %s (%s)", time.Since(begin), what, how)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
