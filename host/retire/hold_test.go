package retire_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/saga"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

var errStuck = errors.New("the process cannot be proved gone")

// A spawn that fails at any step leaves what a life leaves, and says first what it failed with.
//
// proves: PROV-4, PROV-5
func TestFieldC6_ASpawnThatFailsAtAnyStepLeavesNothing(t *testing.T) {
	r := newRig(t)
	must(t, r.retire(r.spawn("before")))
	before := r.footprint()
	want := map[string]int{}
	for _, fp := range failpoints("host.provision.") {
		must(t, failpoint.Arm(fp+"=1*error(no room)"))
		ctx, cancel := limit(t)
		_, err := r.host.spawn(ctx, spec(aliasOf(fp)))
		cancel()
		failpoint.Disarm()
		var se *saga.Error
		if !errors.As(err, &se) || len(se.Undo) != 0 || !strings.HasPrefix(err.Error(), "no room") && !strings.Contains(se.Err.Error(), "no room") {
			t.Errorf("%s: %v", fp, err)
		}
		kinds, early := left[fp]
		if !early {
			kinds = provisioned
		}
		for _, k := range kinds {
			want[k]++
		}
		if fp != "host.provision.intent" {
			want[wire.KindSlot]++
		}
	}
	// What comes behind provisioning fails too: the launch, for one.
	ctx, cancel := limit(t)
	defer cancel()
	_, err := r.host.spawn(ctx, spec("launch"), saga.Step{Name: "launch", Do: func(context.Context) error { return errors.New("no program") }})
	if err == nil || !strings.HasPrefix(err.Error(), "no program") {
		t.Errorf("a launch that fails: %v", err)
	}
	for _, k := range append(provisioned, wire.KindSlot) {
		want[k]++
	}
	r.compare(before, want)
	if h := r.host.retire.Holds(); len(h) != 0 {
		t.Errorf("names are held: %+v", h)
	}
}

// A teardown once stopped at its first failing step, and left credentials that worked; a name was freed though a
// process of it was there.
//
// proves: DOWN-5, DOWN-10, DOWN-11, DOWN-15
func TestANameIsHeldUntilEverythingOfItIsGone(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	agent := r.agent(d)
	r.host.refuseReap(errStuck)
	err := r.retire(d)
	wantErr(t, "an end that is not proved", err, errStuck)
	h, held := r.host.retire.Held("reviewer")
	if !held || h.Life != d.Life || h.OpID != wire.RetirementOpID(d.Life.UID) || !h.Authority || h.Footprint || h.Lifecycle || h.Running || !strings.Contains(h.LastError, errStuck.Error()) {
		t.Errorf("the hold: %+v, %v", h, held)
	}
	// Everything else was done all the same.
	if !agent.IsClosed() {
		t.Error("the agent is connected")
	}
	if fp := r.footprint(); len(fp.Consumers) != 1 || strings.Contains(strings.Join(fp.Files, " "), d.File) {
		t.Errorf("left: %v, %v", fp.Consumers, fp.Files)
	}
	if s := r.slot(d.Life); s.Phase != wire.SlotTerminalizing || s.CleanupComplete {
		t.Errorf("the slot: %+v", s)
	}
	ctx, cancel := limit(t)
	defer cancel()
	_, err = r.host.spawn(ctx, spec("reviewer"))
	wantErr(t, "a spawn under a held name", err, provision.ErrHeld)
	if s := r.slot(d.Life); s.LifecycleUID != d.Life.UID {
		t.Errorf("the slot was taken: %+v", s)
	}
	wantErr(t, "another try", r.host.retire.Redrive(ctx, "reviewer"), errStuck)
	r.host.refuseReap(nil)
	must(t, r.host.retire.Redrive(ctx, "reviewer"))
	if _, held := r.host.retire.Held("reviewer"); held {
		t.Error("the name is held behind its end")
	}
	must(t, r.host.retire.Redrive(ctx, "reviewer")) // nobody holds it
	next := r.spawn("reviewer")
	if next.Life.UID == d.Life.UID || next.Life.Actor == d.Life.Actor || next.File == d.File {
		t.Errorf("the next life has something of the last one: %+v", next)
	}
	must(t, r.retire(next))
}

// A spawn under a name that an earlier process left held has another try at what holds it, and only then begins.
func TestASpawnUnderAHeldNameDrivesItsEndAgain(t *testing.T) {
	r := newRig(t)
	dead := func(provision.Life) bool { return false }
	ctx, cancel := limit(t)
	defer cancel()
	must(t, r.host.retire.Clear(ctx, wire.OwnerLocal, "reviewer", dead)) // nobody ever had it
	d := r.spawn("reviewer")
	next, err := newHost(ctx, r.root, r.br.URL(), inst1, 2)
	must(t, err)
	defer next.retire.Close()
	err = next.retire.Clear(ctx, wire.OwnerLocal, "reviewer", func(l provision.Life) bool { return l == d.Life })
	wantErr(t, "a name that a seat has", err, provision.ErrHeld)
	next.refuseReap(errStuck)
	wantErr(t, "a name whose holder cannot be ended", next.retire.Clear(ctx, wire.OwnerLocal, "reviewer", dead), errStuck)
	wantErr(t, "once more", next.retire.Clear(ctx, wire.OwnerLocal, "reviewer", dead), errStuck)
	next.refuseReap(nil)
	must(t, next.retire.Clear(ctx, wire.OwnerLocal, "reviewer", dead))
	if _, err := next.spawn(ctx, spec("reviewer")); err != nil {
		t.Errorf("the spawn: %v", err)
	}
}

// A delayed second teardown once revoked its successor, by name.
//
// proves: PROV-2, DOWN-13
func TestALateTeardownOfAPredecessorDoesNotTouchItsSuccessor(t *testing.T) {
	r := newRig(t)
	first := r.spawn("reviewer")
	must(t, r.retire(first))
	second := r.spawn("reviewer")
	agent := r.agent(second)
	must(t, r.retire(first))
	if s := r.slot(second.Life); s.LifecycleUID != second.Life.UID || s.Phase != wire.SlotActive {
		t.Errorf("the successor's slot: %+v", s)
	}
	if err := agent.FlushTimeout(busy.Limit(5 * time.Second)); err != nil {
		t.Errorf("the successor's connection: %v", err)
	}
	if _, held := r.host.retire.Held("reviewer"); held {
		t.Error("the successor's name is held")
	}
	must(t, r.retire(second))
}

// proves: DOWN-9
func TestCallersAtTheSameTimeShareOneTeardown(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	proceed, waiting := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow, err := retire.New(retire.Config{Auth: r.host.auth, Space: space, Instance: inst1, Store: r.host.store, Reap: func(context.Context, wire.RuntimeRef) error {
		reaped := false
		once.Do(func() { reaped = true })
		if !reaped {
			t.Error("the process was reaped by two at once")
		}
		close(waiting)
		<-proceed
		return nil
	}})
	must(t, err)
	defer slow.Close()
	impatient, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() { given <- slow.Retire(impatient, d.Life) }()
	<-waiting
	cancel()
	wantErr(t, "a caller that does not wait", <-given, retire.ErrPending)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ctx, cancel := limit(t)
			defer cancel()
			if err := slow.Retire(ctx, d.Life); err != nil {
				t.Errorf("a caller that joined: %v", err)
			}
		})
	}
	if h, _ := slow.Held("reviewer"); !h.Running || h.Attempts != 1 {
		t.Errorf("the hold: %+v", h)
	}
	close(proceed)
	wg.Wait()
}

// Renewal once brought back the credential of a seat that was over.
func TestFieldG6_ARenewalBehindTheEndBringsNothingBack(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	ctx, cancel := limit(t)
	defer cancel()
	must(t, d.Credential().Renew(ctx))
	if s := r.slot(d.Life); s.CredentialID != d.Credential().Current().ID {
		t.Errorf("the slot does not know of the renewed credential: %+v", s)
	}
	r.host.refuseReap(errStuck)
	wantErr(t, "the end", r.retire(d), errStuck)
	wantErr(t, "a renewal while it ends", d.Credential().Renew(ctx), trust.ErrRetired)
	r.host.refuseReap(nil)
	must(t, r.retire(d))
	wantErr(t, "a renewal behind it", d.Credential().Renew(ctx), trust.ErrRetired)
	if _, err := r.host.store.Read(d.File); err == nil {
		t.Error("there is a file again")
	}
	wantErr(t, "another process of the life", r.host.prov.SetRuntime(ctx, d.Life, wire.RuntimeRef{Kind: "pty", ID: "x"}), provision.ErrOver)
}

// A host that is started again goes on renewing what its seats hold, and mints nothing before that is due.
func TestTheNextHostAdoptsWhatASeatHolds(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	agent := r.agent(d)
	ctx, cancel := limit(t)
	defer cancel()
	// An hour later: what is minted within one second is the same credential.
	next, err := newHostAt(ctx, r.root, r.br.URL(), inst1, 2, func() time.Time { return time.Now().Add(time.Hour) })
	must(t, err)
	defer next.retire.Close()
	before, err := r.host.store.Read(d.File)
	must(t, err)
	a, err := next.prov.Adopt(ctx, d.Life, d.Spec)
	must(t, err)
	if s := r.slot(d.Life); a.Credential().Current().ID != d.Credential().Current().ID || s.CredentialID != d.Credential().Current().ID {
		t.Errorf("adopted %s, minted was %s", a.Credential().Current(), d.Credential().Current())
	}
	must(t, a.Credential().Renew(ctx))
	after, err := r.host.store.Read(d.File)
	if err != nil || string(after) == string(before) || r.slot(d.Life).CredentialID != a.Credential().Current().ID {
		t.Errorf("behind a renewal: %v, %+v", err, r.slot(d.Life))
	}
	if err := agent.FlushTimeout(busy.Limit(5 * time.Second)); err != nil {
		t.Errorf("the seat: %v", err)
	}
	must(t, next.retire.Retire(ctx, d.Life))
	if !agent.IsClosed() {
		t.Error("the seat is connected behind its end")
	}
	_, err = next.prov.Adopt(ctx, d.Life, d.Spec)
	wantErr(t, "adopting a life that is over", err, provision.ErrOver)
}

// The process that follows another one in the same life is found by what was recorded last.
func TestTheReferenceOfTheNextProcessIsRecordedBeforeIt(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	ctx, cancel := limit(t)
	defer cancel()
	ref := wire.RuntimeRef{Kind: "pty", ID: wire.NewCustodyID()}
	must(t, r.host.prov.SetRuntime(ctx, d.Life, ref))
	must(t, r.retire(d))
	if n := len(r.host.reaped); n != 1 || r.host.reaped[0] != ref {
		t.Errorf("reaped %v, want %v", r.host.reaped, ref)
	}
}

// proves: RECON-3
func TestASlotOfAnotherHostIsNeverChanged(t *testing.T) {
	r := newRig(t)
	ctx, cancel := limit(t)
	defer cancel()
	other, err := newHost(ctx, r.root, r.br.URL(), inst2, 1)
	must(t, err)
	defer other.retire.Close()
	must(t, other.register(ctx))
	d, err := other.spawn(ctx, spec("theirs"))
	must(t, err)
	before, err := r.host.retire.Row(ctx, d.Life.Slot())
	must(t, err)
	wantErr(t, "its end", r.retire(d), retire.ErrForeign)
	if _, held := r.host.retire.Held("theirs"); held {
		t.Error("another host's name is held by this one")
	}
	_, err = r.host.spawn(ctx, spec("theirs"))
	if !errors.Is(err, provision.ErrForeign) || !strings.Contains(err.Error(), inst2) {
		t.Errorf("a spawn under its alias: %v", err)
	}
	s := r.sweep()
	if last := s.Last(); last.Foreign != 1 || last.Attempted != 0 {
		t.Errorf("the sweep: %+v", last)
	}
	after, err := r.host.retire.Row(ctx, d.Life.Slot())
	if err != nil || after.Rev != before.Rev {
		t.Errorf("its slot has revision %d, had %d: %v", after.Rev, before.Rev, err)
	}
	must(t, other.retire.Retire(ctx, d.Life))
}

// A host that was frozen past its lease once ended what its successor had begun: its timer had fired, its connection looked
// well, and what it ends lives with is minted anew for each.
//
// proves: LEASE-9
func TestAHostThatWasReplacedEndsNoLifeOfItsSuccessor(t *testing.T) {
	r := newRig(t)
	frozen := r.host
	next, err := newHost(t.Context(), r.root, r.br.URL(), inst1, 2)
	must(t, err)
	t.Cleanup(next.retire.Close)
	ctx, cancel := limit(t)
	defer cancel()
	must(t, next.register(ctx))
	r.host = next
	d := r.spawn("reviewer")
	agent := r.agent(d)
	s := frozen.sweeper(nil) // it has no seat of that life
	defer s.Stop()
	must(t, s.Sweep(ctx, retire.SweepScheduled))
	if last := s.Last(); last.Attempted != 1 || last.Failed != 1 {
		t.Errorf("the sweep: %+v", last)
	}
	wantErr(t, "an end by the host before", frozen.retire.Retire(ctx, d.Life), retire.ErrReplaced)
	if err := agent.FlushTimeout(busy.Limit(5 * time.Second)); err != nil || r.slot(d.Life).Phase != wire.SlotActive {
		t.Errorf("the seat of its successor: %v, %+v", err, r.slot(d.Life))
	}
	must(t, r.retire(d))
}

// proves: RECON-3, RECON-5
func TestASweepLeavesWhatRunsAndWhatItCannotRead(t *testing.T) {
	r := newRig(t)
	runs, stays := r.spawn("runs"), r.spawn("left")
	agent := r.agent(runs)
	ctx, cancel := limit(t)
	defer cancel()
	nc, _ := r.everywhere()
	_, err := nc.Request("$KV.cotal_records_main.mgrslot.local.garbled", []byte(`{"owner":"local"`), busy.Limit(5*time.Second))
	nc.Close()
	must(t, err)
	s := r.host.sweeper(func(l provision.Life) bool { return l == runs.Life })
	defer s.Stop()
	must(t, s.Sweep(ctx, retire.SweepStartup))
	if last := s.Last(); last.Adopted != 1 || last.Attempted != 2 || last.Succeeded != 1 || last.Failed != 1 {
		t.Errorf("the sweep: %+v", last)
	}
	if err := agent.FlushTimeout(busy.Limit(5 * time.Second)); err != nil || r.slot(runs.Life).Phase != wire.SlotActive {
		t.Errorf("a seat that runs: %v, %+v", err, r.slot(runs.Life))
	}
	if p := r.slot(stays.Life).Phase; p != wire.SlotRetired {
		t.Errorf("what was left is %s", p)
	}
	_, err = r.host.spawn(ctx, spec("garbled"))
	wantErr(t, "a spawn under an alias that cannot be read", err, bus.ErrCorrupt)
	must(t, r.retire(runs))
}

func TestALifeThatAnotherOperationHoldsIsNotTouched(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	agent := r.agent(d)
	op := wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpTakeover}
	setGate := func(g wire.Gate) {
		t.Helper()
		r.rows(d.Life, func(ctx context.Context, rec *bus.Records) error {
			_, rev, err := provision.ReadGate(ctx, rec, d.Life.UID)
			if err != nil {
				return err
			}
			p, err := g.Encode()
			if err == nil {
				_, err = rec.Update(ctx, wire.GateKey(d.Life.UID), p, rev)
			}
			return err
		})
	}
	setGate(wire.Gate{LifecycleUID: d.Life.UID, State: wire.GateFrozen, Generation: 1, Op: &op})
	err := r.retire(d)
	var blocked *retire.BlockedError
	if !errors.As(err, &blocked) || blocked.Op != op || !errors.Is(err, retire.ErrForeign) || !strings.Contains(err.Error(), op.OpID) {
		t.Errorf("its end: %v", err)
	}
	if s := r.slot(d.Life); s.Phase != wire.SlotActive {
		t.Errorf("its slot: %+v", s)
	}
	if err := agent.FlushTimeout(busy.Limit(5 * time.Second)); err != nil {
		t.Errorf("its connection: %v", err)
	}
	if f := r.sweep().Status().Failures; len(f) != 1 || f[0].Disposition != retire.RefusedForeign || f[0].Remedy == "" {
		t.Errorf("the sweep: %+v", f)
	}
	setGate(wire.Gate{LifecycleUID: d.Life.UID, State: wire.GateOpen, Generation: 2})
	must(t, r.retire(d))
}

// A broker that is away ends no hold and fools no sweep; what was begun is finished once it is back.
//
// proves: DOWN-6, RECON-2
func TestABrokerThatIsAwayHoldsTheName(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	r.br.Shutdown()
	err := r.retire(d)
	wantErr(t, "an end without broker", err, bus.ErrUnreachable)
	if h, held := r.host.retire.Held("reviewer"); !held || h.Authority || h.Footprint {
		t.Errorf("the hold: %+v", h)
	}
	ctx, cancel := limit(t)
	defer cancel()
	s := r.host.sweeper(nil)
	defer s.Stop()
	wantErr(t, "a sweep without broker", s.Sweep(ctx, retire.SweepStartup), bus.ErrUnreachable)
	if got := s.Status(); got.State != retire.SweepFailed || s.Last().Err == "" {
		t.Errorf("status: %+v", got)
	}
	r.br, err = broker.Start(ctx, r.cfg)
	must(t, err)
	must(t, s.Sweep(ctx, retire.SweepScheduled))
	if p := r.slot(d.Life).Phase; p != wire.SlotRetired {
		t.Errorf("the slot is %s", p)
	}
	if _, held := r.host.retire.Held("reviewer"); held {
		t.Error("the name is held")
	}
}

// A store that lost the rows of a seat has lost who can end its credentials: nothing is known, and no name is freed.
func TestAStoreThatLostALifeFreesNoName(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	nc, _ := r.everywhere()
	js, err := nc.JetStream()
	must(t, err)
	must(t, js.PurgeStream("KV_cotal_records_main"))
	wantErr(t, "the end of a life that has a gate alone", r.retire(d), bus.ErrCorrupt)
	must(t, js.PurgeStream("KV_cotal_auth_main", &nats.StreamPurgeRequest{Subject: "$KV.cotal_auth_main.gate.>"}))
	nc.Close()
	wantErr(t, "the end of a life without a trace", r.retire(d), bus.ErrCorrupt)
	if h, held := r.host.retire.Held("reviewer"); !held || h.Attempts != 2 {
		t.Errorf("the hold: %+v", h)
	}
	if _, err := r.host.store.Read(d.File); err != nil {
		t.Errorf("the file that says who it was: %v", err)
	}
}

// What was said to an earlier life is not read by the next one, and each begins behind what was there.
func TestAQueueBeginsBehindWhatWasThere(t *testing.T) {
	r := newRig(t)
	nc, _ := r.everywhere()
	defer nc.Close()
	js, err := nc.JetStream()
	must(t, err)
	for range 3 {
		_, err := js.Publish("cotal.main.inst.local.x.local.y", []byte("{}"))
		must(t, err)
	}
	d := r.spawn("reviewer")
	p := wire.Principal{Owner: d.Life.Owner, Actor: d.Life.Actor}
	info, err := js.ConsumerInfo("DM_main", wire.DurableDirect(p, d.Life.UID))
	must(t, err)
	c := info.Config
	if c.OptStartSeq != 4 || c.DeliverPolicy != nats.DeliverByStartSequencePolicy || c.AckPolicy != nats.AckExplicitPolicy || c.AckWait != time.Minute || c.InactiveThreshold != 0 {
		t.Errorf("the queue: %+v", c)
	}
	must(t, r.retire(d))
}

func TestACloseEndsWhatRunsAndTheNextHostGoesOn(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	waiting := make(chan struct{})
	slow, err := retire.New(retire.Config{Auth: r.host.auth, Space: space, Instance: inst1, Store: r.host.store, Reap: func(ctx context.Context, _ wire.RuntimeRef) error {
		close(waiting)
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	must(t, err)
	given := make(chan error, 1)
	go func() { given <- slow.Retire(t.Context(), d.Life) }()
	<-waiting
	slow.Close()
	wantErr(t, "an end that the host's own cuts short", <-given, retire.ErrStopped)
	wantErr(t, "one behind it", slow.Retire(t.Context(), d.Life), retire.ErrStopped)
	r.sweep()
	if p := r.slot(d.Life).Phase; p != wire.SlotRetired {
		t.Errorf("the slot is %s", p)
	}
}

// A server that is given an account anew takes the API of the store away from it for a moment, so that every
// revocation made other operations of the space fail that ran at the same time.
func TestARevocationDoesNotFailWhatRunsBesideIt(t *testing.T) {
	r := newRig(t)
	done := make(chan struct{})
	var wg sync.WaitGroup
	other := provision.Life{Alias: "other", Caller: wire.Caller{Owner: wire.OwnerLocal, Actor: "x", UID: wire.NewUID()}}
	wg.Go(func() {
		r.rows(other, func(ctx context.Context, rec *bus.Records) error {
			for n := 0; ; n++ {
				select {
				case <-done:
					return nil
				default:
				}
				if _, err := rec.Frontier(ctx); err != nil {
					t.Errorf("reading for the %d. time: %v", n, err)
					return nil
				}
			}
		})
	})
	for range 5 {
		if err := r.retire(r.spawn("reviewer")); err != nil {
			t.Errorf("a life beside it: %v", err)
		}
	}
	close(done)
	wg.Wait()
}

// BenchmarkALife is what a spawn and its end cost on the mesh.
func BenchmarkALife(b *testing.B) {
	r := newRig(b)
	for b.Loop() {
		d := r.spawn("reviewer")
		must(b, r.retire(d))
	}
}
