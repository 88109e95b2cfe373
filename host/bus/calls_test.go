package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A client that knew an incarnation follows to the one that has taken over, without anything being done twice.
func TestACallFollowsTheIncarnationThatGotIt(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	var ran atomic.Int32
	commands := func(id string) map[string]bus.Command {
		m := echoCommands(id)
		m["ps"] = bus.Command{Handler: func(ctx context.Context, r *bus.Request) (any, *wire.Error) {
			ran.Add(1)
			return echo(id)(ctx, r)
		}}
		return m
	}
	c := client(t, br.URL())
	call := func(want mesh.Responder, k mesh.Call) {
		t.Helper()
		before := ran.Load()
		k.Endpoint, k.Command = "manager", "ps"
		if who, err := c.Call(t.Context(), k, nil); err != nil || who != want || ran.Load() != before+1 {
			t.Fatalf("answered by %+v after %d runs, %v; want %+v", who, ran.Load()-before, err, want)
		}
	}
	s := serve(t, b, bus.EndpointConfig{Epoch: 1, Commands: commands(inst1)})
	call(mesh.Responder{InstanceID: inst1, Epoch: 1}, mesh.Call{})
	call(mesh.Responder{InstanceID: inst1, Epoch: 1}, mesh.Call{Instance: inst1})
	s.Close()
	// The same instance, a later epoch, and other commands: another contract.
	later := commands(inst1)
	later["dance"] = bus.Command{Handler: echo(inst1)}
	s = serve(t, b, bus.EndpointConfig{Epoch: 2, Commands: later})
	call(mesh.Responder{InstanceID: inst1, Epoch: 2}, mesh.Call{Instance: inst1})
	call(mesh.Responder{InstanceID: inst1, Epoch: 2}, mesh.Call{})
	// Another instance of the class.
	s.Close()
	serve(t, b, bus.EndpointConfig{InstanceID: inst2, Epoch: 7, Commands: commands(inst2)})
	call(mesh.Responder{InstanceID: inst2, Epoch: 7}, mesh.Call{})
	// Who insists on an incarnation gets that one or nobody.
	before := ran.Load()
	_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Bind: &wire.Bind{InstanceID: inst2, Epoch: 6}}, nil)
	var we *wire.Error
	if !errors.As(err, &we) || we.Code != wire.CodeExpired || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted || ran.Load() != before {
		t.Fatalf("bound to an epoch that is over: %v (%s)", err, mesh.OutcomeOf(err))
	}
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps", Bind: &wire.Bind{InstanceID: inst1, Epoch: 2}}, nil); !errors.Is(err, mesh.ErrNoResponder) || ran.Load() != before {
		t.Fatalf("bound to an instance that is gone: %v", err)
	}
}

// What the contract refuses is refused here, and nothing is sent.
func TestACallIsHeldToTheContractBeforeItIsSent(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"ps":    {Handler: echo(inst1)},
		"input": {Handler: echo(inst1), Targeted: true, Modes: []wire.Authz{wire.AuthzOwner}},
	}})
	c := client(t, br.URL())
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
		t.Fatal(err)
	}
	nc := raw(t, br.URL())
	requests := watch(t, nc, "cotal.main.ep.one.manager.>")
	replies := watch(t, nc, "cotal.main.ep.reply.>")
	for name, k := range map[string]struct {
		call mesh.Call
		code string
	}{
		"a class that the command does not have": {mesh.Call{Command: "ps", Class: wire.ClassJournal}, wire.CodeClassMismatch},
		"a target that it does not take":         {mesh.Call{Command: "ps", Authz: wire.AuthzOwner, Target: &bob}, wire.CodeTargetMismatch},
		"no target":                              {mesh.Call{Command: "input", Args: wire.InputArgs{Text: "x"}}, wire.CodeTargetMismatch},
		"a mode that is not admitted":            {mesh.Call{Command: "input", Authz: wire.AuthzAny, Target: &bob, Args: wire.InputArgs{Text: "x"}}, wire.CodePermissionDenied},
		"arguments that check themselves":        {mesh.Call{Command: "input", Authz: wire.AuthzOwner, Target: &bob, Args: wire.InputArgs{}}, wire.CodeBadRequest},
	} {
		k.call.Endpoint = "manager"
		_, err := c.Call(t.Context(), k.call, nil)
		var we *wire.Error
		if !errors.As(err, &we) || we.Code != k.code || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
			t.Errorf("%s: %v (%s), want %s", name, err, mesh.OutcomeOf(err), k.code)
		}
	}
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
		t.Fatal(err)
	}
	if m, err := requests.NextMsg(5 * time.Second); err != nil || m.Header.Get(wire.HeaderDeadlineAt) == "" {
		t.Errorf("the one request that was sent: %+v, %v", m, err)
	}
	if _, err := replies.NextMsg(5 * time.Second); err != nil { // behind it nothing is on its way
		t.Fatal(err)
	}
	if n, _, _ := requests.Pending(); n != 0 {
		m, _ := requests.NextMsg(time.Second)
		t.Errorf("%d requests were sent for nothing: %s", n, m.Subject)
	}
	// A command that nobody declares is asked for once more, because the host may have changed, and not sent.
	_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "dance"}, nil)
	var we *wire.Error
	if !errors.As(err, &we) || we.Code != wire.CodeUnimplemented || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Errorf("a command nobody declares: %v", err)
	}
}

// A request whose deadline has passed is not begun, wherever it waited.
func TestNoHandlerStartsAfterTheDeadline(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	var ran atomic.Int32
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"spawn": {Handler: func(context.Context, *bus.Request) (any, *wire.Error) { ran.Add(1); return nil, nil }},
		"slow": {
			Handler: func(context.Context, *bus.Request) (any, *wire.Error) { ran.Add(1); return nil, nil },
			Admit: func(ctx context.Context, _ *bus.Request) (func(), *wire.Error) {
				<-ctx.Done() // an admission that takes all of the time
				return func() {}, nil
			},
		},
	}})
	nc := raw(t, br.URL())
	for name, k := range map[string]struct {
		command, header string
		ms              int64
		code            string
	}{
		"it came too late":                    {"spawn", wire.FormatDeadlineAt(time.Now().Add(-time.Second)), 60000, wire.CodeDeadlineExceeded},
		"a header that lies ahead is heeded":  {"spawn", wire.FormatDeadlineAt(time.Now().Add(time.Minute)), 60000, ""},
		"a header that cannot be read is not": {"spawn", "soon", 60000, ""},
		"its admission came too late":         {"slow", "", 20, wire.CodeDeadlineExceeded},
	} {
		before := ran.Load()
		s, e := request(t, k.command)
		e.DeadlineMs = k.ms
		r := askWith(t, nc, s, encode(t, e), map[string][]string{wire.HeaderDeadlineAt: {k.header}})
		switch {
		case k.code == "" && (!r.OK || ran.Load() != before+1):
			t.Errorf("%s: %+v", name, r.Error)
		case k.code != "" && (r.OK || r.Error.Code != k.code || r.Error.Outcome != wire.OutcomeNotExecuted || ran.Load() != before):
			t.Errorf("%s: %+v, the handler ran %d times", name, r.Error, ran.Load()-before)
		}
	}
}

func TestAScatterKnowsWhomToExpect(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	var expected atomic.Pointer[[]wire.ExpectedReply]
	both := []wire.ExpectedReply{{InstanceID: inst1, Epoch: 1}, {InstanceID: inst2, Epoch: 1}}
	all := append(slices.Clone(both), wire.ExpectedReply{InstanceID: inst3, Epoch: 1})
	expected.Store(&both)
	silent := make(chan struct{})
	t.Cleanup(func() { close(silent) })
	commands := func(id string) map[string]bus.Command {
		m := echoCommands(id)
		m[wire.CmdInstances] = bus.Command{Read: true, Handler: func(context.Context, *bus.Request) (any, *wire.Error) {
			return wire.InstancesReply{Instances: *expected.Load()}, nil
		}}
		m["mute"] = bus.Command{Read: true, Handler: func(context.Context, *bus.Request) (any, *wire.Error) {
			if id == inst2 {
				<-silent
			}
			return id, nil
		}}
		return m
	}
	serve(t, b, bus.EndpointConfig{InstanceID: inst1, Commands: commands(inst1)})
	serve(t, b, bus.EndpointConfig{InstanceID: inst2, Epoch: 2, Commands: commands(inst2)})
	third := serve(t, b, bus.EndpointConfig{InstanceID: inst3, Commands: commands(inst3)})
	c := client(t, br.URL())
	scatter := func(command string, budget time.Duration) ([]string, []mesh.Answer, error) {
		answers, err := c.Scatter(t.Context(), mesh.Call{Endpoint: "manager", Command: command, Deadline: budget}, 0)
		var ids []string
		for _, a := range answers {
			ids = append(ids, a.InstanceID)
		}
		slices.Sort(ids)
		return ids, answers, err
	}
	start := time.Now()
	ids, answers, err := scatter("ps", time.Minute)
	if err != nil || !slices.Equal(ids, []string{inst1, inst2}) || time.Since(start) > 30*time.Second {
		t.Fatalf("answers of %v after %s, %v", ids, time.Since(start), err)
	}
	for _, a := range answers {
		if a.Churned != (a.InstanceID == inst2) {
			t.Errorf("%s epoch %d: churned %v", a.InstanceID, a.Epoch, a.Churned)
		}
	}
	// One that nobody serves is not waited for.
	third.Close()
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	expected.Store(&all)
	var missing *mesh.MissingError
	if ids, _, err = scatter("ps", time.Minute); !slices.Equal(ids, []string{inst1, inst2}) || !errors.As(err, &missing) || len(missing.Gone) != 1 || len(missing.Silent) != 0 {
		t.Fatalf("answers of %v, %v", ids, err)
	}
	// One that is there and silent is.
	if ids, _, err = scatter("mute", 2*time.Second); !slices.Equal(ids, []string{inst1}) || !errors.As(err, &missing) || len(missing.Gone) != 1 || len(missing.Silent) != 1 {
		t.Fatalf("answers of %v, %v", ids, err)
	}
	expected.Store(&[]wire.ExpectedReply{})
	var we *wire.Error
	if _, _, err = scatter("ps", time.Minute); !errors.As(err, &we) || we.Code != wire.CodeFailedPrecondition || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Fatalf("nobody is registered: %v", err)
	}
}

// A contract that is not what its digest says is not used.
func TestDescribeVerifiesWhatItIsTold(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	contract, err := bus.NewContract("manager", "local", wire.ManagerURN, 1, echoCommands(inst1))
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*wire.Descriptor){
		"another document than the digest's": func(d *wire.Descriptor) {
			d.Clusters[0].Document = json.RawMessage(`{"urn":"ai.cotal.manager","revision":2,"attributes":[],"events":[],"commands":[{"name":"ps","class":"ephemeral","targeted":false,"capability":"x","inputDigest":"` + wire.VoidDigest + `","outputDigest":"` + wire.VoidDigest + `"}]}`)
		},
		"another endpoint":                    func(d *wire.Descriptor) { d.Endpoint = "delivery" },
		"a command that the document has not": func(d *wire.Descriptor) { d.Clusters[0].Commands = append(d.Clusters[0].Commands, "dance") },
		"a later protocol":                    func(d *wire.Descriptor) { d.Protocol.V = 3 },
		"a document that is nowhere":          func(d *wire.Descriptor) { d.Clusters[0].Document = nil },
		"":                                    func(*wire.Descriptor) {},
	} {
		d := contract.Descriptor
		d.Clusters = slices.Clone(d.Clusters)
		d.Clusters[0].Commands = slices.Clone(d.Clusters[0].Commands)
		spoil(&d)
		answer, err := json.Marshal(wire.DescribeAnswer{Public: true, Descriptor: d})
		if err != nil {
			t.Fatal(err)
		}
		stop := impostorOf(t, raw(t, br.URL()), answer, wire.Bind{InstanceID: inst1, Epoch: 1}, wire.Bind{InstanceID: inst1, Epoch: 1}, func(id string) []byte {
			return encodeReply(t, wire.EndpointReply{ID: id, OK: true})
		})
		c := client(t, br.URL())
		got, err := c.Describe(t.Context(), "manager", "")
		if (err == nil) != (name == "") || err == nil && !slices.Equal(got.Commands(), []string{"despawn", "ps", "shutdown"}) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); (err == nil) != (name == "") || err != nil && mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
			t.Errorf("%s: call: %v (%s)", name, err, mesh.OutcomeOf(err))
		}
		stop()
	}
}
