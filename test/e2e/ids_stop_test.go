package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// stateOf reads as what an instance is registered.
func stateOf(t *testing.T, where harness.HostOptions, id string) string {
	t.Helper()
	b, err := bus.Connect(t.Context(), bus.Config{URL: where.Args[1], Token: leaseToken})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	rec, err := b.Records(t.Context(), "main", func(string) bool { return true }, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	row, err := rec.Get(t.Context(), wire.ServiceKey(wire.EndpointManager, id).Status())
	if err != nil {
		t.Fatal(err)
	}
	st, err := wire.DecodeServiceStatus(row.Value)
	if err != nil {
		t.Fatal(err)
	}
	return st.State
}

// A stop is held where its seats are about to be ended. Until their end is proved the host has lease and registration, so
// that no successor begins beside live seats, and answers whoever comes later that it is stopping. Behind the proof it has given both back.
//
// proves: STOP-2, STOP-11, STOP-13, STOP-14
func TestAStopHasItsLeaseUntilItsSeatsAreGoneAndAnswersMeanwhile(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	where, leases := leased(t, w)
	gate := w.Path("gate")
	held := where
	held.Failpoints = "pty.reap.begin=1*pause(" + gate + ")"
	h := w.Start(held)
	id, seat := w.Endpoint().InstanceID, w.SpawnFake("worker", `[{"hang": true}]`)
	stopped := make(chan harness.Result, 1)
	go func() { stopped <- w.Host("stop", "--with-agents") }()
	await(t, harness.DefaultWait, "the end of the seat begins", func() (bool, string) {
		_, err := os.Stat(gate + ".reached")
		return err == nil, h.Stderr()
	})

	if o := lease.Observe(t.Context(), leases, id); o.Life != lease.Live || o.Row.PID != h.PID {
		t.Errorf("beside a seat that lives the lease is %+v", o)
	}
	if s := stateOf(t, where, id); s != wire.ServiceReady {
		t.Errorf("beside a seat that lives it is registered as %s", s)
	}
	if !w.Alive(seat.PID) {
		t.Error("the seat has ended already: what is said of the stop says nothing")
	}
	argv := append([]string{"spawn", "--agent", "command", "--name", "late", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)
	for _, late := range [][]string{argv, {"ps"}, {"stop", "worker"}} {
		if r := w.CLI(late...); r.Code == 0 || !strings.Contains(r.Stderr, "is stopping") {
			t.Errorf("whoever comes later is told %v", r)
		}
	}

	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	(<-stopped).OK()
	if w.Alive(seat.PID) {
		t.Error("the seat outlives a stop with agents")
	}
	if o := lease.Observe(t.Context(), leases, id); o.Life != lease.Lapsed {
		t.Errorf("behind the stop the lease is %+v", o)
	}
	if s := stateOf(t, where, id); s != wire.ServiceExited {
		t.Errorf("behind the stop it is registered as %s", s)
	}
}

// One seat whose end cannot be proved keeps no other seat alive and no step of the stop from being done: what is left is
// named, the stop is no success, and neither a plugin nor the lock nor the endpoint file is left.
//
// proves: STOP-8
func TestAStepOfAStopThatFailsKeepsNoOtherFromBeingDone(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{Failpoints: "pty.reap.begin=1*error(no proof today)->off"})
	one, two := w.SpawnFake("one", `[{"hang": true}]`), w.SpawnFake("two", `[{"hang": true}]`)
	r := w.Host("stop", "--with-agents").Want(5)
	if !strings.Contains(r.Stderr, "no proof today") || strings.Count(r.Stderr, "left: ") != 1 || strings.Count(r.Stdout, "stopped ") < 1 {
		t.Errorf("it says %v", r)
	}
	if e, ok := h.WaitExit(harness.DefaultWait); !ok || e.Code != 1 || !strings.Contains(h.Stderr(), "1 seats could not be proved gone") {
		t.Errorf("the host ended %v %+v and said %q", ok, e, h.Stderr())
	}
	if w.Alive(one.PID) && w.Alive(two.PID) {
		t.Error("neither seat was ended")
	}
	if left := pluginProcs(w); len(left) != 0 {
		t.Errorf("plugins are left: %v", left)
	}
	if _, err := os.Stat(w.Path(".cotal", "host", "endpoint.json")); err == nil {
		t.Error("the endpoint file is left")
	}
	w.Start(harness.HostOptions{})
	w.Host("stop", "--with-agents").OK()
	w.AssertNothingLeft()
}
