package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestServiceServesAgainAfterTheBrokerCameBack(t *testing.T) {
	dir := t.TempDir()
	br := startBroker(t, dir, 0)
	var lost, back atomic.Int32
	b := connectBus(t, bus.Config{URL: br.URL(), OnState: func(up bool, _ string) {
		if up {
			back.Add(1)
		} else {
			lost.Add(1)
		}
	}})
	spawn := &blocking{release: make(chan struct{})}
	serve(t, b, bus.EndpointConfig{Commands: map[string]bus.Command{
		"spawn": {Handler: spawn.handle}, "ps": {Handler: echo(inst1), Read: true},
	}})
	old := client(t, br.URL())
	inFlight := make(chan error, 1)
	go func() {
		_, err := old.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "spawn"}, nil)
		inFlight <- err
	}()
	eventually(t, "the spawn runs", func() bool { return spawn.running.Load() == 1 })

	br.Shutdown()
	// What the caller had in flight is unknown to it, and goes on all the same.
	if err := <-inFlight; !errors.Is(err, mesh.ErrNoReply) || mesh.OutcomeOf(err) != wire.OutcomeUnknown {
		t.Fatalf("the call in flight: %v (%s)", err, mesh.OutcomeOf(err))
	}
	eventually(t, "the bus noticed", func() bool { return lost.Load() == 1 && !b.Connected() })
	if n := spawn.running.Load(); n != 1 {
		t.Fatalf("%d spawns run after the broker went; want the one that was admitted", n)
	}
	if _, err := mesh.Connect(t.Context(), mesh.Config{URL: br.URL(), Token: token, Space: "main"}); !errors.Is(err, mesh.ErrUnreachable) {
		t.Fatalf("connecting meanwhile: %v", err)
	}

	br = startBroker(t, dir, br.Port())
	eventually(t, "the bus is back", func() bool { return back.Load() == 1 && b.Connected() })
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := client(t, br.URL())
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
		t.Fatalf("a call after the outage: %v", err)
	}
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Instance: inst1}, nil); err != nil {
		t.Fatalf("a call on the instance rail after the outage: %v", err)
	}
	close(spawn.release)
}

func TestReconnectingClientCallsAgain(t *testing.T) {
	dir := t.TempDir()
	br := startBroker(t, dir, 0)
	var up, down atomic.Int32
	c, err := mesh.Connect(t.Context(), mesh.Config{
		URL: br.URL(), Token: token, Space: "main", Reconnect: true,
		OnState: func(connected bool) {
			if connected {
				up.Add(1)
			} else {
				down.Add(1)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	br.Shutdown()
	eventually(t, "the client noticed", func() bool { return down.Load() == 1 })
	// Nothing is kept for later: it would run when nobody waits for it any more.
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err == nil || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Fatalf("a call during the outage: %v (%s)", err, mesh.OutcomeOf(err))
	}
	br = startBroker(t, dir, br.Port())
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	eventually(t, "the client is back", func() bool { return up.Load() == 1 })
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestRefusedCredentialsAndDeadServersAreToldApart(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	if b, err := bus.Connect(t.Context(), bus.Config{URL: br.URL(), Token: "wrong"}); !errors.Is(err, bus.ErrRefused) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("bus with a wrong token: %v, %v", b, err)
	}
	if c, err := mesh.Connect(t.Context(), mesh.Config{URL: br.URL(), Token: "wrong", Space: "main"}); !errors.Is(err, mesh.ErrUnauthorized) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Errorf("client with a wrong token: %v, %v", c, err)
	}
	if c, err := mesh.Connect(t.Context(), mesh.Config{URL: br.URL(), Space: "main"}); !errors.Is(err, mesh.ErrUnauthorized) {
		t.Errorf("client without token: %v, %v", c, err)
	}
	br.Shutdown()
	if b, err := bus.Connect(t.Context(), bus.Config{URL: br.URL(), Token: token}); !errors.Is(err, bus.ErrUnreachable) || !strings.Contains(err.Error(), br.URL()) {
		t.Errorf("bus without server: %v, %v", b, err)
	}
	if c, err := mesh.Connect(t.Context(), mesh.Config{URL: br.URL(), Token: token, Space: "main"}); !errors.Is(err, mesh.ErrUnreachable) || !strings.Contains(err.Error(), br.URL()) {
		t.Errorf("client without server: %v, %v", c, err)
	}
}

// A server that accepts and says nothing must not hold a connect for ever.
func TestConnectToASilentServerEnds(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	u := url.URL{Scheme: "nats", Host: l.Addr().String()}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := mesh.Connect(ctx, mesh.Config{URL: u.String(), Space: "main"}); !errors.Is(err, mesh.ErrUnreachable) {
		t.Errorf("client: %v", err)
	}
	if _, err := bus.Connect(ctx, bus.Config{URL: u.String()}); !errors.Is(err, bus.ErrUnreachable) {
		t.Errorf("bus: %v", err)
	}
}

func TestTokenFile(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := mesh.Connect(t.Context(), mesh.Config{URL: br.URL(), TokenFile: path, Space: "main"})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	b, err := bus.Connect(t.Context(), bus.Config{URL: br.URL(), TokenFile: path})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

func TestReplyOfASupersededEpochIsRejected(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	now := serve(t, b, bus.EndpointConfig{Epoch: 2, Commands: echoCommands(inst1)})
	c := client(t, br.URL())
	if who, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil || who.Epoch != 2 {
		t.Fatalf("answered by %+v, %v", who, err)
	}
	now.Close()
	// An old incarnation that is still there, and heeds no bind.
	old := wire.Bind{InstanceID: inst1, Epoch: 1}
	for name, c2 := range map[string]struct {
		reply   wire.EndpointReply
		outcome wire.Outcome
	}{
		"an answer": {wire.EndpointReply{OK: true}, wire.OutcomeExecuted},
		"a refusal": {wire.EndpointReply{Error: wire.Refuse(wire.CodeNotFound, "nothing here")}, wire.OutcomeNotExecuted},
	} {
		stop := impostor(t, raw(t, br.URL()), wire.Bind{InstanceID: inst1, Epoch: 2}, old, func(id string) []byte {
			c2.reply.ID = id
			return encodeReply(t, c2.reply)
		})
		_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil)
		if !errors.Is(err, mesh.ErrBadReply) || mesh.OutcomeOf(err) != c2.outcome {
			t.Errorf("%s of the old incarnation: %v (%s); want it rejected, %s", name, err, mesh.OutcomeOf(err), c2.outcome)
		}
		stop()
	}
	// One that does heed it refuses the request by itself.
	serve(t, b, bus.EndpointConfig{Epoch: 1, Commands: echoCommands(inst1)})
	_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil)
	if !errors.Is(err, mesh.ErrBadReply) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Errorf("the old incarnation alone: %v (%s); want it rejected, not-executed", err, mesh.OutcomeOf(err))
	}
}

// impostor answers describe as one incarnation, and every other request as another one with what reply says.
func impostor(t *testing.T, nc *nats.Conn, described, from wire.Bind, reply func(id string) []byte) (stop func()) {
	t.Helper()
	contract, err := bus.NewContract("manager", "local", wire.ManagerURN, 1, echoCommands(inst1))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := json.Marshal(wire.DescribeAnswer{Public: true, Descriptor: contract.Descriptor})
	if err != nil {
		t.Fatal(err)
	}
	return impostorOf(t, nc, answer, described, from, reply)
}

// impostorOf is impostor with an answer to describe of its own.
func impostorOf(t *testing.T, nc *nats.Conn, answer json.RawMessage, described, from wire.Bind, reply func(id string) []byte) (stop func()) {
	t.Helper()
	sub, err := nc.Subscribe("cotal.main.ep.*.manager.>", func(m *nats.Msg) {
		s, err := wire.ParseRequestSubject(m.Subject)
		if err != nil {
			return
		}
		e, _ := wire.DecodeRequest(m.Data)
		who, p := from, []byte(nil)
		if s.Command == wire.CmdDescribe {
			who, p = described, encodeReply(t, wire.EndpointReply{ID: e.ID, OK: true, Data: answer})
		} else {
			p = reply(e.ID)
		}
		to, err := s.Reply(who.InstanceID, who.Epoch).Subject()
		if err == nil {
			err = nc.Publish(to, p)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = sub.Unsubscribe()
		_ = nc.Flush()
	}
}

// A responder that breaks the contract is not believed, but what its answer says of the effect is kept.
func TestIncoherentRepliesAreRejected(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	nc := raw(t, br.URL())
	bound := &wire.Bind{InstanceID: inst1, Epoch: 4}
	refused := wire.Refuse(wire.CodeExpired, "no").With(wire.DetailBindRefused, nil)
	for _, c := range []struct {
		name    string
		call    mesh.Call
		from    wire.Bind
		reply   func(id string) []byte
		outcome wire.Outcome
	}{
		{"an answer to another request", mesh.Call{}, *bound, func(string) []byte { return encodeReply(t, wire.EndpointReply{ID: "other", OK: true}) }, wire.OutcomeExecuted},
		{"no envelope", mesh.Call{}, *bound, func(string) []byte { return []byte("{}") }, wire.OutcomeUnknown},
		{"an incarnation that ignored the bind to the one that was resolved", mesh.Call{Instance: inst1}, wire.Bind{InstanceID: inst1, Epoch: 9}, func(id string) []byte { return encodeReply(t, wire.EndpointReply{ID: id, OK: true}) }, wire.OutcomeExecuted},
		{"another instance than the one asked", mesh.Call{Instance: inst1}, wire.Bind{InstanceID: inst2, Epoch: 1}, func(id string) []byte { return encodeReply(t, wire.EndpointReply{ID: id, OK: true}) }, wire.OutcomeExecuted},
		{"an incarnation that ignored the bind", mesh.Call{Bind: bound}, wire.Bind{InstanceID: inst1, Epoch: 5}, func(id string) []byte { return encodeReply(t, wire.EndpointReply{ID: id, OK: true}) }, wire.OutcomeExecuted},
		{"the bound incarnation refusing itself", mesh.Call{Bind: &wire.Bind{InstanceID: inst1, Epoch: 9}}, wire.Bind{InstanceID: inst1, Epoch: 9}, func(id string) []byte { return encodeReply(t, wire.EndpointReply{ID: id, Error: refused}) }, wire.OutcomeNotExecuted},
	} {
		t.Run(c.name, func(t *testing.T) {
			described := *bound
			if c.call.Bind != nil {
				described = *c.call.Bind
			} else if c.call.Instance == "" {
				described = c.from
			}
			defer impostor(t, nc, described, c.from, c.reply)()
			c.call.Endpoint, c.call.Command = "manager", "ps"
			_, err := client(t, br.URL()).Call(t.Context(), c.call, nil)
			if !errors.Is(err, mesh.ErrBadReply) || mesh.OutcomeOf(err) != c.outcome {
				t.Fatalf("%v (%s); want it rejected, %s", err, mesh.OutcomeOf(err), c.outcome)
			}
		})
	}
}

func encodeReply(t testing.TB, r wire.EndpointReply) []byte {
	t.Helper()
	p, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWhatTheCallerKnowsWithoutAReply(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	c := client(t, br.URL())
	t.Run("nobody serves it", func(t *testing.T) {
		_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil)
		if !errors.Is(err, mesh.ErrNoResponder) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
			t.Fatalf("%v (%s)", err, mesh.OutcomeOf(err))
		}
	})
	t.Run("somebody listens and never answers", func(t *testing.T) {
		bus := raw(t, br.URL())
		defer bus.Close()
		call := func(c *mesh.Client, want wire.Outcome) {
			t.Helper()
			_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Deadline: 20 * time.Millisecond}, nil)
			if !errors.Is(err, mesh.ErrNoReply) || mesh.OutcomeOf(err) != want {
				t.Fatalf("%v (%s)", err, mesh.OutcomeOf(err))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err = c.Call(ctx, mesh.Call{Endpoint: "manager", Command: "ps"}, nil)
			if !errors.Is(err, mesh.ErrNoReply) || !errors.Is(err, context.DeadlineExceeded) || mesh.OutcomeOf(err) != want {
				t.Fatalf("%v (%s)", err, mesh.OutcomeOf(err))
			}
		}
		// It does not even say what it serves: the call was not sent.
		watch(t, bus, "cotal.main.ep.*.manager.>")
		call(c, wire.OutcomeNotExecuted)
		// It did once, and now it says nothing.
		stop := impostor(t, raw(t, br.URL()), wire.Bind{InstanceID: inst1, Epoch: 1}, wire.Bind{InstanceID: inst1, Epoch: 1}, func(id string) []byte {
			return encodeReply(t, wire.EndpointReply{ID: id, OK: true})
		})
		knows := client(t, br.URL())
		if _, err := knows.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
			t.Fatal(err)
		}
		stop()
		call(knows, wire.OutcomeUnknown)
	})
	t.Run("it was never sent", func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, try := range map[string]func() error{
			"the caller had stopped": func() error {
				_, err := c.Call(ended, mesh.Call{Endpoint: "manager", Command: "ps"}, nil)
				return err
			},
			"a malformed command": func() error {
				_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "P S"}, nil)
				return err
			},
			"a mode without its target": func() error {
				_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Authz: wire.AuthzOwner}, nil)
				return err
			},
			"arguments that are no object": func() error {
				_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Args: 7}, nil)
				return err
			},
			"more than the server carries": func() error {
				_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Args: map[string]string{"x": strings.Repeat("x", 2<<20)}}, nil)
				return err
			},
		} {
			if err := try(); err == nil || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
				t.Errorf("%s: %v (%s)", name, err, mesh.OutcomeOf(err))
			}
		}
	})
}
