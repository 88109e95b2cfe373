package trust

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// ends waits until a connection has been ended by the broker.
func ends(t *testing.T, c *client, limit time.Duration) {
	t.Helper()
	select {
	case <-c.closed:
	case <-time.After(busy.Limit(limit)):
		t.Fatal("the connection lives on")
	}
}

// proves: SLOT-7
func TestFieldG12_ARevokedCredentialIsDeadAtOnceLiveConnectionsIncluded(t *testing.T) {
	r := newRig(t)
	uid, other := r.activate(), r.activate()
	one, two := r.mint(Request{Profile: Agent, UID: uid}), r.mint(Request{Profile: Agent, UID: uid})
	sister := r.mint(Request{Profile: Agent, UID: other})
	a, b, sis := r.dial(one), r.dial(two), r.dial(sister)
	if v, err := r.auth.Live(t.Context(), r.auth.Principal(one.Public)); v != Live || err != nil {
		t.Errorf("before: %s, %v", v, err)
	}
	got, err := r.auth.Revoke(t.Context(), Life{UID: uid})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"local." + one.Public, "local." + two.Public}
	slices.Sort(want)
	if got.Credentials != 2 || !slices.Equal(got.Holders, want) || got.Servers != 1 {
		t.Errorf("revoked %+v", got)
	}
	ends(t, a, 5*time.Second)
	ends(t, b, 5*time.Second)
	for _, c := range []Credential{one, two} {
		if _, err := dialAs(r.br.URL(), c); !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) {
			t.Errorf("a new connection with a revoked credential: %v", err)
		}
		if v, err := r.auth.Live(t.Context(), r.auth.Principal(c.Public)); v != Gone || err != nil {
			t.Errorf("after: %s, %v", v, err)
		}
	}
	for id, row := range r.ledger(Life{UID: uid}) {
		if row.State != wire.CredentialRevoked {
			t.Errorf("row %s is %s", id, row.State)
		}
	}
	if refused := sis.take(t); len(refused) != 0 {
		t.Errorf("a sister was struck: %v", refused)
	}
	if again, err := r.auth.Revoke(t.Context(), Life{UID: uid}); err != nil || again.Credentials != 2 {
		t.Errorf("again: %+v, %v", again, err)
	}
	if none, err := r.auth.Revoke(t.Context(), Life{UID: wire.NewUID()}); err != nil || none.Credentials != 0 {
		t.Errorf("a life without credentials: %+v, %v", none, err)
	}
}

// What a revocation that was cut short has left is gone on with, from each of its steps.
func TestARevocationThatWasCutShortIsGoneOnWith(t *testing.T) {
	defer failpoint.Disarm()
	r := newRig(t)
	for _, fp := range []string{"host.revoke.rows", "host.trust.keys-revoked", "host.revoke.pushed", "host.revoke.evicted"} {
		uid := r.activate()
		c := r.mint(Request{Profile: Agent, UID: uid})
		cl := r.dial(c)
		must(t, failpoint.Arm(fp+"=1*error(cut)"))
		if _, err := r.auth.Revoke(t.Context(), Life{UID: uid}); err == nil {
			t.Fatalf("%s: nothing was cut", fp)
		}
		failpoint.Disarm()
		if got, err := r.auth.Revoke(t.Context(), Life{UID: uid}); err != nil || got.Credentials != 1 {
			t.Errorf("%s: again: %+v, %v", fp, got, err)
		}
		ends(t, cl, 5*time.Second)
		if _, err := dialAs(r.br.URL(), c); err == nil {
			t.Errorf("%s: the credential works", fp)
		}
	}
}

// What was revoked is refused by the broker that comes after, before anybody has told it again, whether it is given
// the accounts as they are or as they were in a configuration of long ago.
func TestWhatWasRevokedStaysRevokedWhenTheBrokerComesBack(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	c, sister := r.mint(Request{Profile: Agent, UID: uid}), r.mint(Request{Profile: Observer})
	for begin := time.Now(); time.Since(begin) < 1100*time.Millisecond; time.Sleep(10 * time.Millisecond) {
		// A token says seconds, and of two the broker keeps the later one.
	}
	_, err := r.auth.Revoke(t.Context(), Life{UID: uid})
	must(t, err)
	now, err := r.keys.Bundle()
	must(t, err)
	for name, accounts := range map[string]map[string]string{"as they were": r.brCfg.Operator.Accounts, "as they are": now.Accounts} {
		r.br.Shutdown()
		op := *r.brCfg.Operator
		op.Accounts = accounts
		cfg := r.brCfg
		cfg.Operator = &op
		if r.br, err = broker.Start(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if _, err := dialAs(r.br.URL(), c); err == nil {
			t.Errorf("%s: a revoked credential works", name)
		}
		r.dial(sister).take(t)
	}
}

// proves: CRED-25
func TestAKeyThatWasDroppedEndsWhatItSigned(t *testing.T) {
	r := newRig(t)
	old := r.dial(r.mint(Request{Profile: Observer}))
	must(t, r.keys.Rotate(t.Context()))
	if _, err := r.auth.PushAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh := r.dial(r.mint(Request{Profile: Observer}))
	if refused := old.take(t); len(refused) != 0 {
		t.Errorf("a credential of the key before was refused: %v", refused)
	}
	// The next rotation drops both.
	must(t, r.keys.Rotate(t.Context()))
	if _, err := r.auth.PushAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, r.keys.Drop(t.Context()))
	if _, err := r.auth.PushAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	ends(t, old, 5*time.Second)
	ends(t, fresh, 5*time.Second)
	r.dial(r.mint(Request{Profile: Observer})).take(t)
}

// cluster is two embedded servers that share the operator, and its clients.
func (r *rig) cluster() []*natsd.Server {
	t := r.t
	b, err := r.keys.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	op, err := jwt.DecodeOperatorClaims(b.OperatorToken)
	if err != nil {
		t.Fatal(err)
	}
	var ports []int // of the routes; each server has to know the other before it starts
	for range 2 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		must(t, err)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		must(t, l.Close())
	}
	var servers []*natsd.Server
	for i := range 2 {
		res, err := natsd.NewDirAccResolver(t.TempDir(), 0, time.Minute, natsd.NoDelete)
		must(t, err)
		for acc, token := range b.Accounts {
			must(t, res.Store(acc, token))
		}
		s, err := natsd.NewServer(&natsd.Options{
			ServerName: fmt.Sprint("s", i), Host: "127.0.0.1", Port: natsd.RANDOM_PORT, NoSigs: true, NoLog: true, MaxControlLine: wire.MaxControlLine,
			TrustedOperators: []*jwt.OperatorClaims{op}, SystemAccount: b.System, AccountResolver: res, JetStream: true, StoreDir: t.TempDir(),
			Cluster: natsd.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i], PoolSize: -1},
			Routes:  []*url.URL{{Scheme: "nats", Host: fmt.Sprint("127.0.0.1:", ports[1-i])}},
		})
		must(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		servers = append(servers, s)
	}
	for _, s := range servers {
		if !s.ReadyForConnections(busy.Limit(10 * time.Second)) {
			t.Fatal("a server does not start")
		}
	}
	for begin := time.Now(); ; {
		if i := slices.IndexFunc(servers, func(s *natsd.Server) bool { return s.NumRoutes() == 0 || !s.JetStreamIsCurrent() }); i < 0 {
			return servers
		}
		if busy.Over(begin, 20*time.Second) {
			t.Fatal("the servers do not find each other")
		}
		time.Sleep(5 * time.Millisecond) // the servers tell nobody when they have
	}
}

// proves: SLOT-7
func TestARevocationIsProvedOnEveryServer(t *testing.T) {
	r := &rig{t: t, root: t.TempDir(), clock: &clock{}}
	r.keys = openKeys(t, r.root)
	servers := r.cluster()
	r.auth = r.static(bus.Config{URL: servers[0].ClientURL()})
	r.setUp()
	uid := r.activate()
	c := r.mint(Request{Profile: Agent, UID: uid})
	var conns []*client
	for _, s := range servers {
		cl, err := dialAs(s.ClientURL(), c)
		must(t, err)
		t.Cleanup(func() { cl.Close(); <-cl.closed })
		conns = append(conns, cl)
	}
	if v, err := r.auth.Live(t.Context(), r.auth.Principal(c.Public)); v != Live || err != nil {
		t.Errorf("before: %s, %v", v, err)
	}
	// The host is a client of the one server, and the agent of both.
	got, err := r.auth.Revoke(t.Context(), Life{UID: uid})
	if err != nil || got.Servers != 2 {
		t.Fatalf("revoked %+v, %v; want it on 2 servers", got, err)
	}
	for i, cl := range conns {
		ends(t, cl, 5*time.Second)
		if _, err := dialAs(servers[i].ClientURL(), c); err == nil {
			t.Errorf("server %d takes a revoked credential", i)
		}
	}
	if v, err := r.auth.Live(t.Context(), r.auth.Principal(c.Public)); v != Gone || err != nil {
		t.Errorf("after: %s, %v", v, err)
	}
}

// A server that cannot be asked makes the answer unknown, never gone.
func TestAServerThatDoesNotAnswerMakesTheVerdictUnknown(t *testing.T) {
	r := newRig(t)
	c := r.mint(Request{Profile: Observer})
	r.br.Shutdown()
	v, err := r.auth.Live(t.Context(), r.auth.Principal(c.Public))
	if v != Unknown || err == nil {
		t.Errorf("%s, %v", v, err)
	}
	if v, err := r.auth.Live(t.Context(), wire.Principal{Owner: "local", Actor: "manager"}); v != Unknown || !errors.Is(err, ErrUnverified) {
		t.Errorf("a principal without a key: %s, %v", v, err)
	}
}

// What another authority made cannot be ended by its key, and is not said to be.
func TestAForeignHolderIsNeverSaidToBeEnded(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	row := wire.CredentialRow{
		CredentialID: "sha256-x", HolderPrincipal: "local.somebody", LifecycleUID: uid, SourceChain: []string{"root"},
		State: wire.CredentialActive, Exp: time.Now().Add(time.Hour).UnixMilli(),
	}
	p, err := row.Encode()
	must(t, err)
	r.rows(Life{UID: uid}, func(ctx context.Context, rec *bus.Records) error {
		_, err := rec.CreateFor(ctx, row.Key(), p, time.Hour)
		return err
	})
	_, err = r.auth.Revoke(t.Context(), Life{UID: uid})
	if !errors.Is(err, ErrUnverified) || !strings.Contains(err.Error(), "local.somebody") {
		t.Errorf("%v", err)
	}
}

func TestARowEndsWithItsCredential(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	r.mint(Request{Profile: Agent, UID: uid, Life: time.Second})
	for begin := time.Now(); len(r.ledger(Life{UID: uid})) > 0; {
		if busy.Over(begin, 15*time.Second) {
			t.Fatal("the row stays")
		}
		time.Sleep(50 * time.Millisecond) // the broker forgets it by its own clock
	}
}

// A host that takes over ends what the one before it holds, a copy of it included, before it is registered; and
// nothing of its own.
//
// proves: RECON-11
func TestATakeoverEndsTheCredentialsOfTheIncarnationBefore(t *testing.T) {
	r := newRig(t)
	before := r.mint(Request{Profile: Supervisor, Scope: Scope{Epoch: 1}})
	goals := r.mint(Request{Profile: GoalWriter})
	a, b := r.dial(before), r.dial(goals)
	agent := r.dial(r.mint(Request{Profile: Agent, UID: r.activate()}))

	next := r.static(bus.Config{URL: r.br.URL()})
	mine, err := next.Mint(t.Context(), Request{Profile: Observer})
	must(t, err)
	own := r.dial(mine)
	must(t, r.register(t.Context(), next, 2))
	ends(t, a, 5*time.Second)
	ends(t, b, 5*time.Second)
	for _, c := range []Credential{before, goals} {
		if _, err := dialAs(r.br.URL(), c); err == nil {
			t.Errorf("%s of the incarnation before works", c)
		}
	}
	for name, cl := range map[string]*client{"an agent": agent, "what the new one holds": own} {
		if refused := cl.take(t); len(refused) != 0 {
			t.Errorf("%s was struck: %v", name, refused)
		}
	}
	r.auth = next
	for id, row := range r.ledger(next.own()) {
		if row.State == wire.CredentialActive && !next.minted.has(row) {
			t.Errorf("row %s of the incarnation before is active", id)
		}
	}
}
