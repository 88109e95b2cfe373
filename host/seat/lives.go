package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/saga"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Lives gives the life of a seat what it has on the mesh, where seats have credentials of their own, and takes it away
// again. Without it none of its steps is there. host/provision and host/retire are behind it.
type Lives interface {
	NewKey() (trust.Key, error)
	Check(life wire.Caller, key trust.Key, spec provision.Spec) error
	Draft(life wire.Caller, key trust.Key, spec provision.Spec) (*provision.Draft, error)
	Steps(d *provision.Draft) []saga.Step
	Active(d *provision.Draft) saga.Step
	Adopt(ctx context.Context, l provision.Life, spec provision.Spec) (*provision.Draft, error)
	SetRuntime(ctx context.Context, l provision.Life, ref wire.RuntimeRef) error
	Path(l provision.Life) string
	Clear(ctx context.Context, owner, alias string, live func(provision.Life) bool) error
	Held(alias string) (retire.Hold, bool)
	Redrive(ctx context.Context, alias string) error
	Retire(ctx context.Context, l provision.Life) error
	Discard(ctx context.Context, l provision.Life) error
}

// Bounds of what is waited for. What goes on longer goes on behind it, and is waited for again.
const (
	// lifeWait is how long the end of a life may take before whoever waits for the seat is told what it waits for: a
	// broker that is there needs some ten milliseconds for it.
	lifeWait        = 5 * time.Second
	takeLifeTimeout = 15 * time.Second
)

// defaultChannel is what a seat may read that nobody said anything about. It may post nowhere then: that is always said.
const defaultChannel = "general"

// mayRead is what a seat with rights of its own may read by what was said.
func mayRead(said []string) []string {
	if len(said) == 0 {
		return []string{defaultChannel}
	}
	return said
}

// mayRead is what a seat is told that it may read. Where nobody has rights of their own, nothing said is no bound.
func (s *Set) mayRead(said []string) []string {
	if s.cfg.Lives == nil {
		return said
	}
	return mayRead(said)
}

// lifeOf is the life of a row.
func lifeOf(row journal.SeatRow) (provision.Life, error) {
	p, err := wire.PrincipalOf(row.Principal)
	if err != nil {
		return provision.Life{}, fmt.Errorf("read life of %s: %w", row.Alias, err)
	}
	return provision.Life{Alias: row.Alias, Caller: wire.Caller{Owner: p.Owner, Actor: p.Actor, UID: row.UID}}, nil
}

// queueOf is the role whose queue of tasks a seat reads. A role is any text that people like ("a plain shell"), and a task
// can only be sent to one that is a word: the others have no queue.
func queueOf(role string) string {
	if !wire.ValidToken(role) {
		return ""
	}
	return role
}

// lifeSpec is what the life of a row is to have, by the form that it was accepted with: the same for whoever goes on
// with it.
func lifeSpec(row journal.SeatRow) (provision.Spec, error) {
	f, err := launch.ParseForm(row.Form)
	if err != nil {
		return provision.Spec{}, err
	}
	write := slices.Clone(f.AllowPublish)
	if f.EventsOn {
		write = append(write, "events."+row.Principal)
	}
	return provision.Spec{
		Alias: row.Alias, Runtime: wire.RuntimeRef{Kind: row.Runtime, ID: row.SeatID}, Role: queueOf(row.Role),
		Read: mayRead(f.AllowSubscribe), Write: write, Spawn: slices.Contains(f.Capabilities, wire.CmdSpawn),
	}, nil
}

// checkLife refuses a spawn whose life could not be had, before anything is written.
func (s *Set) checkLife(p *plan, m *minting) error {
	if s.cfg.Lives == nil {
		return nil
	}
	spec, err := lifeSpec(journal.SeatRow{
		Alias: p.profile.Alias, Principal: p.owner + "." + m.actor, Role: p.profile.Role, Runtime: p.runtime, SeatID: m.seatID, Form: p.form,
	})
	if err == nil {
		err = s.cfg.Lives.Check(wire.Caller{Owner: p.owner, Actor: m.actor, UID: m.uid}, m.key, spec)
	}
	switch {
	case errors.Is(err, trust.ErrRefused), errors.Is(err, trust.ErrTooLarge):
		return wire.Refuse(wire.CodeFailedPrecondition, "%v; nothing was launched", err)
	case err != nil:
		return wire.Refuse(wire.CodeUnavailable, "its credential cannot be made: %v; nothing was launched", err)
	}
	return nil
}

// lifeSteps are the steps of a launch before it is built and after it is prepared; over is called when the launch is.
// A process that follows another one finds its life there, see lifeFollows.
func (a *actor) lifeSteps(row journal.SeatRow, m *minting, undo func(func() error) func(context.Context) error) (provide, activate []saga.Step, over func()) {
	lives := a.set.cfg.Lives
	if lives == nil || follows(row) {
		return nil, nil, func() {}
	}
	l, err := lifeOf(row)
	var spec provision.Spec
	if err == nil {
		spec, err = lifeSpec(row)
	}
	var d *provision.Draft
	if err == nil {
		d, err = lives.Draft(l.Caller, m.key, spec)
	}
	if err != nil {
		err = sdk.Errorf(sdk.ErrInvalid, "%v", err)
		return []saga.Step{{Name: "draft life", Do: func(context.Context) error { return err }}}, nil, func() {}
	}
	for i, s := range lives.Steps(d) {
		if i == 0 {
			s.Do = a.clearing(l, s.Do)
		}
		if back := s.Undo; back != nil {
			s.Undo = func(ctx context.Context) error { return undo(func() error { return back(ctx) })(ctx) }
		}
		provide = append(provide, s)
	}
	active := lives.Active(d)
	do := active.Do
	active.Do = func(ctx context.Context) error {
		if err := do(ctx); err != nil {
			return err
		}
		return a.call(func() error { a.renew(d); return nil })
	}
	return provide, []saga.Step{active}, d.Close
}

// lifeFollows records by what the next process of a life will be found, before there is one. What does not let it is
// waited out, since a seat is not lost for an outage; but for a life whose end is decided, of which there is no next.
func (a *actor) lifeFollows(ctx context.Context) error {
	lives := a.set.cfg.Lives
	if lives == nil {
		return nil
	}
	row := a.snapshot().Row
	l, err := lifeOf(row)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		bound, cancel := context.WithTimeout(ctx, takeLifeTimeout)
		err := lives.SetRuntime(bound, l, wire.RuntimeRef{Kind: row.Runtime, ID: row.SeatID})
		cancel()
		switch {
		case err == nil:
			return a.call(func() error { a.adoptLife(0); return nil }) // another host may have started the one before
		case errors.Is(err, provision.ErrOver) && !errors.Is(err, provision.ErrLost):
			return err
		}
		if attempt == 0 {
			a.log.Warn("the next process waits until its mesh takes note of it", "err", err)
		}
		a.post(func() { a.note("waits until its mesh takes note of its next process: " + err.Error()) })
		if sleep(ctx, retryDelay(attempt)) != nil {
			return err
		}
		if werr := a.set.awaitLease(ctx); werr != nil {
			return werr
		}
	}
}

// clearing is the step that takes the slot of an alias. A life in it that nobody has any more is brought to its end
// first, and the step is done again.
func (a *actor) clearing(l provision.Life, take func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		// A host that was frozen may not know yet that another one of its instance has looked for slots since.
		if err := a.set.awaitLease(ctx); err != nil {
			return err
		}
		err := take(ctx)
		var held *provision.HeldError
		if !errors.As(err, &held) {
			return err
		}
		if held.Foreign {
			return &slotError{held: held}
		}
		switch err := a.set.cfg.Lives.Clear(ctx, l.Owner, l.Alias, a.set.HasLife); {
		case errors.As(err, &held):
			return &slotError{held: held}
		case err != nil:
			return &slotError{held: held, why: err}
		}
		return take(ctx)
	}
}

// slotError is a slot that could not be had. why is what the end of its holder failed with; nil: it is not for this
// host to end.
type slotError struct {
	held *provision.HeldError
	why  error
}

// Error says who has it, and what can be done.
func (e *slotError) Error() string {
	switch {
	case e.why != nil:
		return fmt.Sprintf("%v; its end was driven again and is not complete: %v; spawn it again once that is remedied", e.held, e.why)
	case e.held.Foreign:
		return e.held.Error() + "; choose another name"
	}
	return e.held.Error() + "; end that seat first (cotal ps), or choose another name"
}

func (e *slotError) Unwrap() error { return errors.Join(e.held, e.why) }

// details are those of the refusal of a spawn.
func (e *slotError) details() []wire.Detail {
	if e.why == nil {
		return nil
	}
	return blockedBy(&wire.Error{}, wire.OpRetirement, e.held.Slot.LifecycleUID).Details
}

// lifeAlone reports whether what could not be taken back of a launch is its life on the mesh, and nothing of this machine.
func lifeAlone(failed *saga.Error) bool {
	return !slices.ContainsFunc(failed.Undo, func(u *saga.UndoError) bool { return u.Step != provision.StepTakeSlot })
}

// heldLife is the claim of a life that is on its way out and has no seat any more: an earlier host had it.
func (s *Set) heldLife(alias string) claim {
	if s.cfg.Lives == nil {
		return claim{}
	}
	h, ok := s.cfg.Lives.Held(alias)
	if !ok {
		return claim{}
	}
	return claim{kind: claimRetiring, who: statusOf(Exited), uid: h.Life.UID, cause: h.LastError}
}

// renew looks after the credential of a life until the seat is stopped or has ended.
func (a *actor) renew(d *provision.Draft) {
	a.renewing = true
	a.holds.Store(d.Credential())
	a.show(func(s *Snapshot) { s.Auth = auth{} })
	ctx, cancel := context.WithCancel(a.set.life)
	done := context.AfterFunc(a.leaving, cancel)
	a.background(func() {
		defer cancel()
		defer done()
		d.Credential().Run(ctx)
	})
}

// auth is how a credential stands that is not well; zero for one that is, or that nothing is known of.
type auth struct{ health, reason string }

// notRenewed is the health of a credential that nobody renews now.
const notRenewed = "not-renewed"

// checkAuth looks at the credential of a seat that runs.
func (a *actor) checkAuth() {
	held, snap := a.holds.Load(), a.snapshot()
	if held == nil || !snap.State.Live() {
		return
	}
	now := auth{}
	if h, err := held.Health(); err != nil || h == trust.Expired || h == trust.Unreadable {
		now.health = string(h)
		if err != nil {
			now.reason = err.Error()
		}
	}
	if now != snap.Auth {
		a.post(func() { a.show(func(s *Snapshot) { s.Auth = now }) })
	}
}

// adoptLife goes on with what a seat that an earlier host started has on the mesh. It is tried until it succeeds, the
// seat ends, or the end of the life turns out to be decided: what is missing may be brought back.
func (a *actor) adoptLife(attempt int) {
	if a.set.cfg.Lives == nil || a.renewing {
		return
	}
	a.renewing = true
	row := a.snapshot().Row
	a.background(func() {
		d, err := a.takeLife(row)
		a.post(func() {
			a.renewing = false
			switch {
			case err == nil:
				a.renew(d)
				return
			case a.set.life.Err() != nil:
				return
			}
			now := auth{notRenewed, err.Error()}
			if errors.Is(err, provision.ErrLost) {
				now.reason += "; the seat is kept, and its mesh has to be repaired: cotal-host doctor --repair"
			}
			if now != a.snapshot().Auth {
				a.log.Warn("the credential of the seat is not renewed", "err", err)
				a.show(func(s *Snapshot) { s.Auth = now })
			}
			if errors.Is(err, provision.ErrOver) && !errors.Is(err, provision.ErrLost) {
				return
			}
			a.after(attempt, func() {
				if s := a.snapshot().State; s == Running || s == Unknown || s == Restarting {
					a.adoptLife(attempt + 1)
				}
			})
		})
	})
}

func (a *actor) takeLife(row journal.SeatRow) (*provision.Draft, error) {
	select {
	case a.set.adopting <- struct{}{}: // a host that starts has all its seats to take over
		defer func() { <-a.set.adopting }()
	case <-a.set.life.Done():
		return nil, errHostGone
	}
	ctx, cancel := context.WithTimeout(a.set.life, takeLifeTimeout)
	defer cancel()
	l, err := lifeOf(row)
	if err != nil {
		return nil, err
	}
	spec, err := lifeSpec(row)
	if err != nil {
		return nil, err
	}
	return a.set.cfg.Lives.Adopt(ctx, l, spec)
}

// heldError is a seat whose process is proved gone, and which holds its name until nothing else of it is left either.
type heldError struct{ why string }

// Error says what is waited for.
func (e *heldError) Error() string {
	return "its name is held until what is left of it is taken away, which goes on: " + e.why
}

// heldNow is that error for a seat whose end is proved and whose rest is there still; nil for any other.
func (a *actor) heldNow() error {
	snap := a.snapshot()
	if a.set.cfg.Lives == nil || snap.State != Exited {
		return nil
	}
	return &heldError{cmp.Or(snap.Row.Reason, "its credentials are being revoked")}
}

// endLife takes away what the life has on the mesh. Its process is proved gone. late is told once it takes longer than
// anybody ought to wait for, and it goes on; without one it is given up then, and driven again by the next call.
func (a *actor) endLife(late func(error)) error {
	lives := a.set.cfg.Lives
	if lives == nil {
		return nil
	}
	row := a.snapshot().Row
	l, err := lifeOf(row)
	if err != nil {
		return err
	}
	end := lives.Retire
	if row.Started.IsZero() || a.undone.Load() { // cut short before it began: there may be no trace of it
		end = lives.Discard
	}
	ctx, cancel := context.WithTimeout(a.set.life, lifeWait)
	err = end(ctx, l)
	cancel()
	if errors.Is(err, retire.ErrPending) && late != nil && a.set.life.Err() == nil {
		late(&heldError{"its credentials are being revoked"})
		err = end(a.set.life, l) // its parts have bounds of their own
	}
	if err != nil {
		return &heldError{err.Error()}
	}
	return nil
}

// HasLife reports whether a seat of this host has a life, or may have it: it is being started, runs, or is on its way
// out. It is true from before the slot of the life is written until behind its end. While it is not known which seats this
// machine has, one of them may have any life: nobody ends it then.
func (s *Set) HasLife(l provision.Life) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unlisted != "" || s.unread { // see Listed
		return true
	}
	for _, a := range s.byID {
		if row := a.snapshot().Row; row.UID == l.UID && row.Alias == l.Alias {
			return true
		}
	}
	return false
}

// Reap ends what is found by a custody reference that a life was given, and returns nil only with proof that nothing
// of it is left. A seat that runs, or may run, is not ended by it.
func (s *Set) Reap(ctx context.Context, ref wire.RuntimeRef) error {
	s.mu.Lock()
	a := s.byID[ref.ID]
	s.mu.Unlock()
	if a != nil {
		if gone := a.gone.Load(); !a.asked.Load() || gone != nil && *gone == ref.ID {
			return nil // nothing was ever started, or nothing is left: under this id nothing is started again
		}
		if st := a.snapshot().State; st == Running || st == Restarting || st == Unknown {
			return fmt.Errorf("reap seat %s: it is %s", ref.ID, statusOf(st))
		}
		_, err := a.reapCtx(ctx, sdk.StopNow, true)
		return err
	}
	rt, _, err := s.cfg.Plugins.Runtime(ctx, ref.Kind)
	if err == nil {
		_, err = rt.Reap(ctx, sdk.StopRequest{SeatID: ref.ID, InstanceID: s.cfg.InstanceID, Fence: s.cfg.Epoch, Mode: sdk.StopNow})
	}
	if err != nil {
		return fmt.Errorf("reap seat %s of runtime %s: %w", ref.ID, ref.Kind, err)
	}
	return nil
}
