// Package provision gives one life of a seat what it needs on its mesh, before anything of it runs: the slot of
// its alias, an identity that nobody had before, the durables it reads from, a credential. Each is a step of the
// spawn's saga. In open mode none of the steps is there.
//
// The order is the one that a crash at any place can be told from:
//
//	slot (provisioning, with the custody reference) → uid reserved → gate frozen → head active → gate open
//	→ durables, membership → credential id in the slot → ledger row → gate → file → launch → slot active
//
// Whatever cuts it short, the slot is there and is not retired, so that the alias is held, and whoever retires
// what the slot says leaves nothing. That is the one undo of all these steps.
package provision

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/saga"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Places where provisioning may be cut short, in order.
var (
	fpIntent    = failpoint.New("host.provision.intent")    // the slot is to be written
	fpSlot      = failpoint.New("host.provision.slot")      // it is, and nothing else
	fpUID       = failpoint.New("host.provision.uid")       // the uid is reserved, there is no gate
	fpFrozen    = failpoint.New("host.provision.frozen")    // the gate is born, nobody has the alias
	fpHead      = failpoint.New("host.provision.head")      // the life is the current one, its gate is frozen
	fpActivated = failpoint.New("host.provision.activated") // credentials may be minted
	fpQueue     = failpoint.New("host.provision.queue")     // its durable is there
	fpMember    = failpoint.New("host.provision.member")    // and its membership
	fpMinting   = failpoint.New("host.provision.minting")   // the slot names a credential, the ledger does not
	fpMinted    = failpoint.New("host.provision.minted")    // the credential is released, there is no file
	fpFiled     = failpoint.New("host.provision.filed")     // there is
	fpActive    = failpoint.New("host.provision.active")    // the slot is active
)

// Errors of this package.
var (
	// ErrHeld: the slot of the alias is another life's, which is not retired. Nothing was written.
	ErrHeld = errors.New("the alias is held by another life")
	// ErrForeign comes with ErrHeld when that life is of another instance of the space.
	ErrForeign = errors.New("it is another host's")
	// ErrOver: the end of this life is decided.
	ErrOver = errors.New("the end of this life is decided")
	// ErrLost comes with ErrOver when the mesh has no trace of the life, which nobody ends so: its store was lost.
	ErrLost = errors.New("the mesh has lost it")
	// ErrTaken: the uid, or the principal, is somebody else's. Draw another one.
	ErrTaken = errors.New("identity is taken")
)

// HeldError says who has an alias. It is an ErrHeld.
type HeldError struct {
	Slot    wire.Slot
	Foreign bool
}

// Error names the life.
func (e *HeldError) Error() string {
	text := fmt.Sprintf("alias %q is held by life %s, which is %s", e.Slot.Alias, e.Slot.LifecycleUID, e.Slot.Phase)
	if e.Foreign {
		text += ", of the host " + e.Slot.OwnerInstanceID
	}
	return text
}

// Is makes it an ErrHeld, and an ErrForeign where it is one.
func (e *HeldError) Is(target error) bool {
	return target == ErrHeld || e.Foreign && target == ErrForeign
}

// Authority is what of the authority of the space is used here.
type Authority interface {
	NewKey() (trust.Key, error)
	Principal(publicKey string) wire.Principal
	Check(r trust.Request) error
	With(ctx context.Context, r trust.Request, do func(context.Context, *bus.Bus) error) error
	Open(ctx context.Context, r trust.Request) (b *bus.Bus, end func(), err error)
	Stand(ctx context.Context, r trust.Request) (*trust.Standing, error)
	Adopt(r trust.Request, file []byte) (*trust.Standing, error)
}

// Retirer ends for good a life whose provisioning failed, as far as there is anything of it. It is idempotent.
type Retirer interface {
	Discard(ctx context.Context, life Life) error
}

// Config of a Provisioner.
type Config struct {
	Auth  Authority
	Space string
	// Instance is the id of this host's instance, and Incarnation tells its processes from each other.
	Instance, Incarnation string
	// Store is where the credentials of seats are kept, for their programs to read; Dir is where its files are.
	Store trust.SecretStore
	Dir   string
	// Retire takes back what a spawn that failed has made.
	Retire Retirer
	Log    hclog.Logger
	Now    func() time.Time
}

// Provisioner makes lives.
type Provisioner struct{ cfg Config }

// New returns a Provisioner. It reaches for nothing yet.
func New(cfg Config) (*Provisioner, error) {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	switch {
	case cfg.Auth == nil || cfg.Store == nil || cfg.Retire == nil:
		return nil, errors.New("open provisioner: no authority, no store, or nobody who takes back")
	case cfg.Store.Identity() == "":
		return nil, errors.New("open provisioner: the secret store does not say which one it is")
	case !wire.ValidUID(cfg.Instance):
		return nil, fmt.Errorf("open provisioner: instance id %q is not 26 to 32 characters [a-z0-9]", cfg.Instance)
	case cfg.Incarnation == "":
		return nil, errors.New("open provisioner: no incarnation")
	}
	return &Provisioner{cfg: cfg}, nil
}

// Life names one life under an alias.
type Life struct {
	Alias string
	wire.Caller
}

// Slot is the row of its alias.
func (l Life) Slot() wire.Key { return wire.SlotKey(l.Owner, l.Alias) }

// LifeOf is the life that a slot is of.
func LifeOf(s wire.Slot) Life { return Life{Alias: s.Alias, Caller: s.Life()} }

// Spec says what a life is to have.
type Spec struct {
	Alias string
	// Runtime is by what its process will be found, reserved before anything of it is made.
	Runtime wire.RuntimeRef
	Role    string
	// Read and Write are channels, as patterns; Spawn lets it start and end seats.
	Read, Write []string
	Spawn       bool
}

// Draft is a life that is only thought of. Nothing of it is written anywhere.
type Draft struct {
	Life Life
	Spec Spec
	// File is where its credential will be, by its name in the store.
	File string

	key trust.Key
	// credential is set by the step that mints.
	credential *trust.Standing
	rows       rows
}

// NewKey mints the key that names the principal of a life, in memory.
func (p *Provisioner) NewKey() (trust.Key, error) { return p.cfg.Auth.NewKey() }

// Draw mints a uid and a key, in memory, and drafts a life with them.
//
// Errors: that of the authority, as of Draft.
func (p *Provisioner) Draw(spec Spec) (*Draft, error) {
	key, err := p.cfg.Auth.NewKey()
	if err != nil {
		return nil, fmt.Errorf("draw life of %s: %w", spec.Alias, err)
	}
	pr := p.cfg.Auth.Principal(key.Public)
	return p.Draft(wire.Caller{Owner: pr.Owner, Actor: pr.Actor, UID: wire.NewUID()}, key, spec)
}

// Draft is a life of which the key and the uid were minted already. Nothing is written.
//
// Errors: an alias that is no token, no custody reference, a principal that is not the key's.
func (p *Provisioner) Draft(life wire.Caller, key trust.Key, spec Spec) (*Draft, error) {
	switch {
	case !wire.ValidToken(spec.Alias):
		return nil, fmt.Errorf("draft life: alias %q is not characters [A-Za-z0-9_-]", spec.Alias)
	case spec.Runtime.Kind == "" || spec.Runtime.ID == "":
		return nil, fmt.Errorf("draft life of %s: no custody reference is reserved", spec.Alias)
	case p.cfg.Auth.Principal(key.Public) != (wire.Principal{Owner: life.Owner, Actor: life.Actor}):
		return nil, fmt.Errorf("draft life of %s: its key is not that of principal %s", spec.Alias, life.Principal())
	}
	return &Draft{
		Life: Life{Alias: spec.Alias, Caller: life}, Spec: spec, key: key, File: trust.CredentialFile(p.cfg.Space, spec.Alias, life.UID),
	}, nil
}

// Check reports whether the credential of a life could never be minted. Nothing is written.
//
// Errors: as of Draft, trust.ErrRefused, trust.ErrTooLarge.
func (p *Provisioner) Check(life wire.Caller, key trust.Key, spec Spec) error {
	d, err := p.Draft(life, key, spec)
	if err != nil {
		return err
	}
	return p.cfg.Auth.Check(p.request(d))
}

// Path is where the program of a life finds its credential.
func (p *Provisioner) Path(l Life) string {
	return filepath.Join(p.cfg.Dir, filepath.FromSlash(trust.CredentialFile(p.cfg.Space, l.Alias, l.UID)))
}

// Credential is that of the life, renewed as long as somebody runs it; nil before it was minted.
func (d *Draft) Credential() *trust.Standing { return d.credential }

// StepTakeSlot is the name of the step whose undo takes back all of them.
const StepTakeSlot = "take slot"

// Steps are those that come before the launch of a seat is built. The first one that fails has everything taken
// back by Discard: it goes by what it finds, and what it cannot take back holds the alias. Whoever runs them calls
// Close of the draft when the saga is over, whatever became of it; with Active behind them that is done.
//
// Errors of the steps: ErrHeld, ErrTaken, ErrOver, those of trust.Authority, bus.ErrUnavailable.
func (p *Provisioner) Steps(d *Draft) []saga.Step {
	d.rows.keep()
	return []saga.Step{
		{
			Name: StepTakeSlot, Before: fpIntent, After: fpSlot,
			Do:   func(ctx context.Context) error { return p.takeSlot(ctx, d) },
			Undo: func(ctx context.Context) error { d.Close(); return p.cfg.Retire.Discard(ctx, d.Life) },
		},
		{Name: "activate life", After: fpActivated, Do: func(ctx context.Context) error { return p.activate(ctx, d) }},
		{Name: "make durables", After: fpMember, Do: func(ctx context.Context) error { return p.makeDurables(ctx, d) }},
		{Name: "mint credential", After: fpFiled, Do: func(ctx context.Context) error { return p.mint(ctx, d) }},
	}
}

// Active is the step behind the launch: the slot says that the seat was started. It has no undo of its own; that of
// the first step knows how to end it.
func (p *Provisioner) Active(d *Draft) saga.Step {
	return saga.Step{Name: "activate slot", After: fpActive, Do: func(ctx context.Context) error { return p.setActive(ctx, d) }}
}

// takeSlot writes the intent. It says how the process will be found, which is not there yet.
func (p *Provisioner) takeSlot(ctx context.Context, d *Draft) error {
	want := wire.Slot{
		Owner: d.Life.Owner, Alias: d.Life.Alias, Actor: d.Life.Actor, LifecycleUID: d.Life.UID, Phase: wire.SlotProvisioning,
		OwnerInstanceID: p.cfg.Instance, ManagerInstance: p.cfg.Incarnation, Runtime: &d.Spec.Runtime, CredentialFile: d.File,
	}
	err := p.onRows(ctx, d, func(ctx context.Context, rec *bus.Records) error {
		_, err := ChangeSlot(ctx, rec, d.Life.Slot(), func(s *wire.Slot) (wire.Slot, error) {
			switch {
			case s == nil || s.Phase == wire.SlotRetired && s.LifecycleUID != want.LifecycleUID:
				return want, nil
			case s.LifecycleUID == want.LifecycleUID && s.Phase == wire.SlotProvisioning:
				return *s, nil // written before its answer was lost
			case s.LifecycleUID == want.LifecycleUID:
				return *s, ErrOver
			}
			return *s, &HeldError{Slot: *s, Foreign: s.OwnerInstanceID != p.cfg.Instance}
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("take slot of %s: %w", d.Life.Alias, err)
	}
	return nil
}

// makeDurables makes what the life reads from. What was said to an earlier life is not for it: its queue begins
// behind the last message of now.
func (p *Provisioner) makeDurables(ctx context.Context, d *Draft) error {
	err := p.cfg.Auth.With(ctx, trust.Request{Profile: trust.Provisioner, Scope: trust.Scope{Target: d.Life.Caller, Role: d.Spec.Role}},
		func(ctx context.Context, b *bus.Bus) error {
			frontier, err := b.LastSequence(ctx, p.cfg.Space, wire.StreamDirect)
			if err != nil {
				return err
			}
			if err := b.MakeDirectQueue(ctx, p.cfg.Space, d.Life.Caller, frontier+1); err != nil {
				return err
			}
			if d.Spec.Role != "" {
				if err := b.MakeTaskQueue(ctx, p.cfg.Space, d.Spec.Role); err != nil {
					return err
				}
			}
			if err := fpQueue.Hit(); err != nil {
				return err
			}
			return b.PutMembership(ctx, p.cfg.Space, wire.Principal{Owner: d.Life.Owner, Actor: d.Life.Actor}, wire.Membership{
				Live: concrete(d.Spec.Read), Durable: []string{}, ObservedAt: p.cfg.Now().UnixMilli(),
			})
		})
	if err != nil {
		return fmt.Errorf("make durables of %s: %w", d.Life.Alias, err)
	}
	return nil
}

// concrete are those of the patterns that name one channel, sorted and each once. A pattern is nobody's
// membership.
func concrete(patterns []string) []string {
	out := []string{}
	for _, ch := range patterns {
		if wire.ValidChannel(ch) {
			out = append(out, ch)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// mint mints the credential and puts it where the program will read it.
func (p *Provisioner) mint(ctx context.Context, d *Draft) error {
	var st *trust.Standing
	err := p.onRows(ctx, d, func(ctx context.Context, rec *bus.Records) (err error) {
		r := p.request(d)
		r.Over = rec
		st, err = p.cfg.Auth.Stand(ctx, r)
		return err
	})
	if err != nil {
		return fmt.Errorf("mint credential of %s: %w", d.Life.Alias, err)
	}
	if err := fpMinted.Hit(); err != nil {
		return err
	}
	if err := trust.ToFile(p.cfg.Store, d.File)(ctx, st.Current()); err != nil {
		return fmt.Errorf("write credential of %s: %w", d.Life.Alias, err)
	}
	st.Configure(trust.StandingConfig{Deliver: p.deliverer(d)})
	d.credential = st
	return nil
}

// request is what the life's credential is minted with, at first and at each renewal.
func (p *Provisioner) request(d *Draft) trust.Request {
	return trust.Request{
		Profile: trust.Agent, Key: d.key, UID: d.Life.UID,
		Scope: trust.Scope{Role: d.Spec.Role, Read: d.Spec.Read, Write: d.Spec.Write, Spawn: d.Spec.Spawn},
		Record: func(ctx context.Context, id string, _ time.Time) error {
			if err := p.recordCredential(ctx, d, id); err != nil {
				return err
			}
			return fpMinting.Hit()
		},
	}
}

// recordCredential notes in the slot which credential is about to be minted. A life whose end is decided gets none
// any more: a renewal that was under way would bring back what was just taken away.
func (p *Provisioner) recordCredential(ctx context.Context, d *Draft, id string) error {
	l := d.Life
	err := p.onRows(ctx, d, func(ctx context.Context, rec *bus.Records) error {
		_, err := ChangeSlot(ctx, rec, l.Slot(), func(s *wire.Slot) (wire.Slot, error) {
			if err := living(s, l); err != nil {
				return wire.Slot{}, err
			}
			next := *s
			next.CredentialID = id
			return next, nil
		})
		return err
	})
	if errors.Is(err, ErrOver) {
		err = fmt.Errorf("%w: %w: %w", trust.ErrGate, trust.ErrRetired, err)
	}
	if err != nil {
		return fmt.Errorf("record credential of %s: %w", l.Alias, err)
	}
	return nil
}

// deliverer writes a renewed credential, unless the end of the life was decided since it was minted: its file would
// stay behind whoever has removed it. Retirement removes the file after it has decided the end, so one of the two
// sees the other.
func (p *Provisioner) deliverer(d *Draft) func(context.Context, trust.Credential) error {
	write := trust.ToFile(p.cfg.Store, d.File)
	return func(ctx context.Context, c trust.Credential) error {
		if err := write(ctx, c); err != nil {
			return err
		}
		err := p.asExecutor(ctx, d.Life, func(ctx context.Context, rec *bus.Records) error {
			s, _, err := ReadSlot(ctx, rec, d.Life.Slot())
			if err != nil {
				return err
			}
			return living(&s, d.Life)
		})
		if errors.Is(err, ErrOver) {
			return errors.Join(err, p.cfg.Store.Remove(d.File))
		}
		return err
	}
}

// Adopt goes on with the credential of a life that an earlier process of this instance began, and renews it from
// here on. Nothing is minted before it is due. spec is what the life was begun with.
//
// Errors: ErrOver, ErrLost, fs.ErrNotExist (its file is gone), trust.ErrRefused (the file is not of this life),
// bus.ErrUnavailable.
func (p *Provisioner) Adopt(ctx context.Context, l Life, spec Spec) (*Draft, error) {
	d := &Draft{Life: l, Spec: spec}
	err := p.asExecutor(ctx, l, func(ctx context.Context, rec *bus.Records) error {
		s, err := ChangeSlot(ctx, rec, l.Slot(), func(s *wire.Slot) (wire.Slot, error) {
			if err := living(s, l); err != nil {
				return wire.Slot{}, err
			}
			next := *s
			next.Phase = wire.SlotActive // whoever began it may have died before it could say so
			return next, nil
		})
		d.File = s.CredentialFile
		return err
	})
	var file []byte
	if err == nil {
		file, err = p.cfg.Store.Read(d.File)
	}
	defer clear(file)
	if err == nil {
		d.credential, err = p.cfg.Auth.Adopt(p.request(d), file)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt credential of %s: %w", l.Alias, err)
	}
	d.credential.Configure(trust.StandingConfig{Deliver: p.deliverer(d)})
	return d, nil
}

// setActive says in the slot that the seat was started.
func (p *Provisioner) setActive(ctx context.Context, d *Draft) error {
	defer d.Close() // nothing of the saga needs it any more, and its renewals are not to find it
	err := p.onRows(ctx, d, func(ctx context.Context, rec *bus.Records) error {
		_, err := ChangeSlot(ctx, rec, d.Life.Slot(), func(s *wire.Slot) (wire.Slot, error) {
			if err := living(s, d.Life); err != nil {
				return wire.Slot{}, err
			}
			next := *s
			next.Phase = wire.SlotActive
			return next, nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("activate slot of %s: %w", d.Life.Alias, err)
	}
	return nil
}

// SetRuntime records by what the next process of a life will be found, before there is one.
//
// Errors: ErrOver, bus.ErrUnavailable.
func (p *Provisioner) SetRuntime(ctx context.Context, l Life, ref wire.RuntimeRef) error {
	err := p.asExecutor(ctx, l, func(ctx context.Context, rec *bus.Records) error {
		_, err := ChangeSlot(ctx, rec, l.Slot(), func(s *wire.Slot) (wire.Slot, error) {
			if err := living(s, l); err != nil {
				return wire.Slot{}, err
			}
			next := *s
			next.Runtime = &ref
			return next, nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("record custody reference of %s: %w", l.Alias, err)
	}
	return nil
}

// living refuses a slot that is not this life's any more, and one whose end is decided; it says what it found.
func living(s *wire.Slot, l Life) error {
	switch {
	case s == nil:
		return fmt.Errorf("%w: %w: its slot is gone", ErrOver, ErrLost)
	case s.LifecycleUID != l.UID:
		return fmt.Errorf("%w: its slot is of life %s, which is %s", ErrOver, s.LifecycleUID, s.Phase)
	case s.Phase != wire.SlotProvisioning && s.Phase != wire.SlotActive:
		return fmt.Errorf("%w: its slot is %s", ErrOver, s.Phase)
	}
	return nil
}
