package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrNotBegun: the mesh did not let an authenticated host begin. Nothing was changed, no seat was touched, and what is
// wrong with it may pass by itself.
var ErrNotBegun = errors.New("this host cannot begin on its mesh")

// authority is what a host of an authenticated space has beside one of an open space, where there is none: the keys of
// the space, and the credentials that this process holds and renews.
type authority struct {
	trust.Authority
	keys  *trust.Keyring
	store *trust.FileStore // of this workspace: credentials that are files
	scope string           // of what the journal knows of the broker's streams
	reach bus.Config       // how the broker is reached, without who connects
	log   hclog.Logger

	// self is the key of the supervisor: the host is known by it from its lease on.
	self trust.Key
	// operator is the credential of the person at this machine, and operatorFile where it is.
	operator     *trust.Standing
	operatorFile string

	life     context.Context // ends with close
	end      context.CancelFunc
	renewing sync.WaitGroup

	mu   sync.Mutex
	held []held
	open []*bus.Bus
}

// held is a credential that this process holds.
type held struct {
	profile trust.Profile
	*trust.Standing
}

// openKeys opens the keys of the space, before the broker is started that has to know them. An embedded broker trusts
// whatever keys there are, so they are made for it; another one has to have been told of them.
func (h *Host) openKeys(ctx context.Context) error {
	if h.cfg.Open {
		return nil
	}
	a := &authority{log: h.log.Named("trust")}
	a.life, a.end = context.WithCancel(context.Background())
	noKeys := func(where string) error {
		if h.cfg.Server == "" {
			return fmt.Errorf("space %s has no keys in %s; name the workspace that has them with --keys, or leave it out to have some made", h.cfg.Space, where)
		}
		return fmt.Errorf("space %s has no keys in %s, which the broker at %s would have to trust: write its configuration with cotal-host auth export, "+
			"or name the workspace that has them with --keys", h.cfg.Space, where, h.cfg.Server)
	}
	if at := cmp.Or(h.cfg.Keys, h.cfg.Root); (h.cfg.Server != "" || h.cfg.Keys != "") && !trust.HasFileStore(at) {
		return noKeys(at)
	}
	var err error
	if a.store, err = trust.OpenFileStore(ctx, h.cfg.Root); err != nil {
		return err
	}
	from := a.store
	if h.cfg.Keys != "" {
		if from, err = trust.OpenFileStore(ctx, h.cfg.Keys); err != nil {
			return err
		}
	}
	if h.cfg.Server == "" && h.cfg.Keys == "" {
		a.keys, err = h.ownKeys(ctx, from)
	} else {
		a.keys, err = trust.OpenKeyring(from, h.cfg.Space)
		if err == nil && h.cfg.Keys != "" {
			err = h.journal.SetKnown(ctx, keysKey+h.cfg.Space) // a start without --keys makes none of its own
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return noKeys(from.Dir())
	}
	if err != nil {
		return err
	}
	b, err := a.keys.Bundle()
	if err != nil {
		return err
	}
	a.scope = accountScope(b)
	h.auth = a
	return h.sameBroker()
}

// sameBroker refuses to start a broker here for a workspace whose space is on one elsewhere: it would be empty, and seats
// that live are on the other one.
func (h *Host) sameBroker() error {
	facts, err := wire.StreamName(wire.StreamFact, h.cfg.Space)
	if err != nil || h.cfg.Server != "" || h.inst.Port != 0 || hasStreams(filepath.Join(h.inst.Dir, authStore), "A*") {
		return err
	}
	elsewhere, err := h.journal.Known(h.auth.scope + facts)
	if err != nil {
		return fmt.Errorf("ask the journal for a broker: %w", err)
	}
	if elsewhere {
		return fmt.Errorf("workspace %s was served on a broker elsewhere, and has none of its own: name that one with --server; no seat was touched", h.cfg.Root)
	}
	return nil
}

// keysKey and a space is by what the journal remembers that this workspace has had keys of it.
const keysKey = "keys/"

// ownKeys opens the keys of this workspace, and makes those of a space that never had any. Keys that are gone are not made
// anew: their mesh is another one, and an empty one, so that every seat would have lost its life on it for good.
func (h *Host) ownKeys(ctx context.Context, store *trust.FileStore) (*trust.Keyring, error) {
	had, err := h.journal.Known(keysKey + h.cfg.Space)
	if err != nil {
		return nil, fmt.Errorf("ask the journal for keys: %w", err)
	}
	keys, err := trust.OpenKeyring(store, h.cfg.Space)
	if errors.Is(err, fs.ErrNotExist) {
		if had || trust.ToldOf(filepath.Join(h.inst.Dir, authStore, accountsDir), h.cfg.Space) {
			return nil, fmt.Errorf("the keys of space %s are gone from %s (%v): restore them from a backup, and nothing is lost; or name the workspace that has them with --keys, if this one was served so; "+
				"to begin anew without them, and without what the space has stored, end the seats that live and move .cotal/host and .cotal/auth away; no seat was touched",
				h.cfg.Space, store.Dir(), err)
		}
		keys, err = trust.MakeKeyring(ctx, store, h.cfg.Space)
	}
	if err == nil && !had {
		err = h.journal.SetKnown(ctx, keysKey+h.cfg.Space)
	}
	return keys, err
}

// operatorOf is what an embedded broker is told of the keys.
func (a *authority) operatorOf(dir string) (*broker.Operator, error) {
	b, err := a.keys.Bundle()
	if err != nil {
		return nil, err
	}
	return &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: filepath.Join(dir, accountsDir)}, nil
}

// openAuthority begins to mint, for an instance whose broker is reachable.
func (h *Host) openAuthority(reach bus.Config) error {
	a := h.auth
	commands, err := control.Commands(control.Deps{})
	if err != nil {
		return err
	}
	reach.Token, reach.TokenFile = "", ""
	a.reach = reach
	a.Authority, err = trust.NewStatic(trust.StaticConfig{
		Keys: a.keys, Instance: h.inst.ID, Endpoint: wire.EndpointManager, Commands: append(slices.Sorted(maps.Keys(commands)), wire.CmdDescribe),
		Reach: reach, Log: a.log, Now: h.now,
	})
	if err != nil {
		return err
	}
	if a.self, err = a.NewKey(); err != nil {
		return err
	}
	p := a.Principal(a.self.Public)
	h.self = wire.Caller{Owner: p.Owner, Actor: p.Actor, UID: h.inst.ID}
	a.adoptOperator(h.inst.ID)
	a.renewing.Go(func() { a.Remind(a.life) })
	return nil
}

// adoptOperator goes on with the credential of the person at this machine, so that what is connected with it stays
// connected over a restart. One that cannot be gone on with is made anew.
func (a *authority) adoptOperator(instanceID string) {
	a.operatorFile = trust.OperatorFile(a.Space(), instanceID)
	file, err := a.store.Read(a.operatorFile)
	defer clear(file)
	if err == nil {
		a.operator, err = a.Adopt(trust.Request{Profile: trust.Operator}, file)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.log.Warn("the operator's credential is made anew", "err", err)
	}
}

// openOperator mints the credential of the person at this machine, or the next one of the same key: what it may do is
// as this build says.
func (a *authority) openOperator(ctx context.Context) error {
	write := trust.StandingConfig{Deliver: trust.ToFile(a.store, a.operatorFile)}
	if a.operator != nil {
		a.operator.Configure(write)
		if err := a.operator.Renew(ctx); err != nil {
			return err
		}
		a.renew(trust.Operator, a.operator)
		return nil
	}
	s, err := a.Stand(ctx, trust.Request{Profile: trust.Operator})
	if err == nil {
		err = write.Deliver(ctx, s.Current())
	}
	if err != nil {
		return err
	}
	s.Configure(write)
	a.operator = s
	a.renew(trust.Operator, s)
	return nil
}

// renew renews a credential until the host closes.
func (a *authority) renew(profile trust.Profile, s *trust.Standing) {
	a.mu.Lock()
	a.held = append(a.held, held{profile, s})
	a.mu.Unlock()
	a.renewing.Go(func() { s.Run(a.life) })
}

// connect opens a connection with a credential of its own, which is renewed for as long as the host lives.
func (a *authority) connect(ctx context.Context, r trust.Request, more func(*bus.Config)) (*bus.Bus, error) {
	s, err := a.Stand(ctx, r)
	if err != nil {
		return nil, err
	}
	cfg := a.reach
	cfg.Credentials, cfg.Name = s, "cotal-host "+string(r.Profile)
	cfg.OnState = func(connected bool, reason string) {
		if !connected {
			a.log.Info("a connection is lost; it comes back with the credential of then", "op", string(r.Profile), "reason", reason)
		}
	}
	if more != nil {
		more(&cfg)
	}
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect as %s: %w", r.Profile, err)
	}
	a.mu.Lock()
	a.open = append(a.open, b)
	a.mu.Unlock()
	a.renew(r.Profile, s)
	return b, nil
}

// retry has what could not be renewed while the broker was away renewed now.
func (a *authority) retry() {
	if a != nil {
		a.Retry()
	}
}

// rest ends all renewals.
func (a *authority) rest() {
	if a == nil {
		return
	}
	a.end()
	a.renewing.Wait()
}

// close ends the connections.
func (a *authority) close() {
	a.rest()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range slices.Backward(a.open) {
		b.Close()
	}
}

// credentials is how each credential stands that this process renews.
func (a *authority) credentials() []wire.CredentialStatus {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	all := slices.Clone(a.held)
	a.mu.Unlock()
	var out []wire.CredentialStatus
	for _, s := range all {
		health, err := s.Health()
		row := wire.CredentialStatus{Profile: string(s.profile), Health: string(health), Expires: s.Current().Expires.UnixMilli()}
		if err != nil {
			row.Reason = err.Error()
		}
		out = append(out, row)
	}
	return out
}

// Directories of the embedded broker, below that of the host. They are apart, so that what was said in an open space is
// never taken over by an authenticated one, nor the other way round.
const (
	openStore = "nats"
	authStore = "nats-auth"
	// accountsDir is below the second: what the broker was told of accounts.
	accountsDir = "accounts"
)

// checkMode refuses to serve a workspace another way than it was: its streams do not move, and its seats could not be
// reached.
func (h *Host) checkMode() error {
	var living []string
	err := h.journal.View(func(tx *journal.Tx) error {
		return tx.Seats(func(r journal.SeatRow) error {
			if !r.State.Ended() {
				living = append(living, r.Alias)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("look for living seats: %w", err)
	}
	said, err := askJournal(h.journal, h.cfg.Space)
	if err != nil {
		return err
	}
	// One of the three is there when another one was lost.
	authenticated, open := storeSays(h.inst.Dir)
	was := h.inst.Mode == instance.ModeAuthenticated || said.authenticated || authenticated
	opened := !was && (len(living) > 0 || said.open || open)
	if text := modeRefusal(modeFacts{open: h.cfg.Open, was: was, opened: opened, fresh: h.cfg.FreshAuth, living: living, root: h.cfg.Root}); text != "" {
		return errors.New(text)
	}
	return nil
}

// authenticatedKey is by what the journal remembers that this workspace is an authenticated one.
const authenticatedKey = "mode/authenticated"

// setMode remembers that this workspace is an authenticated one, before anything is stored in one.
func (h *Host) setMode(ctx context.Context) error {
	if err := h.inst.SetMode(instance.ModeAuthenticated); err != nil {
		return err
	}
	return h.journal.SetKnown(ctx, authenticatedKey)
}

// modeFacts is what is known of how a workspace was served, and how it is to be.
type modeFacts struct {
	open   bool // it is to be served open
	was    bool // it was served authenticated
	opened bool // it was served open, and not authenticated since
	fresh  bool // --fresh-auth
	living []string
	root   string
}

// modeRefusal says why a workspace is not served that way; empty when it is.
func modeRefusal(f modeFacts) string {
	seats := ""
	if len(f.living) > 0 {
		slices.Sort(f.living)
		seats = "; seats that live in it: " + strings.Join(f.living, ", ")
	}
	switch {
	case f.open && f.was:
		return fmt.Sprintf("workspace %s is an authenticated one, whose seats and streams an open host cannot reach%s; "+
			"serve it without --open, or serve an open space from another workspace", f.root, seats)
	case f.open || f.was || !f.opened:
		return ""
	case f.fresh && seats != "":
		return fmt.Sprintf("workspace %s was served with --open%s, which an authenticated host cannot reach; "+
			"end them first: cotal-host serve --open --root %s, and then cotal-host stop --with-agents --root %s", f.root, seats, f.root, f.root)
	case f.fresh:
		return ""
	}
	return fmt.Sprintf("workspace %s was served with --open, and what is stored there does not move to an authenticated space%s; "+
		"pass --open to serve it as before, or --fresh-auth to begin an empty authenticated space beside what is stored, which is kept", f.root, seats)
}

// hasStreams reports whether a store has a stream of an account, by a pattern of its name.
func hasStreams(store, account string) bool {
	found, _ := filepath.Glob(filepath.Join(store, "jetstream", account, "streams", "*")) // the one error is of the pattern
	return len(found) > 0
}

// notBegun is an error that kept an authenticated host from beginning, with what can be done about it.
func (h *Host) notBegun(err error) error {
	fix := ""
	switch {
	case errors.Is(err, bus.ErrRefused) && h.cfg.Server != "":
		fix = "; the broker does not trust the keys of this workspace: cotal-host doctor auth --server " + h.cfg.Server + " says what is wrong"
	case errors.Is(err, bus.ErrUnreachable):
		fix = "; start the broker, or name another one with --server"
	case errors.Is(err, bus.ErrUnavailable):
		fix = "; the store of the broker cannot be written or read: free its disk, or see the log of the broker"
	}
	return fmt.Errorf("%w: %w%s; no seat was touched", ErrNotBegun, err, fix)
}

// Bounds of the boot of an authenticated host. Each part is a few dozen exchanges with a broker that answered a moment
// ago.
const (
	setUpTimeout   = 30 * time.Second
	connectTimeout = 15 * time.Second
)
