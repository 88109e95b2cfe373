package retire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"go.uber.org/goleak"

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

func TestMain(m *testing.M) {
	if os.Getenv(childRoot) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

const (
	space = "main"
	inst1 = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	inst2 = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// commands are what a host serves.
var commands = sync.OnceValue(func() []string {
	table, err := control.Commands(control.Deps{})
	if err != nil {
		panic(err)
	}
	return append(slices.Sorted(maps.Keys(table)), wire.CmdDescribe)
})

// rig is an authenticated space on an embedded broker, with a host of it that provisions and retires.
type rig struct {
	t    testing.TB
	root string
	br   *broker.Broker
	cfg  broker.Config
	host *host
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, root: t.TempDir()}
	store, err := trust.OpenFileStore(t.Context(), r.root)
	must(t, err)
	keys, err := trust.MakeKeyring(t.Context(), store, space)
	must(t, err)
	b, err := keys.Bundle()
	must(t, err)
	r.cfg = broker.Config{
		StoreDir: t.TempDir(),
		Operator: &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: t.TempDir()},
	}
	r.br, err = broker.Start(t.Context(), r.cfg)
	must(t, err)
	t.Cleanup(func() { r.br.Shutdown() })
	r.cfg.Port = r.br.Port()
	r.host, err = newHost(t.Context(), r.root, r.br.URL(), inst1, 1)
	must(t, err)
	t.Cleanup(r.host.retire.Close)
	must(t, r.host.setUp(t.Context()))
	return r
}

// limit bounds one act of a test.
func limit(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
}

// host is what of a host provisions and retires; in the test's process, or in one of its children.
type host struct {
	instance string
	epoch    uint64
	store    *trust.FileStore
	auth     *trust.Static
	prov     *provision.Provisioner
	retire   *retire.Retirer

	mu sync.Mutex
	// reaped are the references that were reaped; refuse is what the runtime says instead.
	reaped []wire.RuntimeRef
	refuse error
	over   []provision.Life
}

func newHost(ctx context.Context, root, url, instance string, epoch int) (*host, error) {
	return newHostAt(ctx, root, url, instance, epoch, time.Now)
}

// newHostAt is one with a clock of its own.
func newHostAt(ctx context.Context, root, url, instance string, epoch int, now func() time.Time) (*host, error) {
	h := &host{instance: instance, epoch: uint64(epoch)}
	var err error
	if h.store, err = trust.OpenFileStore(ctx, root); err != nil {
		return nil, err
	}
	keys, err := trust.OpenKeyring(h.store, space)
	if err != nil {
		return nil, err
	}
	h.auth, err = trust.NewStatic(trust.StaticConfig{Keys: keys, Instance: instance, Commands: commands(), Reach: bus.Config{URL: url}, Now: now})
	if err != nil {
		return nil, err
	}
	h.retire, err = retire.New(retire.Config{
		Auth: h.auth, Space: space, Instance: instance, Epoch: h.epoch, Store: h.store, Reap: h.reap,
		Retired: func(l provision.Life) { h.mu.Lock(); defer h.mu.Unlock(); h.over = append(h.over, l) },
	})
	if err != nil {
		return nil, err
	}
	h.prov, err = provision.New(provision.Config{
		Auth: h.auth, Space: space, Instance: instance, Incarnation: fmt.Sprintf("%s-%d", instance, epoch), Store: h.store, Retire: h.retire,
	})
	return h, err
}

func (h *host) reap(_ context.Context, ref wire.RuntimeRef) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return h.refuse
	}
	h.reaped = append(h.reaped, ref)
	return nil
}

func (h *host) refuseReap(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = err
}

// setUp makes the streams of the space and registers the instance.
func (h *host) setUp(ctx context.Context) error {
	nothing, anything := func(string) bool { return false }, func(string) error { return nil }
	err := h.auth.With(ctx, trust.Request{Profile: trust.SetUp}, func(ctx context.Context, b *bus.Bus) error {
		if _, err := b.Records(ctx, space, nothing, anything); err != nil {
			return err
		}
		return b.SetUpMessaging(ctx, space, nothing, anything)
	})
	if err != nil {
		return err
	}
	return h.register(ctx)
}

func (h *host) register(ctx context.Context) error {
	contract, err := control.Contract(wire.OwnerLocal)
	if err != nil {
		return err
	}
	return h.auth.With(ctx, trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(space)
		if err != nil {
			return err
		}
		_, err = b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: h.instance, Epoch: h.epoch, Principal: "local.manager", Contract: contract,
		})
		return err
	})
}

// spec is what the seats of these tests have.
func spec(alias string) provision.Spec {
	return provision.Spec{
		Alias: alias, Runtime: wire.RuntimeRef{Kind: "pty", ID: wire.NewCustodyID()}, Role: "reviewer",
		Read: []string{"general", "team.>"}, Write: []string{"general"},
	}
}

// spawn provisions a life as a spawn does, with more steps behind.
func (h *host) spawn(ctx context.Context, s provision.Spec, more ...saga.Step) (*provision.Draft, error) {
	d, err := h.prov.Draw(s)
	if err != nil {
		return nil, err
	}
	return d, saga.Run(ctx, "spawn", nil, append(append(h.prov.Steps(d), more...), h.prov.Active(d)))
}

func (r *rig) spawn(alias string) *provision.Draft {
	r.t.Helper()
	ctx, cancel := limit(r.t)
	defer cancel()
	d, err := r.host.spawn(ctx, spec(alias))
	must(r.t, err)
	return d
}

func (r *rig) retire(d *provision.Draft) error {
	ctx, cancel := limit(r.t)
	defer cancel()
	return r.host.retire.Retire(ctx, d.Life)
}

// rows runs do with the rows of a life as an executor of it has them.
func (r *rig) rows(l provision.Life, do func(context.Context, *bus.Records) error) {
	r.t.Helper()
	ctx, cancel := limit(r.t)
	defer cancel()
	err := r.host.auth.With(ctx, trust.Request{Profile: trust.Executor, Scope: trust.Scope{Target: l.Caller, Alias: l.Alias}},
		func(ctx context.Context, b *bus.Bus) error {
			rec, err := b.Rows(space)
			if err != nil {
				return err
			}
			return do(ctx, rec)
		})
	must(r.t, err)
}

// slot reads the slot of an alias.
func (r *rig) slot(l provision.Life) (s wire.Slot) {
	r.t.Helper()
	r.rows(l, func(ctx context.Context, rec *bus.Records) (err error) {
		s, _, err = provision.ReadSlot(ctx, rec, l.Slot())
		return err
	})
	return s
}

// everywhere is a connection that may do everything in the space's account, signed with the key in the store: what a
// test looks with.
func (r *rig) everywhere() (nc *nats.Conn, principal string) {
	r.t.Helper()
	files, err := r.host.store.List("")
	must(r.t, err)
	i := slices.IndexFunc(files, func(f string) bool { return strings.HasPrefix(f, "account.") })
	raw, err := r.host.store.Read(files[i])
	must(r.t, err)
	var keys struct {
		Account struct {
			Public  string `json:"public"`
			Signing []struct {
				Seed string `json:"seed"`
			} `json:"signing"`
		} `json:"account"`
	}
	must(r.t, json.Unmarshal(raw, &keys))
	signer, err := nkeys.FromSeed([]byte(keys.Account.Signing[0].Seed))
	must(r.t, err)
	user, err := nkeys.CreateUser()
	must(r.t, err)
	pub, err := user.PublicKey()
	must(r.t, err)
	claims := jwt.NewUserClaims(pub)
	claims.IssuerAccount = keys.Account.Public
	token, err := claims.Encode(signer)
	must(r.t, err)
	nc, err = nats.Connect(r.br.URL(), nats.UserJWT(func() (string, error) { return token, nil }, user.Sign), nats.Name("the test"))
	must(r.t, err)
	return nc, pub
}

// footprint is everything that the broker keeps for the account, and every secret on the disk.
type footprint struct {
	// Rows are the keys of all buckets, Lasting those that nothing ever removes.
	Rows      []string
	Streams   []string
	Consumers []string
	Conns     []string // principals that are connected
	Files     []string
}

func (r *rig) footprint() footprint {
	r.t.Helper()
	nc, own := r.everywhere()
	defer nc.Close()
	js, err := nc.JetStream()
	must(r.t, err)
	var fp footprint
	for s := range js.Streams(nats.MaxWait(busy.Limit(10 * time.Second))) {
		name := s.Config.Name
		fp.Streams = append(fp.Streams, name)
		for c := range js.Consumers(name) {
			fp.Consumers = append(fp.Consumers, name+" "+c.Name)
		}
		if !strings.HasPrefix(name, "KV_") {
			continue
		}
		info, err := js.StreamInfo(name, &nats.StreamInfoRequest{SubjectsFilter: ">"})
		must(r.t, err)
		for subject := range info.State.Subjects {
			m, err := js.GetLastMsg(name, subject)
			if errors.Is(err, nats.ErrMsgNotFound) {
				continue // it has just ended
			}
			must(r.t, err)
			row := strings.TrimPrefix(subject, "$KV.")
			if ttl := m.Header.Get("Nats-TTL"); ttl != "" {
				row = "(ends) " + row
			} else if strings.Contains(row, ".cred.") || strings.Contains(row, ".epcred.") {
				r.t.Errorf("the ledger row %s never ends", row)
			}
			fp.Rows = append(fp.Rows, row)
		}
	}
	ctx, cancel := limit(r.t)
	defer cancel()
	must(r.t, r.host.auth.With(ctx, trust.Request{Profile: trust.Evictor}, func(ctx context.Context, b *bus.Bus) error {
		bundle, err := mustKeys(r).Bundle()
		if err != nil {
			return err
		}
		conns, _, err := b.System().Connections(ctx, bundle.Account)
		for _, c := range conns {
			if c.User == own {
				continue
			}
			fp.Conns = append(fp.Conns, c.User)
		}
		return err
	}))
	fp.Files = r.files("")
	for _, l := range []*[]string{&fp.Rows, &fp.Streams, &fp.Consumers, &fp.Conns, &fp.Files} {
		slices.Sort(*l)
	}
	return fp
}

func mustKeys(r *rig) *trust.Keyring {
	r.t.Helper()
	keys, err := trust.OpenKeyring(r.host.store, space)
	must(r.t, err)
	return keys
}

func (r *rig) files(dir string) []string {
	r.t.Helper()
	var out []string
	entries, err := os.ReadDir(r.host.store.Dir() + "/" + dir)
	must(r.t, err)
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, r.files(dir+e.Name()+"/")...)
		} else {
			out = append(out, dir+e.Name())
		}
	}
	return out
}
