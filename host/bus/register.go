package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Places where a registration may be cut short.
var (
	fpPublished = failpoint.New("host.register.published") // the contract is there, and the gate is as it was
	fpFrozen    = failpoint.New("host.register.frozen")    // the gate is ours, and nobody is registered
	fpSpecified = failpoint.New("host.register.specified")
	fpOpened    = failpoint.New("host.register.opened") // registered, and the status is the one before
)

// ErrSuperseded: another incarnation of this instance is registered, or registers at this moment.
var ErrSuperseded = errors.New("another incarnation of this instance is registered")

// RegisterConfig says who registers what.
type RegisterConfig struct {
	Endpoint   string
	InstanceID string
	// Epoch of this incarnation. It has to be higher than that of every earlier one.
	Epoch uint64
	// Owner of the endpoint; default local. Principal is the serving one, owner.actor.
	Owner, Principal string
	Contract         *Contract
	// Contain ends what earlier incarnations may still do, while the gate is frozen and before this one is
	// registered; an error leaves it so, to be gone on with. nil: nobody has anything that could be ended.
	Contain func(context.Context) error
	Log     hclog.Logger
}

// Registration is this incarnation's entry in the registry of its space: a gate that fences the earlier
// ones, and a record that others find it by.
type Registration struct {
	rec  *Records
	cfg  RegisterConfig
	spec wire.Key
	gate wire.Key

	revision uint64 // of the spec
	claim    string // what this executor has put into the operation that holds the gate
	opening  bool   // it has opened the gate, or may have

	// writing admits one writer of the status at a time: its writes have an order.
	writing chan struct{}
}

// casTries is how often a lost compare-and-set on a row of our own is read and tried again.
const casTries = 5

// Register makes this incarnation the registered one of its instance, in this order: the documents of the
// contract, the gate frozen, the service spec, the gate open again with this epoch, the status `starting`. A
// registration that an earlier incarnation left half done is finished under its own operation: whoever holds
// the lock of the instance knows that that one is dead. It serves nothing by itself.
//
// Errors: ErrSuperseded (the gate has this epoch or a later one, or another operation holds it), with a *wire.Error
// with a detail foreign-slot-held in the chain that says what holds the gate; ErrUnavailable, ErrCorrupt, and then
// the registration that is returned may be tried Again.
func (b *Bus) Register(ctx context.Context, rec *Records, cfg RegisterConfig) (*Registration, error) {
	if cfg.Owner == "" {
		cfg.Owner = wire.OwnerLocal
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	r := &Registration{
		rec: rec, cfg: cfg, claim: wire.NewUID(), writing: make(chan struct{}, 1),
		spec: wire.ServiceKey(cfg.Endpoint, cfg.InstanceID).Spec(), gate: wire.EndpointGateKey(cfg.Endpoint, cfg.InstanceID),
	}
	return r, r.Again(ctx)
}

// Through goes on over other records: those that register need not be those that look after it. It is not called
// beside anything else.
func (r *Registration) Through(rec *Records) { r.rec = rec }

// Again goes on with a registration that did not come to its end. Errors: as of Register.
func (r *Registration) Again(ctx context.Context) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
		done *failpoint.Point
	}{
		{"publish contract", r.publish, fpPublished},
		{"take gate", r.contained, fpFrozen},
		{"write service spec", r.writeSpec, fpSpecified},
		{"open gate", r.reopen, fpOpened},
	} {
		err := step.do(ctx)
		if err == nil {
			err = step.done.Hit()
		}
		if err != nil {
			return fmt.Errorf("register %s %s: %s: %w", r.cfg.Endpoint, r.cfg.InstanceID, step.name, err)
		}
	}
	// It is registered now, whether others are told yet or not.
	if err := r.SetState(ctx, wire.ServiceStarting, nil); err != nil {
		r.cfg.Log.Warn("registered, but the state is not told yet", "err", err)
	}
	return nil
}

// publish stores every document of the contract. The manifest of the contract goes last: where it is, all the
// others are, and nothing is ever taken out of that store.
func (r *Registration) publish(ctx context.Context) error {
	c := r.cfg.Contract
	switch _, err := r.rec.GetArtifact(ctx, c.Digest); {
	case err == nil:
		return nil
	case !errors.Is(err, ErrAbsent):
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for digest, doc := range c.Artifacts {
		if digest != c.Digest {
			g.Go(func() error { return r.rec.PutArtifact(gctx, digest, doc) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return r.rec.PutArtifact(ctx, c.Digest, c.Artifacts[c.Digest])
}

// readGate reads the gate from the leader.
func (r *Registration) readGate(ctx context.Context) (wire.EndpointGate, uint64, error) {
	return r.readGateOver(ctx, r.rec)
}

func (r *Registration) readGateOver(ctx context.Context, rec *Records) (wire.EndpointGate, uint64, error) {
	row, err := rec.Get(ctx, r.gate)
	if err != nil {
		return wire.EndpointGate{}, 0, err
	}
	g, err := wire.DecodeEndpointGate(row.Value)
	if err != nil {
		return g, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return g, row.Rev, nil
}

// freeze takes the gate for a registration. It is born open, without epoch, by the first one.
func (r *Registration) freeze(ctx context.Context) error {
	for range casTries {
		g, rev, err := r.readGate(ctx)
		if errors.Is(err, ErrAbsent) {
			g = wire.EndpointGate{State: wire.GateOpen, Principal: r.cfg.Principal}
			rev, err = r.writeGate(ctx, "", g, 0)
			if errors.Is(err, ErrConflict) {
				continue // somebody else was first: read what it wrote
			}
		}
		if err != nil {
			return err
		}
		if r.opened(g) {
			return nil
		}
		if g.ProcessEpoch >= r.cfg.Epoch {
			return fmt.Errorf("%w: it has epoch %d, this one has %d. If no other host runs as this instance, its files (.cotal/host) are older than the mesh's: restore later ones, or remove them to start as a new instance", ErrSuperseded, g.ProcessEpoch, r.cfg.Epoch)
		}
		op := &wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpRegistration}
		if g.State == wire.GateFrozen && g.Op.Kind == wire.OpRegistration {
			op.OpID = g.Op.OpID // left half done by an incarnation that is dead: gone on with
		} else if g.State != wire.GateOpen {
			held := wire.Refuse(wire.CodeFailedPrecondition, "its gate is %s by operation %s (%s)", g.State, g.Op.OpID, g.Op.Kind).
				With(wire.DetailForeignSlotHeld, map[string]any{"condition": "in-flight", "opId": g.Op.OpID, "kind": g.Op.Kind})
			return fmt.Errorf("%w: %w", ErrSuperseded, held)
		}
		// The claim tells two executors of one operation apart: should the one before live after all, it has lost.
		op.Successor = r.claim
		from := g.State
		g.State, g.Op = wire.GateFrozen, op
		if _, err := r.writeGate(ctx, from, g, rev); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: its gate changes all the time", ErrSuperseded)
}

// contained freezes the gate and ends what earlier incarnations hold.
func (r *Registration) contained(ctx context.Context) error {
	if err := r.freeze(ctx); err != nil || r.cfg.Contain == nil {
		return err
	}
	return r.cfg.Contain(ctx)
}

// writeGate writes the gate if the move is one; rev 0 creates it. A frozen gate that stays frozen gets another
// executor.
func (r *Registration) writeGate(ctx context.Context, from string, g wire.EndpointGate, rev uint64) (uint64, error) {
	if from != wire.GateFrozen || g.State != from {
		if !wire.GateMove(true, from, g.State, wire.OpRegistration) {
			return 0, fmt.Errorf("a registration does not take a gate from %q to %q", from, g.State)
		}
	}
	p, err := g.Encode()
	if err != nil {
		return 0, err
	}
	if rev == 0 {
		return r.rec.Create(ctx, r.gate, p)
	}
	return r.rec.Update(ctx, r.gate, p, rev)
}

// writeSpec writes what this instance is registered as. One that says the same already keeps its revision:
// nobody has to look again.
func (r *Registration) writeSpec(ctx context.Context) error {
	want := wire.ServiceSpec{
		Endpoint: r.cfg.Endpoint, Owner: r.cfg.Owner, ClusterDigests: []string{r.cfg.Contract.Digest},
		Protocol: wire.Protocol{V: wire.DescriptorVersion},
	}
	p, err := want.Encode()
	if err != nil {
		return err
	}
	for range casTries {
		row, err := r.rec.Get(ctx, r.spec)
		switch {
		case errors.Is(err, ErrAbsent):
			r.revision, err = r.rec.Create(ctx, r.spec, p)
		case err != nil:
		case bytes.Equal(row.Value, p):
			r.revision = row.Rev
		default:
			r.revision, err = r.rec.Update(ctx, r.spec, p, row.Rev)
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: its spec changes all the time", ErrSuperseded)
}

// reopen commits the registration: from here on this epoch is the current one.
func (r *Registration) reopen(ctx context.Context) error {
	for range casTries {
		g, rev, err := r.readGate(ctx)
		if err != nil {
			return err
		}
		if r.opened(g) {
			return nil
		}
		if g.State != wire.GateFrozen || g.Op.Successor != r.claim {
			return fmt.Errorf("%w: its gate is %s with epoch %d", ErrSuperseded, g.State, g.ProcessEpoch)
		}
		from := g.State
		g.State, g.Op = wire.GateOpen, nil
		g.Generation++
		g.ProcessEpoch, g.RegistrationRevision, g.Principal = r.cfg.Epoch, r.revision, r.cfg.Principal
		_, err = r.writeGate(ctx, from, g, rev)
		// A write that lost did not happen; one whose answer was lost may have.
		r.opening = !errors.Is(err, ErrConflict) && !errors.Is(err, ErrNotWritten)
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: its gate changes all the time", ErrSuperseded)
}

// opened reports whether a gate is as this executor has tried to leave it: the answer to its write was lost then.
func (r *Registration) opened(g wire.EndpointGate) bool {
	return r.opening && g.State == wire.GateOpen && g.ProcessEpoch == r.cfg.Epoch && g.RegistrationRevision == r.revision
}

// Revision is the registration revision: the store's revision of the service spec.
func (r *Registration) Revision() uint64 { return r.revision }

// Fence says whether this incarnation still is the registered one, by a fresh read of its gate from the leader.
//
// Errors: *wire.Error expired, not-executed, when it is not; ErrUnavailable and ErrCorrupt, when that cannot be
// told: nothing may be committed then either.
func (r *Registration) Fence(ctx context.Context) error { return r.FenceOver(ctx, r.rec) }

// FenceOver is Fence over other records: those of a registration are taken away from it by whoever takes over.
func (r *Registration) FenceOver(ctx context.Context, rec *Records) error {
	g, _, err := r.readGateOver(ctx, rec)
	switch {
	case errors.Is(err, ErrAbsent):
		return fmt.Errorf("fence: %w", wire.Refuse(wire.CodeExpired, "the gate of instance %s is gone", r.cfg.InstanceID))
	case err != nil:
		return fmt.Errorf("fence: %w", err)
	case g.ProcessEpoch != r.cfg.Epoch || g.State != wire.GateOpen:
		return fmt.Errorf("fence: %w", wire.Refuse(wire.CodeExpired, "instance %s has epoch %d now and its gate is %s; this is epoch %d", r.cfg.InstanceID, g.ProcessEpoch, g.State, r.cfg.Epoch))
	}
	return nil
}

// SetState writes the state others see (wire.ServiceReady, …) with further members of the status, unless they
// see just that. The status of a later incarnation is never written over.
//
// Errors: ErrSuperseded, ErrUnavailable (unknown), ErrCorrupt.
func (r *Registration) SetState(ctx context.Context, state string, more map[string]json.RawMessage) error {
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-ctx.Done():
		return fmt.Errorf("write service status: %w", ctx.Err())
	}
	key := r.spec.Status()
	for range casTries {
		row, err := r.rec.Get(ctx, key)
		var have wire.ServiceStatus
		switch {
		case errors.Is(err, ErrAbsent):
			row.Rev = 0
		case err != nil:
			return fmt.Errorf("write service status: %w", err)
		default:
			if have, err = wire.DecodeServiceStatus(row.Value); err != nil {
				return fmt.Errorf("write service status: %w: %w", ErrCorrupt, err)
			}
		}
		if have.Epoch > r.cfg.Epoch {
			return fmt.Errorf("write service status: %w: it has epoch %d, this one has %d", ErrSuperseded, have.Epoch, r.cfg.Epoch)
		}
		want := wire.ServiceStatus{
			Epoch: r.cfg.Epoch, State: state, ObservedSpecRevision: r.revision, Restarts: have.Restarts, More: more,
		}
		p, err := want.Encode()
		switch {
		case err != nil:
			return fmt.Errorf("write service status: %w", err)
		case row.Rev != 0 && bytes.Equal(p, row.Value):
		case row.Rev == 0:
			_, err = r.rec.Create(ctx, key, p)
		default:
			_, err = r.rec.Update(ctx, key, p, row.Rev)
		}
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write service status: %w", err)
		}
		return nil
	}
	return fmt.Errorf("write service status: %w: it changes all the time", ErrSuperseded)
}

// Keep looks after the registration until ctx ends: every interval it holds the fence against this incarnation
// and writes the state again that state returns. superseded is called once, when the fence says that another
// incarnation is registered; a registry that does not answer is waited for.
func (r *Registration) Keep(ctx context.Context, every time.Duration, state func() (string, map[string]json.RawMessage), superseded func(error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		err := r.Fence(ctx)
		if err == nil {
			now, more := state()
			err = r.SetState(ctx, now, more)
		}
		var over *wire.Error
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, ErrSuperseded), errors.As(err, &over) && over.Code == wire.CodeExpired:
			superseded(err)
			return
		default:
			r.cfg.Log.Warn("registration cannot be looked after", "err", err)
		}
	}
}

// Instances reads whom a scatter has to expect: the registered instances of the endpoint whose status has
// caught up with their registration and that are neither ended nor escalated.
//
// Errors: *wire.Error failed-precondition, not-executed, when the registry cannot be read: a set that is not
// whole would pass for one that is.
func (r *Registration) Instances(ctx context.Context) ([]wire.ExpectedReply, error) {
	rows, err := r.rec.Scan(ctx, wire.KindService+"."+wire.EndpointToken(r.cfg.Endpoint))
	if err != nil {
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "the registry of the space cannot be read: %s", err)
	}
	revisions := map[string]uint64{}
	statuses := map[string]wire.ServiceStatus{}
	for _, row := range rows {
		id := row.Key.Qualifiers[1]
		switch row.Key.Part {
		case wire.PartSpec:
			revisions[id] = row.Rev
		case wire.PartStatus:
			st, err := wire.DecodeServiceStatus(row.Value)
			if err != nil {
				return nil, wire.Refuse(wire.CodeFailedPrecondition, "the registry of the space cannot be read: instance %s: %s", id, err)
			}
			statuses[id] = st
		}
	}
	out := []wire.ExpectedReply{}
	for id, st := range statuses {
		if revision, registered := revisions[id]; registered {
			if e, ok := wire.ScatterEntry(id, revision, st); ok {
				out = append(out, e)
			}
		}
	}
	slices.SortFunc(out, func(a, b wire.ExpectedReply) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return out, nil
}
