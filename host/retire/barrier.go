package retire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/saga"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Places where the end of a life may be cut short, in order. Called again, it goes on.
var (
	fpDecided       = failpoint.New("host.retire.decided")       // the slot says so, credentials are still minted
	fpFrozen        = failpoint.New("host.retire.frozen")        // none is minted any more
	fpRetiring      = failpoint.New("host.retire.retiring")      // the life is not the current one any more
	fpRevoked       = failpoint.New("host.retire.revoked")       // no credential of it works, nobody is connected
	fpReaped        = failpoint.New("host.retire.reaped")        // no process of it is left
	fpUnfiled       = failpoint.New("host.retire.unfiled")       // its file is gone
	fpDeprovisioned = failpoint.New("host.retire.deprovisioned") // its durables are gone, the slot does not know
	fpCleaned       = failpoint.New("host.retire.cleaned")
	fpFrontier      = failpoint.New("host.retire.frontier")
	fpGateRetired   = failpoint.New("host.retire.gate")
	fpHeadRetired   = failpoint.New("host.retire.head") // it is over, and the name is held
	fpSlotRetired   = failpoint.New("host.retire.slot")
)

// casTries is how often a lost compare-and-set is read and decided again.
const casTries = 8

// BlockedError is a life that another operation holds. It is an ErrForeign.
type BlockedError struct {
	What string // gate or head
	Op   wire.GateOp
}

// Error names the operation.
func (e *BlockedError) Error() string {
	return fmt.Sprintf("its %s is held by operation %s (%s)", e.What, e.Op.OpID, e.Op.Kind)
}

// Is makes it an ErrForeign.
func (e *BlockedError) Is(target error) bool { return target == ErrForeign }

// barrier is one attempt to end a life.
type barrier struct {
	r    *Retirer
	l    provision.Life
	hold *hold
	// draft: its provisioning failed, so that there may be no trace of it.
	draft bool

	slot    *wire.Slot
	nothing bool // the life never had anything, or is over
	gate    bool // it has a gate
	// orphan: the life was never the current one, so that its activation ends it.
	orphan bool

	// conn carries the steps that write rows; end is nil without one.
	conn *bus.Bus
	end  func()
}

// drive is one attempt.
func (r *Retirer) drive(ctx context.Context, b *barrier) error {
	h := b.hold
	defer b.close()
	if err := b.run(ctx, saga.Step{Name: "decide end", After: fpRetiring, Do: b.decide}); err != nil {
		return err
	}
	if b.nothing {
		return nil
	}
	if b.slot == nil || !b.slot.CleanupComplete {
		// Whatever cannot be done now, the rest is: a credential must not live on because a process does.
		var failed []error
		for _, s := range []saga.Step{
			{Name: "revoke credentials", After: fpRevoked, Do: b.revoke},
			{Name: "reap process", After: fpReaped, Do: b.reap},
			{Name: "remove credential file", After: fpUnfiled, Do: b.unfile},
			{Name: "remove durables", After: fpDeprovisioned, Do: b.deprovision},
		} {
			if err := b.run(ctx, s); err != nil {
				failed = append(failed, err)
			}
		}
		if len(failed) > 0 {
			return errors.Join(failed...)
		}
	}
	r.note(func() { h.Authority, h.Footprint = true, true })
	if err := b.run(ctx, saga.Step{Name: "retire life", After: fpSlotRetired, Do: b.finish}); err != nil {
		return err
	}
	r.note(func() { h.Lifecycle = true })
	return nil
}

// run runs one step that has no way back.
func (b *barrier) run(ctx context.Context, s saga.Step) error {
	err := saga.Run(ctx, "retire", nil, []saga.Step{s})
	var se *saga.Error
	if errors.As(err, &se) {
		return fmt.Errorf("%s: %w", s.Name, se.Err)
	}
	return err
}

// asExecutor runs do with the rows of the life and its slot, over one connection for all steps of the attempt.
func (b *barrier) asExecutor(ctx context.Context, do func(context.Context, *bus.Records) error) error {
	ctx, cancel := context.WithTimeout(ctx, recordsBound)
	defer cancel()
	if b.conn == nil || !b.conn.Connected() {
		b.close()
		var err error
		b.conn, b.end, err = b.r.cfg.Auth.Open(ctx, trust.Request{Profile: trust.Executor, Scope: trust.Scope{Target: b.l.Caller, Alias: b.l.Alias}})
		if err != nil {
			b.conn, b.end = nil, nil
			return err
		}
	}
	rec, err := b.conn.Rows(b.r.cfg.Space)
	if err != nil {
		return err
	}
	return do(ctx, rec)
}

// close ends the connection of the attempt.
func (b *barrier) close() {
	if b.end != nil {
		b.end()
	}
	b.conn, b.end = nil, nil
}

// decide makes the end of the life known: to whoever starts, renews or restarts it by the slot, to whoever mints by
// the gate, and to whoever addresses it by the head.
func (b *barrier) decide(ctx context.Context) error {
	return b.asExecutor(ctx, func(ctx context.Context, rec *bus.Records) error {
		if err := b.r.current(ctx, rec); err != nil {
			return err
		}
		if err := b.mayEnd(ctx, rec); err != nil {
			return err
		}
		if err := b.decideSlot(ctx, rec); err != nil || b.nothing {
			return err
		}
		if err := fpDecided.Hit(); err != nil {
			return err
		}
		if err := b.freeze(ctx, rec); err != nil {
			return err
		}
		if err := fpFrozen.Hit(); err != nil {
			return err
		}
		return b.headRetiring(ctx, rec)
	})
}

// current refuses an end that is decided by a host that has been replaced: frozen since it looked, it may take a life that
// its successor has begun for one that nobody has. Whoever succeeds registers before it begins anything, so that it is seen
// here, whatever this process knows of its lease.
func (r *Retirer) current(ctx context.Context, rec *bus.Records) error {
	if r.cfg.Epoch == 0 {
		return nil
	}
	row, err := rec.Get(ctx, wire.EndpointGateKey(wire.EndpointManager, r.cfg.Instance))
	switch {
	case errors.Is(err, bus.ErrAbsent): // lost with its store: nobody is registered
		return nil
	case err != nil:
		return fmt.Errorf("look who is registered: %w", err)
	}
	g, err := wire.DecodeEndpointGate(row.Value)
	switch {
	case err != nil:
		return fmt.Errorf("look who is registered: %w: %w", bus.ErrCorrupt, err)
	case g.ProcessEpoch > r.cfg.Epoch:
		return fmt.Errorf("%w: epoch %d is registered, this one has %d", ErrReplaced, g.ProcessEpoch, r.cfg.Epoch)
	}
	return nil
}

// mayEnd refuses, before anything is written, a life that another operation has.
func (b *barrier) mayEnd(ctx context.Context, rec *bus.Records) error {
	g, _, err := provision.ReadGate(ctx, rec, b.l.UID)
	switch {
	case errors.Is(err, bus.ErrAbsent):
		return nil
	case err != nil:
		return err
	case g.State == wire.GateFrozen && !b.own(*g.Op):
		return &BlockedError{What: "gate", Op: *g.Op}
	}
	h, _, err := provision.ReadHead(ctx, rec, b.principal())
	switch {
	case errors.Is(err, bus.ErrAbsent):
		return nil
	case err != nil:
		return err
	case h.LifecycleUID == b.l.UID && h.Op != nil && !b.own(*h.Op):
		return &BlockedError{What: "head", Op: *h.Op}
	}
	return nil
}

// own reports whether an operation is one of the two that begin and end this life.
func (b *barrier) own(op wire.GateOp) bool {
	return op.OpID == wire.RetirementOpID(b.l.UID) || op.OpID == wire.ActivationOpID(b.l.UID)
}

func (b *barrier) decideSlot(ctx context.Context, rec *bus.Records) error {
	_, err := provision.ChangeSlot(ctx, rec, b.l.Slot(), func(s *wire.Slot) (wire.Slot, error) {
		b.slot = nil
		switch {
		case s == nil || s.LifecycleUID != b.l.UID:
			// It never had the slot, or has given it up; which of the two does not matter.
			return wire.Slot{}, errNotOurs
		case s.OwnerInstanceID != b.r.cfg.Instance:
			return wire.Slot{}, &provision.HeldError{Slot: *s, Foreign: true}
		}
		next := *s
		if next.Phase != wire.SlotRetired {
			next.Phase = wire.SlotTerminalizing
		}
		b.slot = &next
		return next, nil
	})
	if errors.Is(err, errNotOurs) {
		return b.withoutSlot(ctx, rec)
	}
	var held *provision.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	b.nothing = err == nil && b.slot.Phase == wire.SlotRetired
	return err
}

var errNotOurs = errors.New("the slot is of no life, or of another one")

// withoutSlot decides about a life that has no slot. The slot comes first and goes last, so that another life in it
// means that this one was retired, or never begun; anything else is damage, and nothing is known of its credentials.
func (b *barrier) withoutSlot(ctx context.Context, rec *bus.Records) error {
	g, _, err := provision.ReadGate(ctx, rec, b.l.UID)
	switch {
	case errors.Is(err, bus.ErrAbsent) && !b.draft:
		return fmt.Errorf("%w: there is no slot and no gate of the life; what the mesh has lost is made again by: cotal-host doctor --repair", bus.ErrCorrupt)
	case errors.Is(err, bus.ErrAbsent):
	case err != nil:
		return err
	case g.State != wire.GateRetired:
		return fmt.Errorf("%w: the life has a gate, which is %s, and no slot", bus.ErrCorrupt, g.State)
	}
	b.nothing = true
	return nil
}

// freeze closes the gate. An activation that was cut short is brought to its end first, if the life was the current
// one; if it was not, that activation is what ends it.
func (b *barrier) freeze(ctx context.Context, rec *bus.Records) error {
	op := wire.GateOp{OpID: wire.RetirementOpID(b.l.UID), Kind: wire.OpRetirement}
	for range casTries {
		g, rev, err := provision.ReadGate(ctx, rec, b.l.UID)
		if errors.Is(err, bus.ErrAbsent) {
			b.gate = false
			return nil
		}
		if err != nil {
			return err
		}
		b.gate = true
		current, err := b.current(ctx, rec)
		if err != nil {
			return err
		}
		switch {
		case g.State == wire.GateRetired:
			b.orphan = g.Op.Kind == wire.OpActivation
			return nil
		case g.State == wire.GateFrozen && g.Op.OpID == op.OpID:
			return nil
		case g.State == wire.GateFrozen && g.Op.OpID == wire.ActivationOpID(b.l.UID) && !current:
			b.orphan = true
			return nil
		case g.State == wire.GateFrozen && g.Op.OpID == wire.ActivationOpID(b.l.UID):
			if err := provision.OpenGate(ctx, rec, b.l); err != nil {
				return err
			}
			continue
		case g.State == wire.GateFrozen:
			return &BlockedError{What: "gate", Op: *g.Op}
		case !current:
			return fmt.Errorf("%w: the gate of the life is open, and its principal has another life", bus.ErrCorrupt)
		}
		g.State, g.Op = wire.GateFrozen, &op
		value, err := g.Encode()
		if err != nil {
			return err
		}
		if _, err = rec.Update(ctx, wire.GateKey(b.l.UID), value, rev); !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("gate of %s: %w all the time", b.l.UID, bus.ErrConflict)
}

// current reports whether the principal has this life, in whatever state.
func (b *barrier) current(ctx context.Context, rec *bus.Records) (bool, error) {
	h, _, err := provision.ReadHead(ctx, rec, b.principal())
	if errors.Is(err, bus.ErrAbsent) {
		return false, nil
	}
	return err == nil && h.LifecycleUID == b.l.UID, err
}

func (b *barrier) principal() wire.Principal {
	return wire.Principal{Owner: b.l.Owner, Actor: b.l.Actor}
}

// headRetiring ends that the life is the current one.
func (b *barrier) headRetiring(ctx context.Context, rec *bus.Records) error {
	return b.moveHead(ctx, rec, wire.LifeRetiring)
}

// moveHead takes the head of this life to a later state, under its own operation.
func (b *barrier) moveHead(ctx context.Context, rec *bus.Records, to string) error {
	if !b.gate || b.orphan {
		return nil
	}
	op := &wire.GateOp{OpID: wire.RetirementOpID(b.l.UID), Kind: wire.OpRetirement}
	for range casTries {
		h, rev, err := provision.ReadHead(ctx, rec, b.principal())
		switch {
		case err != nil:
			return err
		case h.LifecycleUID != b.l.UID:
			return nil // a later life has the principal: this one is over
		case h.State == to || h.State == wire.LifeRetired:
			if h.Op != nil && h.Op.OpID != op.OpID {
				return &BlockedError{What: "head", Op: *h.Op}
			}
			return nil
		case h.Op != nil && h.Op.OpID != op.OpID:
			return &BlockedError{What: "head", Op: *h.Op}
		}
		h.State, h.Op = to, nil
		if to == wire.LifeRetiring {
			h.Op = op
		}
		value, err := h.Encode()
		if err != nil {
			return err
		}
		if _, err = rec.Update(ctx, wire.LifecycleKey(b.principal()), value, rev); !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("head of %s: %w all the time", b.principal(), bus.ErrConflict)
}

// revoke ends every credential of the life, with proof from every server.
func (b *barrier) revoke(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, revokeBound)
	defer cancel()
	if _, err := b.r.cfg.Auth.Revoke(ctx, trust.Life{UID: b.l.UID, Actor: b.l.Actor}); err != nil {
		return err
	}
	b.r.note(func() { b.hold.Authority = true })
	return nil
}

// reap ends the process, by the reference that was recorded before there was one.
func (b *barrier) reap(ctx context.Context) error {
	if b.slot == nil || b.slot.Runtime == nil {
		return fmt.Errorf("%w: the slot does not say by what its process is found", bus.ErrCorrupt)
	}
	ctx, cancel := context.WithTimeout(ctx, reapBound)
	defer cancel()
	return b.r.cfg.Reap(ctx, *b.slot.Runtime)
}

// unfile removes the credential's file, by the name that was recorded: two lives of one alias have two names. Where that
// is not the one of this life, the file itself has to say that it is: beside it are the keys of the space, and the files of
// other seats, and a row that was changed must not take them away.
func (b *barrier) unfile(context.Context) error {
	if b.slot == nil || b.slot.CredentialFile == "" {
		return nil
	}
	name := b.slot.CredentialFile
	if name != trust.CredentialFile(b.r.cfg.Space, b.l.Alias, b.l.UID) {
		_, key, err := trust.InFile(b.r.cfg.Store, name, b.l.Actor)
		clear(key.Seed)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("%w: the slot names the file %q, which is not that of this life: %w", bus.ErrCorrupt, name, err)
		}
	}
	return b.r.cfg.Store.Remove(name)
}

// deprovision takes away what is named after the life, with a credential that reaches nothing else.
func (b *barrier) deprovision(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deprovisionBound)
	defer cancel()
	p, space := b.principal(), b.r.cfg.Space
	return b.r.cfg.Auth.With(ctx, trust.Request{Profile: trust.Deprovisioner, Scope: trust.Scope{Target: b.l.Caller}},
		func(ctx context.Context, c *bus.Bus) error {
			_, derr := c.RemoveDurable(ctx, space, wire.StreamDirect, wire.DurableDirect(p, b.l.UID))
			_, herr := c.RemoveDurable(ctx, space, wire.StreamChat, wire.DurableHistory(p, b.l.UID))
			return errors.Join(derr, herr, c.RemoveMembership(ctx, space, p))
		})
}

// finish says that nothing is left.
func (b *barrier) finish(ctx context.Context) error {
	return b.asExecutor(ctx, func(ctx context.Context, rec *bus.Records) error {
		if err := b.moveSlot(ctx, rec, wire.SlotTerminalizing); err != nil {
			return err
		}
		if err := fpCleaned.Hit(); err != nil {
			return err
		}
		if err := b.owesNothing(ctx, rec); err != nil {
			return err
		}
		if err := b.frontier(ctx, rec); err != nil {
			return err
		}
		if err := fpFrontier.Hit(); err != nil {
			return err
		}
		if err := b.retireGate(ctx, rec); err != nil {
			return err
		}
		if err := fpGateRetired.Hit(); err != nil {
			return err
		}
		if err := b.moveHead(ctx, rec, wire.LifeRetired); err != nil {
			return err
		}
		if err := fpHeadRetired.Hit(); err != nil {
			return err
		}
		return b.moveSlot(ctx, rec, wire.SlotRetired)
	})
}

// moveSlot writes the slot with nothing left behind it.
func (b *barrier) moveSlot(ctx context.Context, rec *bus.Records, phase string) error {
	_, err := provision.ChangeSlot(ctx, rec, b.l.Slot(), func(s *wire.Slot) (wire.Slot, error) {
		if s == nil || s.LifecycleUID != b.l.UID {
			return wire.Slot{}, fmt.Errorf("%w: the slot changed while its life was ended", bus.ErrCorrupt)
		}
		next := *s
		next.Phase, next.CleanupComplete = phase, true
		return next, nil
	})
	return err
}

// owesNothing looks for obligations towards the life. Nothing of this project makes any, so that what is there is
// another program's to settle.
func (b *barrier) owesNothing(ctx context.Context, rec *bus.Records) error {
	filter, err := wire.KeyFilter(wire.KindObligation, b.l.UID)
	if err != nil {
		return err
	}
	rows, err := rec.Scan(ctx, filter)
	if err != nil {
		return err
	}
	if len(rows) > 0 {
		name, _ := rows[0].Key.Encode()
		return fmt.Errorf("%w: %d obligations towards it are not settled, %s among them", ErrForeign, len(rows), name)
	}
	return nil
}

// frontier notes, once, where the streams stood.
func (b *barrier) frontier(ctx context.Context, rec *bus.Records) error {
	if !b.gate || b.orphan {
		return nil
	}
	key := wire.Key{Kind: wire.KindFrontier, Qualifiers: []string{b.l.UID}}
	op := wire.RetirementOpID(b.l.UID)
	streams, err := rec.Frontier(ctx)
	if err != nil {
		return err
	}
	value, err := wire.Frontier{LifecycleUID: b.l.UID, OpID: op, Streams: streams}.Encode()
	if err != nil {
		return err
	}
	if _, err = rec.Create(ctx, key, value); !errors.Is(err, bus.ErrConflict) {
		return err
	}
	row, err := rec.Get(ctx, key)
	if err != nil {
		return err
	}
	have, err := wire.DecodeFrontier(row.Value)
	if err != nil || have.LifecycleUID != b.l.UID || have.OpID != op {
		return fmt.Errorf("%w: the frontier of the life is of operation %s: %w", bus.ErrCorrupt, have.OpID, err)
	}
	return nil
}

// retireGate closes the gate for good.
func (b *barrier) retireGate(ctx context.Context, rec *bus.Records) error {
	if !b.gate {
		return nil
	}
	for range casTries {
		g, rev, err := provision.ReadGate(ctx, rec, b.l.UID)
		switch {
		case err != nil:
			return err
		case g.State == wire.GateRetired:
			return nil
		case g.State != wire.GateFrozen || !wire.GateMove(false, g.State, wire.GateRetired, g.Op.Kind):
			return fmt.Errorf("%w: its gate is %s while it is retired", bus.ErrCorrupt, g.State)
		}
		g.State = wire.GateRetired
		value, err := g.Encode()
		if err != nil {
			return err
		}
		if _, err = rec.Update(ctx, wire.GateKey(b.l.UID), value, rev); !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("gate of %s: %w all the time", b.l.UID, bus.ErrConflict)
}
