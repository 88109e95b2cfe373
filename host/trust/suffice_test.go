package trust

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// participant is a mesh client with a credential, and the connection that notes what it is refused.
func (r *rig) participant(c Credential, uid string) (*mesh.Client, *client) {
	r.t.Helper()
	nc := r.dial(c)
	m, err := mesh.FromConn(nc.Conn, mesh.Config{Space: space, Name: string(c.Profile), Caller: wire.Caller{Owner: "local", Actor: c.Public, UID: uid}})
	must(r.t, err)
	r.t.Cleanup(m.Close)
	return m, nc
}

// serve answers some commands with a supervisor's credential, and returns the bus.
func (r *rig) serve(said *sync.Map) *bus.Bus {
	r.t.Helper()
	b, err := bus.Connect(r.t.Context(), bus.Config{URL: r.br.URL(), Credentials: r.mint(Request{Profile: Supervisor, Scope: Scope{Epoch: 1}})})
	must(r.t, err)
	r.t.Cleanup(b.Close)
	answer := func(name string) bus.Handler {
		return bus.HandlerOf(func(_ context.Context, req *bus.Request) (any, error) {
			said.Store(name, req.Caller().Principal())
			return map[string]string{"command": name}, nil
		})
	}
	s, err := b.Serve(r.t.Context(), bus.EndpointConfig{
		Space: space, Endpoint: wire.EndpointManager, InstanceID: inst1, Epoch: 1,
		Commands: map[string]bus.Command{
			wire.CmdPs:      {Handler: answer("ps"), Read: true},
			wire.CmdSpawn:   {Handler: answer("spawn")},
			wire.CmdStop:    {Handler: answer("stop"), Targeted: true, Modes: []wire.Authz{wire.AuthzSelf}},
			wire.CmdDespawn: {Handler: answer("despawn"), Targeted: true, Modes: []wire.Authz{wire.AuthzOwner, wire.AuthzAny}},
		},
	})
	must(r.t, err)
	r.t.Cleanup(s.Close)
	return b
}

// An agent does everything that is an agent's with what it was given, and is refused nothing on the way.
func TestAnAgentHasAllItNeeds(t *testing.T) {
	r := newRig(t)
	said := &sync.Map{}
	r.serve(said)
	uid := r.activate()
	key, err := r.auth.NewKey()
	must(t, err)
	me := wire.Caller{Owner: "local", Actor: key.Public, UID: uid}
	r.makeDirect(me)
	c, nc := r.participant(r.mint(Request{Profile: Agent, UID: uid, Key: key, Scope: Scope{Read: []string{"dev"}, Write: []string{"dev"}, Spawn: true}}), uid)
	op, opc := r.participant(r.mint(Request{Profile: Operator}), inst1)

	roster, err := c.WatchPresence(t.Context())
	must(t, err)
	defer roster.Close()
	joined, err := c.Join(t.Context(), mesh.JoinConfig{Card: wire.AgentCard{Name: "agent", Kind: wire.CardAgent}})
	must(t, err)
	dev, err := c.JoinChannel(t.Context(), "dev", mesh.ChannelOptions{})
	must(t, err)
	if _, err := op.SendChannel(t.Context(), "dev", "hello"); err != nil {
		t.Error(err)
	}
	if _, err := c.SendChannel(t.Context(), "dev", "hi"); err != nil {
		t.Error(err)
	}
	if page, err := c.History(t.Context(), mesh.HistoryQuery{Channel: "dev", Limit: 10}); err != nil || len(page) != 2 {
		t.Errorf("history: %d messages, %v", len(page), err)
	}
	if list, err := c.Channels(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("channels: %+v, %v", list, err)
	}
	q, err := c.DirectMessages(t.Context(), mesh.QueueOptions{})
	must(t, err)
	if _, err := op.SendDirect(t.Context(), me.Principal(), "for you"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(10*time.Second))
	defer cancel()
	if d, err := q.Next(ctx); err != nil || d.Text() != "for you" {
		t.Errorf("direct: %q, %v", d.Text(), err)
	} else if err := d.Ack(ctx); err != nil {
		t.Error(err)
	}
	for _, call := range []mesh.Call{
		{Endpoint: wire.EndpointManager, Command: wire.CmdSpawn},
		{Endpoint: wire.EndpointManager, Command: wire.CmdStop, Authz: wire.AuthzSelf},
		{Endpoint: wire.EndpointManager, Command: wire.CmdDespawn, Authz: wire.AuthzOwner, Target: &wire.Target{Owner: "local", Actor: "x", LifecycleUID: stranger.UID}},
	} {
		if _, err := c.Call(ctx, call, nil); err != nil {
			t.Error(err)
		}
		if who, _ := said.Load(call.Command); who != me.Principal() {
			t.Errorf("%s was asked by %v", call.Command, who)
		}
	}
	must(t, joined.Leave(t.Context()))
	q.Close()
	dev.Leave()
	roster.Close()
	if refused := nc.take(t); len(refused) != 0 {
		t.Errorf("the broker refused the agent: %s", strings.Join(refused, "\n"))
	}
	if refused := opc.take(t); len(refused) != 0 {
		t.Errorf("the broker refused the operator: %s", strings.Join(refused, "\n"))
	}
	// What an agent may not, it is told, and it did not happen.
	if _, err := c.Call(ctx, mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs, Deadline: 300 * time.Millisecond}, nil); err == nil {
		t.Error("an agent listed the seats")
	}
	if who, asked := said.Load("ps"); asked {
		t.Errorf("ps was asked by %v", who)
	}
	if _, err := c.JoinChannel(t.Context(), "ops", mesh.ChannelOptions{}); !errors.Is(err, mesh.ErrDenied) {
		t.Errorf("a channel that is not granted: %v", err)
	}
	if _, err := op.Call(ctx, mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs}, nil); err != nil {
		t.Errorf("the operator: %v", err)
	}
}

// The credentials of a host that stay serve and hold its lease; whoever copies them mints, provisions, reads and purges
// nothing. What they do reach is in testdata/reach.txt.
//
// proves: START-7
func TestALeaseholderHoldsTheLeaseAndACopyOfTheSupervisorDoesNothingElse(t *testing.T) {
	r := newRig(t)
	b := r.serve(&sync.Map{})
	holder, err := bus.Connect(t.Context(), bus.Config{URL: r.br.URL(), Strict: true, Credentials: r.mint(Request{Profile: Leaseholder})})
	must(t, err)
	defer holder.Close()
	ls, err := holder.Leases(bus.LeasesConfig{Space: space, Known: func(string) bool { return false }, Made: anything})
	must(t, err)
	defer ls.Close()
	rev, err := ls.Create(t.Context(), inst1, []byte(`{}`))
	must(t, err)
	if rev, err = ls.Update(t.Context(), inst1, []byte(`{}`), rev); err != nil {
		t.Error(err)
	}
	if err := ls.Delete(t.Context(), inst1, rev); err != nil {
		t.Error(err)
	}
	rec, err := b.Rows(space)
	must(t, err)
	began := time.Now()
	_, err = rec.Get(t.Context(), wire.EndpointGateKey(wire.EndpointManager, inst1))
	if !errors.Is(err, bus.ErrDenied) || !errors.Is(err, bus.ErrNotWritten) || !strings.Contains(err.Error(), "$JS.API.STREAM.MSG.GET.KV_cotal_auth_main") {
		t.Errorf("it reads the ledger: %v", err)
	}
	if busy.Over(began, 2*time.Second) {
		t.Errorf("the refusal took %v", time.Since(began))
	}
}

// A goal is written and settled with the goal writer's credential; a plain agent's, copied, cannot.
func TestAGoalWriterWritesGoals(t *testing.T) {
	r := newRig(t)
	b, err := bus.Connect(t.Context(), bus.Config{URL: r.br.URL(), Credentials: r.mint(Request{Profile: GoalWriter})})
	must(t, err)
	defer b.Close()
	rec, err := b.Rows(space)
	must(t, err)
	ref := wire.GoalRef{Endpoint: wire.EndpointManager, Caller: stranger, ID: wire.NewID()}
	rev, err := rec.Create(t.Context(), ref.Key().Status(), []byte(`{}`))
	must(t, err)
	if _, err := rec.Update(t.Context(), ref.Key().Status(), []byte(`{"a":1}`), rev); err != nil {
		t.Error(err)
	}
	for _, kind := range []wire.FactKind{wire.FactGoalBind, wire.FactGoalResult} {
		f := wire.FactSubject{Space: space, Endpoint: wire.EndpointManager, Kind: kind, Caller: stranger, ID: ref.ID}
		if _, err := rec.PutFact(t.Context(), f, []byte(`{}`)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if _, err := rec.GetFact(t.Context(), f); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	index := wire.Key{Kind: wire.KindGoalIndex, Qualifiers: []string{wire.EndpointManager, stranger.Owner, stranger.Actor, stranger.UID, ref.ID}}
	if rev, err = rec.Create(t.Context(), index, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if err := rec.Delete(t.Context(), index, rev); err != nil {
		t.Errorf("an index entry is taken away by a marker: %v", err)
	}
	if _, err := rec.Get(t.Context(), index); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("an index entry that was taken away: %v", err)
	}
	if _, err := rec.Get(t.Context(), wire.EndpointGateKey(wire.EndpointManager, inst1)); err != nil {
		t.Errorf("its own gate, which fences it: %v", err)
	}
}

// What a provisioner makes a deprovisioner takes away, and nothing of a sister's.
//
// proves: CRED-2, CRED-3
func TestADeprovisionerTakesItsTargetAwayAndNobodyElse(t *testing.T) {
	r := newRig(t)
	mine := wire.Caller{Owner: "local", Actor: "MINE", UID: wire.NewUID()}
	hers := wire.Caller{Owner: "local", Actor: "HERS", UID: wire.NewUID()}
	r.makeDirect(mine)
	r.makeDirect(hers)
	de := r.dial(r.mint(Request{Profile: Deprovisioner, Scope: Scope{Target: mine}}))
	name := func(c wire.Caller) string {
		return "$JS.API.CONSUMER.DELETE.DM_main." + wire.DurableDirect(wire.Principal{Owner: c.Owner, Actor: c.Actor}, c.UID)
	}
	if m, err := de.Request(name(mine), nil, busy.Limit(5*time.Second)); err != nil || !strings.Contains(string(m.Data), `"success":true`) {
		t.Errorf("its target: %v", err)
	}
	must(t, de.PublishRequest(name(hers), de.NewRespInbox(), nil))
	if refused := de.take(t); len(refused) != 1 || !strings.Contains(refused[0], name(hers)) {
		t.Errorf("a sister's: the broker refused %v", refused)
	}
	js, err := r.dial(r.mint(Request{Profile: Provisioner, Scope: Scope{Target: hers}})).JetStream()
	must(t, err)
	if _, err := js.ConsumerInfo("DM_main", wire.DurableDirect(wire.Principal{Owner: hers.Owner, Actor: hers.Actor}, hers.UID)); err != nil {
		t.Errorf("a sister's durable: %v", err)
	}
}

// A client that is given a credentials file is who the file says, and says so itself; whom it does not say, and one
// that has ended, is refused before anything is sent.
func TestAClientIsWhoItsCredentialsFileSays(t *testing.T) {
	r := newRig(t)
	r.serve(&sync.Map{})
	uid := r.activate()
	write := func(c Credential) string {
		t.Helper()
		file, err := c.File()
		must(t, err)
		must(t, r.store.Write("creds/"+c.ID, file))
		return filepath.Join(r.store.Dir(), "creds", c.ID)
	}
	c := r.mint(Request{Profile: Agent, UID: uid, Scope: Scope{Spawn: true}})
	path := write(c)
	m, err := mesh.Connect(t.Context(), mesh.Config{URL: r.br.URL(), Space: space, CredsFile: path})
	must(t, err)
	defer m.Close()
	want := wire.Caller{Owner: "local", Actor: c.Public, UID: uid}
	if m.Caller() != want {
		t.Errorf("it is %v, want %v", m.Caller(), want)
	}
	if _, err := m.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdSpawn}, nil); err != nil {
		t.Error(err)
	}
	for name, who := range map[string]wire.Caller{"another principal": stranger, "another life": {Owner: "local", Actor: c.Public, UID: stranger.UID}} {
		if _, err := mesh.Connect(t.Context(), mesh.Config{URL: r.br.URL(), Space: space, CredsFile: path, Caller: who}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	short := r.mint(Request{Profile: Agent, UID: uid, Life: time.Second})
	path = write(short)
	<-time.After(time.Until(short.Expires) + 10*time.Millisecond)
	if _, err := mesh.Connect(t.Context(), mesh.Config{URL: r.br.URL(), Space: space, CredsFile: path}); !errors.Is(err, mesh.ErrUnauthorized) || !errors.Is(err, mesh.ErrCredentialEnded) {
		t.Errorf("one that has ended: %v", err)
	}
}

// The host sees who is present over a connection that can do nothing else.
func TestAWatcherSeesWhoIsPresent(t *testing.T) {
	r := newRig(t)
	b, err := bus.Connect(t.Context(), bus.Config{URL: r.br.URL(), Credentials: r.mint(Request{Profile: Watcher})})
	must(t, err)
	defer b.Close()
	roster, err := b.WatchPresence(t.Context(), space)
	must(t, err)
	defer roster.Close()
	uid := r.activate()
	c, _ := r.participant(r.mint(Request{Profile: Agent, UID: uid}), uid)
	joined, err := c.Join(t.Context(), mesh.JoinConfig{Card: wire.AgentCard{Name: "agent", Kind: wire.CardAgent}})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(10*time.Second))
	defer cancel()
	if _, err := roster.Await(ctx, func(p wire.Presence) bool { return p.Card.ID == c.Caller().Principal() }); err != nil {
		t.Error(err)
	}
	must(t, joined.Leave(t.Context()))
}

// A right that is missing is named to whoever needed it, with its subject, and is no timeout.
func TestFieldG16_AMissingRightIsNamedAtOnce(t *testing.T) {
	r := newRig(t)
	r.serve(&sync.Map{})
	uid := r.activate()
	name := CredentialFile(space, "agent", uid)
	must(t, ToFile(r.store, name)(t.Context(), r.mint(Request{Profile: Agent, UID: uid})))
	c, err := mesh.Connect(t.Context(), mesh.Config{URL: r.br.URL(), Space: space, CredsFile: filepath.Join(r.store.Dir(), filepath.FromSlash(name))})
	must(t, err)
	defer c.Close()
	began := time.Now()
	_, err = c.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs, Deadline: time.Minute}, nil)
	var we *wire.Error
	if !errors.As(err, &we) || we.Code != wire.CodePermissionDenied || !strings.Contains(err.Error(), "cotal.main.ep.") || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Errorf("%v", err)
	}
	if busy.Over(began, 2*time.Second) {
		t.Errorf("it took %v", time.Since(began))
	}
}

// A broker that refuses a host for a while has it back as soon as it does not: no number of equal refusals makes the
// host deaf.
func TestFieldG3_AHostThatWasRefusedComesBack(t *testing.T) {
	r := newRig(t)
	var refusals counter
	b, err := bus.Connect(t.Context(), bus.Config{
		URL: r.br.URL(), Credentials: r.mint(Request{Profile: Supervisor, Scope: Scope{Epoch: 1}}),
		Log: hclog.New(&hclog.LoggerOptions{Output: &refusals}),
	})
	must(t, err)
	defer b.Close()
	port := r.br.Port()
	other, err := openKeys(t, t.TempDir()).Bundle()
	must(t, err)
	own := r.brCfg.Operator
	again := func(op *broker.Operator, store string) {
		t.Helper()
		r.br.Shutdown()
		cfg := r.brCfg
		cfg.Operator, cfg.Port, cfg.StoreDir = op, port, store
		if r.br, err = broker.Start(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	again(&broker.Operator{Token: other.OperatorToken, System: other.System, Accounts: other.Accounts, Dir: t.TempDir()}, t.TempDir())
	// A client gives up at the second refusal that equals the one before.
	for begin := time.Now(); refusals.n.Load() < 3; time.Sleep(10 * time.Millisecond) { // a look at what it logs
		if busy.Over(begin, 15*time.Second) {
			t.Fatalf("it was refused %d times only", refusals.n.Load())
		}
	}
	if b.Connected() {
		t.Fatal("another operator's broker takes it: this test shows nothing")
	}
	again(own, r.brCfg.StoreDir)
	for begin := time.Now(); !b.Connected(); time.Sleep(10 * time.Millisecond) {
		if busy.Over(begin, 15*time.Second) {
			t.Fatal("it does not come back")
		}
	}
}

// counter counts the lines of a log that tell of a refusal.
type counter struct{ n atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(p), []byte("authorization")) {
		c.n.Add(1)
	}
	return len(p), nil
}
