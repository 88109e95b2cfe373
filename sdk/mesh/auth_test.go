package mesh_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/authmesh"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// connectAs is a client with a credential.
func connectAs(t *testing.T, m *authmesh.Mesh, creds string, edit ...func(*mesh.Config)) *mesh.Client {
	t.Helper()
	cfg := mesh.Config{URL: m.URL(), Space: authmesh.Space, Name: "test", CredsFile: creds, Timeout: busy.Limit(5 * time.Second)}
	for _, f := range edit {
		f(&cfg)
	}
	c, err := mesh.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// atOnce fails when something took so long that it must have waited for an answer.
func atOnce(t *testing.T, what string, do func() error) error {
	t.Helper()
	begin := time.Now()
	err := do()
	if busy.Over(begin, time.Second) {
		t.Errorf("%s: it took %v: %v", what, time.Since(begin), err)
	}
	return err
}

// Whoever sits at the machine does all that the command line does with the credential that the host keeps for it, and
// two processes of one person read one channel at a time.
func TestAnOperatorNeedsNoMoreThanItsCredential(t *testing.T) {
	t.Parallel()
	m := authmesh.New(t)
	m.Serve(map[string]bus.Command{
		wire.CmdPs: {Read: true, Handler: bus.HandlerOf(func(context.Context, *bus.Request) (any, error) { return []string{}, nil })},
	})
	agent := m.Agent(provision.Spec{Alias: "reviewer", Read: []string{"team"}, Write: []string{"team"}})
	creds := m.Operator()
	apart := func(c *mesh.Config) { c.Apart = true }
	op, again := connectAs(t, m, creds, apart), connectAs(t, m, creds, apart)
	c := connectAs(t, m, agent.Creds)
	if c.Caller() != agent.Caller || op.Caller() != again.Caller() {
		t.Errorf("the callers are %+v, %+v and %+v", c.Caller(), op.Caller(), again.Caller())
	}
	ctx, cancel := authmesh.Limit(t)
	defer cancel()

	roster, err := op.WatchPresence(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer roster.Close()
	if _, err := c.Join(ctx, mesh.JoinConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := roster.Await(ctx, is(c, wire.StatusIdle)); err != nil {
		t.Error(err)
	}
	live := joinChannel(t, op, "team", mesh.ChannelOptions{})
	say(t, c, "team", "one")
	say(t, op, "team", "two")
	if got := texts([]mesh.Message{next(t, live), next(t, live)}); got != "one two" {
		t.Errorf("team: %s", got)
	}
	var reads sync.WaitGroup
	for range 8 {
		for _, reader := range []*mesh.Client{op, again} {
			reads.Go(func() {
				if page, err := reader.History(ctx, mesh.HistoryQuery{Channel: "team", Limit: 10}); err != nil || texts(page) != "one two" {
					t.Errorf("history: %s, %v", texts(page), err)
				}
			})
		}
	}
	reads.Wait()
	if list, err := op.Channels(ctx); err != nil || len(list) != 1 {
		t.Errorf("channels: %+v, %v", list, err)
	}
	if _, err := op.ChannelInfo(ctx, "team"); err != nil {
		t.Error(err)
	}
	if _, err := op.SendDirect(ctx, agent.Principal(), "for you"); err != nil {
		t.Error(err)
	}
	if d := nextDirect(t, direct(t, c)); d.Text() != "for you" {
		t.Errorf("direct: %+v", d)
	}
	if _, err := op.Send(ctx, wire.Message{ToService: "review", Parts: mesh.Text("for anybody")}); err != nil {
		t.Error(err)
	}
	if stop, err := op.WatchGoal(ctx, wire.EndpointManager, "", wire.NewID(), func(wire.GoalProgress) {}); err != nil {
		t.Error(err)
	} else {
		stop()
	}
	if _, err := op.Call(ctx, mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs}, nil); err != nil {
		t.Error(err)
	}
	if answers, err := op.Scatter(ctx, mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs}, 1); err != nil || len(answers) != 1 {
		t.Errorf("scatter: %d answers, %v", len(answers), err)
	}
	contract, err := op.Describe(ctx, wire.EndpointManager, "")
	if err != nil {
		t.Fatal(err)
	}
	// Only what a host registered is in the contract store, which this one has not: it is asked, and not refused.
	if _, _, err := op.Schemas(ctx, contract, wire.CmdPs); errors.Is(err, mesh.ErrDenied) {
		t.Error(err)
	}
}

// The server tells whoever lacks a right beside everything else, and answers nothing: that is an error with its cause,
// and no silence.
func TestAMissingRightIsAnErrorAndNoSilence(t *testing.T) {
	t.Parallel()
	m := authmesh.New(t)
	agent := m.Agent(provision.Spec{Alias: "reviewer", Read: []string{"team"}, Write: []string{"team"}})
	c, op := connectAs(t, m, agent.Creds), connectAs(t, m, m.Operator())
	observer := connectAs(t, m, m.File(trust.Request{Profile: trust.Observer}))
	ctx, cancel := authmesh.Limit(t)
	defer cancel()
	if _, err := op.SendChannel(ctx, "ops", "secret"); err != nil { // of a store without any message nothing is asked
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		do   func() error
		says string
	}{
		"an agent writes elsewhere":     {func() error { _, err := c.SendChannel(ctx, "ops", "x"); return err }, "send message to ops: this caller may not write to that channel"},
		"an agent reads elsewhere":      {func() error { _, err := c.History(ctx, mesh.HistoryQuery{Channel: "ops"}); return err }, "read history of ops"},
		"an agent joins elsewhere":      {func() error { _, err := c.JoinChannel(ctx, "ops", mesh.ChannelOptions{}); return err }, "join channel ops"},
		"an agent configures a channel": {func() error { return c.ConfigureChannel(ctx, "team", wire.ChannelConfig{}) }, "configure channel team"},
		"an agent reads a role's tasks": {func() error { _, err := c.Tasks(ctx, "review", mesh.QueueOptions{}); return err }, "open tasks of review"},
		"an observer speaks":            {func() error { _, err := observer.SendChannel(ctx, "team", "x"); return err }, "send message to team"},
		"an observer appears":           {func() error { _, err := observer.Join(ctx, mesh.JoinConfig{}); return err }, "join main"},
		"an operator has no queue":      {func() error { _, err := op.DirectMessages(ctx, mesh.QueueOptions{}); return err }, "open direct messages"},
	} {
		err := atOnce(t, name, c.do)
		if !errors.Is(err, mesh.ErrDenied) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What was refused says nothing of what is granted.
	if _, err := c.SendChannel(ctx, "team", "x"); err != nil {
		t.Error(err)
	}
	if page, err := c.History(ctx, mesh.HistoryQuery{Channel: "team"}); err != nil || texts(page) != "x" {
		t.Errorf("history: %s, %v", texts(page), err)
	}
}

// Who may have no replies is told so, and waits for none.
func TestWhoMayHaveNoRepliesIsTold(t *testing.T) {
	t.Parallel()
	who, err := mesh.NewCaller()
	if err != nil {
		t.Fatal(err)
	}
	srv, err := natsd.NewServer(&natsd.Options{
		Host: "127.0.0.1", Port: natsd.RANDOM_PORT, NoSigs: true, NoLog: true,
		Users: []*natsd.User{{Username: "a", Password: "b", Permissions: &natsd.Permissions{
			Subscribe: &natsd.SubjectPermission{Allow: []string{wire.InboxPrefix(who.Actor) + ".>"}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(busy.Limit(20 * time.Second)) {
		t.Fatal("the broker does not start")
	}
	c, err := mesh.Connect(t.Context(), mesh.Config{URL: strings.Replace(srv.ClientURL(), "nats://", "nats://a:b@", 1), Space: authmesh.Space, Caller: who})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 { // a later one is told as well
		err := atOnce(t, "a call", func() error {
			_, err := c.Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdDescribe}, nil)
			return err
		})
		if !errors.Is(err, mesh.ErrDenied) || !strings.Contains(err.Error(), "ep.reply") || mesh.OutcomeOf(err) != wire.OutcomeUnknown {
			t.Errorf("a call: %v", err)
		}
	}
	if _, err := c.WatchGoal(t.Context(), wire.EndpointManager, "", wire.NewID(), func(wire.GoalProgress) {}); !errors.Is(err, mesh.ErrDenied) {
		t.Errorf("a watch of a goal: %v", err)
	}
}

// states is what a client is told of its server.
type states chan bool

func (s states) next(t *testing.T, want bool) {
	t.Helper()
	ctx, cancel := authmesh.Limit(t)
	defer cancel()
	select {
	case got := <-s:
		if got != want {
			t.Fatalf("connected: %t, want %t", got, want)
		}
	case <-ctx.Done():
		t.Fatalf("it is not told that connected is %t", want)
	}
}

// A credential that was renewed in its file is taken with the next connection, and one that was not is not shown: the
// client is back as soon as there is a good one.
func TestACredentialThatEndsIsFollowedByTheRenewedOne(t *testing.T) {
	t.Parallel()
	m := authmesh.New(t)
	agent := m.Agent(provision.Spec{Alias: "reviewer", Read: []string{"team"}, Write: []string{"team"}})
	agent.Expire(2 * time.Second)
	told := make(states, 16)
	c := connectAs(t, m, agent.Creds, func(cfg *mesh.Config) { cfg.Reconnect, cfg.OnState = true, func(up bool) { told <- up } })
	ctx, cancel := authmesh.Limit(t)
	defer cancel()
	dev := joinChannel(t, c, "team", mesh.ChannelOptions{})
	told.next(t, false)
	// It is not shown to the server again, and what is in the way is told.
	var err error
	for begin := time.Now(); !errors.Is(err, mesh.ErrCredentialEnded); err = c.Trouble() {
		if busy.Over(begin, 10*time.Second) {
			t.Fatalf("what is in the way is %v", err)
		}
		time.Sleep(time.Millisecond) // a look at what another goroutine notes
	}
	// Whoever sends or calls meanwhile is told what keeps the server away.
	_, sent := c.SendChannel(ctx, "team", "lost")
	_, asked := c.Call(ctx, mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdStop, Authz: wire.AuthzSelf}, nil)
	for what, err := range map[string]error{"sending": sent, "calling": asked} {
		if !errors.Is(err, mesh.ErrUnreachable) || !errors.Is(err, mesh.ErrCredentialEnded) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
			t.Errorf("%s meanwhile: %v", what, err)
		}
	}
	if _, err := mesh.Connect(ctx, mesh.Config{URL: m.URL(), Space: authmesh.Space, CredsFile: agent.Creds}); !errors.Is(err, mesh.ErrUnauthorized) || !errors.Is(err, mesh.ErrCredentialEnded) {
		t.Errorf("another one meanwhile: %v", err)
	}
	agent.Renew()
	told.next(t, true)
	say(t, c, "team", "back")
	if got := next(t, dev); got.Text() != "back" {
		t.Errorf("team: %+v", got)
	}
	if err := c.Trouble(); err != nil {
		t.Errorf("what is in the way behind it: %v", err)
	}
}

// Renewed before its end, a credential ends with nothing but a moment of reconnecting; across an outage, too.
func TestARenewedCredentialOutlivesTheOneBefore(t *testing.T) {
	t.Parallel()
	m := authmesh.New(t)
	agent := m.Agent(provision.Spec{Alias: "reviewer", Read: []string{"team"}, Write: []string{"team"}})
	agent.Expire(2 * time.Second)
	told := make(states, 16)
	c := connectAs(t, m, agent.Creds, func(cfg *mesh.Config) { cfg.Reconnect, cfg.OnState = true, func(up bool) { told <- up } })
	agent.Renew()
	told.next(t, false)
	told.next(t, true)
	say(t, c, "team", "on")
	m.Stop()
	told.next(t, false)
	m.Restart()
	told.next(t, true)
	say(t, c, "team", "and on")
}
