// Package authmesh is an authenticated space for the tests of whatever connects to one: keys, an embedded broker in
// operator mode, the streams of a space, a registered instance, and credentials as a host gives them to seats and
// people.
package authmesh

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/saga"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// What every space of this package is.
const (
	Space    = "main"
	Instance = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	Epoch    = 1
)

// Mesh is a space. Its parts end with the test.
type Mesh struct {
	t     testing.TB
	Store *trust.FileStore
	Auth  *trust.Static
	// Broker may be restarted with Restart.
	Broker *broker.Broker

	cfg    broker.Config
	prov   *provision.Provisioner
	retire *retire.Retirer
	clock  clock
}

// clock is a clock that a test can set ahead of the real one.
type clock struct {
	mu  sync.Mutex
	off time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.off)
}

// Commands are the names of what a host serves.
var Commands = sync.OnceValue(func() []string {
	table, err := control.Commands(control.Deps{})
	if err != nil {
		panic(err)
	}
	return append(slices.Sorted(maps.Keys(table)), wire.CmdDescribe)
})

// New makes a space.
func New(t testing.TB) *Mesh {
	t.Helper()
	m := &Mesh{t: t}
	ctx, cancel := Limit(t)
	defer cancel()
	var err error
	if m.Store, err = trust.OpenFileStore(ctx, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	keys, err := trust.MakeKeyring(ctx, m.Store, Space)
	if err != nil {
		t.Fatal(err)
	}
	b, err := keys.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	m.cfg = broker.Config{
		StoreDir: t.TempDir(),
		Operator: &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: t.TempDir()},
	}
	if m.Broker, err = broker.Start(ctx, m.cfg); err != nil {
		t.Fatal(err)
	}
	m.cfg.Port = m.Broker.Port()
	t.Cleanup(func() { m.Broker.Shutdown() })
	m.Auth, err = trust.NewStatic(trust.StaticConfig{
		Keys: keys, Instance: Instance, Commands: Commands(), Reach: bus.Config{URL: m.Broker.URL()}, Now: m.clock.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.retire, err = retire.New(retire.Config{
		Auth: m.Auth, Space: Space, Instance: Instance, Store: m.Store, Reap: func(context.Context, wire.RuntimeRef) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.retire.Close)
	m.prov, err = provision.New(provision.Config{
		Auth: m.Auth, Space: Space, Instance: Instance, Incarnation: Instance + "-1", Store: m.Store, Dir: m.Store.Dir(), Retire: m.retire,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.setUp(ctx)
	return m
}

// Limit bounds one act of a test.
func Limit(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
}

// setUp makes the streams of the space and registers the instance, each with the credential that is for it.
func (m *Mesh) setUp(ctx context.Context) {
	m.t.Helper()
	nothing, anything := func(string) bool { return false }, func(string) error { return nil }
	err := m.Auth.With(ctx, trust.Request{Profile: trust.SetUp}, func(ctx context.Context, b *bus.Bus) error {
		if _, err := b.Records(ctx, Space, nothing, anything); err != nil {
			return err
		}
		return b.SetUpMessaging(ctx, Space, nothing, anything)
	})
	if err != nil {
		m.t.Fatal(err)
	}
	contract, err := control.Contract(wire.OwnerLocal)
	if err != nil {
		m.t.Fatal(err)
	}
	err = m.Auth.With(ctx, trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(Space)
		if err != nil {
			return err
		}
		_, err = b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: Instance, Epoch: Epoch, Principal: "local.manager", Contract: contract,
		})
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// URL is where the broker is, also when it is away.
func (m *Mesh) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", m.cfg.Port) }

// Stop takes the broker away, and Restart brings it back on its port and store.
func (m *Mesh) Stop() { m.Broker.Shutdown() }

// Restart is the other one.
func (m *Mesh) Restart() {
	m.t.Helper()
	ctx, cancel := Limit(m.t)
	defer cancel()
	var err error
	if m.Broker, err = broker.Start(ctx, m.cfg); err != nil {
		m.t.Fatal(err)
	}
}

// Ahead sets the clock of whoever mints, so that what is minted from now on begins then.
func (m *Mesh) Ahead(d time.Duration) {
	m.clock.mu.Lock()
	defer m.clock.mu.Unlock()
	m.clock.off = d
}

// File mints a credential and returns the path of its file.
func (m *Mesh) File(r trust.Request) string {
	m.t.Helper()
	ctx, cancel := Limit(m.t)
	defer cancel()
	c, err := m.Auth.Mint(ctx, r)
	if err != nil {
		m.t.Fatal(err)
	}
	name := trust.CredentialFile(Space, string(r.Profile), wire.NewUID())
	if err := trust.ToFile(m.Store, name)(ctx, c); err != nil {
		m.t.Fatal(err)
	}
	return m.path(name)
}

// Operator mints the instrument of the person at the machine, and returns its file.
func (m *Mesh) Operator() string {
	m.t.Helper()
	return m.File(trust.Request{Profile: trust.Operator})
}

func (m *Mesh) path(name string) string {
	return filepath.Join(m.Store.Dir(), filepath.FromSlash(name))
}

// Agent is a life as a spawn provisions it.
type Agent struct {
	provision.Life
	Creds string // path of its credentials file

	mesh  *Mesh
	draft *provision.Draft
}

// Agent provisions a life: its slot, its gate, its queues and its credential.
func (m *Mesh) Agent(spec provision.Spec) *Agent {
	m.t.Helper()
	ctx, cancel := Limit(m.t)
	defer cancel()
	if spec.Runtime.ID == "" {
		spec.Runtime = wire.RuntimeRef{Kind: "pty", ID: wire.NewCustodyID()}
	}
	d, err := m.prov.Draw(spec)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := saga.Run(ctx, "spawn", nil, append(m.prov.Steps(d), m.prov.Active(d))); err != nil {
		m.t.Fatal(err)
	}
	return &Agent{Life: d.Life, Creds: m.path(d.File), mesh: m, draft: d}
}

// Renew replaces the file by a credential that is minted now.
func (a *Agent) Renew() {
	a.mesh.t.Helper()
	ctx, cancel := Limit(a.mesh.t)
	defer cancel()
	if err := a.draft.Credential().Renew(ctx); err != nil {
		a.mesh.t.Fatal(err)
	}
}

// Expire replaces the file by a credential of the same key that ends after a while.
func (a *Agent) Expire(after time.Duration) {
	a.mesh.t.Helper()
	ctx, cancel := Limit(a.mesh.t)
	defer cancel()
	text, err := a.mesh.Store.Read(a.draft.File)
	if err != nil {
		a.mesh.t.Fatal(err)
	}
	key, err := keyOf(text)
	if err != nil {
		a.mesh.t.Fatal(err)
	}
	s := a.draft.Spec
	c, err := a.mesh.Auth.Mint(ctx, trust.Request{
		Profile: trust.Agent, UID: a.UID, Key: key, Life: after, Scope: trust.Scope{Role: s.Role, Read: s.Read, Write: s.Write, Spawn: s.Spawn},
	})
	if err != nil {
		a.mesh.t.Fatal(err)
	}
	if err := trust.ToFile(a.mesh.Store, a.draft.File)(ctx, c); err != nil {
		a.mesh.t.Fatal(err)
	}
}

// Retire ends the life, as a despawn does.
func (a *Agent) Retire() {
	a.mesh.t.Helper()
	ctx, cancel := Limit(a.mesh.t)
	defer cancel()
	if err := a.mesh.retire.Retire(ctx, a.Life); err != nil {
		a.mesh.t.Fatal(err)
	}
}

// Serve answers commands of the manager as the host's instance.
func (m *Mesh) Serve(commands map[string]bus.Command) {
	m.t.Helper()
	ctx, cancel := Limit(m.t)
	defer cancel()
	c, err := m.Auth.Mint(ctx, trust.Request{Profile: trust.Supervisor, Scope: trust.Scope{Epoch: Epoch}})
	if err != nil {
		m.t.Fatal(err)
	}
	b, err := bus.Connect(ctx, bus.Config{URL: m.URL(), Credentials: c})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(b.Close)
	s, err := b.Serve(ctx, bus.EndpointConfig{
		Space: Space, Endpoint: wire.EndpointManager, InstanceID: Instance, Epoch: Epoch, Commands: commands,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(s.Close)
}

// Records are the rows of the space, as the goal writer reads them.
func (m *Mesh) Records() *bus.Records {
	m.t.Helper()
	ctx, cancel := Limit(m.t)
	defer cancel()
	c, err := m.Auth.Mint(ctx, trust.Request{Profile: trust.GoalWriter})
	if err != nil {
		m.t.Fatal(err)
	}
	b, err := bus.Connect(ctx, bus.Config{URL: m.URL(), Credentials: c})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(b.Close)
	rec, err := b.Rows(Space)
	if err != nil {
		m.t.Fatal(err)
	}
	return rec
}

// Holds are the names on their way out.
func (m *Mesh) Holds() []retire.Hold { return m.retire.Holds() }

// keyOf is the key of a credentials file.
func keyOf(text []byte) (trust.Key, error) {
	kp, err := jwt.ParseDecoratedUserNKey(text)
	if err != nil {
		return trust.Key{}, err
	}
	public, err := kp.PublicKey()
	if err != nil {
		return trust.Key{}, err
	}
	seed, err := kp.Seed()
	return trust.Key{Public: public, Seed: seed}, err
}
