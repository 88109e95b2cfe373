//go:build linux

package tmux

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// When custody cannot write the exit, the seat is not shown as running an agent, and a stop
// completes with what custody and the runtime know.
func TestRuntimeRecordsWhatCustodyCannot(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"exit":7}]`)
	m := r.remote("tmuxseat.exit.before-fsync=error(broken)") // forwarded to custody
	if err := m.spawn(q); err != nil {
		t.Fatal(err)
	}
	r.adopt(q, true)
	eventually(t, "the agent has ended", func() bool {
		st := r.adopt(q, false)
		return st.State == sdk.SeatRunning && st.Agent.PID == 0 && strings.Contains(st.Reason, "its exit is being recorded")
	})
	custody := r.custody(q)
	rep, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopNow))
	if err != nil {
		t.Fatal(err)
	}
	if rep.Exit == nil || rep.Exit.Evidence != sdk.EvidenceReaped || !strings.Contains(rep.Exit.Detail, "recorded by the runtime") {
		t.Errorf("exit %+v, evidence %q", rep.Exit, rep.Evidence)
	}
	if live, why := seat.Check(custody); live != seat.Dead {
		t.Errorf("custody is %s: %s", live, why)
	}
	r.gone(q)
}

// Connections that say nothing take every place of a seat for a moment only: the host tries again, and gets in.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	r.start(q)
	for range 80 { // more than a seat has places
		eventually(t, "a connection", func() bool { // its queue may be full for a moment
			c, err := net.Dial("unix", r.record(q).Socket)
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err == nil
		})
	}
	if st := r.adopt(q, false); st.State != sdk.SeatRunning {
		t.Errorf("%s (%s)", st.State, st.Reason)
	}
	if rep, err := r.rt.Reap(context.Background(), stopOf(q, sdk.StopNow)); err != nil || rep.Outcome != sdk.ReapStopped {
		t.Errorf("stop: %+v, %v", rep, err)
	}
}
