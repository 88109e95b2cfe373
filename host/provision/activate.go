package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// activate makes the life the current one of its principal. Every write is of one operation whose id follows from
// the life, so that what was written before an answer was lost is recognised.
func (p *Provisioner) activate(ctx context.Context, d *Draft) error {
	err := p.onRows(ctx, d, func(ctx context.Context, rec *bus.Records) error {
		if err := p.reserve(ctx, rec, d.Life); err != nil {
			return err
		}
		if err := fpUID.Hit(); err != nil {
			return err
		}
		frozen, err := p.freeze(ctx, rec, d.Life)
		if err != nil {
			return err
		}
		if err := fpFrozen.Hit(); err != nil {
			return err
		}
		if err := p.takeHead(ctx, rec, d.Life); err != nil {
			return err
		}
		if err := fpHead.Hit(); err != nil {
			return err
		}
		if frozen != 0 {
			if err := openGate(ctx, rec, d.Life, wire.Gate{}, frozen); !errors.Is(err, bus.ErrConflict) {
				return err
			}
		}
		return OpenGate(ctx, rec, d.Life)
	})
	if err != nil {
		return fmt.Errorf("activate %s: %w", d.Life.Alias, err)
	}
	return nil
}

// reserve takes the uid, for ever.
func (p *Provisioner) reserve(ctx context.Context, rec *bus.Records, l Life) error {
	value, err := wire.UIDReservation{Owner: l.Owner, Actor: l.Actor, MintedBy: p.cfg.Instance}.Encode()
	if err != nil {
		return err
	}
	_, err = rec.Create(ctx, wire.UIDKey(l.UID), value)
	if errors.Is(err, bus.ErrConflict) {
		have, gerr := rec.Get(ctx, wire.UIDKey(l.UID))
		switch {
		case gerr != nil:
			return gerr
		case !bytes.Equal(have.Value, value):
			return fmt.Errorf("%w: uid %s", ErrTaken, l.UID)
		}
		return nil
	}
	return err
}

// freeze has the gate born: nothing is minted before the life is the current one. It returns its revision, 0 for one
// that was there.
func (p *Provisioner) freeze(ctx context.Context, rec *bus.Records, l Life) (uint64, error) {
	value, err := wire.Gate{
		LifecycleUID: l.UID, State: wire.GateFrozen, Op: &wire.GateOp{OpID: wire.ActivationOpID(l.UID), Kind: wire.OpActivation},
	}.Encode()
	if err != nil {
		return 0, err
	}
	rev, err := rec.Create(ctx, wire.GateKey(l.UID), value)
	if errors.Is(err, bus.ErrConflict) {
		g, _, gerr := ReadGate(ctx, rec, l.UID)
		switch {
		case gerr != nil:
			return 0, gerr
		case g.State == wire.GateOpen, g.State == wire.GateFrozen && g.Op.OpID == wire.ActivationOpID(l.UID):
			return 0, nil
		}
		return 0, fmt.Errorf("%w: its gate is %s by operation %s (%s)", ErrOver, g.State, g.Op.OpID, g.Op.Kind)
	}
	return rev, err
}

// takeHead makes the life the one that the principal has. One that has a life already keeps it.
func (p *Provisioner) takeHead(ctx context.Context, rec *bus.Records, l Life) error {
	pr := wire.Principal{Owner: l.Owner, Actor: l.Actor}
	key := wire.LifecycleKey(pr)
	value, err := wire.LifecycleHead{
		Owner: l.Owner, Actor: l.Actor, LifecycleUID: l.UID, ManagerInstance: p.cfg.Instance, ProcessEpoch: 1, State: wire.LifeActive,
	}.Encode()
	if err != nil {
		return err
	}
	// Nearly always it is the first life of its principal.
	if _, err := rec.Create(ctx, key, value); !errors.Is(err, bus.ErrConflict) {
		return err
	}
	for range casTries {
		h, rev, err := ReadHead(ctx, rec, pr)
		switch {
		case errors.Is(err, bus.ErrAbsent):
			_, err = rec.Create(ctx, key, value)
		case err != nil:
		case h.LifecycleUID == l.UID && h.State == wire.LifeActive:
			return nil
		case h.LifecycleUID == l.UID:
			return fmt.Errorf("%w: it is %s", ErrOver, h.State)
		case h.State != wire.LifeRetired:
			return fmt.Errorf("%w: principal %s has life %s, which is %s", ErrTaken, pr, h.LifecycleUID, h.State)
		default:
			_, err = rec.Update(ctx, key, value, rev)
		}
		if !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("head of %s: %w all the time", pr, bus.ErrConflict)
}

// OpenGate is the last step of an activation: from here on credentials are minted. It is done by whoever finds it
// undone, under the same operation.
//
// Errors: ErrOver, bus.ErrCorrupt, bus.ErrUnavailable.
func OpenGate(ctx context.Context, rec *bus.Records, l Life) error {
	for range casTries {
		g, rev, err := ReadGate(ctx, rec, l.UID)
		if err != nil {
			return err
		}
		switch {
		case g.State == wire.GateOpen:
			return nil
		case g.State != wire.GateFrozen || g.Op.OpID != wire.ActivationOpID(l.UID) || !wire.GateMove(false, g.State, wire.GateOpen, g.Op.Kind):
			return fmt.Errorf("%w: its gate is %s by operation %s (%s)", ErrOver, g.State, g.Op.OpID, g.Op.Kind)
		}
		if err = openGate(ctx, rec, l, g, rev); !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("gate of %s: %w all the time", l.UID, bus.ErrConflict)
}

// openGate opens a gate as it was read.
func openGate(ctx context.Context, rec *bus.Records, l Life, was wire.Gate, rev uint64) error {
	value, err := wire.Gate{LifecycleUID: l.UID, State: wire.GateOpen, Generation: was.Generation + 1}.Encode()
	if err == nil {
		_, err = rec.Update(ctx, wire.GateKey(l.UID), value, rev)
	}
	return err
}

// ReadGate reads the gate of a life from the leader.
//
// Errors: bus.ErrAbsent, bus.ErrCorrupt, bus.ErrUnavailable.
func ReadGate(ctx context.Context, rec *bus.Records, uid string) (wire.Gate, uint64, error) {
	row, err := rec.Get(ctx, wire.GateKey(uid))
	if err != nil {
		return wire.Gate{}, 0, err
	}
	g, err := wire.DecodeGate(uid, row.Value)
	if err != nil {
		return wire.Gate{}, 0, fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
	}
	return g, row.Rev, nil
}

// ReadHead reads the head of a principal from the leader. Errors: as of ReadGate.
func ReadHead(ctx context.Context, rec *bus.Records, p wire.Principal) (wire.LifecycleHead, uint64, error) {
	row, err := rec.Get(ctx, wire.LifecycleKey(p))
	if err != nil {
		return wire.LifecycleHead{}, 0, err
	}
	h, err := wire.DecodeLifecycleHead(p, row.Value)
	if err != nil {
		return wire.LifecycleHead{}, 0, fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
	}
	return h, row.Rev, nil
}
