package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// StaticConfig of a Static.
type StaticConfig struct {
	Keys *Keyring
	// Instance is the id of this host's instance, and Endpoint what it serves; default manager.
	Instance, Endpoint string
	// Commands are what it serves, describe included.
	Commands []string
	// Reach is how the broker is reached: URL or InProcess, and Log. Whatever says who connects is replaced.
	Reach bus.Config
	Log   hclog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Static is the authority of a space whose keys are this workspace's own.
type Static struct {
	cfg StaticConfig
	// turn admits one mint under a gate at a time: each one writes the gate, and they would all lose but one.
	turns turns
	// minted are the ids of what this process has minted, until their end.
	minted minted
	// again wakes what waits to be renewed.
	again pulse
	// pushing admits one push of the account at a time, so that an older one never arrives last.
	pushing chan struct{}
}

var _ Authority = (*Static)(nil)

// NewStatic returns the authority. It reaches for nothing yet.
func NewStatic(cfg StaticConfig) (*Static, error) {
	if cfg.Endpoint == "" {
		cfg.Endpoint = wire.EndpointManager
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	switch {
	case cfg.Keys == nil:
		return nil, errors.New("open authority: no keys")
	case !wire.ValidUID(cfg.Instance):
		return nil, fmt.Errorf("open authority: instance id %q is not 26 to 32 characters [a-z0-9]", cfg.Instance)
	case !wire.ValidEndpoint(cfg.Endpoint):
		return nil, fmt.Errorf("open authority: endpoint %q is not labels joined by dots", cfg.Endpoint)
	}
	for _, cmd := range cfg.Commands {
		if !wire.ValidCommand(cmd) {
			return nil, fmt.Errorf("open authority: command %q is not 1 to 32 characters [a-z0-9-]", cmd)
		}
	}
	return &Static{cfg: cfg, pushing: make(chan struct{}, 1)}, nil
}

// Space is the space of the keys.
func (a *Static) Space() string { return a.cfg.Keys.space }

// NewKey makes a user key.
func (a *Static) NewKey() (Key, error) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		return Key{}, fmt.Errorf("make key: %w", err)
	}
	defer kp.Wipe()
	pub, err := kp.PublicKey()
	if err != nil {
		return Key{}, fmt.Errorf("make key: %w", err)
	}
	seed, err := kp.Seed()
	if err != nil {
		return Key{}, fmt.Errorf("make key: %w", err)
	}
	return Key{Public: pub, Seed: bytes.Clone(seed)}, nil // what it returned is wiped with the pair
}

// Principal is local.<nkey>.
func (a *Static) Principal(public string) wire.Principal {
	return wire.Principal{Owner: wire.OwnerLocal, Actor: public}
}

// own is the life of this host's instance.
func (a *Static) own() Life { return Life{UID: a.cfg.Instance, Endpoint: a.cfg.Endpoint} }

// dial opens a one-shot connection with a credential.
func (a *Static) dial(ctx context.Context, c Credential) (*bus.Bus, error) {
	cfg := a.cfg.Reach
	cfg.Token, cfg.TokenFile, cfg.CredsFile = "", "", ""
	cfg.Credentials, cfg.OneShot, cfg.Strict, cfg.Name = c, true, true, "cotal-host "+string(c.Profile)
	cfg.OnState = func(bool, string) {} // it is gone in a moment
	if cfg.Log == nil {
		cfg.Log = a.cfg.Log
	}
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect as %s: %w", c.Profile, err)
	}
	return b, nil
}

// minted remembers credentials until their end, and whose are gone on with.
type minted struct {
	mu      sync.Mutex
	ids     map[string]time.Time
	holders map[string]bool // principals
}

// adopt remembers a holder whose credential this process goes on renewing.
func (m *minted) adopt(p wire.Principal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holders == nil {
		m.holders = map[string]bool{}
	}
	m.holders[p.String()] = true
}

func (m *minted) add(c Credential, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids == nil {
		m.ids = map[string]time.Time{}
	}
	maps.DeleteFunc(m.ids, func(_ string, exp time.Time) bool { return now.After(exp.Add(revocationSlack)) })
	m.ids[c.ID] = c.Expires
}

// has reports whether a credential is of this process, or of a holder that it goes on with: who refuses the key of that
// one refuses every credential of it.
func (m *minted) has(c wire.CredentialRow) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.ids[c.CredentialID]
	return ok || m.holders[c.HolderPrincipal]
}

// turns is one token for each gate that somebody mints under now.
type turns struct {
	mu   sync.Mutex
	gate map[string]*turn
}

type turn struct {
	token chan struct{}
	users int // that hold it or wait for it
}

// take waits for the turn under a gate and returns the end of it.
func (t *turns) take(ctx context.Context, gate string) (func(), error) {
	t.mu.Lock()
	g, ok := t.gate[gate]
	if !ok {
		if t.gate == nil {
			t.gate = map[string]*turn{}
		}
		g = &turn{token: make(chan struct{}, 1)}
		t.gate[gate] = g
	}
	g.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if g.users--; g.users == 0 {
			delete(t.gate, gate)
		}
	}
	select {
	case g.token <- struct{}{}:
		return func() { <-g.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
