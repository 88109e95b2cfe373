package seat_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// lives is what a host puts together.
type lives struct {
	*provision.Provisioner
	*retire.Retirer
}

// mesh is an authenticated space for a world whose seats have credentials of their own.
type authMesh struct {
	w     *world
	br    *broker.Broker
	cfg   broker.Config
	store *trust.FileStore
	auth  *trust.Static
	live  lives
	// stuck is what the retirement is told of the process instead of being let at it; nil: nothing.
	stuck atomic.Pointer[string]
}

// authenticate gives the world such a mesh, and boots its host again.
func (w *world) authenticate() *authMesh {
	w.t.Helper()
	m := &authMesh{w: w}
	ctx, cancel := context.WithTimeout(w.t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	var err error
	m.store, err = trust.OpenFileStore(ctx, w.root)
	must(err)
	keys, err := trust.MakeKeyring(ctx, m.store, "main")
	must(err)
	b, err := keys.Bundle()
	must(err)
	m.cfg = broker.Config{
		StoreDir: w.t.TempDir(),
		Operator: &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: w.t.TempDir()},
	}
	m.br, err = broker.Start(ctx, m.cfg)
	must(err)
	w.closers = append(w.closers, func() { m.br.Shutdown() })
	m.cfg.Port = m.br.Port()
	m.auth, err = trust.NewStatic(trust.StaticConfig{Keys: keys, Instance: w.instanceID, Commands: []string{wire.CmdDescribe}, Reach: bus.Config{URL: m.br.URL()}})
	must(err)
	m.setUp()
	w.crash()
	w.material = func() (wire.LaunchMaterial, error) {
		return wire.LaunchMaterial{Servers: m.br.URL(), Token: "of an open mesh"}, nil
	}
	m.boot()
	return m
}

// setUp makes the space on its broker, and registers the host.
func (m *authMesh) setUp() {
	m.w.t.Helper()
	ctx, cancel := context.WithTimeout(m.w.t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	must := func(err error) {
		m.w.t.Helper()
		if err != nil {
			m.w.t.Fatal(err)
		}
	}
	nothing, anything := func(string) bool { return false }, func(string) error { return nil }
	must(m.auth.With(ctx, trust.Request{Profile: trust.SetUp}, func(ctx context.Context, b *bus.Bus) error {
		if _, err := b.Records(ctx, "main", nothing, anything); err != nil {
			return err
		}
		return b.SetUpMessaging(ctx, "main", nothing, anything)
	}))
	contract, err := control.Contract(wire.OwnerLocal)
	must(err)
	must(m.auth.With(ctx, trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows("main")
		if err != nil {
			return err
		}
		_, err = b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: m.w.instanceID, Epoch: 1, Principal: "local.manager", Contract: contract,
		})
		return err
	}))
}

// boot makes the next host of the world.
func (m *authMesh) boot() {
	m.w.t.Helper()
	var err error
	if m.live.Retirer != nil {
		m.live.Retirer.Close()
	}
	m.live.Retirer, err = retire.New(retire.Config{
		Auth: m.auth, Space: "main", Instance: m.w.instanceID, Store: m.store,
		Reap: func(ctx context.Context, ref wire.RuntimeRef) error {
			if why := m.stuck.Load(); why != nil {
				return errors.New(*why)
			}
			return m.w.set.Reap(ctx, ref)
		},
	})
	if err != nil {
		m.w.t.Fatal(err)
	}
	m.w.closers = append(m.w.closers, m.live.Close)
	m.live.Provisioner, err = provision.New(provision.Config{
		Auth: m.auth, Space: "main", Instance: m.w.instanceID, Incarnation: wire.NewUID(), Store: m.store, Dir: m.store.Dir(), Retire: m.live.Retirer,
	})
	if err != nil {
		m.w.t.Fatal(err)
	}
	m.w.lives = m.live
	m.w.boot()
}

// slot reads the slot of an alias.
func (m *authMesh) slot(alias string) wire.Slot {
	m.w.t.Helper()
	ctx, cancel := context.WithTimeout(m.w.t.Context(), busy.Limit(10*time.Second))
	defer cancel()
	row, err := m.live.Row(ctx, wire.SlotKey(wire.OwnerLocal, alias))
	if err != nil || row.Err != nil {
		m.w.t.Fatalf("slot of %s: %v, %v", alias, err, row.Err)
	}
	return row.Slot
}

func (m *authMesh) creds() []string {
	m.w.t.Helper()
	names, err := m.store.List("creds/space.6d61696e")
	if err != nil {
		m.w.t.Fatal(err)
	}
	return names
}

// nothingLeft fails unless nothing is left of the life that a slot is of: no file, no durable, and nobody is let in.
func (m *authMesh) nothingLeft(what string, s wire.Slot) {
	m.w.t.Helper()
	if p := m.slot(s.Alias).Phase; p != wire.SlotRetired {
		m.w.t.Errorf("%s: the slot is %s", what, p)
	}
	if c := m.creds(); len(c) != 0 {
		m.w.t.Errorf("%s: files are left: %v", what, c)
	}
	ctx, cancel := context.WithTimeout(m.w.t.Context(), busy.Limit(10*time.Second))
	defer cancel()
	err := m.auth.With(ctx, trust.Request{Profile: trust.Deprovisioner, Scope: trust.Scope{Target: s.Life()}}, func(ctx context.Context, b *bus.Bus) error {
		was, err := b.RemoveDurable(ctx, "main", wire.StreamDirect, wire.DurableDirect(wire.Principal{Owner: s.Owner, Actor: s.Actor}, s.LifecycleUID))
		if was {
			m.w.t.Errorf("%s: its durable is left", what)
		}
		return err
	})
	if err != nil {
		m.w.t.Errorf("%s: %v", what, err)
	}
	if h := m.live.Holds(); len(h) != 0 {
		m.w.t.Errorf("%s: names are held: %+v", what, h)
	}
}

func TestASeatHasALifeOnTheMeshAndLeavesNothingOfIt(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	acc := w.run("worker", `[{"print": "up\n"}, {"hang": true}]`)
	s := m.slot("worker")
	if s.Phase != wire.SlotActive || s.Actor != acc.Actor || s.LifecycleUID != acc.UID || s.Runtime.ID != w.row("worker").SeatID {
		t.Errorf("the slot of a seat that runs: %+v; accepted %+v", s, acc)
	}
	raw, err := os.ReadFile(filepath.Join(w.seatRoot, w.row("worker").SeatID, "launch", "material.json"))
	if err != nil {
		t.Fatal(err)
	}
	mat, err := wire.DecodeLaunchMaterial(raw)
	if err != nil || mat.Token != "" || !strings.HasSuffix(mat.Creds, s.CredentialFile) {
		t.Errorf("material: creds %q, a token %v, %v", mat.Creds, mat.Token != "", err)
	}
	if b, err := bus.Connect(t.Context(), bus.Config{URL: m.br.URL(), CredsFile: mat.Creds}); err != nil {
		t.Errorf("connect with what the program is handed: %v", err)
	} else {
		b.Close()
	}
	if _, err := w.stop(acc, true); err != nil {
		t.Fatal(err)
	}
	m.nothingLeft("a stop", s)

	for what, script := range map[string]string{"a clean exit": `[{"exit": 0}]`, "a crash": `[{"exit": 3}]`} {
		gate := filepath.Join(w.dir, "go-"+strings.ReplaceAll(what, " ", "-"))
		w.run("worker", `[{"waitFile": "`+gate+`"}, `+script[1:])
		s := m.slot("worker")
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.awaitStatus("worker", "exited")
		w.eventually("the name is free", func() (bool, string) { return m.slot("worker").Phase == wire.SlotRetired, m.slot("worker").Phase })
		m.nothingLeft(what, s)
	}
}

func TestALaunchThatFailsLeavesNothingOnTheMesh(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	w.plugins.setDown(sdk.Errorf(sdk.ErrInvalid, "no such terminal"))
	id := wire.NewID()
	if _, err := w.spawn(id, w.args("worker", `[{"hang": true}]`)); err == nil {
		if r := w.terminal(id); r.State != wire.GoalFailed {
			t.Errorf("the goal ended %s", r.State)
		}
	}
	w.plugins.setDown(nil)
	args := w.args("worker", "")
	args.LaunchOptions["argv"] = []any{filepath.Join(w.dir, "no-such-program")}
	id = wire.NewID()
	if _, err := w.spawn(id, args); err != nil {
		t.Fatal(err)
	}
	if r := w.terminal(id); r.State != wire.GoalFailed {
		t.Errorf("the goal ended %s: %+v", r.State, r.Error)
	}
	w.eventually("the name is free", func() (bool, string) { return m.slot("worker").Phase == wire.SlotRetired, m.slot("worker").Phase })
	m.nothingLeft("a launch that failed", m.slot("worker"))
}

func TestTheNextHostGoesOnWithTheLifeOfASeat(t *testing.T) {
	w := newWorld(t)
	m := w.authenticate()
	acc := w.run("worker", `[{"print": "up\n"}, {"hang": true}]`)
	s := m.slot("worker")
	w.crash()
	m.boot()
	w.awaitStatus("worker", "running")
	if got := m.slot("worker"); got.Phase != wire.SlotActive || got.LifecycleUID != s.LifecycleUID {
		t.Errorf("the slot behind a restart: %+v", got)
	}
	if !w.set.HasLife(provision.LifeOf(s)) {
		t.Error("the seat's life is nobody's, so that a sweep would end it")
	}
	if _, err := w.stop(acc, false); err != nil {
		t.Fatal(err)
	}
	m.nothingLeft("a stop by the next host", s)
}

// heldAt launches a seat as far as a failpoint, which is passed once the file gate is there.
func (w *world) heldAt(fp, alias string) (id string, acc wire.Acceptance, gate string) {
	w.t.Helper()
	gate = filepath.Join(w.dir, fp)
	if err := failpoint.Arm(fp + "=pause(" + gate + ")"); err != nil {
		w.t.Fatal(err)
	}
	id = wire.NewID()
	acc, err := w.spawn(id, w.args(alias, `[{"hang": true}]`))
	if err != nil {
		w.t.Fatalf("%s: %v", fp, err)
	}
	w.eventually(fp+" is reached", func() (bool, string) { _, err := os.Stat(gate + ".reached"); return err == nil, "" })
	return id, acc, gate
}
