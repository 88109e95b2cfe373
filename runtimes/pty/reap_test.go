//go:build linux

package pty

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// evidence fails the test when no sentence of the report holds the words.
func evidence(t *testing.T, rep sdk.ReapReport, words ...string) {
	t.Helper()
	text := strings.Join(rep.Evidence, "\n")
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no evidence of %q in:\n%s", w, text)
		}
	}
}

func killed(rep sdk.ReapReport, pid int) (sdk.Killed, bool) {
	for _, k := range rep.Killed {
		if k.PID == pid {
			return k, true
		}
	}
	return sdk.Killed{}, false
}

// proves: RT-5. A stop says what it did and what proves the end.
func TestReapReportsItsEvidence(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"print":"up\n"},{"hang":true}]`)
	rep := r.reap(q, sdk.StopGraceful)
	if rep.Outcome != sdk.ReapStopped || rep.Exit == nil || rep.Exit.Signal != "SIGTERM" || !rep.Exit.Asked || rep.Exit.Evidence != sdk.EvidenceReaped {
		t.Errorf("report %+v, exit %+v", rep, rep.Exit)
	}
	if k, ok := killed(rep, st.Agent.PID); !ok || k.Signal != "SIGTERM" || k.Command == "" {
		t.Errorf("killed %+v", rep.Killed)
	}
	evidence(t, rep, "sent SIGTERM to agent", "exit record of", "custody process", "is gone", "no process carries the seat's nonce", "removed "+r.dir(q))
	if len(rep.Removed) != 2 {
		t.Errorf("removed %q", rep.Removed)
	}
	again, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopGraceful))
	if err != nil || again.Outcome != sdk.ReapAbsent {
		t.Errorf("second stop: %+v, %v", again, err)
	}
	evidence(t, again, "no directory", "no process carries the seat's nonce")
}

func TestReapOfAPreparedSeatRunsNothing(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"write":{"file":"{work}/started","text":"x"}}]`)
	r.spawn(q)
	rep := r.reap(q, sdk.StopGraceful)
	if rep.Outcome != sdk.ReapStopped || rep.Exit == nil || rep.Exit.Evidence != sdk.EvidenceUncommitted || len(rep.Killed) != 0 {
		t.Errorf("report %+v, exit %+v", rep, rep.Exit)
	}
	evidence(t, rep, "only prepared")
	if r.read("started") != "" {
		t.Error("the agent ran")
	}
}

func TestReapKeepsRecordsWhenAsked(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"hang":true}]`)
	req := stopOf(q, sdk.StopNow)
	req.Keep = true
	first, err := r.rt.Reap(context.Background(), req)
	if err != nil || first.Outcome != sdk.ReapStopped || len(first.Removed) != 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	r.nothingRuns(q)
	if st := r.adopt(q, false); st.State != sdk.SeatExited || st.Exit.Signal != "SIGKILL" {
		t.Errorf("adopt %+v", st)
	}
	if second := r.reap(q, sdk.StopNow); second.Outcome != sdk.ReapExited || second.Exit == nil || second.Exit.Signal != "SIGKILL" {
		t.Errorf("second %+v", second)
	}
}

// A stop takes everything the agent started, and says so only when all of it is gone.
func TestFieldB1_StopTakesTheWholeGroup(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"fork":{"steps":[{"pidfile":"{work}/a"},{"hang":true}]}},{"fork":{"steps":[{"pidfile":"{work}/b"},{"hang":true}]}},{"hang":true}]`)
	pids := []int{st.Agent.PID, r.pid("a"), r.pid("b")}
	rep := r.reap(q, sdk.StopGraceful)
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	}
	evidence(t, rep, "the whole tree ended")
}

// What an agent leaves behind when it ends by itself is ended too, with its exit code kept.
func TestFieldB2_HelpersEndWithTheAgent(t *testing.T) {
	r := newRig(t)
	// Without the hang-up that the kernel sends when a terminal's leader ends, which not every helper minds.
	q, _ := r.run(`[{"fork":{"steps":[{"ignore":["HUP"]},{"pidfile":"{work}/helper"},{"hang":true}]}},{"waitFile":"{work}/helper"},{"exit":0}]`)
	helper := r.pid("helper")
	var st sdk.SeatStatus
	eventually(t, "exited", func() bool { st = r.adopt(q, false); return st.State == sdk.SeatExited })
	if alive(helper) {
		t.Error("the helper lives")
	}
	if st.Exit.Code == nil || *st.Exit.Code != 0 || st.Exit.Asked {
		t.Errorf("exit %+v", st.Exit)
	}
	found := false
	for _, k := range st.Exit.Reaped {
		found = found || k.PID == helper
	}
	if !found {
		t.Errorf("reaped %+v, want process %d", st.Exit.Reaped, helper)
	}
	rep := r.reap(q, sdk.StopGraceful)
	if _, ok := killed(rep, helper); !ok || rep.Outcome != sdk.ReapExited {
		t.Errorf("report %+v", rep)
	}
}

// An agent that ignores every polite signal and spins is killed after the grace.
func TestFieldB3_IgnoringPoliteSignalsHelpsNobody(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"ignore":["HUP","TERM","INT"]},{"print":"deaf\n"},{"spin":true}]`)
	r.view(q, 0).await(t, "deaf")
	req := stopOf(q, sdk.StopGraceful)
	req.GraceMs = 300
	began := time.Now()
	rep, err := r.rt.Reap(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("stopped after %s, before the grace was over", took)
	}
	if rep.Exit.Signal != "SIGKILL" || alive(st.Agent.PID) {
		t.Errorf("exit %+v", rep.Exit)
	}
	evidence(t, rep, "still lived after the grace of 300ms", "SIGKILL to the whole tree")
}

// An agent that needs a while to end politely gets it, and the stop is a success.
func TestFieldC5_StopWaitsUntilGone(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"onSignal":{"signal":"TERM","waitMs":700,"exit":3}},{"print":"armed\n"},{"hang":true}]`)
	r.view(q, 0).await(t, "armed")
	began := time.Now()
	rep := r.reap(q, sdk.StopGraceful)
	if took := time.Since(began); took < 700*time.Millisecond || took > busy.Limit(4*time.Second) {
		t.Errorf("took %s", took)
	}
	if rep.Exit.Code == nil || *rep.Exit.Code != 3 || rep.Exit.Signal != "" {
		t.Errorf("exit %+v", rep.Exit)
	}
}

// A second stop without grace hastens the first.
func TestStopNowHastensAGracefulStop(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"ignore":["TERM","HUP"]},{"print":"deaf\n"},{"hang":true}]`)
	r.view(q, 0).await(t, "deaf")
	first := make(chan sdk.ReapReport, 1)
	go func() {
		req := stopOf(q, sdk.StopGraceful)
		req.GraceMs = 60_000
		rep, err := r.rt.Reap(context.Background(), req)
		if err != nil {
			t.Errorf("graceful: %v", err)
		}
		first <- rep
	}()
	eventually(t, "the first stop holds the lock", func() bool { return r.rt.locks.InUse(q.SeatID) })
	began := time.Now()
	if rep := r.reap(q, sdk.StopNow); rep.Outcome == sdk.ReapStopped && time.Since(began) > busy.Limit(20*time.Second) {
		t.Errorf("the second stop waited: %+v", rep)
	}
	rep := <-first
	if time.Since(began) > busy.Limit(20*time.Second) {
		t.Errorf("took %s", time.Since(began))
	}
	if rep.Outcome == sdk.ReapStopped {
		evidence(t, rep, "a second stop asked for no grace")
	}
}

// Stopping what is dead already, five times at once, succeeds five times and works once.
func TestFieldB7_StopOfADeadAgentConverges(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"hang":true}]`)
	kill9(t, st.Agent.PID)
	reports := make([]sdk.ReapReport, 5)
	var wg sync.WaitGroup
	for i := range reports {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rep, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopGraceful))
			if err != nil {
				t.Errorf("stop %d: %v", i, err)
			}
			reports[i] = rep
		}()
	}
	wg.Wait()
	worked := 0
	for _, rep := range reports {
		if len(rep.Removed) > 0 {
			worked++
			if rep.Exit == nil || rep.Exit.Signal != "SIGKILL" {
				t.Errorf("exit %+v", rep.Exit)
			}
		} else if rep.Outcome != sdk.ReapAbsent {
			t.Errorf("outcome %s", rep.Outcome)
		}
	}
	if worked != 1 {
		t.Errorf("%d of 5 stops did the work", worked)
	}
	r.gone(q)
}

// After a stop said so, everything the seat held can be taken at once: here a port held by a child that
// ignores polite signals.
func TestFieldB8_StoppedMeansGone(t *testing.T) {
	r := newRig(t)
	for range 10 {
		os.Remove(r.file("addr"))
		q, _ := r.run(`[{"fork":{"steps":[{"ignore":["TERM","HUP"]},{"listen":{"file":"{work}/addr"}},{"hang":true}]}},{"hang":true}]`)
		eventually(t, "the child listens", func() bool { return r.read("addr") != "" })
		req := stopOf(q, sdk.StopGraceful)
		req.GraceMs = 100
		if _, err := r.rt.Reap(context.Background(), req); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp4", r.read("addr"))
		if err != nil {
			t.Fatalf("the port is still held: %v", err)
		}
		l.Close()
	}
}

// What cannot be proven is not called success, and nothing is removed, so that a later stop can work.
func TestFieldB8_UnprovenKeepsEverything(t *testing.T) {
	for name, breakIt := range map[string]func(r *rig, q sdk.SpawnRequest){
		"an unreadable seat record": func(r *rig, q sdk.SpawnRequest) {
			r.killCustody(q)
			overwrite(r, q, "seat.json", `{"version":1,"custodyId":"x"}`)
		},
		"an unreadable exit record": func(r *rig, q sdk.SpawnRequest) {
			overwrite(r, q, "exit.json", `{"version":1`)
			r.killCustody(q)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			q, st := r.run(`[{"ignore":["HUP"]},{"print":"deaf\n"},{"hang":true}]`)
			r.view(q, 0).await(t, "deaf")
			saved, err := os.ReadFile(filepath.Join(r.dir(q), "seat.json"))
			if err != nil {
				t.Fatal(err)
			}
			breakIt(r, q)
			if got := r.adopt(q, false); got.State != sdk.SeatUnknown || !strings.Contains(got.Reason, r.dir(q)) {
				t.Errorf("adopt: %s (%s)", got.State, got.Reason)
			}
			rep, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopGraceful))
			if !errors.Is(err, sdk.ErrUnproven) || len(rep.Removed) != 0 || !strings.Contains(err.Error(), r.dir(q)) {
				t.Fatalf("reap: %+v, %v", rep, err)
			}
			if _, err := os.Stat(filepath.Join(r.dir(q), "token")); err != nil {
				t.Errorf("removed after all: %v", err)
			}
			if !alive(st.Agent.PID) {
				t.Error("the agent was killed without proof of what it is")
			}
			// With the record back, the next stop works.
			os.Remove(filepath.Join(r.dir(q), "exit.json"))
			overwrite(r, q, "seat.json", string(saved))
			if rep := r.reap(q, sdk.StopGraceful); rep.Exit == nil || rep.Exit.Evidence != sdk.EvidenceCustodyLost || alive(st.Agent.PID) {
				t.Errorf("report %+v", rep)
			}
		})
	}
}

func overwrite(r *rig, q sdk.SpawnRequest, name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir(q), name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// A seat that says it has ended holds no process; one that holds a process can be stopped.
func TestFieldB13_StopLooksAtProcesses(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"hang":true}]`)
	if err := os.RemoveAll(r.dir(q)); err != nil { // somebody tidied up under a living seat
		t.Fatal(err)
	}
	if got := r.adopt(q, false); got.State != sdk.SeatUnknown {
		t.Errorf("adopt: %s (%s)", got.State, got.Reason)
	}
	rep := r.reap(q, sdk.StopGraceful)
	if alive(st.Agent.PID) || rep.Outcome != sdk.ReapStopped {
		t.Errorf("report %+v", rep)
	}
}

// A wrapper that starts the real program and ends does not hide it: the seat ends with both.
func TestFieldB15_WrapperDoesNotHideTheProgram(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"daemon":{"steps":[{"ignore":["HUP","TERM"]},{"pidfile":"{work}/real"},{"hang":true}],"scrub":true}},{"waitFile":"{work}/real"},{"exit":0}]`)
	real := r.pid("real")
	eventually(t, "exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
	if alive(real) {
		t.Error("the real program outlived the seat")
	}
	r.reap(q, sdk.StopGraceful)
}

// Custody that was stopped is woken; the stop then works as always.
func TestReapWakesAStoppedCustody(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"hang":true}]`)
	r.signalCustody(q, syscall.SIGSTOP)
	if got := r.adopt(q, false); got.State != sdk.SeatUnknown || !strings.Contains(got.Reason, "does not answer") {
		t.Errorf("adopt: %s (%s)", got.State, got.Reason)
	}
	rep := r.reap(q, sdk.StopNow)
	if alive(st.Agent.PID) || rep.Outcome != sdk.ReapStopped || rep.Exit.Evidence != sdk.EvidenceReaped {
		t.Errorf("report %+v", rep)
	}
}

// Custody that answers nobody is ended with its whole tree, also with what erased its environment and
// left the session: as long as the subreaper lives, everything is below it.
func TestReapEndsAHungCustody(t *testing.T) {
	r := newRig(t)
	q, st := r.run(`[{"daemon":{"steps":[{"ignore":["HUP","TERM"]},{"pidfile":"{work}/hidden"},{"hang":true}],"scrub":true}},{"hang":true}]`)
	hidden := r.pid("hidden")
	if err := os.Remove(r.record(q).Socket); err != nil { // nobody can reach it any more
		t.Fatal(err)
	}
	rep := r.reap(q, sdk.StopGraceful)
	for _, pid := range []int{st.Identity.PID, st.Agent.PID, hidden} {
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	}
	if _, ok := killed(rep, hidden); !ok || rep.Outcome != sdk.ReapStopped {
		t.Errorf("report %+v", rep)
	}
	evidence(t, rep, "does not answer", "then custody itself")
}

// Seats of another instance and calls of an older host are refused without effect.
func TestStrangersAreRefused(t *testing.T) {
	r := newRig(t)
	r.fence = 7
	q, st := r.run(`[{"hang":true}]`)
	ctx := context.Background()
	other := q
	other.Owner.InstanceID = "somebody"
	_, err1 := r.rt.Adopt(ctx, adoptOf(other, true))
	_, err2 := r.rt.Reap(ctx, stopOf(other, sdk.StopNow))
	_, err3 := r.rt.Attach(ctx, sdk.AttachRequest{SeatID: q.SeatID, InstanceID: "somebody"})
	for i, err := range []error{err1, err2, err3} {
		if !errors.Is(err, sdk.ErrNotOurs) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	r.fence = 9 // a newer host adopts it
	newer := q
	newer.Fence = 9
	r.adopt(newer, false)
	_, err1 = r.rt.Adopt(ctx, adoptOf(q, false))
	_, err2 = r.rt.Reap(ctx, stopOf(q, sdk.StopNow))
	for i, err := range []error{err1, err2} {
		if !errors.Is(err, sdk.ErrStaleFence) {
			t.Errorf("stale call %d: %v", i, err)
		}
	}
	if live, _ := seat.Check(seatIdentity(st.Agent)); live != seat.Alive {
		t.Error("the agent was harmed")
	}
	r.reap(newer, sdk.StopNow)
}

// The grace never eats up the time that the rungs after it need.
func TestGraceLeavesTimeForTheKill(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"ignore":["TERM","HUP"]},{"print":"deaf\n"},{"hang":true}]`)
	r.view(q, 0).await(t, "deaf")
	ctx, cancel := context.WithTimeout(context.Background(), custodied.StopReserve+500*time.Millisecond)
	defer cancel()
	rep, err := r.rt.Reap(ctx, stopOf(q, sdk.StopGraceful))
	if err != nil || rep.Exit.Signal != "SIGKILL" {
		t.Fatalf("%+v, %v", rep, err)
	}
	evidence(t, rep, "deadline leaves a grace")
}
