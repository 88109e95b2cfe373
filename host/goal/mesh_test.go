package goal_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

const token = "test-token-0123456789"

// mesh is a broker and what hosts keep on it.
type mesh struct {
	t   testing.TB
	dir string
	br  *broker.Broker
}

func newMesh(t testing.TB) *mesh {
	t.Helper()
	m := &mesh{t: t, dir: t.TempDir()}
	m.start(0)
	return m
}

func (m *mesh) start(port int) {
	m.t.Helper()
	br, err := broker.Start(m.t.Context(), broker.Config{StoreDir: m.dir, Port: port, Token: token})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(br.Shutdown)
	m.br = br
}

func (m *mesh) records() *bus.Records {
	m.t.Helper()
	b, err := bus.Connect(m.t.Context(), bus.Config{URL: m.br.URL(), Token: token})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(b.Close)
	r, err := b.Records(m.t.Context(), "main", func(string) bool { return false }, func(string) error { return nil })
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// host is one host of the space as far as its goals go: a journal that stays, and one store per incarnation.
type host struct {
	t         testing.TB
	mesh      *mesh
	id        string
	epoch     uint64
	path      string
	fence     error         // what the fence says
	ahead     *atomic.Int64 // what its clock is ahead, in nanoseconds; nil: nothing
	retention time.Duration
	told      func() // called when followers are told of an end

	mu      sync.Mutex
	events  []wire.GoalProgress
	journal *journal.Journal
	store   *goal.Store
	records goal.Records
	quit    context.CancelFunc
}

func (m *mesh) host() *host {
	m.t.Helper()
	h := &host{t: m.t, mesh: m, id: wire.NewUID(), path: filepath.Join(m.t.TempDir(), "journal.db"), quit: func() {}}
	m.t.Cleanup(func() { h.crash() })
	return h
}

// boot starts the next incarnation; through, when given, stands between it and the mesh.
func (h *host) boot(through ...func(goal.Records) goal.Records) *host {
	h.t.Helper()
	h.crash()
	h.epoch++
	var err error
	if h.journal, err = journal.Open(h.path); err != nil {
		h.t.Fatal(err)
	}
	if h.records == nil {
		h.records = h.mesh.records()
	}
	records := h.records
	for _, wrap := range through {
		records = wrap(records)
	}
	h.store = goal.New(goal.Config{
		Journal: h.journal, Records: records, InstanceID: h.id, Epoch: h.epoch, Publish: h.publish, Retention: h.retention, Now: h.now,
		Log: hclog.New(&hclog.LoggerOptions{Output: logTo{h.t}, Level: hclog.Debug}),
	})
	return h
}

func (h *host) now() time.Time {
	if h.ahead == nil {
		return time.Now()
	}
	return time.Now().Add(time.Duration(h.ahead.Load()))
}

// serve is what a host does once its seats are taken back.
func (h *host) serve() *host {
	h.t.Helper()
	if err := h.store.Open(func(context.Context) error { h.mu.Lock(); defer h.mu.Unlock(); return h.fence }); err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.quit = cancel
	h.store.Reconcile(ctx)
	return h
}

func (h *host) publish(_ wire.Caller, _ string, p wire.GoalProgress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, p)
	if h.told != nil && p.Phase == wire.PhaseTerminal {
		h.told()
	}
}

func (h *host) crash() {
	h.quit()
	if h.store != nil {
		h.store.Close()
		if err := h.journal.Close(); err != nil {
			h.t.Error(err)
		}
		h.store = nil
	}
}

type logTo struct{ t testing.TB }

func (w logTo) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

func fingerprintOf(text string) string { return wire.Digest([]byte(text)) }

// submit does what a spawn does with its goal, up to its acceptance.
func (h *host) submit(k goal.Key, fp string) (acc wire.Acceptance, started bool, err error) {
	ctx := h.t.Context()
	if err := h.store.Ready(); err != nil {
		return acc, false, err
	}
	if acc, ok, err := h.store.Recall(ctx, k, fp); ok || err != nil {
		return acc, false, err
	}
	_, id, _ := k.Split()
	uid := wire.NewUID()
	acc = wire.Acceptance{
		Name: "worker", Owner: "local", Actor: "W" + uid[:8], UID: uid, GoalID: id, Fingerprint: fp, ReadinessDeadlineMs: 300,
		Executor: wire.Executor{LifecycleUID: h.id, Epoch: h.epoch},
	}
	err = h.journal.Update(ctx, func(tx *journal.Tx) error {
		return h.store.Accept(tx, k, wire.CmdSpawn, "seat-"+uid, acc, time.Now().Add(300*time.Millisecond))
	})
	if err != nil {
		return acc, false, err
	}
	won, standing, err := h.store.Bind(ctx, k)
	if won {
		return acc, true, nil
	}
	if werr := wire.ErrorFrom(err); werr == nil || werr.Outcome == wire.OutcomeNotExecuted {
		if err := h.journal.Update(ctx, func(tx *journal.Tx) error { return h.store.Forget(tx, k) }); err != nil {
			return acc, false, err
		}
	} else {
		h.end(k, wire.GoalFailed)
	}
	return standing, false, err
}

// end settles a goal as its seat would.
func (h *host) end(k goal.Key, state string) {
	h.t.Helper()
	result := wire.GoalResult{State: state, Data: []byte(`{"n":1}`)}
	if state != wire.GoalSucceeded {
		result.Error = wire.Fail(wire.CodeInternal, "it ended %s", state)
	}
	var first bool
	err := h.journal.Update(context.Background(), func(tx *journal.Tx) (err error) {
		_, first, err = h.store.Settle(tx, k, result)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	if first {
		h.store.Announce(k, result)
	}
}

func (h *host) result(k goal.Key) wire.GoalResultReply {
	h.t.Helper()
	c, id, _ := k.Split()
	r, err := h.store.Result(h.t.Context(), c, id)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

func (h *host) terminal(k goal.Key) wire.GoalResult {
	h.t.Helper()
	var r wire.GoalResultReply
	h.eventually("goal "+string(k)+" has a terminal", func() bool { r = h.result(k); return r.Result != nil })
	return *r.Result
}

func (h *host) eventually(what string, fact func() bool) {
	h.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); !fact(); <-tick.C {
		if busy.Over(begin, 20*time.Second) {
			h.t.Fatalf("did not come true: %s", what)
		}
	}
}

// settledOnMesh waits until the record says a terminal and the index entry is gone.
func (h *host) settledOnMesh(k goal.Key, state string) {
	h.t.Helper()
	ref := refOf(k)
	h.eventually("the record says "+state+" and the index nothing", func() bool {
		e, err := h.records.Get(h.t.Context(), ref.Key().Status())
		if err != nil {
			return false
		}
		st, err := wire.DecodeGoalStatus(e.Value)
		if err != nil {
			h.t.Fatal(err)
		}
		_, err = h.records.Get(h.t.Context(), ref.IndexKey())
		return st.State == state && errors.Is(err, bus.ErrAbsent)
	})
}

func refOf(k goal.Key) wire.GoalRef {
	c, id, _ := k.Split()
	return wire.GoalRef{Endpoint: wire.EndpointManager, Caller: c, ID: id}
}

func refused(t *testing.T, err error, code string) *wire.Error {
	t.Helper()
	var werr *wire.Error
	if !errors.As(err, &werr) || werr.Code != code || werr.Outcome != wire.OutcomeNotExecuted {
		t.Fatalf("%v; want %s, not-executed", err, code)
	}
	return werr
}

// proves: GOAL-1, GOAL-5, GOAL-6, GOAL-13, GOAL-17, GOAL-22, GOAL-29, GOAL-30, GOAL-31
func TestAGoalFromItsAcceptanceToItsEnd(t *testing.T) {
	h := newMesh(t).host().boot().serve()
	k := goal.KeyOf(caller, "g1")
	acc, started, err := h.submit(k, fingerprintOf("a"))
	if err != nil || !started {
		t.Fatal(started, err)
	}
	ctx, ref := t.Context(), refOf(k)
	e, err := h.records.Get(ctx, ref.IndexKey())
	if err != nil {
		t.Fatal(err)
	}
	idx, err := wire.DecodeGoalIndex(ref, e.Value)
	if err != nil || idx.InstanceID != h.id || *idx.Allocated != (wire.Allocation{
		Name: acc.Name, Owner: acc.Owner, Actor: acc.Actor, UID: acc.UID, ReadinessDeadlineMs: 300,
	}) {
		t.Errorf("index entry %+v, %v", idx, err)
	}
	p, err := h.records.GetFact(ctx, ref.Bind("main"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := wire.DecodeGoalBind("g1", p); err != nil || b.Fingerprint != fingerprintOf("a") {
		t.Errorf("bind %+v, %v", b, err)
	}
	e, err = h.records.Get(ctx, ref.Key().Spec())
	if err != nil {
		t.Fatal(err)
	}
	spec, err := wire.DecodeGoalSpec(ref, e.Value)
	if err != nil || spec.Command != wire.CmdSpawn || spec.AcceptedEpoch == nil || *spec.AcceptedEpoch != h.epoch || spec.ReadyBy() == 0 {
		t.Errorf("spec %+v, %v", spec, err)
	}
	h.store.Phase(k, wire.PhaseHandoff)
	h.store.Phase(k, wire.PhaseLaunched)
	h.eventually("the record says running", func() bool {
		e, err := h.records.Get(ctx, ref.Key().Status())
		return err == nil && string(e.Value) != "" && statusOf(t, e.Value) == wire.GoalRunning
	})
	if r := h.result(k); r.Result != nil || r.Phase != wire.PhaseLaunched {
		t.Errorf("while it runs: %+v", r)
	}
	h.store.Cancelling(k, wire.CancelGraceful)
	h.eventually("the record says cancelling", func() bool {
		e, err := h.records.Get(ctx, ref.Key().Status())
		return err == nil && statusOf(t, e.Value) == wire.GoalCancelling
	})
	h.end(k, wire.GoalCancelled)
	r := h.terminal(k)
	if r.State != wire.GoalCancelled || r.Error == nil || r.Error.Message != "it ended cancelled" {
		t.Errorf("terminal %+v", r)
	}
	h.settledOnMesh(k, wire.GoalCancelled)
	p, err = h.records.GetFact(ctx, ref.Result("main"))
	if err != nil {
		t.Fatal(err)
	}
	fact, err := wire.DecodeGoalResult("g1", p)
	if err != nil || *fact.Committer != (wire.Committer{InstanceID: h.id, Epoch: h.epoch}) || fact.Of(spec) != nil {
		t.Errorf("result fact %+v, %v", fact, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	want := []wire.GoalProgress{{Phase: wire.PhaseHandoff}, {Phase: wire.PhaseLaunched}, {Phase: wire.PhaseTerminal, State: wire.GoalCancelled}}
	if fmt.Sprint(h.events) != fmt.Sprint(want) {
		t.Errorf("events %+v", h.events)
	}
}

func statusOf(t *testing.T, p []byte) string {
	t.Helper()
	st, err := wire.DecodeGoalStatus(p)
	if err != nil {
		t.Fatal(err)
	}
	return st.State
}

// A submission that is repeated gets the identical acceptance, from whichever host and incarnation, before
// and after the end; another one under the same id is refused. Nothing is started by either.
//
// proves: GOAL-3, GOAL-10, GOAL-23, OUT-8
func TestARepeatedSubmissionIsAnsweredAlike(t *testing.T) {
	m := newMesh(t)
	a, b := m.host().boot().serve(), m.host().boot().serve()
	k := goal.KeyOf(caller, "g1")
	fp := fingerprintOf("a")
	acc, started, err := a.submit(k, fp)
	if err != nil || !started {
		t.Fatal(started, err)
	}
	same := func(when string, h *host) {
		t.Helper()
		again, started, err := h.submit(k, fp)
		if err != nil || started || fmt.Sprint(again) != fmt.Sprint(acc) {
			t.Errorf("%s: %+v (started: %v, %v)\nwas %+v", when, again, started, err, acc)
		}
		_, started, err = h.submit(k, fingerprintOf("b"))
		if refused(t, err, wire.CodeFailedPrecondition); started {
			t.Errorf("%s: another request was started", when)
		}
	}
	same("the same incarnation", a)
	same("another host", b)
	a.boot().serve()
	same("after a restart", a)
	a.end(k, wire.GoalSucceeded)
	a.terminal(k)
	a.settledOnMesh(k, wire.GoalSucceeded)
	same("after the end", a)
	same("after the end, another host", b)
	a.boot().serve()
	same("after the end and a restart", a)
	if got := b.terminal(k); fmt.Sprint(got) != fmt.Sprint(a.terminal(k)) {
		t.Errorf("the other host tells the end as %+v", got)
	}
}

// proves: GOAL-2, GOAL-18, GOAL-28, AUTHZ-17
func TestAGoalIsToldToItsOwnCallerAlone(t *testing.T) {
	m := newMesh(t)
	h := m.host().boot().serve()
	k := goal.KeyOf(caller, "g1")
	other := caller
	other.UID = wire.NewUID() // another life of the same principal
	for _, c := range []wire.Caller{caller, other} {
		if _, started, err := h.submit(goal.KeyOf(c, "g1"), fingerprintOf(c.UID)); err != nil || !started {
			t.Fatal(started, err)
		}
	}
	h.end(k, wire.GoalFailed)
	h.terminal(k)
	if r := h.result(goal.KeyOf(other, "g1")); r.Result != nil {
		t.Errorf("another life sees %+v", r.Result)
	}
	m.br.Shutdown()
	_, err := h.store.Result(t.Context(), caller, "g1")
	if werr := refused(t, err, wire.CodeUnavailable); werr.Message == "" {
		t.Error("no word that the goal is not affected")
	}
}

// proves: GOAL-4, GOAL-20, OUT-8
func TestNothingIsAcceptedBeforeTheGoalsAreLookedThrough(t *testing.T) {
	h := newMesh(t).host().boot()
	_, _, err := h.submit(goal.KeyOf(caller, "g1"), fingerprintOf("a"))
	refused(t, err, wire.CodeUnavailable)
	h.serve()
	if _, started, err := h.submit(goal.KeyOf(caller, "g1"), fingerprintOf("a")); err != nil || !started {
		t.Fatal(started, err)
	}
}

// Of two hosts that settle one goal the first is heard, and the other one reports what landed.
func TestTheFirstTerminalOnTheMeshStands(t *testing.T) {
	m := newMesh(t)
	h := m.host().boot().serve()
	k := goal.KeyOf(caller, "g1")
	if _, _, err := h.submit(k, fingerprintOf("a")); err != nil {
		t.Fatal(err)
	}
	// An incarnation with another journal, as after its loss, is quicker.
	by := wire.Committer{InstanceID: h.id, Epoch: h.epoch + 1}
	fact, err := wire.NewGoalResult("g1", fingerprintOf("a"), wire.GoalUncertain, map[string]any{"why": "it was quicker"}, by, 1)
	if err != nil {
		t.Fatal(err)
	}
	p, err := fact.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.records.PutFact(t.Context(), refOf(k).Result("main"), p); err != nil {
		t.Fatal(err)
	}
	h.end(k, wire.GoalSucceeded)
	h.settledOnMesh(k, wire.GoalUncertain)
	if r := h.terminal(k); r.State != wire.GoalUncertain || string(r.Data) != `{"why":"it was quicker"}` {
		t.Errorf("what stands is told as %+v", r)
	}
	h.eventually("the journal has what landed", func() bool {
		row, _, err := h.store.Lookup(k)
		return err == nil && row.Committed && row.Result.State == wire.GoalUncertain
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if last := h.events[len(h.events)-1]; last.State != wire.GoalUncertain {
		t.Errorf("followers were told %+v", last)
	}
}

// proves: GOAL-21
func TestASupersededIncarnationCommitsNothing(t *testing.T) {
	h := newMesh(t).host().boot().serve()
	k := goal.KeyOf(caller, "g1")
	if _, _, err := h.submit(k, fingerprintOf("a")); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 16)
	if err := h.store.Open(func(context.Context) error {
		asked <- struct{}{}
		return wire.Refuse(wire.CodeExpired, "epoch 2 is registered")
	}); err != nil {
		t.Fatal(err)
	}
	h.end(k, wire.GoalSucceeded)
	<-asked
	h.store.Close() // waits for what is on its way
	if _, err := h.records.GetFact(t.Context(), refOf(k).Result("main")); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("a terminal was committed: %v", err)
	}
	if _, err := h.records.Get(t.Context(), refOf(k).IndexKey()); err != nil {
		t.Errorf("the index entry is gone, and with it what a successor needs: %v", err)
	}
	// The successor on the same journal brings it there.
	h.boot().serve()
	h.settledOnMesh(k, wire.GoalSucceeded)
}

// What was decided while the broker was away reaches it once it is back, exactly once.
func TestAnEndThatWasDecidedDuringAnOutageReachesTheMeshLater(t *testing.T) {
	m := newMesh(t)
	h := m.host().boot().serve()
	k := goal.KeyOf(caller, "g1")
	if _, _, err := h.submit(k, fingerprintOf("a")); err != nil {
		t.Fatal(err)
	}
	m.br.Shutdown()
	h.end(k, wire.GoalSucceeded)
	if row, ok, err := h.store.Lookup(k); err != nil || !ok || !row.InOutbox() {
		t.Fatalf("%+v %v %v: not in the outbox", row, ok, err)
	}
	m.start(m.br.Port())
	h.settledOnMesh(k, wire.GoalSucceeded)
	h.eventually("the outbox is empty", func() bool { row, _, _ := h.store.Lookup(k); return row.Committed })
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, e := range h.events {
		if e.Phase == wire.PhaseTerminal {
			n++
		}
	}
	if n != 1 {
		t.Errorf("followers were told of %d ends", n)
	}
}

// A spawn while the broker is away is refused and leaves nothing, here or there.
//
// proves: GOAL-4, OUT-8
func TestAnAcceptanceWithoutMeshIsNotExecuted(t *testing.T) {
	m := newMesh(t)
	h := m.host().boot().serve()
	k := goal.KeyOf(caller, "g1")
	m.br.Shutdown()
	h.eventually("the loss is noticed", func() bool { return !h.records.(*bus.Records).Connected() })
	_, started, err := h.submit(k, fingerprintOf("a"))
	if refused(t, err, wire.CodeUnavailable); started {
		t.Error("it was started")
	}
	if row, ok, err := h.store.Lookup(k); ok || err != nil {
		t.Errorf("left in the journal: %+v, %v", row, err)
	}
	m.start(m.br.Port())
	h.eventually("it can be submitted again", func() bool {
		_, started, err := h.submit(k, fingerprintOf("a"))
		return err == nil && started
	})
}

// Two hosts that are asked for the same goal at once accept it once, whoever is first.
func TestTwoHostsAcceptOneGoalOnce(t *testing.T) {
	m := newMesh(t)
	hosts := []*host{m.host().boot().serve(), m.host().boot().serve()}
	for round := range 40 {
		k := goal.KeyOf(caller, fmt.Sprint("g", round))
		accs, started := make([]wire.Acceptance, len(hosts)), make([]bool, len(hosts))
		var wg sync.WaitGroup
		for i, h := range hosts {
			wg.Go(func() {
				var err error
				if accs[i], started[i], err = h.submit(k, fingerprintOf("a")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if started[0] == started[1] || fmt.Sprint(accs[0]) != fmt.Sprint(accs[1]) {
			t.Fatalf("round %d: started %v\n%+v\n%+v", round, started, accs[0], accs[1])
		}
		loser := hosts[0]
		if started[0] {
			loser = hosts[1]
		}
		if _, ok, err := loser.store.Lookup(k); ok || err != nil {
			t.Fatalf("round %d: the host that lost keeps a row (%v)", round, err)
		}
	}
	// With two submissions under one id it is one of them.
	for round := range 20 {
		k := goal.KeyOf(caller, fmt.Sprint("h", round))
		started, errs := make([]bool, 2), make([]error, 2)
		var wg sync.WaitGroup
		for i, h := range hosts {
			wg.Go(func() { _, started[i], errs[i] = h.submit(k, fingerprintOf(fmt.Sprint(i))) })
		}
		wg.Wait()
		if started[0] == started[1] {
			t.Fatalf("round %d: started %v, %v", round, started, errs)
		}
		for i := range hosts {
			if !started[i] {
				refused(t, errs[i], wire.CodeFailedPrecondition)
			}
		}
	}
}
