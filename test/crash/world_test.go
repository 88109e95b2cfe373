package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/failpoints"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// world is one life of a few seats under one fault.
type world struct {
	*harness.World
	t      *testing.T
	host   *harness.Host
	armed  harness.HostOptions
	marker string // exists once the fault has struck
	caller wire.Caller
	client *mesh.Client // nil: the next call connects
	auth   bool         // its hosts serve with credentials; the caller is the operator
	// graceful stops begin with the polite signal; the others kill at once.
	graceful bool
	types    bool // the life types something into a seat
	// wait bounds every wait for a fact: harness.DefaultWait and as long as the fault lasts.
	wait time.Duration
	// active reports whether the fault holds at this moment.
	active func() bool
	// mayDie reports whether the fault struck this seat, by custody id.
	mayDie func(seatID string) bool

	boot     time.Duration // what a boot took with nothing wrong
	promised []promise
	accepted map[string]wire.Acceptance // by goal id
	goals    map[string]wire.GoalResult // the terminals that a client saw
}

// promise is something a client saw succeed.
type promise struct {
	name, uid string
	row       wire.AgentRow // as first listed
	stopped   bool          // a stop was answered with success
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, harness.New(t))
}

// newAuthenticated is a world whose hosts serve with credentials.
func newAuthenticated(t *testing.T) *world {
	t.Helper()
	w := newWorldOf(t, harness.NewAuthenticated(t))
	w.auth, w.caller = true, wire.Caller{}
	return w
}

func newWorldOf(t *testing.T, h *harness.World) *world {
	t.Helper()
	caller, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		World: h, t: t, caller: caller, accepted: map[string]wire.Acceptance{}, goals: map[string]wire.GoalResult{}, wait: harness.DefaultWait,
		active: func() bool { return false }, mayDie: func(string) bool { return false },
	}
	t.Cleanup(w.hangUp)
	return w
}

// prepare makes the life of this world one that reaches a failpoint.
func (w *world) prepare(s failpoints.Site) {
	w.graceful = strings.HasSuffix(s.Name, ".reap.term")
	w.types = strings.Contains(s.Name, ".write.")
	w.armed.Args = []string{"--runtime", runtimeOf(s)}
}

// liveOnce runs the life of two seats: one that is stopped and one that exits by itself.
func (w *world) liveOnce() {
	w.t.Helper()
	w.spawnAndCheck("worker", w.starts("worker", `{"tick": {"everyMs": 20, "text": "t"}}`))
	w.checkInvariants("after the spawn")
	if w.types {
		w.CLI("input", "worker", "--text", "typed") // may fail, as what it reaches may be struck
		w.checkInvariants("after the input")
	}
	w.stop("worker")
	w.checkInvariants("after the stop")
	w.spawnAndCheck("short", w.starts("short", `{"waitMs": 50}, {"exit": 7}`))
	w.awaitEnd("short")
}

// bystander starts a seat that has nothing to do with the fault, and kills the host with which it began.
func (w *world) bystander() {
	w.t.Helper()
	begun := time.Now()
	w.host = w.Start(harness.HostOptions{Args: w.armed.Args})
	w.spawnAndCheck("early", w.starts("early", `{"hang": true}`))
	w.boot = time.Since(begun)
	w.host.Kill()
}

// lastRestart kills the host and starts it once more: what the first recovery left must satisfy the
// second, and in time.
func (w *world) lastRestart() {
	w.t.Helper()
	w.host.Kill()
	begun := time.Now()
	w.host = w.Launch(w.armed)
	w.ready()
	w.checkInvariants("after the last restart")
	took, limit := time.Since(begun), busy.Limit(max(steadyWithin, 5*w.boot))
	if took > limit {
		w.t.Errorf("invariant %q broken: it took %v, at most %v are allowed", invSteady, took, limit)
	}
	for _, name := range []string{"early", "worker", "short"} {
		if n := w.executions(name); n > 1 {
			w.t.Errorf("invariant %q broken: %s was started %d times", invOne, name, n)
		}
	}
}

// starts is a script that leaves one line per execution, and then goes on.
func (w *world) starts(name, rest string) string {
	return fmt.Sprintf(`[{"append": {"file": %q, "text": "started {pid}\n"}}, %s]`, w.startsFile(name), rest)
}

func (w *world) startsFile(name string) string { return filepath.Join(w.Dir, name+".starts") }

func (w *world) executions(name string) int {
	text, _ := os.ReadFile(w.startsFile(name))
	return strings.Count(string(text), "started")
}

// ready waits until a host serves, starting one again if it was killed. A host that ends again and
// again is an error, unless the fault that ends it still holds.
func (w *world) ready() {
	w.t.Helper()
	for deaths := 0; deaths < 3; {
		faulty := w.active()
		err := w.host.WaitReady(w.wait)
		switch running := w.host.Running(); {
		case err == nil && running:
			return
		case running:
			w.t.Fatalf("the host runs and is not ready: %v\n%s", err, w.host.Stderr())
		}
		if !faulty {
			deaths++
		}
		w.host = w.Launch(w.armed)
	}
	w.t.Fatalf("the host does not come up\n%s", w.host.Stderr())
}

// call repeats one request, with the same id, until some host answers it. A killed host is started
// again. What it returns is an answer of a host, or that there was none for very long.
func (w *world) call(c mesh.Call, out any) error {
	w.t.Helper()
	if c.ID == "" {
		c.ID = wire.NewID()
	}
	var err error
	harness.Poll(w.wait, func() (bool, string) {
		w.ready()
		err = w.once(c, out)
		return err == nil || answered(err), ""
	})
	return err
}

// answered reports whether an error is the verdict of a host, not the lack of one.
func answered(err error) bool {
	var werr *wire.Error
	return errors.As(err, &werr) && werr.Code != wire.CodeUnavailable && werr.Code != wire.CodeDeadlineExceeded
}

// once makes one attempt. The connection is kept for the next call: one that outlives a fault must work
// as well as a new one.
func (w *world) once(c mesh.Call, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if w.client == nil {
		cfg := w.MeshConfig("crash")
		cfg.Timeout = 2 * time.Second
		if !w.auth {
			cfg.Caller = w.caller
		}
		cl, err := mesh.Connect(ctx, cfg)
		if err != nil {
			return err
		}
		if w.client = cl; w.auth && !w.caller.IsZero() && cl.Caller() != w.caller {
			w.t.Errorf("the operator was %+v and is %+v: nothing that it was answered is its own any more", w.caller, cl.Caller())
		}
		w.caller = cl.Caller()
	}
	done := make(chan struct{})
	go func() { // a killed host never answers: do not wait for it
		defer cancel()
		for {
			if _, ended := w.host.WaitExit(50 * time.Millisecond); ended {
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	defer close(done)
	c.Endpoint, c.Deadline = wire.EndpointManager, 15*time.Second
	_, err := w.client.Call(ctx, c, out)
	if err != nil && !answered(err) {
		w.hangUp()
	}
	return err
}

func (w *world) hangUp() {
	if w.client != nil {
		w.client.Close()
		w.client = nil
	}
}

// spawnAndCheck spawns a seat, through as many hosts as it takes, and waits for the one terminal. The
// caller sees one acceptance and one terminal, whatever was struck. A spawn that failed because of the
// fault is made again.
func (w *world) spawnAndCheck(name, script string) {
	w.t.Helper()
	for deadline := time.Now().Add(2 * w.wait); !w.spawnOnce(name, script); {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s cannot be spawned", name)
		}
		// A spawn that failed left nothing: the same name can be spawned at once.
		os.Remove(w.startsFile(name))
		w.stop(name)
	}
}

func (w *world) spawnOnce(name, script string) bool {
	w.t.Helper()
	faulty := w.active()
	spawn := mesh.Call{Command: wire.CmdSpawn, ID: wire.NewID(), Args: wire.SpawnArgs{
		Name: name, Identity: name, Agent: "command", LaunchOptions: map[string]any{"argv": w.FakeAgent(script)},
	}}
	var acc wire.Acceptance
	if err := w.call(spawn, &acc); err != nil {
		if faulty || w.active() || w.killed() {
			w.t.Logf("spawn of %s was refused: %v", name, err)
			var werr *wire.Error
			if errors.As(err, &werr) && werr.Outcome == wire.OutcomeNotExecuted && w.executions(name) > 0 {
				w.t.Errorf("the refusal of %s says not-executed, and it was", name)
			}
			return false
		}
		w.t.Fatalf("spawn %s: %v", name, err)
	}
	w.accepted[spawn.ID] = acc
	result := w.terminal(spawn.ID)
	var again wire.Acceptance
	if err := w.call(spawn, &again); err != nil {
		w.t.Fatalf("repeat the spawn of %s: %v", name, err)
	}
	if again.UID != acc.UID || again.Name != acc.Name {
		w.t.Errorf("a repeated spawn was accepted as %s/%s, the first as %s/%s", again.Name, again.UID, acc.Name, acc.UID)
	}
	if result.State != wire.GoalSucceeded {
		if !w.killed() {
			w.t.Errorf("spawn of %s ended %s with nothing struck: %+v", name, result.State, result.Error)
		}
		w.t.Logf("spawn of %s ended %s: %v", name, result.State, result.Error)
		return false
	}
	p := promise{name: name, uid: acc.UID}
	for _, r := range w.rows() {
		if r.LifecycleUID == acc.UID {
			p.row = r
		}
	}
	if p.row.LifecycleUID == "" {
		w.t.Errorf("invariant %q broken: the spawn of %s succeeded and ps does not list it", invSeen, name)
	}
	w.await(name+" was executed", func() (bool, string) {
		n := w.executions(name)
		// A seat that is killed the moment it runs may have written nothing.
		return n == 1 || n == 0 && w.mayDie(p.row.SeatID), fmt.Sprint(n, " starts")
	})
	w.promised = append(w.promised, p)
	return true
}

func (w *world) killed() bool {
	_, err := os.Stat(w.marker)
	return err == nil || strings.Contains(w.armed.Failpoints, ";")
}

// terminal waits for the end of a goal and remembers it.
func (w *world) terminal(id string) wire.GoalResult {
	w.t.Helper()
	var reply wire.GoalResultReply
	w.await("goal "+id+" has a terminal", func() (bool, string) {
		err := w.call(mesh.Call{Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id}}, &reply)
		return err == nil && reply.Result != nil, fmt.Sprint(err)
	})
	w.goals[id] = *reply.Result
	return *reply.Result
}

func (w *world) rows() []wire.AgentRow {
	w.t.Helper()
	var rows []wire.AgentRow
	if err := w.call(mesh.Call{Command: wire.CmdPs}, &rows); err != nil {
		w.t.Fatalf("ps: %v", err)
	}
	return rows
}

func (w *world) live(name string) (wire.AgentRow, bool) {
	w.t.Helper()
	for _, r := range w.rows() {
		if r.Name == name && r.Status != "exited" {
			return r, true
		}
	}
	return wire.AgentRow{}, false
}

// stop ends a seat with proof; a seat that is gone already is fine.
func (w *world) stop(name string) {
	w.t.Helper()
	deadline := time.Now().Add(w.wait)
	for {
		row, ok := w.live(name)
		if !ok {
			w.noteStop(name)
			return
		}
		owner, actor, _ := strings.Cut(row.ID, ".")
		err := w.call(mesh.Call{
			Command: wire.CmdDespawn, Authz: wire.AuthzAny,
			Target: &wire.Target{Owner: owner, Actor: actor, LifecycleUID: row.LifecycleUID},
			Args:   wire.DespawnArgs{Graceful: &w.graceful, WaitForExit: true},
		}, nil)
		if err != nil && time.Now().After(deadline) {
			w.t.Fatalf("stop %s: %v", name, err)
		}
	}
}

func (w *world) noteStop(name string) {
	for i := range w.promised {
		if w.promised[i].name == name {
			w.promised[i].stopped = true
		}
	}
}

// awaitEnd waits for the recorded end of a seat that exits by itself with code 7, unless its custody
// was what was killed.
func (w *world) awaitEnd(name string) {
	w.t.Helper()
	w.await(name+" has ended", func() (bool, string) {
		for _, r := range slices.Backward(w.rows()) {
			if r.Name != name || r.Exit == nil || r.Status != "exited" {
				continue
			}
			if r.Exit.Code == nil {
				return w.killed(), "its exit has no code: " + r.Exit.Evidence
			}
			return *r.Exit.Code == 7, fmt.Sprintf("code %d", *r.Exit.Code)
		}
		return false, "no row with an exit"
	})
	w.noteStop(name)
}

func (w *world) await(what string, check func() (bool, string)) {
	w.t.Helper()
	harness.Eventually(w.t, w.wait, what, check)
}
