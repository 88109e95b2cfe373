package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Found is what the mesh has of a life that a seat lives, read row by row. What is nil is not there.
type Found struct {
	Slot *wire.Slot
	UID  *wire.UIDReservation
	Gate *wire.Gate
	Head *wire.LifecycleHead
	// Credential is the ledger row of the credential that is in the life's file, and File says how it is with that
	// file: nil, fs.ErrNotExist, or why it cannot be used.
	Credential *wire.CredentialRow
	File       error
	// NoQueue: its durable of direct messages is not there.
	NoQueue bool
}

// Verdict is how it stands with a life on the mesh.
type Verdict string

// Verdicts.
const (
	Whole Verdict = "whole" // it has all it needs
	Lost  Verdict = "lost"  // some of it is gone, and can be made again
	Over  Verdict = "over"  // its end is decided: it is to be ended, and gets nothing any more
	Taken Verdict = "taken" // another life, another operation or another host has what is its own
)

// Judge says how it stands with a life of this instance by what was found, and why: what is missing, or who has it.
func (f Found) Judge(l Life, instance string) (v Verdict, why []string) {
	lost := func(what string) { why = append(why, what) }
	taken := func(format string, args ...any) (Verdict, []string) {
		return Taken, []string{fmt.Sprintf(format, args...)}
	}
	switch s := f.Slot; {
	case s == nil:
		lost("its slot")
	case s.LifecycleUID != l.UID && s.Phase == wire.SlotRetired:
		lost("its slot (the one of a life before is there)")
	case s.LifecycleUID != l.UID:
		return taken("its slot is of life %s, which is %s", s.LifecycleUID, s.Phase)
	case s.OwnerInstanceID != instance:
		return taken("its slot is of host %s", s.OwnerInstanceID)
	case s.Phase == wire.SlotTerminalizing, s.Phase == wire.SlotRetired:
		return Over, []string{"its slot is " + s.Phase}
	case s.Phase != wire.SlotActive:
		lost("its slot is only " + s.Phase)
	}
	switch u := f.UID; {
	case u == nil:
		lost("the reservation of its uid")
	case u.Owner != l.Owner || u.Actor != l.Actor:
		return taken("its uid is reserved for %s.%s", u.Owner, u.Actor)
	}
	switch g := f.Gate; {
	case g == nil:
		lost("its gate")
	case g.State == wire.GateRetired:
		return Over, []string{"its gate is retired"}
	case g.State == wire.GateFrozen && g.Op.OpID == wire.RetirementOpID(l.UID):
		return Over, []string{"its gate is frozen for its end"}
	case g.State == wire.GateFrozen && g.Op.OpID == wire.ActivationOpID(l.UID):
		lost("its gate is not open yet")
	case g.State != wire.GateOpen:
		return taken("its gate is %s by operation %s (%s)", g.State, g.Op.OpID, g.Op.Kind)
	}
	switch h := f.Head; {
	case h == nil:
		lost("the head of its principal")
	case h.LifecycleUID != l.UID && h.State == wire.LifeRetired:
		lost("the head of its principal (the one of a life before is there)")
	case h.LifecycleUID != l.UID:
		return taken("its principal has life %s, which is %s", h.LifecycleUID, h.State)
	case h.State != wire.LifeActive:
		return Over, []string{"its life is " + h.State}
	}
	switch {
	case errors.Is(f.File, fs.ErrNotExist):
		lost("the file of its credential")
	case f.File != nil:
		lost("its credential (" + f.File.Error() + ")")
	case f.Credential == nil:
		lost("the ledger row of its credential")
	case f.Credential.State != wire.CredentialActive:
		return Over, []string{"its credential is revoked"}
	}
	if f.NoQueue {
		lost("its queue of direct messages")
	}
	if len(why) > 0 {
		return Lost, why
	}
	return Whole, nil
}

// Looker is what of the authority of the space is used to look.
type Looker interface {
	With(ctx context.Context, r trust.Request, do func(context.Context, *bus.Bus) error) error
}

// Look reads what the mesh has of a life, from the leader. It changes nothing.
//
// Errors: those of trust.Authority, bus.ErrUnavailable, bus.ErrCorrupt (a row is there and cannot be read; it is named).
func Look(ctx context.Context, auth Looker, store trust.SecretStore, space string, l Life) (Found, error) {
	var f Found
	err := auth.With(ctx, executorOf(l), func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(space)
		if err != nil {
			return err
		}
		return f.rows(ctx, rec, store, l)
	})
	if err == nil && f.Slot != nil {
		err = auth.With(ctx, trust.Request{Profile: trust.Provisioner, Scope: trust.Scope{Target: l.Caller}}, func(ctx context.Context, b *bus.Bus) error {
			has, err := b.HasDurable(ctx, space, wire.StreamDirect, wire.DurableDirect(wire.Principal{Owner: l.Owner, Actor: l.Actor}, l.UID))
			f.NoQueue = err == nil && !has
			return err
		})
		if errors.Is(err, trust.ErrGate) {
			err = nil // nobody is registered, so nobody provisions: that is told of by itself
		}
	}
	if err != nil {
		return f, fmt.Errorf("look at life of %s: %w", l.Alias, err)
	}
	return f, nil
}

// rows reads the rows of a life and its file.
func (f *Found) rows(ctx context.Context, rec *bus.Records, store trust.SecretStore, l Life) error {
	s, _, err := ReadSlot(ctx, rec, l.Slot())
	if err := present(err, func() { f.Slot = &s }); err != nil {
		return err
	}
	row, err := rec.Get(ctx, wire.UIDKey(l.UID))
	if err == nil {
		var u wire.UIDReservation
		if u, err = wire.DecodeUIDReservation(row.Value); err != nil {
			err = fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
		}
		f.UID = &u
	}
	if err := present(err, func() {}); err != nil {
		return err
	}
	g, _, err := ReadGate(ctx, rec, l.UID)
	if err := present(err, func() { f.Gate = &g }); err != nil {
		return err
	}
	h, _, err := ReadHead(ctx, rec, wire.Principal{Owner: l.Owner, Actor: l.Actor})
	if err := present(err, func() { f.Head = &h }); err != nil {
		return err
	}
	id, key, err := trust.InFile(store, trust.CredentialFile(rec.Space(), l.Alias, l.UID), l.Actor)
	clear(key.Seed)
	if f.File = err; err != nil {
		return nil
	}
	at := wire.CredentialRow{LifecycleUID: l.UID, CredentialID: id}.Key()
	row, err = rec.Get(ctx, at)
	if err == nil {
		var c wire.CredentialRow
		if c, err = wire.DecodeCredentialRow(at, row.Value); err != nil {
			err = fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
		}
		f.Credential = &c
	}
	return present(err, func() {})
}

// present calls set if a row was read, and forgives one that is absent.
func present(err error, set func()) error {
	switch {
	case err == nil:
		set()
	case errors.Is(err, bus.ErrAbsent):
		return nil
	}
	return err
}

// Restore makes what a life that goes on has lost on its mesh: its slot, its uid, gate and head, the durable and the
// membership, and a new credential with the key that is in its file, which then is the new one. Each step recognises what is
// there and leaves it; cut short, it is called again. Its program, which reads the file whenever it connects, is the same
// on the mesh as before, and reads what was sent to it since the store was made anew.
//
// What cannot be restored without the file is not: with fs.ErrNotExist or trust.ErrRefused all but the credential was, so that
// the life can be ended; whoever holds a credential of it has to be refused by its key.
//
// Errors: ErrOver (its end is decided), ErrHeld, ErrTaken, as of the steps of a spawn; bus.ErrUnavailable, bus.ErrCorrupt.
func (p *Provisioner) Restore(ctx context.Context, l Life, spec Spec) error {
	d := &Draft{Life: l, Spec: spec, File: trust.CredentialFile(p.cfg.Space, l.Alias, l.UID)}
	d.rows.keep()
	defer d.Close()
	id, key, ferr := trust.InFile(p.cfg.Store, d.File, l.Actor)
	defer clear(key.Seed)
	d.key = key
	if err := p.restoreSlot(ctx, d); err != nil {
		return fmt.Errorf("restore slot of %s: %w", l.Alias, err)
	}
	if err := p.activate(ctx, d); err != nil {
		return err
	}
	if err := p.restoreDurables(ctx, d); err != nil {
		return fmt.Errorf("restore durables of %s: %w", l.Alias, err)
	}
	if ferr != nil {
		return errors.Join(p.setActive(ctx, d), fmt.Errorf("restore credential of %s: %w", l.Alias, ferr))
	}
	has := false
	err := p.onRows(ctx, d, func(ctx context.Context, rec *bus.Records) error {
		_, err := rec.Get(ctx, wire.CredentialRow{LifecycleUID: l.UID, CredentialID: id}.Key())
		return present(err, func() { has = true })
	})
	if err == nil && !has {
		err = p.mint(ctx, d)
	}
	if err != nil {
		return err
	}
	return p.setActive(ctx, d)
}

// restoreSlot writes the slot of a life that goes on. An alias that another life has is left to it.
func (p *Provisioner) restoreSlot(ctx context.Context, d *Draft) error {
	want := wire.Slot{
		Owner: d.Life.Owner, Alias: d.Life.Alias, Actor: d.Life.Actor, LifecycleUID: d.Life.UID, Phase: wire.SlotProvisioning,
		OwnerInstanceID: p.cfg.Instance, ManagerInstance: p.cfg.Incarnation, Runtime: &d.Spec.Runtime, CredentialFile: d.File,
	}
	return p.onRows(ctx, d, func(ctx context.Context, rec *bus.Records) error {
		_, err := ChangeSlot(ctx, rec, d.Life.Slot(), func(s *wire.Slot) (wire.Slot, error) {
			switch {
			case s == nil || s.Phase == wire.SlotRetired && s.LifecycleUID != want.LifecycleUID:
				return want, nil
			case s.LifecycleUID != want.LifecycleUID || s.OwnerInstanceID != want.OwnerInstanceID:
				return *s, &HeldError{Slot: *s, Foreign: s.OwnerInstanceID != p.cfg.Instance}
			}
			return *s, living(s, d.Life)
		})
		return err
	})
}

// restoreDurables makes what the life reads from. Its queue begins with the first message: one that was sent to this life is
// read twice rather than not at all. A queue that is there stands.
func (p *Provisioner) restoreDurables(ctx context.Context, d *Draft) error {
	return p.cfg.Auth.With(ctx, trust.Request{Profile: trust.Provisioner, Scope: trust.Scope{Target: d.Life.Caller, Role: d.Spec.Role}},
		func(ctx context.Context, b *bus.Bus) error {
			if err := b.MakeDirectQueue(ctx, p.cfg.Space, d.Life.Caller, 1); err != nil {
				return err
			}
			if d.Spec.Role != "" {
				if err := b.MakeTaskQueue(ctx, p.cfg.Space, d.Spec.Role); err != nil {
					return err
				}
			}
			return b.PutMembership(ctx, p.cfg.Space, wire.Principal{Owner: d.Life.Owner, Actor: d.Life.Actor}, wire.Membership{
				Live: concrete(d.Spec.Read), Durable: []string{}, ObservedAt: p.cfg.Now().UnixMilli(),
			})
		})
}
