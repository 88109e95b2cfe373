package seat_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// free waits until nobody has a name any more.
func (m *authMesh) free(alias string) {
	m.w.t.Helper()
	m.w.eventually("the name is free", func() (bool, string) { p := m.slot(alias).Phase; return p == wire.SlotRetired, p })
}

// renewers is how many credentials are being looked after in this process.
func renewers() int {
	buf := make([]byte, 4<<20)
	return bytes.Count(buf[:runtime.Stack(buf, true)], []byte("trust.(*Standing).Run("))
}

// A launch that fails at any step, of its life on the mesh or of its process, leaves nothing of either.
//
// proves: PROV-5, PROV-6
func TestALaunchThatFailsAtAnyStepLeavesNothing(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	t.Cleanup(failpoint.Disarm)
	for _, fp := range failpoint.Names() {
		switch {
		case strings.HasPrefix(fp, "host.provision."), strings.HasPrefix(fp, "host.mint."):
		case fp == "host.spawn.building", fp == "host.spawn.built", fp == "host.spawn.spawning", fp == "host.spawn.spawned", fp == "host.spawn.handle-persisted":
		default:
			continue
		}
		alias := strings.NewReplacer(".", "_", "-", "_").Replace(fp)
		if err := failpoint.Arm(fp + "=1*error(no room)"); err != nil {
			t.Fatal(err)
		}
		id := wire.NewID()
		if _, err := w.spawn(id, w.args(alias, `[{"hang": true}]`)); err != nil {
			t.Fatalf("%s: %v", fp, err)
		}
		if r := w.terminal(id); r.State != wire.GoalFailed || r.Error == nil || !strings.Contains(r.Error.Message, "no room") || r.Error.Outcome != wire.OutcomeNotExecuted {
			t.Errorf("%s: the goal ended %s: %+v", fp, r.State, r.Error)
		}
		failpoint.Disarm()
		// The goal is told of first.
		w.eventually(fp+": there is no seat", func() (bool, string) { row := w.row(alias); return row.Name == "", fmt.Sprintf("%+v", row) })
		ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(10*time.Second))
		row, err := m.live.Row(ctx, wire.SlotKey(wire.OwnerLocal, alias))
		cancel()
		switch {
		case err == nil && row.Err == nil:
			m.nothingLeft(fp, row.Slot)
		case fp != "host.provision.intent" && fp != "host.spawn.building" && !strings.HasPrefix(fp, "host.mint."):
			t.Errorf("%s: slot: %v, %v", fp, err, row.Err)
		}
	}
	if n := renewers(); n != 0 {
		t.Errorf("%d credentials are looked after", n)
	}
}

// A host that dies in a launch, or behind it before it could say so, leaves what the next one brings to its end or goes
// on with.
//
// proves: PROV-3, RECON-3
func TestTheNextHostEndsALaunchThatWasCutShort(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	t.Cleanup(failpoint.Disarm)
	for fp, runs := range map[string]bool{
		"host.provision.slot": false, "host.provision.head": false, "host.provision.filed": false, "host.spawn.built": false,
		"host.spawn.handle-persisted": true, "host.provision.active": true,
	} {
		alias := strings.NewReplacer(".", "_", "-", "_").Replace(fp)
		id, _, gate := w.heldAt(fp, alias)
		over := make(chan struct{})
		go func() { defer close(over); w.crash() }()
		w.eventually("the host is on its way out", func() (bool, string) {
			_, err := w.spawn(wire.NewID(), w.args("late", `[{"hang": true}]`))
			return err != nil && strings.Contains(err.Error(), "stopping"), ""
		})
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		<-over
		failpoint.Disarm()
		m.boot()
		r := w.terminal(id)
		s := m.slot(alias)
		if !runs {
			if r.State != wire.GoalFailed || r.Error.Outcome != wire.OutcomeNotExecuted {
				t.Errorf("%s: the goal ended %s: %+v", fp, r.State, r.Error)
			}
			m.nothingLeft(fp, s)
			continue
		}
		w.awaitStatus(alias, "running")
		w.eventually("the slot is active", func() (bool, string) { p := m.slot(alias).Phase; return p == wire.SlotActive, p })
		if r.State != wire.GoalSucceeded {
			t.Errorf("%s: the goal ended %s: %+v", fp, r.State, r.Error)
		}
		w.eventually("its credential is looked after", func() (bool, string) { return renewers() == 1, "" })
		acc := wire.Acceptance{Owner: s.Owner, Actor: s.Actor, UID: s.LifecycleUID}
		if _, err := w.stop(acc, false); err != nil {
			t.Errorf("%s: stop: %v", fp, err)
		}
		m.nothingLeft(fp, s)
	}
}

// A process that follows another one has the life of the seat, and is found by the reference that was recorded before it;
// the renewal of its credential goes on, and ends with the seat.
//
// proves: PROV-3
func TestTheLifeOfASeatThatIsStartedAgainGoesOn(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	w.talks(nil)
	acc := w.supervised("steady", 3, nil)
	first := m.slot("steady")
	now := w.next(w.kill("steady"))
	s := m.slot("steady")
	if s.LifecycleUID != acc.UID || s.Phase != wire.SlotActive || s.Runtime.ID != now.SeatID || s.Runtime.ID == first.Runtime.ID || s.CredentialID != first.CredentialID {
		t.Errorf("the slot behind the next process: %+v, before it: %+v", s, first)
	}
	if n := renewers(); n != 1 {
		t.Errorf("%d credentials are looked after", n)
	}
	w.crash()
	m.boot()
	w.awaitStatus("steady", "running")
	w.next(w.kill("steady"))
	w.eventually("its credential is looked after", func() (bool, string) { return renewers() == 1, "" })
	if _, err := w.stop(acc, false); err != nil {
		t.Fatal(err)
	}
	m.nothingLeft("a stop of a seat that was started again", s)
	w.eventually("its credential is not looked after any more", func() (bool, string) { return renewers() == 0, "" })
}

// A process that ends while the broker is away is followed by another one once that is back: a seat is not lost for it.
func TestASeatThatCrashesWithoutABrokerIsStartedAgainOnceItIsBack(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	w.talks(nil)
	acc := w.supervised("steady", 3, nil)
	m.br.Shutdown()
	old := w.kill("steady")
	w.eventually("the seat says what it waits for", func() (bool, string) {
		r := w.row("steady")
		return strings.Contains(r.Reason, "waits until its mesh"), r.Status + " " + r.Reason
	})
	var err error
	if m.br, err = broker.Start(t.Context(), m.cfg); err != nil {
		t.Fatal(err)
	}
	now := w.next(old)
	if s := m.slot("steady"); s.LifecycleUID != acc.UID || s.Runtime.ID != now.SeatID {
		t.Errorf("the slot: %+v, the seat: %+v", s, now)
	}
	if _, err := w.stop(acc, false); err != nil {
		t.Fatal(err)
	}
	// Stopped while it waits, it has ended all the same.
	acc = w.supervised("steady", 3, nil)
	s := m.slot("steady")
	m.br.Shutdown()
	w.kill("steady")
	w.eventually("the seat says what it waits for", func() (bool, string) {
		r := w.row("steady")
		return strings.Contains(r.Reason, "waits until its mesh"), r.Status + " " + r.Reason
	})
	if _, err := w.stop(acc, false); wire.ErrorFrom(err) == nil || wire.ErrorFrom(err).Outcome != wire.OutcomeExecuted {
		t.Errorf("a stop of a seat that waits: %v", err)
	}
	if m.br, err = broker.Start(t.Context(), m.cfg); err != nil {
		t.Fatal(err)
	}
	w.eventually("the name is free", func() (bool, string) { r := w.row("steady"); return r.Status == "exited" && r.Reason == "", r.Reason })
	m.nothingLeft("a seat that was stopped while it waited", s)
}

// The program of a seat ends while no host is there; the next one takes its life away.
func TestTheNextHostRetiresASeatThatDiedMeanwhile(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	gate := filepath.Join(w.dir, "go")
	w.run("worker", `[{"waitFile": "`+gate+`"}, {"exit": 0}]`)
	s, dir := m.slot("worker"), filepath.Join(w.seatRoot, w.row("worker").SeatID)
	w.crash()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.eventually("its exit is recorded", func() (bool, string) { _, err := os.Stat(filepath.Join(dir, "exit.json")); return err == nil, dir })
	m.boot()
	w.awaitStatus("worker", "exited")
	m.free("worker")
	m.nothingLeft("an end that no host saw", s)
}

// All seats at once, as by a host that stops with its agents.
//
// proves: DOWN-18, STOP-3
func TestAStopOfAllSeatsLeavesNothingOnTheMesh(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	var slots []wire.Slot
	for _, name := range []string{"a", "b", "c"} {
		w.run(name, `[{"hang": true}]`)
		slots = append(slots, m.slot(name))
	}
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	stopped, left := w.set.StopAll(ctx)
	if len(stopped) != 3 || len(left) != 0 {
		t.Errorf("stopped %+v, left %+v", stopped, left)
	}
	for _, s := range slots {
		m.nothingLeft("a stop of all", s)
	}
	w.eventually("no credential is looked after", func() (bool, string) { return renewers() == 0, "" })
}

// What an earlier host left under a name, and no seat has, is brought to its end by a spawn under that name. What
// cannot be ended refuses it, with who that is and why.
//
// proves: DOWN-15
func TestASpawnUnderAHeldNameDrivesTheTeardownAgain(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	d, err := m.live.Draw(provision.Spec{Alias: "worker", Runtime: wire.RuntimeRef{Kind: "pty", ID: wire.NewCustodyID()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range m.live.Steps(d) {
		if err := s.Do(ctx); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	why := "the process cannot be proved gone"
	m.stuck.Store(&why)
	blocked := func(e *wire.Error) bool {
		d, ok := e.Detail(wire.DetailLifecycleBlocked)
		return ok && d.Data["opId"] == wire.RetirementOpID(m.slot("worker").LifecycleUID) && d.Data["blockedOp"] == wire.OpRetirement
	}
	id := wire.NewID()
	if _, err := w.spawn(id, w.args("worker", `[{"hang": true}]`)); err != nil {
		t.Fatal(err)
	}
	r := w.terminal(id)
	if r.State != wire.GoalFailed || !strings.Contains(r.Error.Message, d.Life.UID) || !strings.Contains(r.Error.Message, why) || !blocked(r.Error) || r.Error.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("the first spawn: %s %+v", r.State, r.Error)
	}
	if s := m.slot("worker"); s.LifecycleUID != d.Life.UID || s.Phase != wire.SlotTerminalizing {
		t.Errorf("the slot: %+v", s)
	}
	// From now on this host knows who holds the name: it is refused before it is accepted.
	_, err = w.spawn(wire.NewID(), w.args("worker", `[{"hang": true}]`))
	if refused := wire.ErrorFrom(err); refused == nil || !strings.Contains(refused.Message, why) || !blocked(refused) {
		t.Errorf("the second spawn: %v", err)
	}
	m.stuck.Store(nil)
	acc := w.run("worker", `[{"hang": true}]`)
	if s := m.slot("worker"); s.LifecycleUID != acc.UID || s.Phase != wire.SlotActive {
		t.Errorf("the slot of the next life: %+v", s)
	}
}

// A slot that a sweep reads while its seat is made, runs or ends has a seat; behind its end it has none.
//
// proves: RECON-3
func TestASweepNeverEndsALifeThatASeatHas(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	sweep := func() *retire.Sweep {
		t.Helper()
		s := retire.NewSweeper(retire.SweeperConfig{Rows: m.live.Rows, Row: m.live.Row, Retire: m.live.Retire, Instance: w.instanceID, Live: w.set.HasLife})
		defer s.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(20*time.Second))
		defer cancel()
		if err := s.Sweep(ctx, retire.SweepScheduled); err != nil {
			t.Fatal(err)
		}
		return s.Last()
	}
	t.Cleanup(failpoint.Disarm)
	for _, fp := range []string{"host.provision.slot", "host.provision.filed", "host.spawn.spawned", "host.spawn.committed"} {
		id, acc, gate := w.heldAt(fp, "worker")
		if last := sweep(); last.Adopted != 1 || last.Attempted != 0 {
			t.Errorf("%s: the sweep: %+v", fp, last)
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := w.terminal(id); r.State != wire.GoalSucceeded {
			t.Fatalf("%s: %s %+v", fp, r.State, r.Error)
		}
		failpoint.Disarm()
		if last := sweep(); last.Adopted != 1 || last.Attempted != 0 {
			t.Errorf("%s: the sweep beside a seat that runs: %+v", fp, last)
		}
		if _, err := w.stop(acc, false); err != nil {
			t.Fatal(err)
		}
	}
	if last := sweep(); last.Retired != 1 || last.Attempted != 0 {
		t.Errorf("the sweep behind its end: %+v", last)
	}
}

// A journal that is lost and a runtime that does not tell which seats it has: one of them may have any life.
func TestNoLifeIsOverWhileItIsNotKnownWhichSeatsThereAre(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	w.run("worker", `[{"hang": true}]`)
	l := provision.LifeOf(m.slot("worker"))
	w.crash()
	if err := os.Remove(filepath.Join(w.dir, "journal.db")); err != nil {
		t.Fatal(err)
	}
	w.plugins.setDown(errQuarantined)
	m.boot()
	if !w.set.HasLife(l) {
		t.Error("the life of a seat that is not found yet is nobody's")
	}
	w.plugins.setDown(nil)
	w.awaitStatus("worker", "running")
	w.eventually("it is known whose lives they have", func() (bool, string) {
		return !w.set.HasLife(provision.Life{Alias: "nobody", Caller: l.Caller}), ""
	})
	if !w.set.HasLife(l) {
		t.Error("the life of a seat that was found is nobody's")
	}
}

// The end of a process is told when it is proved; its name is free once its credentials are proved to be dead, and who
// asks is told what is missing.
//
// proves: DOWN-10, DOWN-11
func TestAnEndWithoutABrokerHoldsTheNameUntilItIsBack(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	acc := w.run("worker", `[{"print": "up\n"}, {"hang": true}]`)
	s := m.slot("worker")
	m.br.Shutdown()
	_, err := w.stop(acc, false)
	if e := wire.ErrorFrom(err); e == nil || e.Outcome != wire.OutcomeExecuted || !strings.Contains(e.Message, "worker has ended; its name is held") {
		t.Errorf("a stop without a broker: %v", err)
	}
	row := w.row("worker")
	if row.Status != "exited" || row.Exit == nil || row.PID != 0 || !strings.Contains(row.Reason, "its name is held") || !strings.Contains(row.Reason, "unreachable") {
		t.Errorf("ps: %+v", row)
	}
	if row, err := w.set.Inspect(t.Context(), "worker"); err != nil || !strings.Contains(row.Reason, "its name is held") {
		t.Errorf("inspect: %+v, %v", row, err)
	}
	// Once more, by somebody else: the same truth, and at once.
	if _, err := w.stop(acc, true); wire.ErrorFrom(err) == nil || wire.ErrorFrom(err).Outcome != wire.OutcomeExecuted {
		t.Errorf("another stop: %v", err)
	}
	if _, err := w.spawn(wire.NewID(), w.args("worker", `[{"hang": true}]`)); err == nil || !strings.Contains(err.Error(), "unreachable") {
		t.Errorf("a spawn under its name: %v", err)
	}
	if m.br, err = broker.Start(t.Context(), m.cfg); err != nil {
		t.Fatal(err)
	}
	w.eventually("the name is free", func() (bool, string) {
		row, err := m.live.Row(t.Context(), s.Key())
		return err == nil && row.Slot.Phase == wire.SlotRetired && w.row("worker").Reason == "", row.Slot.Phase
	})
	m.nothingLeft("an end without broker", s)
}

// A store that lost the rows of a seat that lives: the seat is kept and says so, its name is not given to anybody, and
// once its life is restored its credential is renewed again.
func TestASeatWhoseMeshLostItsStoreIsKept(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	acc := w.run("worker", `[{"print": "up\n"}, {"hang": true}]`)
	s := m.slot("worker")
	w.crash()
	m.br.Shutdown()
	var err error
	m.cfg.StoreDir = t.TempDir()
	if m.br, err = broker.Start(t.Context(), m.cfg); err != nil {
		t.Fatal(err)
	}
	m.setUp()
	m.boot()
	row := w.awaitStatus("worker", "running")
	w.eventually("the seat says that its mesh lost it", func() (bool, string) {
		row = w.row("worker")
		return row.AuthHealth != "" && strings.Contains(row.AuthReason, "doctor --repair") && strings.Contains(row.Reason, "not renewed"), row.AuthHealth + " " + row.Reason
	})
	if _, err := w.spawn(wire.NewID(), w.args("worker", `[{"hang": true}]`)); err == nil {
		t.Error("its name is free")
	}
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(20*time.Second))
	defer cancel()
	err = m.live.Restore(ctx, provision.LifeOf(s), provision.Spec{Alias: "worker", Runtime: *s.Runtime, Read: []string{"general"}})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("its credential is renewed again", func() (bool, string) {
		return w.row("worker").AuthHealth == "" && renewers() == 1, w.row("worker").AuthReason
	})
	if _, err := w.stop(acc, false); err != nil {
		t.Fatal(err)
	}
	m.nothingLeft("the end of a life that was restored", s)
}
