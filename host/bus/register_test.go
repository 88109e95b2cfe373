package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func contractOf(t testing.TB, commands map[string]bus.Command) *bus.Contract {
	t.Helper()
	c, err := bus.NewContract("manager", "local", wire.ManagerURN, 1, commands)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func registerConfig(t testing.TB, instance string, epoch uint64) bus.RegisterConfig {
	return bus.RegisterConfig{
		Endpoint: "manager", InstanceID: instance, Epoch: epoch, Principal: "local.manager_" + instance,
		Contract: contractOf(t, echoCommands(instance)),
	}
}

func register(t testing.TB, b *bus.Bus, rec *bus.Records, cfg bus.RegisterConfig) *bus.Registration {
	t.Helper()
	r, err := b.Register(t.Context(), rec, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func gateOf(t testing.TB, rec *bus.Records, instance string) (wire.EndpointGate, uint64) {
	t.Helper()
	row, err := rec.Get(t.Context(), wire.EndpointGateKey("manager", instance))
	if err != nil {
		t.Fatal(err)
	}
	g, err := wire.DecodeEndpointGate(row.Value)
	if err != nil {
		t.Fatal(err)
	}
	return g, row.Rev
}

func serviceOf(t testing.TB, rec *bus.Records, instance string) (wire.ServiceSpec, uint64, wire.ServiceStatus) {
	t.Helper()
	key := wire.ServiceKey("manager", instance)
	row, err := rec.Get(t.Context(), key.Spec())
	if err != nil {
		t.Fatal(err)
	}
	spec, err := wire.DecodeServiceSpec(key.Spec(), row.Value)
	if err != nil {
		t.Fatal(err)
	}
	st, err := rec.Get(t.Context(), key.Status())
	if err != nil {
		t.Fatal(err)
	}
	status, err := wire.DecodeServiceStatus(st.Value)
	if err != nil {
		t.Fatal(err)
	}
	return spec, row.Rev, status
}

func TestRegistrationIsWhatOthersFind(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	rec := openRecords(t, b, &memory{})
	cfg := registerConfig(t, inst1, 3)
	r := register(t, b, rec, cfg)

	g, _ := gateOf(t, rec, inst1)
	spec, rev, status := serviceOf(t, rec, inst1)
	if g.State != wire.GateOpen || g.Op != nil || g.ProcessEpoch != 3 || g.Generation != 1 || g.RegistrationRevision != rev || g.Principal != cfg.Principal {
		t.Errorf("gate %+v, spec revision %d", g, rev)
	}
	if !slices.Equal(spec.ClusterDigests, []string{cfg.Contract.Digest}) || spec.Protocol.V != 1 || spec.Owner != "local" || r.Revision() != rev {
		t.Errorf("spec %+v, revision %d", spec, r.Revision())
	}
	if status.State != wire.ServiceStarting || status.Epoch != 3 || status.ObservedSpecRevision != rev {
		t.Errorf("status %+v", status)
	}
	for digest, doc := range cfg.Contract.Artifacts {
		if have, err := rec.GetArtifact(t.Context(), digest); err != nil || string(have) != string(doc) {
			t.Errorf("artifact %s: %v", digest, err)
		}
	}
	more := map[string]json.RawMessage{"classSpawn": json.RawMessage("true")}
	if err := r.SetState(t.Context(), wire.ServiceReady, more); err != nil {
		t.Fatal(err)
	}
	before, err := rec.Get(t.Context(), wire.ServiceKey("manager", inst1).Status())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetState(t.Context(), wire.ServiceReady, more); err != nil {
		t.Fatal(err)
	}
	if after, err := rec.Get(t.Context(), wire.ServiceKey("manager", inst1).Status()); err != nil || after.Rev != before.Rev {
		t.Errorf("the same state was written again: %d, %d, %v", before.Rev, after.Rev, err)
	}
	if _, _, status = serviceOf(t, rec, inst1); status.State != wire.ServiceReady || string(status.More["classSpawn"]) != "true" {
		t.Errorf("status %+v", status)
	}

	// A client that is not ours finds the schemas by their digests alone.
	s := serve(t, b, bus.EndpointConfig{Epoch: 3, Revision: 1, Commands: echoCommands(inst1)})
	if s.Contract().Digest != cfg.Contract.Digest {
		t.Fatal("what is served is not what is registered")
	}
	c := client(t, br.URL())
	described, err := c.Describe(t.Context(), "manager", inst1)
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := c.Schemas(t.Context(), described, "ps")
	if err != nil || in.Digest() != openDigest || out.Digest() != openDigest {
		t.Fatalf("schemas of ps: %v", err)
	}
}

func TestATakeoverFencesTheIncarnationBefore(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	rec := openRecords(t, b, &memory{})
	first := register(t, b, rec, registerConfig(t, inst1, 1))
	if err := first.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, rev, _ := serviceOf(t, rec, inst1)
	superseded := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		first.Keep(ctx, time.Millisecond, func() (string, map[string]json.RawMessage) { return wire.ServiceReady, nil }, func(err error) { superseded <- err })
	}()
	eventually(t, "the first incarnation is ready", func() bool { _, _, st := serviceOf(t, rec, inst1); return st.State == wire.ServiceReady })

	second := register(t, b, rec, registerConfig(t, inst1, 2))
	var we *wire.Error
	if err := first.Fence(t.Context()); !errors.As(err, &we) || we.Code != wire.CodeExpired || we.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("the fence of the first incarnation: %v", err)
	}
	if err := second.Fence(t.Context()); err != nil {
		t.Errorf("the fence of the second incarnation: %v", err)
	}
	if err := <-superseded; err == nil {
		t.Error("the first incarnation was told nothing")
	}
	<-kept
	if err := first.SetState(t.Context(), wire.ServiceReady, nil); !errors.Is(err, bus.ErrSuperseded) {
		t.Errorf("the first incarnation wrote over the status of the second: %v", err)
	}
	g, _ := gateOf(t, rec, inst1)
	if _, again, status := serviceOf(t, rec, inst1); g.ProcessEpoch != 2 || g.Generation != 2 || again != rev || status.Epoch != 2 {
		t.Errorf("gate %+v, status %+v, spec revision %d then %d", g, status, rev, again)
	}
	for _, epoch := range []uint64{1, 2} {
		if _, err := b.Register(t.Context(), rec, registerConfig(t, inst1, epoch)); !errors.Is(err, bus.ErrSuperseded) {
			t.Errorf("registering with epoch %d behind epoch 2: %v", epoch, err)
		}
	}
	// A restart that skipped an epoch is later, too.
	register(t, b, rec, registerConfig(t, inst1, 9))
}

// Wherever a host died while it registered, the next one goes on under the same operation.
//
// proves: RECON-11
func TestARegistrationLeftHalfDoneIsFinished(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	rec := openRecords(t, b, &memory{})
	register(t, b, rec, registerConfig(t, inst1, 1))
	g, rev := gateOf(t, rec, inst1)
	g.State, g.Op = wire.GateFrozen, &wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpRegistration}
	p, err := g.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = rec.Update(t.Context(), wire.EndpointGateKey("manager", inst1), p, rev); err != nil {
		t.Fatal(err)
	}
	r := register(t, b, rec, registerConfig(t, inst1, 3))
	if err := r.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g, _ := gateOf(t, rec, inst1); g.ProcessEpoch != 3 || g.State != wire.GateOpen {
		t.Errorf("gate %+v", g)
	}
	// Another kind of operation is not ours to end.
	g, rev = gateOf(t, rec, inst1)
	g.State, g.Op = wire.GateFrozen, &wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpTakeover}
	if p, err = g.Encode(); err != nil {
		t.Fatal(err)
	}
	if _, err = rec.Update(t.Context(), wire.EndpointGateKey("manager", inst1), p, rev); err != nil {
		t.Fatal(err)
	}
	_, err = b.Register(t.Context(), rec, registerConfig(t, inst1, 4))
	var we *wire.Error
	if !errors.As(err, &we) {
		t.Fatalf("registering into a takeover: %v", err)
	}
	if d, ok := we.Detail(wire.DetailForeignSlotHeld); !ok || d.Data["condition"] != "in-flight" {
		t.Errorf("details %+v", we.Details)
	}
	if err := r.Fence(t.Context()); err == nil {
		t.Error("a frozen gate lets commits through")
	}
}

// A registration that was cut short anywhere is finished by whoever tries again: the same incarnation, or the next.
func TestARegistrationThatWasCutShortIsTriedAgain(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	rec := openRecords(t, b, &memory{})
	for _, at := range []string{"published", "frozen", "specified", "opened"} {
		for _, next := range []bool{false, true} {
			id := wire.NewUID()
			if err := failpoint.Arm("host.register." + at + "=1*error(cut short)->off"); err != nil {
				t.Fatal(err)
			}
			r, err := b.Register(t.Context(), rec, registerConfig(t, id, 1))
			failpoint.Disarm()
			if err == nil || errors.Is(err, bus.ErrSuperseded) {
				t.Fatalf("%s: %v", at, err)
			}
			epoch := uint64(1)
			if next {
				epoch = 2
				r = register(t, b, rec, registerConfig(t, id, epoch))
			} else if err := r.Again(t.Context()); err != nil {
				t.Fatalf("%s, again: %v", at, err)
			}
			if err := r.Fence(t.Context()); err != nil {
				t.Errorf("%s: %v", at, err)
			}
			if _, _, st := serviceOf(t, rec, id); st.Epoch != epoch || st.State != wire.ServiceStarting {
				t.Errorf("%s: status %+v", at, st)
			}
		}
	}
}

// Of two hosts that are one instance by mistake, one registers.
func TestOfTwoThatRegisterAtOnceOneDoes(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	for range 10 {
		id := wire.NewUID()
		var wg sync.WaitGroup
		done := make([]*bus.Registration, 2)
		for i := range done {
			b := connectBus(t, bus.Config{InProcess: br.InProcess()})
			rec := openRecords(t, b, &memory{})
			wg.Go(func() {
				if r, err := b.Register(t.Context(), rec, registerConfig(t, id, 1)); err == nil {
					done[i] = r
				} else if !errors.Is(err, bus.ErrSuperseded) {
					t.Errorf("registering: %v", err)
				}
			})
		}
		wg.Wait()
		if (done[0] == nil) == (done[1] == nil) {
			t.Fatalf("registered: %v and %v; want one of them", done[0] != nil, done[1] != nil)
		}
	}
}

func TestInstancesAreThoseThatServe(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	rec := openRecords(t, b, &memory{})
	first := register(t, b, rec, registerConfig(t, inst1, 1))
	second := register(t, b, rec, registerConfig(t, inst2, 5))
	want := []wire.ExpectedReply{{InstanceID: inst1, RegistrationRevision: first.Revision(), Epoch: 1}, {InstanceID: inst2, RegistrationRevision: second.Revision(), Epoch: 5}}
	if got, err := first.Instances(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Fatalf("instances %+v, %v; want %+v", got, err, want)
	}
	if err := second.SetState(t.Context(), wire.ServiceExited, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := first.Instances(t.Context()); err != nil || !slices.Equal(got, want[:1]) {
		t.Fatalf("instances %+v, %v", got, err)
	}
	// A registry that cannot be read is no short one.
	br.Shutdown()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var we *wire.Error
	if _, err := first.Instances(ctx); !errors.As(err, &we) || we.Code != wire.CodeFailedPrecondition {
		t.Fatalf("instances of a registry that is away: %v", err)
	}
	if err := first.Fence(ctx); !errors.Is(err, bus.ErrUnavailable) || errors.As(err, &we) && we.Code == wire.CodeExpired {
		t.Fatalf("a fence that cannot be read: %v", err)
	}
}
