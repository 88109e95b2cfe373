package trust

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Places where a mint may be cut short. Nothing was released at any of them.
var (
	fpRecorded = failpoint.New("host.mint.recorded") // the holder's own record names it, the ledger does not
	fpLedgered = failpoint.New("host.mint.ledgered") // the row is there, the gate was not asked
	fpGated    = failpoint.New("host.mint.gated")    // everything is written, and nobody holds it
)

// Tags of a credential. Whom it says it is for a client believes (sdk/mesh); what it may do, nobody reads there.
const (
	tagProfile = "profile:"
	tagLife    = "life:"
)

// stepLife is how long a credential lives that is used at once and for a moment. A takeover revokes each one that has not
// ended, and every server keeps and is told all of them: after some hundred seats a minute that was half a megabyte.
const stepLife = time.Minute

// gateTries is how often a gate that changed without any difference is tried again.
const gateTries = 8

// Mint makes one credential.
func (a *Static) Mint(ctx context.Context, r Request) (Credential, error) {
	if r.Profile == SetUp {
		return Credential{}, fmt.Errorf("mint %s: %w: before there is a ledger it is used by With alone", r.Profile, ErrRefused)
	}
	c, row, err := a.draft(r)
	if err == nil {
		err = a.enter(ctx, r, c, row)
	}
	if err != nil {
		return Credential{}, fmt.Errorf("mint %s: %w", r.Profile, err)
	}
	return c, nil
}

// Check reports whether a request would be refused.
func (a *Static) Check(r Request) error {
	c, _, err := a.draft(r)
	clear(c.seed)
	if err != nil {
		return fmt.Errorf("check %s: %w", r.Profile, err)
	}
	return nil
}

// draft checks a request and signs what it asks for. Nothing is written, and what it returns is worth nothing
// before enter: it has not left this function's caller.
func (a *Static) draft(r Request) (Credential, wire.CredentialRow, error) {
	p := r.Profile.row()
	if p.name == "" {
		return Credential{}, wire.CredentialRow{}, fmt.Errorf("%w: %q is not a profile", ErrRefused, string(r.Profile))
	}
	refuse := func(format string, args ...any) (Credential, wire.CredentialRow, error) {
		return Credential{}, wire.CredentialRow{}, fmt.Errorf("%w: profile %s: %w", ErrRefused, p.name, fmt.Errorf(format, args...))
	}
	if err := p.check(r.Scope); err != nil {
		return Credential{}, wire.CredentialRow{}, err
	}
	life := a.own()
	switch {
	case p.agent && !wire.ValidUID(r.UID):
		return refuse("uid is missing or not 26 to 32 characters [a-z0-9]")
	case p.agent:
		life = Life{UID: r.UID}
	case r.UID != "":
		return refuse("uid has no place in it: it is of the host's own instance")
	}
	lasts := r.Life
	switch {
	case lasts < 0 || lasts > p.life:
		return refuse("life %s is not between 0 and %s", lasts, p.life)
	case lasts == 0:
		lasts = p.life
	}
	key := r.Key
	if key.Public == "" && len(key.Seed) == 0 {
		var err error
		if key, err = a.NewKey(); err != nil {
			return Credential{}, wire.CredentialRow{}, err
		}
	} else if err := checkKey(key); err != nil {
		return refuse("key: %w", err)
	}

	now := a.cfg.Now()
	// A token says seconds. The end is cut down, so that nothing outlives what its row says.
	exp := time.Unix(now.Add(lasts).Unix(), 0)
	holder := a.Principal(key.Public)
	g := &grants{
		space: a.Space(), endpoint: a.cfg.Endpoint, instance: a.cfg.Instance, commands: a.cfg.Commands,
		holder: wire.Caller{Owner: holder.Owner, Actor: holder.Actor, UID: life.UID}, connID: key.Public, scope: r.Scope,
	}
	if p.system {
		acc, err := a.cfg.Keys.account()
		if err != nil {
			return Credential{}, wire.CredentialRow{}, err
		}
		g.account = acc
	}
	p.grant(g)
	claims := jwt.NewUserClaims(key.Public)
	claims.Name = holder.String()
	claims.Tags.Add(tagProfile+string(p.name), tagLife+life.UID)
	claims.Expires = exp.Unix()
	claims.Permissions = g.permissions()
	token, err := a.cfg.Keys.sign(claims, p.system)
	if err != nil {
		return Credential{}, wire.CredentialRow{}, err
	}
	if len(token) > wire.MaxCredentialJWT {
		return Credential{}, wire.CredentialRow{}, fmt.Errorf("%w: %d bytes, %d are allowed; give it fewer channels", ErrTooLarge, len(token), wire.MaxCredentialJWT)
	}
	c := Credential{
		ID: credentialID(token), Profile: p.name, Public: key.Public, Issued: now, Expires: exp,
		token: token, issuer: claims.Issuer, seed: bytes.Clone(key.Seed), now: a.cfg.Now,
	}
	if !p.agent {
		a.minted.add(c, now)
	}
	source := wire.SourceRoot
	if r.Scope.Session != "" {
		source = wire.KindSession + "." + r.Scope.Session
	}
	return c, wire.CredentialRow{
		CredentialID: c.ID, HolderPrincipal: holder.String(), LifecycleUID: life.UID, Endpoint: life.Endpoint,
		SourceChain: []string{source}, State: wire.CredentialActive, Exp: exp.UnixMilli(),
	}, nil
}

// credentialID is the digest of a credential's text, so that the same credential has the same row.
func credentialID(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha256-" + hex.EncodeToString(sum[:])
}

func checkKey(k Key) error {
	kp, err := nkeys.FromSeed(k.Seed)
	if err != nil {
		return errors.New("its seed is not valid")
	}
	defer kp.Wipe()
	if pub, err := kp.PublicKey(); err != nil || pub != k.Public || !nkeys.IsValidPublicUserKey(pub) {
		return errors.New("its seed is not that of a user's public key")
	}
	return nil
}

// enter writes what has to be written before a credential is released.
func (a *Static) enter(ctx context.Context, r Request, c Credential, row wire.CredentialRow) error {
	scope := Scope{}
	if c.Profile == Agent {
		pr, err := wire.PrincipalOf(row.HolderPrincipal)
		if err != nil {
			return err
		}
		scope.Target = wire.Caller{Owner: pr.Owner, Actor: pr.Actor, UID: row.LifecycleUID}
	}
	if r.Record != nil {
		if err := r.Record(ctx, c.ID, c.Expires); err != nil {
			return err
		}
	}
	if err := fpRecorded.Hit(); err != nil {
		return err
	}
	life := Life{UID: row.LifecycleUID, Endpoint: row.Endpoint}
	if c.Profile == Executor {
		// Its row is its own first act, over a connection that does nothing else before: there is nothing that
		// could write it for the executor but another executor.
		return a.dialed(ctx, c, func(rec *bus.Records) error { return a.ledger(ctx, rec, c, row) })
	}
	write := func(rec *bus.Records) error {
		if r.Profile.row().unregistered {
			return a.ledger(ctx, rec, c, row)
		}
		done, err := a.turns.take(ctx, life.UID)
		if err != nil {
			return fmt.Errorf("%w: another mint under the same gate does not end: %w", ErrGate, err)
		}
		defer done()
		gate, err := readGate(ctx, rec, life)
		if err != nil {
			return err
		}
		if err := a.ledger(ctx, rec, c, row); err != nil {
			return err
		}
		if err := gate.pass(ctx, rec); err != nil {
			// Whatever became of the gate, this one is not released; its row says so.
			if rerr := a.markRevoked(context.WithoutCancel(ctx), rec, row.Key()); rerr != nil {
				a.cfg.Log.Warn("row of a credential that was not released stays active until its end", "credential", c.ID, "err", rerr)
			}
			return err
		}
		return fpGated.Hit()
	}
	if r.Over != nil && r.Over.Connected() {
		return write(r.Over)
	}
	return a.asExecutor(ctx, scope, write)
}

// ledger writes the row of a credential, create-only. The same row standing there already is this very
// credential, written before an answer was lost.
func (a *Static) ledger(ctx context.Context, rec *bus.Records, c Credential, row wire.CredentialRow) error {
	value, err := row.Encode()
	if err != nil {
		return err
	}
	if _, err := rec.CreateFor(ctx, row.Key(), value, c.Expires.Sub(a.cfg.Now())); err != nil {
		have, gerr := rec.Get(ctx, row.Key())
		if gerr != nil || !bytes.Equal(have.Value, value) {
			return err
		}
	}
	return fpLedgered.Hit()
}

// asExecutor runs do with the rows of the space, over a connection with an executor's credential for them.
func (a *Static) asExecutor(ctx context.Context, scope Scope, do func(*bus.Records) error) error {
	c, row, err := a.draft(Request{Profile: Executor, Scope: scope, Life: stepLife})
	if err != nil {
		return err
	}
	return a.dialed(ctx, c, func(rec *bus.Records) error {
		if err := a.ledger(ctx, rec, c, row); err != nil {
			return fmt.Errorf("ledger row of the executor: %w", err)
		}
		return do(rec)
	})
}

// dialed runs do over a one-shot connection, which ends whatever do returns.
func (a *Static) dialed(ctx context.Context, c Credential, do func(*bus.Records) error) error {
	b, err := a.dial(ctx, c)
	if err != nil {
		return err
	}
	defer b.Close()
	rec, err := b.Rows(a.Space())
	if err != nil {
		return err
	}
	return do(rec)
}

// With mints a credential for one step.
func (a *Static) With(ctx context.Context, r Request, do func(context.Context, *bus.Bus) error) error {
	if r.Profile == SetUp {
		return a.setUp(ctx, r, do)
	}
	b, end, err := a.Open(ctx, r)
	if err != nil {
		return err
	}
	defer end()
	return do(ctx, b)
}

// Open mints a credential for the steps of one operation.
func (a *Static) Open(ctx context.Context, r Request) (*bus.Bus, func(), error) {
	if r.Profile == Executor {
		return a.openExecutor(ctx, r)
	}
	if r.Life == 0 && !r.Profile.Standing() {
		r.Life = min(stepLife, r.Profile.Longest())
	}
	c, err := a.Mint(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	b, err := a.dial(ctx, c)
	if err != nil {
		clear(c.seed)
		return nil, nil, err
	}
	return b, func() { b.Close(); clear(c.seed) }, nil
}

// openExecutor is Open of the credential that writes its own row, as the first act of its connection.
func (a *Static) openExecutor(ctx context.Context, r Request) (*bus.Bus, func(), error) {
	c, row, err := a.draft(r)
	if err == nil && r.Record != nil {
		err = r.Record(ctx, c.ID, c.Expires)
	}
	if err == nil {
		err = fpRecorded.Hit()
	}
	if err != nil {
		clear(c.seed)
		return nil, nil, fmt.Errorf("mint %s: %w", r.Profile, err)
	}
	b, err := a.dial(ctx, c)
	if err != nil {
		clear(c.seed)
		return nil, nil, err
	}
	end := func() { b.Close(); clear(c.seed) }
	rec, err := b.Rows(a.Space())
	if err == nil {
		err = a.ledger(ctx, rec, c, row)
	}
	if err != nil {
		end()
		return nil, nil, fmt.Errorf("mint %s: %w", r.Profile, err)
	}
	return b, end, nil
}

// use runs do over a one-shot connection with a credential, and forgets its key.
func (a *Static) use(ctx context.Context, c Credential, do func(context.Context, *bus.Bus) error) error {
	defer clear(c.seed)
	b, err := a.dial(ctx, c)
	if err != nil {
		return err
	}
	defer b.Close()
	return do(ctx, b)
}

// setUp is With of the one credential that makes the ledger: its row is written as soon as there is one. It
// has not left this process until then, and does not afterwards.
func (a *Static) setUp(ctx context.Context, r Request, do func(context.Context, *bus.Bus) error) error {
	c, row, err := a.draft(r)
	if err != nil {
		return fmt.Errorf("mint %s: %w", r.Profile, err)
	}
	if err := a.use(ctx, c, do); err != nil {
		return err
	}
	err = a.asExecutor(ctx, Scope{}, func(rec *bus.Records) error { return a.ledger(ctx, rec, c, row) })
	if err != nil {
		return fmt.Errorf("mint %s: %w", r.Profile, err)
	}
	return nil
}

// seenGate is a gate as it was read before a row was written.
type seenGate struct {
	key   wire.Key
	value []byte
	rev   uint64
	open  bool
	// retired: it never opens again.
	retired bool
	why     string
}

func readGate(ctx context.Context, rec *bus.Records, life Life) (seenGate, error) {
	g := seenGate{key: life.gate()}
	row, err := rec.Get(ctx, g.key)
	if errors.Is(err, bus.ErrAbsent) {
		return g, fmt.Errorf("%w: %w: its life is not activated", ErrGate, err)
	}
	if err != nil {
		return g, err
	}
	g.value, g.rev = row.Value, row.Rev
	if err := g.decode(life); err != nil {
		return g, err
	}
	if !g.open {
		if g.retired {
			return g, fmt.Errorf("%w: %w: %s", ErrGate, ErrRetired, g.why)
		}
		return g, fmt.Errorf("%w: %s", ErrGate, g.why)
	}
	return g, nil
}

func (g *seenGate) decode(life Life) error {
	state, op := "", (*wire.GateOp)(nil)
	if life.Endpoint != "" {
		eg, err := wire.DecodeEndpointGate(g.value)
		if err != nil {
			return fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
		}
		state, op = eg.State, eg.Op
	} else {
		lg, err := wire.DecodeGate(life.UID, g.value)
		if err != nil {
			return fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
		}
		state, op = lg.State, lg.Op
	}
	g.open, g.retired = state == wire.GateOpen, state == wire.GateRetired
	if op != nil {
		g.why = fmt.Sprintf("the gate is %s by operation %s (%s)", state, op.OpID, op.Kind)
	}
	return nil
}

// pass writes the gate again as it was read. A barrier that froze it meanwhile has won, and so has one that
// froze and opened it: its generation is another. Only a gate that differs in nothing is tried again.
func (g seenGate) pass(ctx context.Context, rec *bus.Records) error {
	for range gateTries {
		_, err := rec.Update(ctx, g.key, g.value, g.rev)
		if err == nil {
			return nil
		}
		if !errors.Is(err, bus.ErrConflict) {
			// Written or not, the value is the same: what counts is whether the gate stood. That is not known.
			return err
		}
		row, gerr := rec.Get(ctx, g.key)
		if gerr != nil {
			return gerr
		}
		if !bytes.Equal(row.Value, g.value) {
			return fmt.Errorf("%w: the gate changed while the row was written", ErrGate)
		}
		g.rev = row.Rev
	}
	return fmt.Errorf("%w: the gate changes all the time", ErrGate)
}
