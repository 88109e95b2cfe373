package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	token = "test-token-0123456789"
	inst1 = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	inst2 = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
	inst3 = "cccccccccccccccccccccccccc"
)

var bob = wire.Target{Owner: "local", Actor: "bob", LifecycleUID: "bobbobbobbobbobbobbobbobbo"}

func startBroker(t testing.TB, dir string, port int) *broker.Broker {
	t.Helper()
	b, err := broker.Start(t.Context(), broker.Config{StoreDir: dir, Port: port, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	return b
}

func connectBus(t testing.TB, cfg bus.Config) *bus.Bus {
	t.Helper()
	cfg.Token = token
	b, err := bus.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func serve(t testing.TB, b *bus.Bus, cfg bus.EndpointConfig) *bus.Service {
	t.Helper()
	if cfg.Space == "" {
		cfg.Space = "main"
	}
	if cfg.Endpoint == "" {
		cfg.Endpoint = wire.EndpointManager
	}
	if cfg.InstanceID == "" {
		cfg.InstanceID = inst1
	}
	if cfg.Epoch == 0 {
		cfg.Epoch = 1
	}
	s, err := b.Serve(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func client(t testing.TB, url string) *mesh.Client {
	t.Helper()
	c, err := mesh.Connect(t.Context(), mesh.Config{URL: url, Token: token, Space: "main", Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// raw is a bare connection, for what no well-behaved client does.
func raw(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// rawAt is raw for a server with other credentials.
func rawAt(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// watch subscribes and returns once the server knows.
func watch(t testing.TB, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return sub
}

// eventually polls a fact until it holds, at most 5 s where a processor is free.
func eventually(t testing.TB, what string, fact func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); !fact(); <-tick.C {
		if busy.Over(begin, 5*time.Second) {
			t.Fatalf("did not come true: %s", what)
		}
	}
}

// seen is what a handler reports about the request it got.
type seen struct {
	Mode     wire.Mode   `json:"mode"`
	Authz    wire.Authz  `json:"authz"`
	Target   wire.Target `json:"target"`
	Caller   string      `json:"caller"`
	Instance string      `json:"instance"`
}

func echo(instance string) bus.Handler {
	return func(_ context.Context, r *bus.Request) (any, *wire.Error) {
		return seen{r.Subject.Mode, r.Subject.Authz, r.Target(), r.Caller().Principal(), instance}, nil
	}
}

func echoCommands(instance string) map[string]bus.Command {
	return map[string]bus.Command{
		"ps": {Handler: echo(instance), Read: true},
		"despawn": {Handler: echo(instance), Targeted: true, Modes: []wire.Authz{
			wire.AuthzSelf, wire.AuthzOwner, wire.AuthzAny, wire.AuthzChild, wire.AuthzLedger, wire.AuthzHandle, wire.AuthzExact,
		}},
		"shutdown": {Handler: echo(instance), InstanceOnly: true},
	}
}

func TestEveryRequestFormReachesItsHandler(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1), Epoch: 3})
	c := client(t, br.URL())
	for _, route := range []string{"", inst1} {
		for _, authz := range []wire.Authz{"", wire.AuthzSelf, wire.AuthzOwner, wire.AuthzAny, wire.AuthzChild, wire.AuthzLedger, wire.AuthzHandle, wire.AuthzExact} {
			call := mesh.Call{Endpoint: "manager", Command: "ps", Instance: route, Authz: authz}
			want := seen{Mode: wire.ModeOne, Authz: authz, Caller: c.Caller().Principal(), Instance: inst1}
			if route != "" {
				want.Mode = wire.ModeInstance
			}
			switch authz {
			case "":
			case wire.AuthzSelf:
				call.Command = "despawn"
				want.Target = wire.Target{Owner: "local", Actor: c.Caller().Actor, LifecycleUID: c.Caller().UID}
			default:
				call.Command, call.Target, want.Target = "despawn", &bob, bob
			}
			t.Run(fmt.Sprintf("%s %q", want.Mode, authz), func(t *testing.T) {
				var got seen
				who, err := c.Call(t.Context(), call, &got)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("Call = %+v, %v; want %+v", got, err, want)
				}
				if who != (mesh.Responder{InstanceID: inst1, Epoch: 3}) {
					t.Fatalf("answered by %+v", who)
				}
			})
		}
	}
}

func TestExternalServerByURL(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{URL: br.URL()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	if _, err := client(t, br.URL()).Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestRefusalsBeforeTheHandlerSayNotExecuted(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	var ran atomic.Int32
	count := func(context.Context, *bus.Request) (any, *wire.Error) { ran.Add(1); return nil, nil }
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Epoch: 2, Commands: map[string]bus.Command{
		"ps":    {Handler: count, CheckArgs: bus.NoArgs},
		"input": {Handler: count, Targeted: true, Modes: []wire.Authz{wire.AuthzOwner}, CheckArgs: bus.ArgsOf[wire.InputArgs]()},
	}})
	c, nc := client(t, br.URL()), raw(t, br.URL())
	for _, r := range []struct {
		name string
		call mesh.Call
		code string
		say  string
	}{
		{"bound to another instance", mesh.Call{Command: "ps", Bind: &wire.Bind{InstanceID: inst2, Epoch: 2}}, wire.CodeFailedPrecondition, inst2},
		{"bound to another epoch", mesh.Call{Command: "ps", Bind: &wire.Bind{InstanceID: inst1, Epoch: 1}}, wire.CodeExpired, "epoch 1"},
		{"a bind on describe", mesh.Call{Command: "describe", Bind: &wire.Bind{InstanceID: inst1, Epoch: 2}}, wire.CodeBadRequest, "bind"},
		{"an argument too many", mesh.Call{Command: "ps", Args: map[string]int{"shiny": 1}}, wire.CodeBadRequest, "shiny"},
		{"another class", mesh.Call{Command: "ps", Class: wire.ClassJournal}, wire.CodeClassMismatch, "journal"},
		{"a mode that is not admitted", mesh.Call{Command: "input", Authz: wire.AuthzAny, Target: &bob, Args: wire.InputArgs{Text: "x"}}, wire.CodePermissionDenied, "any"},
		{"no target", mesh.Call{Command: "input", Args: wire.InputArgs{Text: "x"}}, wire.CodeTargetMismatch, "needs a target"},
		{"a text over the limit", mesh.Call{Command: "input", Authz: wire.AuthzOwner, Target: &bob, Args: wire.InputArgs{Text: strings.Repeat("x", wire.MaxText+1)}}, wire.CodeBadRequest, "text is 65537 bytes"},
	} {
		t.Run(r.name, func(t *testing.T) {
			// Our client would not even send it: the host is asked by hand.
			we := bare(t, nc, r.call).Error
			if we == nil || we.Code != r.code || !strings.Contains(we.Message, r.say) {
				t.Fatalf("got %v; want %s saying %q", we, r.code, r.say)
			}
			if we.Outcome != wire.OutcomeNotExecuted {
				t.Fatalf("outcome %s", we.Outcome)
			}
			if strings.HasPrefix(r.name, "bound to") {
				if _, ok := we.Detail(wire.DetailBindRefused); !ok {
					t.Fatalf("no detail %s in %+v", wire.DetailBindRefused, we.Details)
				}
			}
		})
	}
	t.Run("the longest text passes, however it is escaped", func(t *testing.T) {
		call := mesh.Call{Endpoint: "manager", Command: "input", Authz: wire.AuthzOwner, Target: &bob, Args: wire.InputArgs{Text: strings.Repeat("\x01", wire.MaxText)}}
		before := ran.Load()
		if _, err := c.Call(t.Context(), call, nil); err != nil || ran.Load() != before+1 {
			t.Fatalf("%v, handler ran %d times", err, ran.Load()-before)
		}
		ran.Store(before)
	})
	if n := ran.Load(); n != 0 {
		t.Fatalf("a handler ran %d times", n)
	}
}

// bare sends a call as a client would that knows nothing of contracts, with the digests of a command that says
// nothing of its payloads.
func bare(t testing.TB, nc *nats.Conn, call mesh.Call) wire.EndpointReply {
	t.Helper()
	s, e := request(t, call.Command)
	if call.Instance != "" {
		s.Mode, s.InstanceID = wire.ModeInstance, call.Instance
	}
	if s.Authz = call.Authz; call.Authz != "" {
		s.TargetOwner = call.Target.Owner
	}
	if e.Target, e.Bind = call.Target, call.Bind; call.Class != "" {
		e.Class = call.Class
	}
	if call.Args != nil {
		var err error
		if e.Args, err = json.Marshal(call.Args); err != nil {
			t.Fatal(err)
		}
	}
	r, _ := ask(t, nc, s, encode(t, e))
	return r
}

// openDigest is the digest of the schema that takes anything.
var openDigest, _ = wire.ClosureDigest(json.RawMessage(`{}`))

// request is a well-formed raw request that a test then spoils.
func request(t testing.TB, command string) (wire.RequestSubject, wire.EndpointRequest) {
	t.Helper()
	c := wire.Caller{Owner: "local", Actor: "raw", UID: wire.NewUID()}
	return wire.RequestSubject{Space: "main", Mode: wire.ModeOne, Endpoint: "manager", Command: command, Caller: c, Nonce: wire.NewNonce()},
		wire.EndpointRequest{
			V: 1, ID: wire.NewID(), Op: wire.Op{Endpoint: "manager", Command: command, InputDigest: openDigest, OutputDigest: openDigest}, Class: wire.ClassEphemeral,
			ReplyExpected: true, From: wire.EndpointRef{ID: c.Principal()}, DeadlineMs: 5000,
		}
}

// ask publishes a raw request and returns the first reply on its reply rail.
func ask(t testing.TB, nc *nats.Conn, s wire.RequestSubject, body []byte) (wire.EndpointReply, string) {
	t.Helper()
	return askFor(t, nc, s, body, nil)
}

// askWith is ask with headers.
func askWith(t testing.TB, nc *nats.Conn, s wire.RequestSubject, body []byte, h nats.Header) wire.EndpointReply {
	t.Helper()
	r, _ := askFor(t, nc, s, body, h)
	return r
}

func askFor(t testing.TB, nc *nats.Conn, s wire.RequestSubject, body []byte, h nats.Header) (wire.EndpointReply, string) {
	t.Helper()
	filter, err := s.ReplyFilter()
	if err != nil {
		t.Fatal(err)
	}
	sub, err := nc.SubscribeSync(filter)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	subject, err := s.Subject()
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishMsg(&nats.Msg{Subject: subject, Data: body, Header: h}); err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsg(5 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	r, err := wire.DecodeReply(m.Data)
	if err != nil {
		t.Fatal(err)
	}
	return r, m.Subject
}

func encode(t testing.TB, e wire.EndpointRequest) []byte {
	t.Helper()
	p, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSpoiledRequests(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	var ran atomic.Int32
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"ps": {Handler: func(context.Context, *bus.Request) (any, *wire.Error) { ran.Add(1); return nil, nil }},
	}})
	nc := raw(t, br.URL())
	for _, c := range []struct {
		name, code string
		spoil      func(*wire.EndpointRequest)
	}{
		{"op of another command", wire.CodeOpMismatch, func(e *wire.EndpointRequest) { e.Op.Command = "spawn" }},
		{"sender who is not the subject's", wire.CodeSenderMismatch, func(e *wire.EndpointRequest) { e.From.ID = "local.mallory" }},
		{"another envelope version", wire.CodeUnsupportedVersion, func(e *wire.EndpointRequest) { e.V = 2 }},
		{"a call without deadline", wire.CodeBadRequest, func(e *wire.EndpointRequest) { e.DeadlineMs = 0 }},
		{"no digest of the arguments", wire.CodeContractMismatch, func(e *wire.EndpointRequest) { e.Op.InputDigest = "" }},
		{"no digest of the reply", wire.CodeContractMismatch, func(e *wire.EndpointRequest) { e.Op.OutputDigest = "" }},
		{"digests of another contract", wire.CodeContractMismatch, func(e *wire.EndpointRequest) { e.Op.InputDigest = wire.VoidDigest }},
		{"an id with a space", wire.CodeBadRequest, func(e *wire.EndpointRequest) { e.ID = "a b" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, e := request(t, "ps")
			c.spoil(&e)
			r, _ := ask(t, nc, s, encode(t, e))
			if r.OK || r.Error.Code != c.code || r.Error.Outcome != wire.OutcomeNotExecuted {
				t.Fatalf("got %+v; want %s, not-executed", r.Error, c.code)
			}
			if want := e.ID; wire.ValidID(want) && r.ID != want || !wire.ValidID(want) && r.ID != s.Nonce {
				t.Fatalf("reply id %q", r.ID)
			}
		})
	}
	t.Run("no JSON at all", func(t *testing.T) {
		s, _ := request(t, "ps")
		if r, _ := ask(t, nc, s, []byte("hello")); r.OK || r.Error.Code != wire.CodeBadRequest || r.ID != s.Nonce {
			t.Fatalf("got %+v", r)
		}
	})
	if n := ran.Load(); n != 0 {
		t.Fatalf("the handler ran %d times", n)
	}
}

func TestSubjectsOfWrongArityAreIgnored(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	var ran atomic.Int32
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"ps": {Handler: func(context.Context, *bus.Request) (any, *wire.Error) { ran.Add(1); return nil, nil }},
	}})
	nc := raw(t, br.URL())
	replies := watch(t, nc, "cotal.main.ep.reply.>")
	s, e := request(t, "ps")
	good, err := s.Subject()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		good + ".extra", strings.TrimSuffix(good, "."+s.Nonce), strings.Replace(good, ".ps.", ".ps.owner.", 1),
		strings.Replace(good, ".ps.local.", ".ps.alice.", 1), strings.Replace(good, ".one.", ".all.", 1) + ".x.y",
	} {
		if err := nc.PublishRequest(bad, nc.NewInbox(), encode(t, e)); err != nil {
			t.Fatal(err)
		}
	}
	// The good one travels behind the others on the same connection and subscription.
	if r, _ := ask(t, nc, s, encode(t, e)); !r.OK {
		t.Fatalf("the good request: %+v", r.Error)
	}
	if n := ran.Load(); n != 1 {
		t.Fatalf("the handler ran %d times; want once", n)
	}
	if _, err := replies.NextMsg(time.Second); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := replies.Pending(); n != 0 {
		t.Fatalf("%d more replies", n)
	}
}

func TestRepliesGoToTheDerivedSubjectOnly(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Epoch: 8, Commands: echoCommands(inst1)})
	nc := raw(t, br.URL())
	elsewhere, err := nc.SubscribeSync("else.where")
	if err != nil {
		t.Fatal(err)
	}
	s, e := request(t, "ps")
	subject, _ := s.Subject()
	filter, _ := s.ReplyFilter()
	replies, err := nc.SubscribeSync(filter)
	if err != nil {
		t.Fatal(err)
	}
	// The same nonce twice: suppression of duplicates is not the rail's; each is answered.
	for range 2 {
		if err := nc.PublishRequest(subject, "else.where", encode(t, e)); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := s.Reply(inst1, 8).Subject()
	for range 2 {
		if m, err := replies.NextMsg(5 * time.Second); err != nil || m.Subject != want {
			t.Fatalf("reply %+v, %v; want it on %s", m, err, want)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := elsewhere.Pending(); n != 0 {
		t.Fatalf("%d replies went where the message asked", n)
	}
}

func TestCastIsExecutedAndNeverAnswered(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	var ran atomic.Int32
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"ps":   {Handler: func(context.Context, *bus.Request) (any, *wire.Error) { ran.Add(1); return nil, nil }, CheckArgs: bus.NoArgs},
		"sync": {Handler: echo(inst1)},
	}})
	c := client(t, br.URL())
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "sync"}, nil); err != nil { // the contract is known now
		t.Fatal(err)
	}
	replies := watch(t, raw(t, br.URL()), "cotal.main.ep.reply.>")
	if err := c.Cast(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Cast(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Args: map[string]int{"refused": 1}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cast ran", func() bool { return ran.Load() == 1 })
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "sync"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := replies.NextMsg(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := replies.Pending(); n != 0 || ran.Load() != 1 {
		t.Fatalf("%d replies to casts, the handler ran %d times", n, ran.Load())
	}
}

func TestScatterAsksEveryInstanceAndTheClassRailOne(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	var ran atomic.Int32
	for _, id := range []string{inst1, inst2, inst3} {
		commands := echoCommands(id)
		commands["ps"] = bus.Command{Read: true, Handler: func(ctx context.Context, r *bus.Request) (any, *wire.Error) {
			ran.Add(1)
			return echo(id)(ctx, r)
		}}
		serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{InstanceID: id, Commands: commands})
	}
	c := client(t, br.URL())
	answers, err := c.Scatter(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, 3)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, a := range answers {
		ids = append(ids, a.InstanceID)
		if a.Err != nil {
			t.Errorf("%s: %v", a.InstanceID, a.Err)
		}
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{inst1, inst2, inst3}) {
		t.Fatalf("answers of %v", ids)
	}
	for _, id := range []string{inst1, inst2, inst3} {
		var got seen
		if who, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Instance: id}, &got); err != nil || who.InstanceID != id || got.Instance != id {
			t.Fatalf("instance %s answered as %+v, %v", id, who, err)
		}
	}
	before := ran.Load()
	for range 20 {
		if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := ran.Load() - before; n != 20 {
		t.Fatalf("20 calls of the class ran %d times", n)
	}
}

func TestInstanceOnlyCommandIsNotServedElsewhere(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	c := client(t, br.URL())
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "shutdown"}, nil); !errors.Is(err, mesh.ErrNoResponder) {
		t.Fatalf("on the class rail: %v", err)
	}
	if answers, err := c.Scatter(t.Context(), mesh.Call{Endpoint: "manager", Command: "shutdown"}, 1); !errors.Is(err, mesh.ErrNoResponder) {
		t.Fatalf("on the scatter rail: %+v, %v", answers, err)
	}
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "shutdown", Instance: inst1}, nil); err != nil {
		t.Fatalf("on the instance rail: %v", err)
	}
}

func TestDescribe(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	var raw json.RawMessage
	if _, err := client(t, br.URL()).Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "describe"}, &raw); err != nil {
		t.Fatal(err)
	}
	answer, err := wire.DecodeDescribe(raw)
	if err != nil {
		t.Fatal(err)
	}
	d := answer.Descriptor
	if !answer.Public || d.Endpoint != "manager" || d.Owner != "local" || d.Protocol.V != 1 || len(d.Clusters) != 1 {
		t.Fatalf("described as %+v", answer)
	}
	doc, err := d.Clusters[0].Verify()
	if err != nil || doc.URN != wire.ManagerURN || len(doc.Commands) != 3 || !slices.Equal(d.Clusters[0].Commands, []string{"despawn", "ps", "shutdown"}) {
		t.Fatalf("its document is %+v, %v", doc, err)
	}
	if c := doc.Commands[0]; c.Name != "despawn" || c.Class != wire.ClassEphemeral || !c.Targeted || len(c.Modes) != 7 {
		t.Fatalf("despawn is described as %+v", c)
	}
}

func TestSixteenClientsAtOnce(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	var wg sync.WaitGroup
	for range 16 {
		c := client(t, br.URL())
		wg.Go(func() {
			for range 50 {
				var got seen
				if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, &got); err != nil || got.Caller != c.Caller().Principal() {
					t.Errorf("got %+v, %v", got, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
