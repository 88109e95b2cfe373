package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Who takes an instance over ends what the incarnation before holds while the gate is frozen, and is registered behind that
// alone. Where that end is not proved, nobody is registered: the gate stays frozen under one operation, which the next try
// goes on with.
//
// proves: RECON-11
func TestNobodyIsRegisteredBeforeTheOneBeforeIsContained(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	rec := openRecords(t, b, &memory{})
	first := register(t, b, rec, registerConfig(t, inst1, 1))

	unproved := errors.New("a connection of the one before may live")
	var at []wire.EndpointGate // the gate as it was whenever the end was asked for
	proof := unproved
	cfg := registerConfig(t, inst1, 2)
	cfg.Contain = func(context.Context) error {
		g, _ := gateOf(t, rec, inst1)
		at = append(at, g)
		return proof
	}
	r, err := b.Register(t.Context(), rec, cfg)
	if !errors.Is(err, unproved) || errors.Is(err, bus.ErrSuperseded) {
		t.Fatalf("registered without proof: %v", err)
	}
	if g, _ := gateOf(t, rec, inst1); g.State != wire.GateFrozen || g.ProcessEpoch != 1 || g.Op == nil {
		t.Errorf("without proof the gate is %+v", g)
	}
	if err := first.Fence(t.Context()); err == nil {
		t.Error("the one before goes on")
	}
	if _, _, st := serviceOf(t, rec, inst1); st.Epoch != 1 {
		t.Errorf("the status is of epoch %d", st.Epoch)
	}

	proof = nil
	if err := r.Again(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g, _ := gateOf(t, rec, inst1); g.State != wire.GateOpen || g.ProcessEpoch != 2 {
		t.Errorf("with proof the gate is %+v", g)
	}
	if len(at) != 2 {
		t.Fatalf("the end was asked for %d times", len(at))
	}
	for i, g := range at {
		if g.State != wire.GateFrozen || g.ProcessEpoch != 1 || g.Op == nil || g.Op.Kind != wire.OpRegistration || g.Op.OpID != at[0].Op.OpID {
			t.Errorf("try %d: the gate was %+v", i+1, g)
		}
	}
}
