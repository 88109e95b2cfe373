package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

const leaseToken = "0123456789abcdef0123456789abcdef"

// leased is what two hosts of a space share: a broker, and a look at its leases.
func leased(t *testing.T, w *harness.World) (harness.HostOptions, *bus.Leases) {
	t.Helper()
	tokenFile := w.Write("server.token", leaseToken+"\n")
	b, err := broker.Start(context.Background(), broker.Config{StoreDir: filepath.Join(w.Dir, "js"), Token: leaseToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	c, err := bus.Connect(t.Context(), bus.Config{URL: b.URL(), Token: leaseToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	leases, err := c.Leases(bus.LeasesConfig{Space: "main", Known: func(string) bool { return false }, Made: func(string) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	return harness.HostOptions{Args: []string{"--server", b.URL(), "--token-file", tokenFile}}, leases
}

// Of two hosts that are one instance, as after a workspace was copied, one serves. While the original holds its lease
// the copy does not start, and names it. When the original is frozen for longer than its lease lasts, the copy takes
// its place; the original, awake again, ends, spares its seats, and leaves lease and registration to the copy.
//
// proves: LEASE-8, MULTI-12
func TestACopyOfAHostAndItsOriginalDoNotBothServe(t *testing.T) {
	t.Parallel()
	one, two := harness.New(t), harness.New(t)
	where, leases := leased(t, one)
	one.Start(where).Stop()
	if err := os.Mkdir(filepath.Join(two.Root, ".cotal"), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(one.Root, ".cotal", "host"), filepath.Join(two.Root, ".cotal")).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v\n%s", err, out)
	}
	original := one.Start(where)
	seat := one.SpawnFake("worker", `[{"hang": true}]`)
	id := one.Endpoint().InstanceID
	for range 2 { // the second one has an epoch of its own that is later than the original's
		second := two.Launch(where)
		if e, ok := second.WaitExit(harness.DefaultWait); !ok || e.Code != 1 || !strings.Contains(second.Stderr(), lease.ErrHeld.Error()) || !strings.Contains(second.Stderr(), one.Root) {
			t.Fatalf("the copy ended %v %+v and said %q", ok, e, second.Stderr())
		}
	}
	if st := one.Status(); st.Lease == nil || st.Lease.State != "held" || st.Lease.Fenced != "" {
		t.Fatalf("the original says of its lease %+v", st.Lease)
	}

	original.Signal(syscall.SIGSTOP)
	await(t, harness.DefaultWait, "its lease lapses", func() (bool, string) {
		o := lease.Observe(t.Context(), leases, id)
		return o.Life == lease.Lapsed, string(o.Life)
	})
	two.Start(where)
	epoch := two.Status().Epoch
	original.Signal(syscall.SIGCONT)
	e, ok := original.WaitExit(harness.DefaultWait)
	if !ok || e.Code != 1 || !strings.Contains(original.Stderr(), "has taken over this instance") {
		t.Fatalf("the original ended %v %+v and said %q", ok, e, original.Stderr())
	}
	if !one.Alive(seat.PID) {
		t.Error("the original took its seat with it")
	}
	if o := lease.Observe(t.Context(), leases, id); o.Life != lease.Live || o.Row.Root != two.Root {
		t.Errorf("the lease is %+v", o)
	}
	c := two.Mesh()
	who, err := c.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdStatus, Instance: id}, nil)
	if err != nil || who.Epoch != epoch {
		t.Errorf("instance %s answers in epoch %d, %v; the copy has %d", id, who.Epoch, err, epoch)
	}
	var expected wire.InstancesReply
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdInstances}, &expected); err != nil || len(expected.Instances) != 1 || expected.Instances[0].Epoch != epoch {
		t.Errorf("registered are %+v, %v; want the copy alone", expected.Instances, err)
	}
	two.Host("stop").OK()
	// Its own epoch is over by now, and rises with every start.
	var last *harness.Host
	await(t, harness.DefaultWait, "the workspace is served again", func() (bool, string) {
		last = one.Launch(where)
		err := last.WaitReady(harness.DefaultWait)
		return err == nil, last.Stderr()
	})
	if got := one.AwaitStatus("worker", "running"); got.PID != seat.PID {
		t.Errorf("the seat has pid %d, was %d", got.PID, seat.PID)
	}
	one.Host("stop", "--with-agents").OK()
}

// A stop and a start right behind it, again and again: the lease is gone with the host that stops, and the next one has
// it at once, with the same seats. A host that was killed leaves it, and the next one takes it at once all the same.
//
// proves: LEASE-9, LEASE-11
func TestFieldH4_AStopAndAStartAtOnce(t *testing.T) {
	t.Parallel()
	rounds := 8
	if os.Getenv("COTAL_LONG") != "" {
		rounds = 50
	}
	w := harness.New(t)
	where, leases := leased(t, w)
	h := w.Start(where)
	id, seat := w.Endpoint().InstanceID, w.SpawnFake("worker", `[{"hang": true}]`)
	for round := range rounds {
		killed := round%4 == 3
		if killed {
			h.Kill()
		} else {
			w.Host("stop").OK()
			if o := lease.Observe(t.Context(), leases, id); o.Life != lease.Lapsed {
				t.Errorf("round %d: after the stop the lease is %+v", round, o)
			}
			if strings.Contains(h.Stderr(), "lease is still there") {
				t.Errorf("round %d: the stop has something to tell: %s", round, h.Stderr())
			}
		}
		h = w.Start(where)
		if strings.Contains(h.Stderr(), "waiting") {
			t.Errorf("round %d: the next host had to wait: %s", round, h.Stderr())
		}
		if o := lease.Observe(t.Context(), leases, id); o.Life != lease.Live || o.Row.PID != h.PID {
			t.Errorf("round %d: the lease is %+v, the host %d", round, o, h.PID)
		}
		if got, ok := w.Seat("worker"); !ok || got.PID != seat.PID || got.Status != "running" {
			t.Fatalf("round %d: the seat is %+v", round, got)
		}
	}
	w.Host("stop", "--with-agents").OK()
}

// A host that cannot renew its lease starts nothing new once it is over, says so, and keeps everything that runs: seats
// are seen, stopped and typed into. It has its lease again by itself.
//
// proves: I6
func TestAHostThatCannotRenewItsLeaseStartsNothingNew(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	mute := filepath.Join(w.Dir, "mute")
	h := w.Start(harness.HostOptions{Failpoints: "host.lease.renewing=full(" + mute + ")"})
	seat := w.SpawnFake("worker", `[{"hang": true}]`)
	w.SpawnFake("other", `[{"hang": true}]`)
	if err := os.WriteFile(mute, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, harness.DefaultWait, "it is fenced", func() (bool, string) {
		st := w.Status()
		return st.Lease != nil && strings.Contains(st.Lease.Fenced, lease.ErrUnproven.Error()), fmt.Sprintf("%+v", st.Lease)
	})
	argv := append([]string{"spawn", "--agent", "command", "--name", "late", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)
	if r := w.CLI(argv...); r.Code == 0 || !strings.Contains(r.Stderr, lease.ErrUnproven.Error()) {
		t.Errorf("a spawn: %v; want a refusal that says why", r)
	}
	if r := w.Host("status").OK(); !strings.Contains(r.Stdout, "NOTHING NEW IS STARTED") {
		t.Errorf("status says %s", r.Stdout)
	}
	if got, ok := w.Seat("worker"); !ok || got.PID != seat.PID || got.Status != "running" {
		t.Errorf("the seat is %+v", got)
	}
	w.CLI("stop", "other").OK()
	if !h.Running() {
		t.Fatal("the host ended")
	}
	if err := os.Remove(mute); err != nil {
		t.Fatal(err)
	}
	await(t, harness.DefaultWait, "the lease is held again", func() (bool, string) {
		st := w.Status()
		return st.Lease.State == "held" && st.Lease.Fenced == "", fmt.Sprintf("%+v", st.Lease)
	})
	w.SpawnFake("late", `[{"hang": true}]`)
	w.Host("stop", "--with-agents").OK()
}

// A host is stopped as a machine that sleeps, for longer than its lease lasts, with the broker inside it. Its seats do
// not notice, and it holds its lease again as soon as it goes on.
//
// proves: LEASE-8
func TestFieldH2_AHostThatSleptHoldsItsLeaseAgainAndHasItsSeats(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	seat := w.SpawnFake("worker", `[{"hang": true}]`)
	h.Signal(syscall.SIGSTOP)
	<-time.After(wire.LeaseTTL + 3*time.Second) // the time that it sleeps is what is tested
	h.Signal(syscall.SIGCONT)
	await(t, wire.LeaseTTL, "the lease is held", func() (bool, string) {
		r := w.Host("status", "--json")
		return r.Code == 0 && strings.Contains(r.Stdout, `"state":"held"`) || strings.Contains(r.Stdout, `"state": "held"`), r.String()
	})
	if got := w.AwaitStatus("worker", "running"); got.PID != seat.PID {
		t.Errorf("the seat has pid %d, was %d", got.PID, seat.PID)
	}
	w.SpawnFake("another", `[{"hang": true}]`)
	w.Host("stop", "--with-agents").OK()
}

// A stop that cannot prove the end of a seat gives nothing back: the lease ages, and the instance goes on being expected.
// The next host of the workspace has both at once, and ends the seat.
//
// proves: LEASE-12, STOP-9, DOWN-19
func TestAStopThatCannotProveAnEndKeepsLeaseAndRegistration(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	where, leases := leased(t, w)
	broken := where
	broken.Failpoints = "pty.reap.begin=error(no proof today)"
	h := w.Start(broken)
	id := w.Endpoint().InstanceID
	w.SpawnFake("stays", `[{"hang": true}]`)
	w.Host("stop", "--with-agents").Want(5)
	if o := lease.Observe(t.Context(), leases, id); o.Life != lease.Live || o.Row.PID != h.PID {
		t.Errorf("the lease is %+v", o)
	}
	b, err := bus.Connect(t.Context(), bus.Config{URL: where.Args[1], Token: leaseToken})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	rec, err := b.Records(t.Context(), "main", func(string) bool { return true }, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	state := func() string {
		t.Helper()
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
	if s := state(); s != wire.ServiceReady {
		t.Errorf("it is registered as %s", s)
	}
	next := w.Start(where)
	if strings.Contains(next.Stderr(), "waiting") {
		t.Errorf("the next host had to wait: %s", next.Stderr())
	}
	w.Host("stop", "--with-agents").OK()
	if o := lease.Observe(t.Context(), leases, id); o.Life != lease.Lapsed {
		t.Errorf("after a stop with proof the lease is %+v", o)
	}
	if s := state(); s != wire.ServiceExited {
		t.Errorf("after a stop with proof it is registered as %s", s)
	}
}

// A broker that comes back with an empty store has nothing to say about who holds what. The seats go on and the host
// starts nothing new, says why, and makes nothing anew behind anybody's back; when the store is back, it goes on by itself.
func TestABrokerWithAnEmptyStoreStopsNewWorkAndNothingElse(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	b := w.StartBroker()
	h := w.Start(harness.HostOptions{})
	seat := w.SpawnFake("worker", `[{"hang": true}]`)
	status := func(want func(*wire.LeaseStatus) bool) func() (bool, string) {
		return func() (bool, string) {
			var st wire.StatusReply
			r := w.Host("status", "--json", "--timeout", "2s")
			if r.Code == 0 {
				r.JSON(&st)
			}
			return st.Lease != nil && want(st.Lease), r.String()
		}
	}
	b.Kill()
	if err := os.Rename(b.Store, b.Store+".away"); err != nil {
		t.Fatal(err)
	}
	b.Restart()
	await(t, harness.DefaultWait, "nothing new is started", status(func(l *wire.LeaseStatus) bool { return l.State == "unreadable" && l.Fenced != "" }))
	argv := append([]string{"spawn", "--agent", "command", "--name", "late", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)
	if r := w.CLI(argv...); r.Code == 0 {
		t.Errorf("a spawn: %v; want a refusal", r)
	}
	if got, ok := w.Seat("worker"); !ok || got.PID != seat.PID || got.Status != "running" || !h.Running() {
		t.Errorf("the seat is %+v", got)
	}
	b.Kill()
	if err := os.RemoveAll(b.Store); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(b.Store+".away", b.Store); err != nil {
		t.Fatal(err)
	}
	b.Restart()
	await(t, harness.DefaultWait, "the lease is held again", status(func(l *wire.LeaseStatus) bool { return l.State == "held" && l.Fenced == "" }))
	w.SpawnFake("late", `[{"hang": true}]`)
	w.Host("stop", "--with-agents").OK()
}

// Starts that are cut short at every step of taking the lease and of registering, each followed by the next at once: the
// last one serves, under the same instance, and what it keeps on the mesh is not more than after the first.
func TestFieldH10_StartsThatAreCutShortConvergeAndLeaveNothingMore(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	where, leases := leased(t, w)
	begun := w.Start(where)
	id := w.Endpoint().InstanceID
	begun.Stop()
	places := []string{
		"host.lease.acquiring", "host.lease.acquired", "host.register.published", "host.register.frozen", "host.register.specified", "host.register.opened",
	}
	kept := func() map[string]uint64 {
		t.Helper()
		nc, err := nats.Connect(where.Args[1], nats.Token(leaseToken))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js, err := nc.JetStream()
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]uint64{}
		for info := range js.StreamsInfo() {
			n[info.Config.Name+" subjects"], n[info.Config.Name+" consumers"] = info.State.NumSubjects, uint64(info.State.Consumers)
		}
		for _, name := range []string{"subjects", "consumers"} { // they age
			delete(n, "KV_cotal_presence_main "+name)
			delete(n, "KV_cotal_manager_main "+name)
		}
		return n
	}
	first := kept()
	for range 3 {
		for _, place := range places {
			cut := where
			cut.Failpoints = place + "=crash"
			w.Launch(cut).AwaitCrash()
		}
	}
	h := w.Start(where)
	if strings.Contains(h.Stderr(), "waiting") || w.Endpoint().InstanceID != id {
		t.Errorf("instance %s after %s: %s", w.Endpoint().InstanceID, id, h.Stderr())
	}
	if o := lease.Observe(t.Context(), leases, id); o.Life != lease.Live || o.Row.PID != h.PID {
		t.Errorf("the lease is %+v", o)
	}
	w.Host("stop").OK()
	if last := kept(); !maps.Equal(first, last) {
		t.Errorf("the mesh keeps %v, kept %v after the first start", last, first)
	}
}
