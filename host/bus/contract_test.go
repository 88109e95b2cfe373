package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

type countArgs struct {
	N int `json:"n"`
}

type countReply struct {
	List []string `json:"list"`
}

func schemaOf[T any](t testing.TB, shape wire.Shape) *wire.Schema {
	t.Helper()
	s, err := wire.SchemaFor(reflect.TypeFor[T](), shape)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The broker itself says that nobody serves what is not served, on each of the three rails.
func TestOnlyServedCommandsAreSubscribed(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	nc := raw(t, br.URL())
	for _, mode := range []wire.Mode{wire.ModeOne, wire.ModeInstance, wire.ModeAll} {
		for command, served := range map[string]bool{"ps": true, "dance": false} {
			s, e := request(t, command)
			if s.Mode = mode; mode == wire.ModeInstance {
				s.InstanceID = inst1
			}
			subject, err := s.Subject()
			if err != nil {
				t.Fatal(err)
			}
			_, err = nc.Request(subject, encode(t, e), 100*time.Millisecond)
			if served == errors.Is(err, nats.ErrNoResponders) {
				t.Errorf("%s on the rail %s: %v", command, mode, err)
			}
		}
	}
}

// Off the rail of the class, a command is still served on the others and described.
func TestCommandsLeaveTheClassRailAndReturn(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	s := serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: echoCommands(inst1)})
	c := client(t, br.URL())
	ps := mesh.Call{Endpoint: "manager", Command: "ps"}
	for _, on := range []bool{false, false, true, true, false, true} {
		if err := s.Offer("ps", on); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the broker has heard of it", func() bool {
			_, err := c.Call(t.Context(), ps, nil)
			return on == (err == nil) && (on || errors.Is(err, mesh.ErrNoResponder))
		})
		pinned := ps
		pinned.Instance = inst1
		if _, err := c.Call(t.Context(), pinned, nil); err != nil {
			t.Errorf("on the rail of the instance: %v", err)
		}
		if answers, err := c.Scatter(t.Context(), ps, 1); err != nil || len(answers) != 1 {
			t.Errorf("on the rail of a scatter: %v, %v", answers, err)
		}
	}
	if err := s.Offer("shutdown", false); err == nil {
		t.Error("a command that is not on the rail of the class was taken off it")
	}
}

// proves: OUT-1
func TestAnswersAreHeldToTheContract(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	answers := map[string]any{
		"right": countReply{List: []string{"a"}}, "null": countReply{}, "more": map[string]any{"list": []string{}, "x": 1}, "nothing": nil,
		"encoded": bus.Encoded(`{"list":["was checked before"]}`),
	}
	commands := map[string]bus.Command{}
	for name, data := range answers {
		commands[name] = bus.Command{
			Output:  schemaOf[countReply](t, wire.Shape{}),
			Handler: func(context.Context, *bus.Request) (any, *wire.Error) { return data, nil },
		}
	}
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: commands})
	c := client(t, br.URL())
	for name := range answers {
		var got countReply
		_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: name}, &got)
		if name == "right" || name == "encoded" {
			if err != nil || len(got.List) != 1 {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			continue
		}
		var we *wire.Error
		if !errors.As(err, &we) || we.Code != wire.CodeInternal || we.Outcome != wire.OutcomeExecuted {
			t.Errorf("%s: %v, outcome %s; want internal, executed", name, err, mesh.OutcomeOf(err))
		}
	}
}

func TestArgumentsAreHeldToTheContract(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	var ran atomic.Int32
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"count": {
			Input:   schemaOf[countArgs](t, wire.Shape{Limits: map[string]wire.Limit{"n": {Min: 1, Max: 9}}}),
			Handler: func(context.Context, *bus.Request) (any, *wire.Error) { ran.Add(1); return nil, nil },
		},
	}})
	c := client(t, br.URL())
	for args, ok := range map[string]bool{`{"n":9}`: true, `{"n":10}`: false, `{}`: false, `{"n":"1"}`: false, `{"n":1,"m":1}`: false} {
		before := ran.Load()
		_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "count", Args: json.RawMessage(args)}, nil)
		if ran.Load() > before != ok || (err == nil) != ok {
			t.Errorf("%s: ran %d times, %v", args, ran.Load()-before, err)
		}
		if err != nil && (!strings.Contains(err.Error(), wire.CodeBadRequest) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted) {
			t.Errorf("%s: %v, outcome %s", args, err, mesh.OutcomeOf(err))
		}
	}
}
