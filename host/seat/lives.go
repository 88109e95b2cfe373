package seat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/saga"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Lives gives the life of a seat what it has on the mesh, where seats have credentials of their own, and takes it away
// again. Without it none of its steps is there. host/provision and host/retire are behind it.
type Lives interface {
	NewKey() (trust.Key, error)
	Draft(life wire.Caller, key trust.Key, spec provision.Spec) (*provision.Draft, error)
	Steps(d *provision.Draft) []saga.Step
	Active(d *provision.Draft) saga.Step
	Adopt(ctx context.Context, l provision.Life, spec provision.Spec) (*provision.Draft, error)
	SetRuntime(ctx context.Context, l provision.Life, ref wire.RuntimeRef) error
	Path(l provision.Life) string
	Clear(ctx context.Context, owner, alias string, live func(provision.Life) bool) error
	Retire(ctx context.Context, l provision.Life) error
	Discard(ctx context.Context, l provision.Life) error
}

// Bounds of what a seat waits for. What goes on longer goes on behind it, and is waited for again.
const (
	retireTimeout   = time.Minute
	takeLifeTimeout = 15 * time.Second
)

// lifeOf is the life of a row.
func lifeOf(row journal.SeatRow) (provision.Life, error) {
	p, err := wire.PrincipalOf(row.Principal)
	if err != nil {
		return provision.Life{}, fmt.Errorf("read life of %s: %w", row.Alias, err)
	}
	return provision.Life{Alias: row.Alias, Caller: wire.Caller{Owner: p.Owner, Actor: p.Actor, UID: row.UID}}, nil
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
		Alias: row.Alias, Runtime: wire.RuntimeRef{Kind: row.Runtime, ID: row.SeatID}, Role: row.Role,
		Read: f.AllowSubscribe, Write: write, Spawn: slices.Contains(f.Capabilities, wire.CmdSpawn),
	}, nil
}

// lifeSteps are the steps of a launch before it is built and after it is prepared. A process that follows another one
// finds its life there, and only says by what it will be found.
func (a *actor) lifeSteps(row journal.SeatRow, m *minting, undo func(func() error) func(context.Context) error) (provide, activate []saga.Step) {
	lives := a.set.cfg.Lives
	if lives == nil {
		return nil, nil
	}
	l, err := lifeOf(row)
	var spec provision.Spec
	if err == nil {
		spec, err = lifeSpec(row)
	}
	if err == nil && follows(row) {
		return []saga.Step{{Name: "record custody reference", Do: func(ctx context.Context) error {
			if err := lives.SetRuntime(ctx, l, spec.Runtime); err != nil {
				return err
			}
			return a.call(func() error { a.adoptLife(0); return nil }) // another host may have started the one before
		}}}, nil
	}
	var d *provision.Draft
	if err == nil {
		d, err = lives.Draft(l.Caller, m.key, spec)
	}
	if err != nil {
		err = sdk.Errorf(sdk.ErrInvalid, "%v", err)
		return []saga.Step{{Name: "draft life", Do: func(context.Context) error { return err }}}, nil
	}
	provide = append(provide, saga.Step{Name: "clear name", Do: func(ctx context.Context) error { return lives.Clear(ctx, l.Owner, l.Alias, a.set.HasLife) }})
	for _, s := range lives.Steps(d) {
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
	return provide, []saga.Step{active}
}

// renew looks after the credential of a life until the seat is stopped or has ended.
func (a *actor) renew(d *provision.Draft) {
	a.renewing = true
	ctx, cancel := context.WithCancel(a.set.life)
	done := context.AfterFunc(a.leaving, cancel)
	a.background(func() {
		defer cancel()
		defer done()
		d.Credential().Run(ctx)
	})
}

// adoptLife goes on with what a seat that an earlier host started has on the mesh.
func (a *actor) adoptLife(attempt int) {
	if a.set.cfg.Lives == nil || a.renewing {
		return
	}
	a.renewing = true
	row := a.snapshot().Row
	a.background(func() {
		ctx, cancel := context.WithTimeout(a.set.life, takeLifeTimeout)
		defer cancel()
		d, err := a.takeLife(ctx, row)
		a.post(func() {
			a.renewing = false
			switch {
			case err == nil:
				a.renew(d)
			case a.set.life.Err() != nil:
			case errors.Is(err, provision.ErrOver), errors.Is(err, trust.ErrRefused):
				a.log.Error("the credential of the seat is not renewed", "err", err)
			default:
				a.log.Warn("the credential of the seat is not renewed yet", "err", err)
				a.after(attempt, func() {
					if a.snapshot().State == Running {
						a.adoptLife(attempt + 1)
					}
				})
			}
		})
	})
}

func (a *actor) takeLife(ctx context.Context, row journal.SeatRow) (*provision.Draft, error) {
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

// endLife takes away what the life has on the mesh. Its process is proved gone.
func (a *actor) endLife() error {
	lives := a.set.cfg.Lives
	if lives == nil {
		return nil
	}
	row := a.snapshot().Row
	l, err := lifeOf(row)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.set.life, retireTimeout)
	defer cancel()
	if row.Started.IsZero() { // cut short before it began: there may be no trace of it
		return lives.Discard(ctx, l)
	}
	return lives.Retire(ctx, l)
}

// HasLife reports whether a seat of this host has a life: it is being started, runs, or is on its way out.
func (s *Set) HasLife(l provision.Life) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.byID {
		if row := a.snapshot().Row; row.UID == l.UID && row.Alias == l.Alias {
			return true
		}
	}
	return false
}

// Reap ends what is found by a custody reference that a life was given, and returns nil only with proof that nothing
// of it is left. A seat that runs is not ended by it.
func (s *Set) Reap(ctx context.Context, ref wire.RuntimeRef) error {
	s.mu.Lock()
	a := s.byID[ref.ID]
	s.mu.Unlock()
	if a != nil {
		if st := a.snapshot().State; st == Running || st == Restarting {
			return fmt.Errorf("reap seat %s: it runs", ref.ID)
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
