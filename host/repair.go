package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Places where a repair may be cut short. The next one goes on, and so does a host that starts.
var (
	fpSetAside = failpoint.New("host.repair.set-aside") // what was damaged is out of the store, and nothing is there instead
	fpStreams  = failpoint.New("host.repair.streams")   // the streams are there, and nobody is registered
	fpRestored = failpoint.New("host.repair.restored")  // one life is whole again
	fpRepaired = failpoint.New("host.repair.repaired")  // all are, and this process still counts as the host
)

// repairLife bounds what is done for one life: some twenty exchanges with a broker that answered a moment ago.
const repairLife = 30 * time.Second

// ErrNothingToRepair: an open space has nothing that could be made again.
var ErrNothingToRepair = errors.New("an open space has nothing that could be made again")

// errNoBroker: an embedded broker that was never there is not made by a repair: seats are on another one.
var errNoBroker = errors.New("it has no broker of its own")

// Repair makes again what the mesh has lost of an authenticated workspace, and tells what it did and how everything
// stands then. It is the host of the workspace while it does so: it takes the lock, the lease and the registration, as a
// host does that starts, and gives them back. It starts no plugin and touches no process. Everything it does recognises
// what is done already, so that it may be killed and called again. Of cfg, Root, Space, Server, Keys and SeatRoot count.
//
// Errors: *instance.LockedError (a host runs), ErrNothingToRepair, those of a host that does not begin.
func Repair(ctx context.Context, cfg Config) ([]trust.Fact, error) {
	if err := repairable(cfg); err != nil {
		return nil, err
	}
	h, err := New(cfg)
	if err != nil {
		return nil, err
	}
	defer h.closeAll()
	h.repairing = true
	if err := h.openWorkspace(ctx); err != nil {
		return nil, err
	}
	r := &repair{h: h}
	if err := r.setAside(); err != nil {
		return nil, err
	}
	if err := h.startBroker(ctx); err != nil {
		return nil, err
	}
	if err := r.join(ctx); err != nil {
		return nil, err
	}
	known, err := seat.KnownLives(h.journal, h.cfg.SeatRoot, h.inst.ID)
	if err != nil {
		return nil, err
	}
	if err := r.lives(ctx, known); err != nil {
		return nil, err
	}
	facts := examineMesh(ctx, h.auth, h.auth.store, h.cfg.Space, instance.Recorded{ID: h.inst.ID, Epoch: h.inst.Epoch, Mode: h.inst.Mode}, known, repairCommand(cfg, false))
	if err := fpRepaired.Hit(); err != nil {
		return nil, err
	}
	r.leave(ctx)
	// The lease was this process's own.
	return append(r.done, slices.DeleteFunc(facts, func(f trust.Fact) bool { return f.Name == "lease" })...), nil
}

// repairable refuses a workspace that a repair is not for, before anything of it is touched. One that lost its instance.json
// is looked at by all else that is there: a host that starts makes that file again, and so does a repair.
func repairable(cfg Config) error {
	rec, err := instance.Look(cfg.Root)
	look := &rec
	switch {
	case errors.Is(err, fs.ErrNotExist) && !hasJournal(instance.DirOf(cfg.Root)):
		return fmt.Errorf("workspace %s was never served: there is nothing to repair; serve it with: cotal-host serve --root %s", cfg.Root, quoted(cfg.Root))
	case errors.Is(err, fs.ErrNotExist):
		look = nil
	case err != nil:
		return err
	}
	signs, _ := workspaceSigns(cfg.Root, cfg.Space, look)
	switch signs.mode() {
	case servedOpen:
		return fmt.Errorf("workspace %s: %w: bring the store of its broker back from a backup; or move that store and .cotal/host/journal.db away "+
			"to go on without what was stored, seats are found all the same", cfg.Root, ErrNothingToRepair)
	case servedUnknown:
		return fmt.Errorf("workspace %s: its instance.json is lost, and neither its journal nor a store says whether it is an open or an authenticated one; restore .cotal/host from a backup", cfg.Root)
	}
	stored, _ := storeSays(instance.DirOf(cfg.Root))
	switch {
	case cfg.Server != "" || rec.Port != 0 || stored:
		return nil
	case look == nil:
		return fmt.Errorf("workspace %s: its instance.json is lost, and there is no store, so that it is not known whether it had a broker of its own; restore .cotal/host from a backup, or name the broker that it was served on with --server", cfg.Root)
	}
	return fmt.Errorf("workspace %s: %w: it was served on a broker elsewhere; name that one with --server", cfg.Root, errNoBroker)
}

// repair is what was done.
type repair struct {
	h    *Host
	done []trust.Fact
}

func (r *repair) did(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.h.log.Info("repaired", "what", text)
	r.done = append(r.done, trust.Fact{Name: "repaired", Verdict: trust.Good, Text: text})
}

// setAside takes what is damaged out of the store of an embedded broker, which does not start with it.
func (r *repair) setAside() error {
	if r.h.cfg.Server != "" {
		return nil
	}
	dir := filepath.Join(r.h.inst.Dir, authStore)
	stored, err := broker.ExamineStore(dir)
	if err != nil {
		return err
	}
	gone, now := map[string]bool{}, time.Now()
	for _, s := range stored {
		if s.Damage == "" || gone[s.Account+"/"+s.Stream] {
			continue // a consumer goes with its stream
		}
		to, err := broker.SetAside(dir, s, now)
		if err != nil {
			return err
		}
		if s.Consumer == "" {
			gone[s.Account+"/"+s.Stream] = true
		}
		r.did("%s was damaged (%s): it is in %s now", s.Name(), s.Damage, to)
	}
	return fpSetAside.Hit()
}

// join makes missing streams, and makes this process the registered host of the instance.
func (r *repair) join(ctx context.Context) error {
	h := r.h
	before, berr := lookAtStores(ctx, h.auth, h.cfg.Space)
	for _, step := range []func(context.Context) error{
		h.setUp, func(context.Context) error { return fpStreams.Hit() }, h.openLease, h.register,
	} {
		if err := step(ctx); err != nil {
			return h.notBegun(err)
		}
	}
	var made []string
	for _, s := range before {
		if s.Missing {
			made = append(made, s.Name)
		}
	}
	switch {
	case before == nil:
		h.log.Warn("which streams were missing is not known", "err", berr)
	case len(made) > 0:
		r.did("streams that were gone were made anew, empty: %s", strings.Join(made, ", "))
	}
	return nil
}

// lives restores every life of which the mesh has lost something. What keeps one from it is a fact about that one.
func (r *repair) lives(ctx context.Context, known []seat.Known) error {
	if _, err := r.h.openLives(); err != nil {
		return err
	}
	if err := r.endStale(ctx, known); err != nil {
		return err
	}
	for _, k := range known {
		if k.Err != nil {
			continue // how it stands is told with all the others
		}
		if err := r.life(ctx, k); err != nil {
			if ctx.Err() != nil {
				return err
			}
			r.done = append(r.done, trust.Fact{Name: "seat " + k.Life.Alias, Verdict: trust.Wrong, Text: "it cannot be restored: " + err.Error()})
			r.h.log.Error("life cannot be restored", "seat", k.Life.Alias, "uid", k.Life.UID, "err", err)
		}
		if err := fpRestored.Hit(); err != nil {
			return err
		}
	}
	return nil
}

// endStale ends lives of this instance that are over, and that an older store brought back into the slots of seats that live.
// That one is over is known from the journal here, and from nothing else: no runtime is asked. The next host ends the others.
func (r *repair) endStale(ctx context.Context, known []seat.Known) error {
	h := r.h
	lives, wanted := map[string]bool{}, map[string]bool{}
	for _, k := range known {
		lives[k.Life.UID], wanted[k.Life.Alias] = true, true
	}
	ended := func(_ context.Context, ref wire.RuntimeRef) error {
		return h.journal.View(func(tx *journal.Tx) error {
			row, err := tx.Seat(ref.ID)
			if err == nil && !(row.State.Ended() && row.Reaped) {
				err = fmt.Errorf("seat %s is %s", ref.ID, row.State)
			}
			return err
		})
	}
	over, err := retire.New(retire.Config{Auth: h.auth, Space: h.cfg.Space, Instance: h.inst.ID, Epoch: h.inst.Epoch, Store: h.auth.store, Reap: ended, Log: h.log.Named("retire")})
	if err != nil {
		return err
	}
	defer over.Close()
	rows, err := over.Rows(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		s := row.Slot
		if row.Err != nil || s.OwnerInstanceID != h.inst.ID || s.Phase == wire.SlotRetired || lives[s.LifecycleUID] || !wanted[s.Alias] || s.Runtime == nil || ended(ctx, *s.Runtime) != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, repairLife)
		err := over.Retire(ctx, provision.LifeOf(s))
		cancel()
		if err != nil {
			r.done = append(r.done, trust.Fact{Name: "slot " + s.Alias, Verdict: trust.Wrong, Text: "the life before cannot be ended: " + err.Error()})
			continue
		}
		r.did("slot %s: life %s, which is over, had come back with the store, and was ended", s.Alias, s.LifecycleUID)
	}
	return nil
}

func (r *repair) life(ctx context.Context, k seat.Known) error {
	ctx, cancel := context.WithTimeout(ctx, repairLife)
	defer cancel()
	h := r.h
	found, err := provision.Look(ctx, h.auth, h.auth.store, h.cfg.Space, k.Life)
	if err != nil {
		return err
	}
	v, why := found.Judge(k.Life, h.inst.ID)
	if v != provision.Lost || !k.Began && found.File != nil {
		return nil // whole, or not ours to make again, or nothing of it was ever begun
	}
	err = h.lives.Restore(ctx, k.Life, k.Spec)
	switch {
	case err == nil:
		r.did("seat %s: %s", k.Life.Alias, strings.Join(why, ", "))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, trust.ErrRefused):
		// Whoever still has its credential could not be ended by it any more: nobody knows which one it is.
		if rerr := r.refuse(ctx, k.Life.Actor); rerr != nil {
			return errors.Join(err, rerr)
		}
		r.did("seat %s: its rows, so that it can be ended. %v: nobody can make it again, so whoever has a copy is refused from now on", k.Life.Alias, err)
	default:
		return err
	}
	return nil
}

// refuse makes every server refuse a key.
func (r *repair) refuse(ctx context.Context, key string) error {
	if err := r.h.auth.keys.Revoke(ctx, key); err != nil {
		return err
	}
	p, ok := r.h.auth.Authority.(interface {
		PushAccount(ctx context.Context) (int, error)
	})
	if !ok {
		return fmt.Errorf("refuse key %s: %w", key, trust.ErrUnverified)
	}
	_, err := p.PushAccount(ctx)
	return err
}

// leave says that this host is over. A host that starts says the same of it, if this one cannot.
func (r *repair) leave(ctx context.Context) {
	h := r.h
	ctx, cancel := context.WithTimeout(ctx, goodbyeTimeout)
	defer cancel()
	err := h.asRegistrar(ctx, func(ctx context.Context, _ *bus.Bus, rec *bus.Records) error {
		h.registering.Through(rec)
		return h.registering.SetState(ctx, wire.ServiceExited, nil)
	})
	if err != nil {
		h.log.Warn("others are not told that the repair is over", "err", err)
	}
}
