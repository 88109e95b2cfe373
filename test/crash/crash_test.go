// Package crash kills processes of ours at every registered failpoint and checks, after a restart,
// that the promises of the host still hold.
package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/failpoints"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// notReached lists failpoints that this matrix cannot reach, with where their crash test is instead. A
// failpoint that is neither reached here nor listed fails the test.
var notReached = map[string]string{}

// with arms what else must go wrong for a failpoint to be reached. MARK is the name of a file.
var with = map[string]string{
	"catalog.spawn.unresolved": "pty.spawn.prepared=crash(MARK)",      // the plugin dies with the answer of a Spawn
	"pty.spawn.undo":           "pty.spawn.launched=1*error(no room)", // a step of a Spawn fails
	"pty.adopt.lost":           "seat.commit.after-exec=crash(MARK)",  // custody is killed
	"pty.adopt.swept":          "seat.commit.after-exec=crash(MARK)",
	"pty.adopt.recorded":       "seat.commit.after-exec=crash(MARK)",
}

// TestKillAtEveryFailpoint runs the life of two seats, one that is stopped and one that exits by
// itself, with one process of ours killed once at the failpoint, and checks the invariants behind it.
func TestKillAtEveryFailpoint(t *testing.T) {
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	sites, err := failpoints.Scan(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(sites) < 20 {
		t.Fatalf("only %d failpoints are registered; the scan is broken", len(sites))
	}
	for _, s := range sites {
		if where, ok := notReached[s.Name]; ok {
			t.Logf("%s: %s", s.Name, where)
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			life(t, s)
		})
	}
}

// world is one life under one failpoint.
type world struct {
	*harness.World
	t      *testing.T
	host   *harness.Host
	armed  harness.HostOptions
	marker string // exists once a process was killed at the failpoint
	caller wire.Caller
	// graceful stops begin with the polite signal; the others kill at once.
	graceful bool
}

func life(t *testing.T, s failpoints.Site) {
	w := &world{World: harness.New(t), t: t}
	w.marker = filepath.Join(w.Dir, "killed")
	w.armed = harness.HostOptions{Failpoints: s.Name + "=crash(" + w.marker + ")"}
	if more := with[s.Name]; more != "" {
		w.armed.Failpoints += ";" + strings.ReplaceAll(more, "MARK", filepath.Join(w.Dir, "killed-too"))
	}
	w.graceful = s.Name == "pty.reap.term"
	caller, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	w.caller = caller

	if strings.HasPrefix(s.Name, "host.adopt.") || strings.HasPrefix(s.Name, "pty.adopt.") || strings.HasPrefix(s.Name, "pty.list.") {
		// Recovery needs something to recover.
		first := w.Start(harness.HostOptions{})
		w.host = first
		w.spawnAndCheck("early", w.starts("early", `{"hang": true}`))
		first.Kill()
	}
	w.host = w.Launch(w.armed)
	w.ready()

	w.spawnAndCheck("worker", w.starts("worker", `{"tick": {"everyMs": 20, "text": "t"}}`))
	w.checkInvariants("after the spawn")
	w.stop("worker")
	w.checkInvariants("after the stop")
	w.spawnAndCheck("short", w.starts("short", `{"waitMs": 50}, {"exit": 7}`))
	w.awaitEnd("short")
	// One more recovery: what the first one left must satisfy the second.
	w.host.Kill()
	w.host = w.Launch(w.armed)
	w.ready()
	w.checkInvariants("after the last restart")
	for _, name := range []string{"early", "worker", "short"} {
		if n := w.executions(name); n > 1 {
			t.Errorf("%s was started %d times", name, n)
		}
	}
	if _, err := os.Stat(w.marker); err != nil {
		t.Errorf("no process was killed at %s: the failpoint was never reached", s.Name)
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

// ready waits until a host serves, starting one again if it was killed.
func (w *world) ready() {
	w.t.Helper()
	for range 3 {
		err := w.host.WaitReady(harness.DefaultWait)
		switch running := w.host.Running(); {
		case err == nil && running:
			return
		case running:
			w.t.Fatalf("the host runs and is not ready: %v\n%s", err, w.host.Stderr())
		}
		w.host = w.Launch(w.armed)
	}
	w.t.Fatal("the host does not come up")
}

// call repeats one request, with the same id, until some host answers it. A killed host is started
// again.
func (w *world) call(c mesh.Call, out any) error {
	w.t.Helper()
	deadline := time.Now().Add(harness.DefaultWait)
	if c.ID == "" {
		c.ID = wire.NewID()
	}
	for {
		w.ready()
		err := w.once(c, out)
		var werr *wire.Error
		if err == nil || errors.As(err, &werr) && werr.Code != wire.CodeUnavailable {
			return err
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

func (w *world) once(c mesh.Call, out any) error {
	e := w.Endpoint()
	cl, err := mesh.Connect(context.Background(), mesh.Config{
		URL: e.URL, TokenFile: e.TokenFile, Space: e.Space, Caller: w.caller, Timeout: 2 * time.Second,
	})
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
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
	_, err = cl.Call(ctx, c, out)
	return err
}

// spawnAndCheck spawns a seat, through as many hosts as it takes, and waits for the one terminal. The
// caller sees one acceptance and one terminal, whatever was killed.
func (w *world) spawnAndCheck(name, script string) {
	w.t.Helper()
	spawn := mesh.Call{Command: wire.CmdSpawn, ID: wire.NewID(), Args: wire.SpawnArgs{
		Name: name, Identity: name, Agent: "command", LaunchOptions: map[string]any{"argv": w.FakeAgent(script)},
	}}
	var acc wire.Acceptance
	if err := w.call(spawn, &acc); err != nil {
		w.t.Fatalf("spawn %s: %v", name, err)
	}
	result := w.terminal(spawn.ID)
	var again wire.Acceptance
	if err := w.call(spawn, &again); err != nil {
		w.t.Fatalf("repeat the spawn of %s: %v", name, err)
	}
	if again.UID != acc.UID || again.Name != acc.Name {
		w.t.Errorf("a repeated spawn was accepted as %s/%s, the first as %s/%s", again.Name, again.UID, acc.Name, acc.UID)
	}
	if later := w.terminal(spawn.ID); later.State != result.State {
		w.t.Errorf("goal of %s ended %s and then %s", name, result.State, later.State)
	}
	killed := w.killed()
	if result.State != wire.GoalSucceeded && !killed {
		w.t.Errorf("spawn of %s ended %s with nothing killed: %+v", name, result.State, result.Error)
	}
	if result.State == wire.GoalSucceeded {
		w.await(name+" was executed", func() (bool, string) { return w.executions(name) == 1, fmt.Sprint(w.executions(name), " starts") })
		return
	}
	// A spawn that failed left nothing: the same name can be spawned at once.
	w.t.Logf("spawn of %s ended %s: %v", name, result.State, result.Error)
	os.Remove(w.startsFile(name))
	w.stop(name)
	w.spawnAndCheck(name, script)
}

func (w *world) killed() bool {
	_, err := os.Stat(w.marker)
	return err == nil || strings.Contains(w.armed.Failpoints, ";")
}

func (w *world) terminal(id string) wire.GoalResult {
	w.t.Helper()
	var reply wire.GoalResultReply
	w.await("goal "+id+" has a terminal", func() (bool, string) {
		err := w.call(mesh.Call{Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id}}, &reply)
		return err == nil && reply.Result != nil, fmt.Sprint(err)
	})
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
	deadline := time.Now().Add(harness.DefaultWait)
	for {
		row, ok := w.live(name)
		if !ok {
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

// awaitEnd waits for the recorded end of a seat that exits by itself with code 7, unless its custody
// was what was killed.
func (w *world) awaitEnd(name string) {
	w.t.Helper()
	w.await(name+" has ended", func() (bool, string) {
		for _, r := range w.rows() {
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
}

func (w *world) await(what string, check func() (bool, string)) {
	w.t.Helper()
	harness.Eventually(w.t, harness.DefaultWait, what, check)
}

// checkInvariants compares what the host lists with what there is.
func (w *world) checkInvariants(when string) {
	w.t.Helper()
	w.await("invariants hold "+when, func() (bool, string) {
		listed := map[int]wire.AgentRow{}
		dirs := map[string]bool{}
		for _, r := range w.rows() {
			if r.Status == "exited" && r.Exit != nil {
				continue
			}
			dirs[r.SeatID] = true
			if r.Status == "running" {
				if !w.Alive(r.PID) {
					return false, fmt.Sprintf("%s is listed running with pid %d, which is not alive", r.Name, r.PID)
				}
				listed[r.PID] = r
			}
		}
		for _, p := range w.ProcsLike("cotal-fakeagent") {
			if _, ok := listed[p.PID]; !ok {
				return false, fmt.Sprintf("agent process %v belongs to no seat that is listed running", p)
			}
		}
		entries, err := os.ReadDir(w.SeatRoot)
		if err != nil {
			return false, err.Error()
		}
		for _, e := range entries {
			if !dirs[e.Name()] {
				return false, "seat directory " + e.Name() + " belongs to no seat that is listed"
			}
		}
		return true, ""
	})
}
