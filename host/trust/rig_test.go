package trust

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m)
}

const (
	space = "main"
	inst1 = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
)

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

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off += d
}

// rig is a space with keys, an embedded broker in operator mode, and the streams of a space.
type rig struct {
	t     testing.TB
	store *FileStore
	keys  *Keyring
	br    *broker.Broker
	brCfg broker.Config
	auth  *Static
	clock *clock
	root  string
}

// commands are what the host really serves.
var commands = sync.OnceValue(func() []string {
	table, err := control.Commands(control.Deps{})
	if err != nil {
		panic(err)
	}
	return append(slices.Sorted(maps.Keys(table)), wire.CmdDescribe)
})

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, root: t.TempDir(), clock: &clock{}}
	var err error
	if r.store, err = OpenFileStore(t.Context(), r.root); err != nil {
		t.Fatal(err)
	}
	if r.keys, err = MakeKeyring(t.Context(), r.store, space); err != nil {
		t.Fatal(err)
	}
	b, err := r.keys.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	r.brCfg = broker.Config{
		StoreDir: t.TempDir(),
		Operator: &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: t.TempDir()},
	}
	r.br, err = broker.Start(t.Context(), r.brCfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.br.Shutdown() })
	r.auth = r.static(bus.Config{InProcess: r.br.InProcess()})
	r.setUp()
	return r
}

func (r *rig) static(reach bus.Config) *Static {
	r.t.Helper()
	a, err := NewStatic(StaticConfig{Keys: r.keys, Instance: inst1, Commands: commands(), Reach: reach, Now: r.clock.now})
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func nothing(string) bool   { return false }
func anything(string) error { return nil }

// setUp makes the streams of the space and registers the instance, each with the credential that is for it.
func (r *rig) setUp() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), busy.Limit(20*time.Second))
	defer cancel()
	err := r.auth.With(ctx, Request{Profile: SetUp}, func(ctx context.Context, b *bus.Bus) error {
		if _, err := b.Records(ctx, space, nothing, anything); err != nil {
			return err
		}
		ls, err := b.Leases(bus.LeasesConfig{Space: space, Known: nothing, Made: anything})
		if err != nil {
			return err
		}
		defer ls.Close()
		if err := ls.Open(ctx); err != nil {
			return err
		}
		return b.SetUpMessaging(ctx, space, nothing, anything)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.register(ctx, r.auth, 1); err != nil {
		r.t.Fatal(err)
	}
}

// register registers an incarnation; what earlier ones hold is ended.
func (r *rig) register(ctx context.Context, a *Static, epoch uint64) error {
	return a.With(ctx, Request{Profile: Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(space)
		if err != nil {
			return err
		}
		contract, err := control.Contract(wire.OwnerLocal)
		if err != nil {
			return err
		}
		_, err = b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: inst1, Epoch: epoch, Principal: "local.manager", Contract: contract,
			Contain: func(ctx context.Context) error { _, err := a.Revoke(ctx, a.own()); return err },
		})
		return err
	})
}

// rows runs do with the rows of a life (or of the instance) as an executor has them.
func (r *rig) rows(of Life, do func(ctx context.Context, rec *bus.Records) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), busy.Limit(10*time.Second))
	defer cancel()
	if err := r.auth.asExecutorOf(ctx, of, func(rec *bus.Records) error { return do(ctx, rec) }); err != nil {
		r.t.Fatal(err)
	}
}

// activate opens the gate of a new life, as provisioning does.
func (r *rig) activate() (uid string) {
	r.t.Helper()
	uid = wire.NewUID()
	r.rows(Life{UID: uid}, func(ctx context.Context, rec *bus.Records) error {
		op := &wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpActivation}
		p, err := wire.Gate{LifecycleUID: uid, State: wire.GateFrozen, Op: op}.Encode()
		if err != nil {
			return err
		}
		rev, err := rec.Create(ctx, wire.GateKey(uid), p)
		if err != nil {
			return err
		}
		if p, err = (wire.Gate{LifecycleUID: uid, State: wire.GateOpen, Generation: 1}).Encode(); err != nil {
			return err
		}
		_, err = rec.Update(ctx, wire.GateKey(uid), p, rev)
		return err
	})
	return uid
}

// setGate writes the gate of a life.
func (r *rig) setGate(g wire.Gate) {
	r.t.Helper()
	r.rows(Life{UID: g.LifecycleUID}, func(ctx context.Context, rec *bus.Records) error {
		row, err := rec.Get(ctx, wire.GateKey(g.LifecycleUID))
		if err != nil {
			return err
		}
		p, err := g.Encode()
		if err != nil {
			return err
		}
		_, err = rec.Update(ctx, wire.GateKey(g.LifecycleUID), p, row.Rev)
		return err
	})
}

func (r *rig) mint(req Request) Credential {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), busy.Limit(10*time.Second))
	defer cancel()
	c, err := r.auth.Mint(ctx, req)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// client is a bare connection with a credential, which notes what the broker refuses it.
type client struct {
	*nats.Conn
	mu      sync.Mutex
	refused []string
	closed  chan struct{}
}

func dialAs(url string, c bus.Credentials, more ...nats.Option) (*client, error) {
	cl := &client{closed: make(chan struct{})}
	var err error
	cl.Conn, err = nats.Connect(url, append([]nats.Option{
		nats.UserJWT(c.Token, c.Sign), nats.CustomInboxPrefix(c.Inbox()), nats.NoReconnect(), nats.Timeout(busy.Limit(5 * time.Second)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			cl.mu.Lock()
			defer cl.mu.Unlock()
			cl.refused = append(cl.refused, err.Error())
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(cl.closed) }),
	}, more...)...)
	return cl, err
}

func (r *rig) dial(c bus.Credentials) *client {
	r.t.Helper()
	cl, err := dialAs(r.br.URL(), c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cl.Close(); <-cl.closed })
	return cl
}

// take returns what was refused since the last call, once the broker has answered everything before it.
func (c *client) take(t testing.TB) []string {
	t.Helper()
	if err := c.FlushTimeout(busy.Limit(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// Refusals are told by a goroutine of the client's own, in order: a marker that is refused for certain is the
	// last one.
	marker := "never.granted." + nats.NewInbox()
	if err := c.Publish(marker, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.FlushTimeout(busy.Limit(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		c.mu.Lock()
		n := len(c.refused)
		if n > 0 && strings.Contains(c.refused[n-1], marker) {
			out := c.refused[:n-1]
			c.refused = nil
			c.mu.Unlock()
			return out
		}
		c.mu.Unlock()
		select {
		case <-t.Context().Done():
			t.Fatal("the broker does not refuse what was never granted")
		case <-time.After(time.Millisecond): // a look at what another goroutine notes
		}
	}
}

// wantErr fails unless err is the sentinel.
func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// waitFor waits for a file that a failpoint makes.
func waitFor(t testing.TB, path string) {
	t.Helper()
	for begin := time.Now(); ; {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if busy.Over(begin, 10*time.Second) {
			t.Fatalf("%s does not appear", path)
		}
		time.Sleep(time.Millisecond) // a look at the file system
	}
}

func touch(t testing.TB, path string) {
	t.Helper()
	must(t, os.WriteFile(path, nil, 0o600))
}
