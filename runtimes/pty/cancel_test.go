//go:build linux

package pty

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// The host is killed while an agent saves its work within its grace: the agent keeps the grace, because
// nobody asked for more than the polite signal.
func TestHostKilledDuringTheGraceKillsNoAgent(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"onSignal":{"signal":"TERM","print":"saving\n","waitMs":1500,"exit":3}},{"print":"armed\n"},{"hang":true}]`)
	v := r.view(q, 0)
	v.await(t, "armed")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := r.rt.Reap(ctx, stopOf(q, sdk.StopGraceful))
		done <- err
	}()
	v.await(t, "saving")
	cancel() // what the death of a host is to its runtime
	began := time.Now()
	if err := <-done; !errors.Is(err, sdk.ErrUnproven) {
		t.Errorf("the stop nobody waits for: %v", err)
	}
	if took := time.Since(began); took > busy.Limit(time.Second) {
		t.Errorf("it went on for %s", took)
	}
	var st sdk.SeatStatus
	eventually(t, "exited", func() bool { st = r.adopt(q, false); return st.State == sdk.SeatExited })
	if st.Exit.Signal != "" || st.Exit.Code == nil || *st.Exit.Code != 3 {
		t.Errorf("exit %+v", st.Exit)
	}
}

// A call that ended sends nothing more, wherever on the ladder it was.
func TestCancelledCallClimbsNoRung(t *testing.T) {
	const deaf = `[{"ignore":["HUP","TERM"]},{"print":"deaf\n"},{"waitFile":"{work}/ask"},{"write":{"file":"{work}/answer","text":"x"}},{"hang":true}]`
	stop := func(mode sdk.StopMode) func(*rig, sdk.SpawnRequest, context.Context) error {
		return func(r *rig, q sdk.SpawnRequest, ctx context.Context) error {
			_, err := r.rt.Reap(ctx, stopOf(q, mode))
			return err
		}
	}
	adopt := func(r *rig, q sdk.SpawnRequest, ctx context.Context) error {
		st, err := r.rt.Adopt(ctx, adoptOf(q, false))
		if err == nil && st.State != sdk.SeatUnknown {
			r.t.Errorf("adopt: %s", st.State)
		}
		return errors.Join(err, sdk.ErrUnproven)
	}
	unreachable := func(r *rig, q sdk.SpawnRequest) {
		if err := os.Remove(r.record(q).Socket); err != nil {
			r.t.Fatal(err)
		}
	}
	ended := func(r *rig, q sdk.SpawnRequest) {
		kill9(r.t, int(r.agentOf(q).PID))
		eventually(r.t, "exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
	}
	lost := func(r *rig, q sdk.SpawnRequest) { r.killCustody(q) }
	for _, c := range []struct {
		name, at string
		before   func(*rig, sdk.SpawnRequest)
		call     func(*rig, sdk.SpawnRequest, context.Context) error
		custody  bool // lives afterwards
		agent    bool
	}{
		{"before the polite signal", "pty.reap.begin", nil, stop(sdk.StopGraceful), true, true},
		{"after the polite signal", "pty.reap.term", nil, stop(sdk.StopGraceful), true, true},
		{"before the kill", "pty.reap.kill", nil, stop(sdk.StopNow), true, true},
		{"of a seat that cannot be reached", "pty.reap.begin", unreachable, stop(sdk.StopNow), true, true},
		{"of a seat that lost its custody", "pty.reap.begin", lost, stop(sdk.StopNow), false, true},
		{"in the hunt of a stop", "pty.adopt.lost", lost, stop(sdk.StopGraceful), false, true},
		{"in the hunt of an adopt", "pty.adopt.lost", lost, adopt, false, true},
		{"before the acknowledgement", "pty.reap.exited", ended, stop(sdk.StopNow), true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			q, st := r.run(deaf)
			r.view(q, 0).await(t, "deaf")
			custody := r.custody(q)
			if c.before != nil {
				c.before(r, q)
			}
			pause := r.file("pause")
			if err := failpoint.Arm(c.at + "=pause(" + pause + ")"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- c.call(r, q, ctx) }()
			eventually(t, "the call is there", func() bool { _, err := os.Stat(pause + ".reached"); return err == nil })
			cancel()
			if err := os.WriteFile(pause, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, sdk.ErrUnproven) {
				t.Errorf("answer %v", err)
			}
			failpoint.Disarm()
			if c.agent { // it still does something: no signal was on its way
				if err := os.WriteFile(r.file("ask"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the agent answers", func() bool { return r.read("answer") != "" })
			} else { // rounds through custody: what it was told before has begun
				r.adopt(q, false)
				r.view(q, 0).await(t, "deaf")
			}
			if alive(st.Agent.PID) != c.agent {
				t.Errorf("agent lives: %v", !c.agent)
			}
			if live, why := seat.Check(custody); (live == seat.Alive) != c.custody {
				t.Errorf("custody is %s: %s", live, why)
			}
		})
	}
}

// agentOf returns the agent of a seat that runs.
func (r *rig) agentOf(q sdk.SpawnRequest) seat.Identity {
	r.t.Helper()
	return seatIdentity(r.adopt(q, false).Agent)
}

// A call that was over before it began does not hasten another stop either.
func TestStopOfADeadCallerHastensNothing(t *testing.T) {
	r := newRig(t)
	q, _ := r.run(`[{"onSignal":{"signal":"TERM","print":"saving\n","waitMs":800,"exit":3}},{"print":"armed\n"},{"hang":true}]`)
	v := r.view(q, 0)
	v.await(t, "armed")
	first := make(chan sdk.ReapReport, 1)
	go func() {
		rep, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopGraceful))
		if err != nil {
			t.Errorf("graceful: %v", err)
		}
		first <- rep
	}()
	v.await(t, "saving")
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.rt.Reap(over, stopOf(q, sdk.StopNow)); !errors.Is(err, sdk.ErrUnproven) {
		t.Errorf("dead caller: %v", err)
	}
	if rep := <-first; rep.Exit == nil || rep.Exit.Signal != "" {
		t.Errorf("exit %+v", rep.Exit)
	}
}
