package seat

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// retireWait is how long a spawn waits for what is left of the last holder of its name: an end that is
// proved is cleaned up within milliseconds.
const retireWait = 2 * time.Second

// unseenWarning stands in the acceptance of a spawn that could not wait any longer for a view of the mesh.
const unseenWarning = "who is on the mesh could not be seen in time: somebody there may have the same name"

// take reserves name and place, once the mesh was seen. A name whose last holder is on its way out is waited
// for, for a moment; its teardown is driven again, as a whole, rather than waited for only.
func (s *Set) take(ctx context.Context, key goal.Key, fingerprint string, p *plan, m *minting) (a *actor, acc wire.Acceptance, other bool, err error) {
	if !s.awaitView(ctx) {
		p.warnings = append(p.warnings[:len(p.warnings):len(p.warnings)], unseenWarning)
	}
	ctx, cancel := context.WithTimeout(ctx, retireWait)
	defer cancel()
	for {
		a, acc, other, err = s.reserve(key, fingerprint, p, m)
		var held errNameHeld
		if !errors.As(err, &held) {
			return a, acc, other, err
		}
		if held.by.kind != claimRetiring {
			return nil, acc, false, held.refusal()
		}
		p.effects = true
		if err := s.redrive(ctx, held.name, held.by.uid); err != nil {
			held.by.cause = cmp.Or(held.by.cause, err.Error())
			return nil, acc, false, held.refusal()
		}
	}
}

// redrive drives the teardown of a life again and waits for its end. It returns why that did not come before ctx ended.
func (s *Set) redrive(ctx context.Context, alias, uid string) error {
	s.mu.Lock()
	var a *actor
	for _, have := range s.byID {
		if have.snapshot().Row.UID == uid {
			a = have
		}
	}
	s.mu.Unlock()
	switch {
	case a == nil && s.cfg.Lives == nil:
		return nil // it went meanwhile
	case a == nil: // or an earlier host had it, and what it has on the mesh is there
		return s.cfg.Lives.Redrive(ctx, alias)
	}
	a.post(a.redrive)
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return cmp.Or(a.heldNow(), context.Cause(ctx))
	case <-s.life.Done():
		return errHostGone
	}
}

// redrive tries at once what waits for its next attempt.
func (a *actor) redrive() {
	switch a.snapshot().State {
	case Exited:
		if a.freeing && !a.reaping {
			a.goReap(1)
		}
	case Stopping:
		if a.stopping == nil && a.cancelLaunch == nil {
			a.ladder(cmp.Or(a.stopMode, sdk.StopGraceful)) // an earlier host may have begun it
		}
	}
}

// reserve takes the name and the place, without suspension, so that two spawns can neither share a
// name nor pass the last free place together. other is true when the same request won meanwhile. Errors are
// *wire.Error, and errNameHeld for a name that is taken.
func (s *Set) reserve(key goal.Key, fingerprint string, p *plan, m *minting) (a *actor, acc wire.Acceptance, other bool, err error) {
	now := time.Now()
	view := s.view()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spawning[key] != nil {
		return nil, acc, true, nil
	}
	if s.closing != "" {
		return nil, acc, false, wire.Refuse(wire.CodeUnavailable, "no new seats: %s", s.closing)
	}
	if s.unlisted != "" {
		// A seat that only its directory knows may hold this name, or be this very request.
		return nil, acc, false, wire.Refuse(wire.CodeUnavailable, "no new seats until it is known which ones run: %s", s.unlisted)
	}
	if err := s.cap.reserve(now, s.holders); err != nil {
		return nil, acc, false, wire.Refuse(wire.CodeResourceExhausted, "%v", err)
	}
	mesh := onMesh(view, func(l life) bool { return s.retired.lives[l] })
	alias, err := s.names.allocate(p.profile.Alias, p.profile.Pinned, func(n string) claim {
		if h := s.byAlias[n]; h != nil {
			return claimOf(h.snapshot())
		}
		if c := s.heldLife(n); c.kind != claimFree {
			return c
		}
		return mesh[n]
	})
	if err != nil {
		s.cap.release()
		if errors.As(err, new(errNameHeld)) {
			return nil, acc, false, err
		}
		return nil, acc, false, wire.Refuse(wire.CodeBadRequest, "%v", err)
	}
	row := journal.SeatRow{
		SeatID: m.seatID, UID: m.uid, Alias: alias, Principal: p.owner + "." + m.actor, Nonce: m.nonce,
		RequestID: string(key), Fingerprint: fingerprint, Persona: p.profile.PersonaPath, Agent: p.profile.Agent,
		Runtime: p.runtime, Role: p.profile.Role, Model: p.profile.Model, Variant: p.profile.Variant, Cwd: p.cwd,
		Grace: p.grace, ReadinessMs: p.window, ReadyBy: string(p.facts.ReadyBy), Form: p.form, Restart: p.restart, State: journal.StateIntent, Created: now, Fence: s.cfg.Epoch,
	}
	_, id, _ := key.Split()
	acc = wire.Acceptance{
		Name: alias, Owner: p.owner, Actor: m.actor, UID: m.uid, GoalID: id, Fingerprint: fingerprint,
		ReadinessDeadlineMs: readyWindow(row).Milliseconds(),
		Executor:            wire.Executor{LifecycleUID: s.cfg.InstanceID, Epoch: s.cfg.Epoch},
		Warnings:            p.warnings,
	}
	a = s.newActor(row)
	a.ports = m.ports
	if p.restart != nil {
		a.kept = p
	}
	s.wg.Add(1) // for Spawn itself; under mu, so that Close cannot miss it
	s.add(a)
	s.spawning[key] = a
	return a, acc, false, nil
}

// claimOf says how a seat of this host holds its name.
func claimOf(snap *Snapshot) claim {
	c := claim{kind: claimSeat, who: statusOf(snap.State), uid: snap.Row.UID}
	switch {
	case snap.State == Exited, snap.State == Stopping:
		c.kind, c.cause = claimRetiring, snap.Row.Reason
	case snap.State == Unknown && snap.Row.Started.IsZero():
		c.kind, c.cause = claimReconciling, snap.Row.Reason
	}
	return c
}
