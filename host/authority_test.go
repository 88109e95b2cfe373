package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func TestAWorkspaceIsServedAsItWas(t *testing.T) {
	for name, c := range map[string]struct {
		f    modeFacts
		says []string // nil: it is served
	}{
		"a new one is served authenticated":                          {modeFacts{}, nil},
		"a new one is served open":                                   {modeFacts{open: true}, nil},
		"a new one has no use for --fresh-auth":                      {modeFacts{fresh: true}, nil},
		"an open one stays open":                                     {modeFacts{open: true, opened: true, living: []string{"a"}}, nil},
		"an authenticated one stays so, with its seats":              {modeFacts{was: true, living: []string{"a"}}, nil},
		"--fresh-auth means nothing to an authenticated one":         {modeFacts{was: true, fresh: true, living: []string{"a"}}, nil},
		"an open one is not taken over, and both ways out are named": {modeFacts{opened: true}, []string{"--open", "--fresh-auth", "/w"}},
		"its seats are named":                                        {modeFacts{opened: true, living: []string{"b", "a"}}, []string{"a, b", "--open"}},
		"begun anew it is authenticated":                             {modeFacts{opened: true, fresh: true}, nil},
		"not while seats live in it, which have to be ended first":   {modeFacts{opened: true, fresh: true, living: []string{"a"}}, []string{"stop --with-agents", ": a,"}},
		"an authenticated one is not served open, seats or not":      {modeFacts{open: true, was: true}, []string{"without --open"}},
		"and they are named":                                         {modeFacts{open: true, was: true, living: []string{"a"}}, []string{"without --open", ": a;"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.f.root = "/w"
			got := modeRefusal(c.f)
			if (got == "") != (c.says == nil) {
				t.Fatalf("got %q", got)
			}
			for _, want := range c.says {
				if !strings.Contains(got, want) {
					t.Errorf("%q does not say %q", got, want)
				}
			}
		})
	}
}

// served is a host that runs in this process. It has no plugins: what it does without a seat is what is looked at.
type served struct {
	t      testing.TB
	h      *Host
	root   string
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
	stderr *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// begin makes a host of a workspace, which does not run yet.
func begin(t testing.TB, cfg Config) *served {
	t.Helper()
	s := &served{t: t, root: cfg.Root, ended: make(chan struct{}), stderr: &syncBuffer{}}
	cfg.PluginsPath = filepath.Join(t.TempDir(), "plugins.toml")
	if err := os.WriteFile(cfg.PluginsPath, []byte("schema = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runtimes, err := os.MkdirTemp("", "ct") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(runtimes) })
	cfg.RuntimeDir, cfg.SeatRoot, cfg.Stderr, cfg.Version = filepath.Join(runtimes, "r"), filepath.Join(runtimes, "s"), s.stderr, "test"
	if s.h, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs it until it serves, or fails to.
func (s *served) run() error {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.cancel = cancel
	go func() {
		defer close(s.ended)
		s.err = s.h.Run(ctx)
	}()
	select {
	case <-s.h.serving:
		s.t.Cleanup(func() { _ = s.stop() })
		return nil
	case <-s.ended:
		return s.err
	case <-time.After(busy.Limit(time.Minute)):
		s.t.Fatalf("it neither serves nor ends; it has said %s", s.stderr.String())
		return nil
	}
}

func serve(t testing.TB, cfg Config) *served {
	t.Helper()
	s := begin(t, cfg)
	if err := s.run(); err != nil {
		t.Fatalf("serve: %v; it has said %s", err, s.stderr.String())
	}
	return s
}

func (s *served) stop() error {
	s.cancel()
	select {
	case <-s.ended:
	case <-time.After(busy.Limit(time.Minute)):
		s.t.Fatal("it does not stop")
	}
	return s.err
}

// refused runs a host that is not to begin, and returns why.
func refused(t *testing.T, cfg Config) error {
	t.Helper()
	s := begin(t, cfg)
	err := s.run()
	if err == nil {
		t.Fatal("it serves")
	}
	if _, serr := os.Stat(instance.EndpointPath(cfg.Root)); !errors.Is(serr, fs.ErrNotExist) {
		t.Errorf("an endpoint is written: %v", serr)
	}
	return err
}

func (s *served) endpoint() wire.Endpoint {
	s.t.Helper()
	ep, _, err := mesh.FindEndpoint(mesh.FindConfig{Root: s.root, Getenv: func(string) string { return "" }})
	if err != nil {
		s.t.Fatal(err)
	}
	return ep
}

// operator is a client with the credential of the person at the machine.
func (s *served) operator() *mesh.Client {
	s.t.Helper()
	ep := s.endpoint()
	if ep.TokenFile != "" || !strings.HasSuffix(ep.CredsFile, ".operator.creds") {
		s.t.Fatalf("the endpoint file names token %q and credential %q", ep.TokenFile, ep.CredsFile)
	}
	if st, err := os.Stat(ep.CredsFile); err != nil || st.Mode().Perm() != 0o600 {
		s.t.Fatalf("the credential of the operator: %v, %v", st, err)
	}
	c, err := mesh.Connect(s.t.Context(), mesh.Config{URL: ep.URL, Space: ep.Space, CredsFile: ep.CredsFile, Reconnect: true})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

func (s *served) status(c *mesh.Client) wire.StatusReply {
	s.t.Helper()
	var st wire.StatusReply
	if _, err := c.Call(s.t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdStatus, Instance: s.h.inst.ID}, &st); err != nil {
		s.t.Fatalf("status: %v; it has said %s", err, s.stderr.String())
	}
	return st
}

// eventually waits until look is satisfied.
func eventually(t *testing.T, what string, look func() (bool, string)) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		ok, have := look()
		if ok {
			return
		}
		if busy.Over(begin, 20*time.Second) {
			t.Fatalf("%s: %s", what, have)
		}
	}
}

// A workspace that was never served has an authenticated space after one start: keys, a broker that takes nobody without a
// credential, a lease, and a host that its person can command. The next start takes it all over: the person's key is the
// same, and what the host before it held is worth nothing any more.
//
// proves: START-7
func TestAHostBootsAuthenticatedFromNothingAndAgain(t *testing.T) {
	root := t.TempDir()
	first := serve(t, Config{Root: root})
	op := first.operator()
	st := first.status(op)
	if st.Lease == nil || st.Lease.State != "held" {
		t.Errorf("its lease: %+v", st.Lease)
	}
	if st.StaticReconciliation == nil {
		t.Error("status says nothing of what was left behind")
	}
	held := map[string]string{}
	for _, c := range st.Credentials {
		held[c.Profile] = c.Health
	}
	for _, p := range []trust.Profile{trust.Supervisor, trust.Leaseholder, trust.GoalWriter, trust.Watcher, trust.Operator} {
		if held[string(p)] != string(trust.Healthy) {
			t.Errorf("the credential of the %s is %q", p, held[string(p)])
		}
	}
	ep := first.endpoint()
	for name, cfg := range map[string]bus.Config{"nothing": {URL: ep.URL}, "a token": {URL: ep.URL, Token: "x"}} {
		if b, err := bus.Connect(t.Context(), cfg); !errors.Is(err, bus.ErrRefused) {
			t.Errorf("a client with %s: %v", name, err)
			if err == nil {
				b.Close()
			}
		}
	}
	if _, err := os.Stat(filepath.Join(first.h.inst.Dir, "broker.token")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a token: %v", err)
	}
	// What only a step may do is done in one.
	if _, err := op.SendChannel(t.Context(), "general", "hello"); err != nil {
		t.Error(err)
	}
	var purged wire.PurgeReply
	if _, err := op.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPurge, Args: wire.PurgeArgs{}}, &purged); err != nil || purged.Chat != 1 {
		t.Errorf("purge: %+v, %v", purged, err)
	}
	var before []trust.Credential
	for _, c := range first.h.auth.held {
		if c.profile != trust.Operator {
			before = append(before, c.Current())
		}
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}

	second := serve(t, Config{Root: root})
	if second.h.inst.ID != first.h.inst.ID || second.h.self == first.h.self {
		t.Errorf("the next host is %v of instance %s, before it was %v of %s", second.h.self, second.h.inst.ID, first.h.self, first.h.inst.ID)
	}
	// A client that was connected all the while goes on.
	eventually(t, "the client of before", func() (bool, string) {
		var st wire.StatusReply
		_, err := op.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdStatus, Deadline: time.Second}, &st)
		return err == nil && st.Epoch == second.h.inst.Epoch, fmt.Sprintf("is not answered: %v; it has said %s", err, second.stderr.String())
	})
	if again := second.operator(); again.Caller() != op.Caller() {
		t.Errorf("the operator is %v, before it was %v", again.Caller(), op.Caller())
	}
	for _, c := range before {
		if b, err := bus.Connect(t.Context(), bus.Config{URL: second.h.url, Credentials: c}); !errors.Is(err, bus.ErrRefused) {
			t.Errorf("the %s of the host before: %v", c.Profile, err)
			if err == nil {
				b.Close()
			}
		}
	}
}

// Keys of another space are no keys of this one, and are left as they are.
func TestASpaceBesideAnotherHasKeysOfItsOwn(t *testing.T) {
	root := t.TempDir()
	one := serve(t, Config{Root: root, Space: "one"})
	scope := one.h.auth.scope
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	two := serve(t, Config{Root: root, Space: "two"})
	if st := two.status(two.operator()); st.Space != "two" || two.h.auth.scope == scope {
		t.Errorf("it serves %s with the account of the other space: %v", st.Space, two.h.auth.scope == scope)
	}
	if err := two.stop(); err != nil {
		t.Fatal(err)
	}
	one = serve(t, Config{Root: root, Space: "one"})
	if one.h.auth.scope != scope {
		t.Error("the first space has another account now")
	}
	one.status(one.operator())
}

// What was said in an open space is nobody's to take over: both ways out are named, and the one that begins anew keeps it.
func TestAWorkspaceThatWasServedOpenIsNotTakenOverSilently(t *testing.T) {
	root := t.TempDir()
	open := serve(t, Config{Root: root, Open: true})
	if err := open.stop(); err != nil {
		t.Fatal(err)
	}
	if err := refused(t, Config{Root: root}); !strings.Contains(err.Error(), "--fresh-auth") || !strings.Contains(err.Error(), "pass --open") {
		t.Errorf("got %v", err)
	}
	if trust.HasFileStore(root) {
		t.Error("keys were made by a host that was refused")
	}
	fresh := serve(t, Config{Root: root, FreshAuth: true})
	fresh.status(fresh.operator())
	if !hasStreams(filepath.Join(fresh.h.inst.Dir, openStore), "$G") {
		t.Error("what the open space has stored is gone")
	}
	if err := fresh.stop(); err != nil {
		t.Fatal(err)
	}
	if err := refused(t, Config{Root: root, Open: true}); !strings.Contains(err.Error(), "without --open") {
		t.Errorf("served open again: %v", err)
	}
	again := serve(t, Config{Root: root})
	again.status(again.operator())
	if err := again.stop(); err != nil {
		t.Fatal(err)
	}
	// Lost with the rest of the identity, how it is served is known all the same.
	if err := os.Remove(filepath.Join(again.h.inst.Dir, "instance.json")); err != nil {
		t.Fatal(err)
	}
	if err := refused(t, Config{Root: root, Open: true}); !strings.Contains(err.Error(), "without --open") {
		t.Errorf("served open without instance.json: %v", err)
	}
	serve(t, Config{Root: root})
}

// A second host of a space has a workspace of its own, and the keys of the first. Without them it is told how to get at
// some, and writes nothing.
//
// proves: MULTI-1
func TestASecondHostServesTheSpaceWithTheKeysOfTheFirst(t *testing.T) {
	first := serve(t, Config{Root: t.TempDir()})
	root := t.TempDir()
	if err := refused(t, Config{Root: root, Server: first.h.url}); !strings.Contains(err.Error(), "auth export") || !strings.Contains(err.Error(), "--keys") {
		t.Errorf("without keys: %v", err)
	}
	if trust.HasFileStore(root) {
		t.Error("a store for keys was made by a host that was refused")
	}
	second := serve(t, Config{Root: root, Server: first.h.url, Keys: first.root})
	op := second.operator()
	eventually(t, "both are there", func() (bool, string) {
		var all wire.InstancesReply
		if _, err := op.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdInstances}, &all); err != nil {
			return false, err.Error()
		}
		return len(all.Instances) == 2, "one is not registered"
	})
	first.status(op) // one person's credential commands both
	if second.h.self == first.h.self {
		t.Error("both are one principal")
	}
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	first.status(first.operator())
}

// A copy of a workspace is the same instance. It does not begin beside the one that lives, and ends nothing that one
// holds: who may end credentials is known by the lease, which is looked at first.
func TestACopyOfAWorkspaceEndsNoCredentialOfTheHostThatLives(t *testing.T) {
	root, copied := t.TempDir(), t.TempDir()
	first := serve(t, Config{Root: root})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(copied, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(copied, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chmod(path, 0o600)
		}
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	first = serve(t, Config{Root: root})
	if err := refused(t, Config{Root: copied, Server: first.h.url}); !errors.Is(err, lease.ErrHeld) || errors.Is(err, ErrNotBegun) {
		t.Errorf("got %v", err)
	}
	first.status(first.operator())
	for _, c := range first.h.auth.held {
		b, err := bus.Connect(t.Context(), bus.Config{URL: first.h.url, Credentials: c.Current()})
		if err != nil {
			t.Errorf("the %s of the host that lives: %v", c.profile, err)
			continue
		}
		b.Close()
	}
}

// A broker that does not know these keys, one that is not there, and a store that cannot be used keep a host from
// beginning, with one clear error.
func TestAHostThatItsMeshDoesNotTakeSaysSoAndTouchesNothing(t *testing.T) {
	open, err := broker.Start(t.Context(), broker.Config{StoreDir: t.TempDir(), Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(open.Shutdown)
	keys := t.TempDir()
	store, err := trust.OpenFileStore(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.MakeKeyring(t.Context(), store, "main"); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	dir := filepath.Join(instance.DirOf(damaged), authStore)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  Config
		says string
	}{
		"a broker that does not know the keys": {Config{Root: t.TempDir(), Keys: keys, Server: open.URL()}, "doctor auth"},
		"no broker":                            {Config{Root: t.TempDir(), Keys: keys, Server: "nats://127.0.0.1:1"}, "start the broker"},
		"a store that cannot be used":          {Config{Root: damaged}, dir},
	} {
		t.Run(name, func(t *testing.T) {
			err := refused(t, c.cfg)
			if !errors.Is(err, ErrNotBegun) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// external is a broker that was told of the keys of a workspace, and is not the host's.
func external(t *testing.T, root string) (*broker.Broker, broker.Config) {
	t.Helper()
	store, err := trust.OpenFileStore(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := trust.MakeKeyring(t.Context(), store, "main")
	if err != nil {
		t.Fatal(err)
	}
	b, err := keys.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	cfg := broker.Config{StoreDir: t.TempDir(), Operator: &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: t.TempDir()}}
	br, err := broker.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(br.Shutdown)
	cfg.Port = br.Port()
	return br, cfg
}

// Whoever takes over an instance ends all that the host before it holds. That one, which was frozen or cut off meanwhile,
// finds out although it is let in nowhere any more, and ends.
func TestAHostThatIsShutOutByItsSuccessorEnds(t *testing.T) {
	root := t.TempDir()
	br, _ := external(t, root)
	s := serve(t, Config{Root: root, Server: br.URL()})
	other, err := trust.NewStatic(trust.StaticConfig{
		Keys: s.h.auth.keys, Instance: s.h.inst.ID, Commands: []string{wire.CmdDescribe}, Reach: bus.Config{URL: s.h.url},
	})
	if err != nil {
		t.Fatal(err)
	}
	contract, err := control.Contract(wire.OwnerLocal)
	if err != nil {
		t.Fatal(err)
	}
	err = other.With(t.Context(), trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows("main")
		if err != nil {
			return err
		}
		_, err = b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: s.h.inst.ID, Epoch: s.h.inst.Epoch + 1, Principal: "local.successor", Contract: contract,
			Contain: func(ctx context.Context) error {
				_, err := other.Revoke(ctx, trust.Life{UID: s.h.inst.ID, Endpoint: wire.EndpointManager})
				return err
			},
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.ended:
	case <-time.After(busy.Limit(30 * time.Second)):
		t.Fatal("it goes on")
	}
	if !errors.Is(s.err, ErrReplaced) {
		t.Errorf("it ended with %v", s.err)
	}
}

// While the broker was away every credential of a host came to its end. It comes back by itself: what is asked for and
// has ended is renewed as soon as a broker is there to ask for it.
func TestAHostWhoseCredentialsEndedInAnOutageComesBack(t *testing.T) {
	root := t.TempDir()
	br, cfg := external(t, root)
	s := begin(t, Config{Root: root, Server: br.URL()})
	var ahead sync.Mutex
	var by time.Duration
	s.h.now = func() time.Time {
		ahead.Lock()
		defer ahead.Unlock()
		return time.Now().Add(by)
	}
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	s.status(s.operator())
	br.Shutdown()
	ahead.Lock()
	by = 25 * time.Hour
	ahead.Unlock()
	for _, c := range s.h.auth.credentials() {
		if c.Health != string(trust.Expired) {
			t.Fatalf("the credential of the %s is %s: this test shows nothing", c.Profile, c.Health)
		}
	}
	br, err := broker.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(br.Shutdown)
	eventually(t, "it serves again", func() (bool, string) {
		ep := s.endpoint()
		c, err := mesh.Connect(t.Context(), mesh.Config{URL: ep.URL, Space: ep.Space, CredsFile: ep.CredsFile})
		if err != nil {
			return false, err.Error()
		}
		defer c.Close()
		var st wire.StatusReply
		if _, err := c.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdStatus, Deadline: time.Second}, &st); err != nil {
			return false, err.Error()
		}
		for _, c := range st.Credentials {
			if c.Health != string(trust.Healthy) {
				return false, c.Profile + " is " + c.Health + ": " + c.Reason
			}
		}
		return st.Lease != nil && st.Lease.State == "held", "its lease is not held"
	})
}
