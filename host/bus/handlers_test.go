package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// proves: OUT-1, OUT-10, OUT-13
func TestHandlerFailures(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	handler := func(fn func() (any, error)) bus.Command {
		return bus.Command{Handler: bus.HandlerOf(func(context.Context, *bus.Request) (any, error) { return fn() })}
	}
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"panic":  handler(func() (any, error) { panic("secret detail") }),
		"plain":  handler(func() (any, error) { return nil, errors.New("disk is full") }),
		"within": handler(func() (any, error) { return nil, fmt.Errorf("read journal: %w", context.DeadlineExceeded) }),
		"coded": handler(func() (any, error) {
			return nil, fmt.Errorf("spawn: %w", wire.Refuse(wire.CodeNotFound, "no persona x"))
		}),
		"silent": {Handler: func(context.Context, *bus.Request) (any, *wire.Error) {
			return nil, &wire.Error{Code: wire.CodeUnavailable}
		}},
		"huge": handler(func() (any, error) { return strings.Repeat("x", 2<<20), nil }),
		"odd":  handler(func() (any, error) { return func() {}, nil }),
		"check": {
			Handler:   echo(inst1),
			CheckArgs: func(json.RawMessage) *wire.Error { panic("secret check") },
		},
		"fine": handler(func() (any, error) { return json.RawMessage(`{"a":1}`), nil }),
	}})
	c := client(t, br.URL())
	for _, h := range []struct {
		command, code, say string
		outcome            wire.Outcome
	}{
		{"panic", wire.CodeInternal, "panic", wire.OutcomeUnknown},
		{"check", wire.CodeInternal, "check", wire.OutcomeNotExecuted},
		{"plain", wire.CodeFailedPrecondition, "disk is full", wire.OutcomeUnknown},
		{"within", wire.CodeUnavailable, "read journal", wire.OutcomeUnknown},
		{"coded", wire.CodeNotFound, "no persona x", wire.OutcomeNotExecuted},
		{"silent", wire.CodeUnavailable, "", wire.OutcomeUnknown},
		{"huge", wire.CodeResourceExhausted, "bytes", wire.OutcomeExecuted},
		{"odd", wire.CodeResourceExhausted, "unsupported type", wire.OutcomeExecuted},
	} {
		_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: h.command}, nil)
		var we *wire.Error
		if !errors.As(err, &we) || we.Code != h.code || !strings.Contains(we.Message, h.say) || mesh.OutcomeOf(err) != h.outcome {
			t.Errorf("%s: %v (%s); want %s, %q, %s", h.command, err, mesh.OutcomeOf(err), h.code, h.say, h.outcome)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the panic's text reached the caller: %v", h.command, err)
		}
	}
	var got struct{ A int }
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "fine"}, &got); err != nil || got.A != 1 {
		t.Errorf("after all that: %+v, %v", got, err)
	}
}

// blocking is a command whose handlers wait until released (or their context ends).
type blocking struct {
	running atomic.Int32
	release chan struct{}
}

func (b *blocking) handle(ctx context.Context, _ *bus.Request) (any, *wire.Error) {
	b.running.Add(1)
	defer b.running.Add(-1)
	select {
	case <-b.release:
		return "done", nil
	case <-ctx.Done():
		return nil, wire.Fail(wire.CodeDeadlineExceeded, "%s", ctx.Err())
	}
}

func TestReadsAnswerWhileEffectsAreSaturated(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	spawn := &blocking{release: make(chan struct{})}
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{
		MaxInFlight: 4, MaxQueued: 22,
		Commands: map[string]bus.Command{
			"spawn":    {Handler: spawn.handle},
			"ps":       {Handler: echo(inst1), Read: true},
			"shutdown": {Handler: echo(inst1), InstanceOnly: true},
			"end":      {Handler: echo(inst1), Ends: true},
		},
	})
	c := client(t, br.URL())
	var done atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "spawn"}, nil); err != nil {
				t.Errorf("spawn: %v", err)
			}
			done.Add(1)
		})
	}
	eventually(t, "as many spawns run as may", func() bool { return spawn.running.Load() == 4 })

	start := time.Now()
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil); err != nil {
		t.Fatalf("ps: %v", err)
	}
	t.Logf("ps answered in %s", time.Since(start))
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "shutdown", Instance: inst1}, nil); err != nil {
		t.Fatalf("shutdown: %v", err)
	}
	if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "end"}, nil); err != nil {
		t.Fatalf("what holds the others up cannot be ended: %v", err)
	}

	// Two more find room to wait; their deadline passes while they do, and that is known to be harmless.
	_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "spawn", Deadline: 30 * time.Millisecond}, nil)
	if !errors.Is(err, &wire.Error{Code: wire.CodeDeadlineExceeded}) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Errorf("a spawn that never got its turn: %v (%s)", err, mesh.OutcomeOf(err))
	}
	if n := spawn.running.Load(); n != 4 || done.Load() != 0 {
		t.Errorf("%d spawns run, %d are done; want 4 and none", n, done.Load())
	}
	close(spawn.release)
	wg.Wait()
}

func TestOverloadIsRefusedNotQueuedForEver(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	spawn := &blocking{release: make(chan struct{})}
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{
		MaxInFlight: 2, MaxQueued: 2, Commands: map[string]bus.Command{"spawn": {Handler: spawn.handle}},
	})
	c := client(t, br.URL())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "spawn"}, nil); err != nil {
				t.Errorf("spawn: %v", err)
			}
		})
	}
	eventually(t, "both run", func() bool { return spawn.running.Load() == 2 })
	_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "spawn"}, nil)
	if !errors.Is(err, &wire.Error{Code: wire.CodeResourceExhausted}) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Errorf("the third: %v (%s)", err, mesh.OutcomeOf(err))
	}
	close(spawn.release)
	wg.Wait()
}

func TestDeadlineReachesTheHandler(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	spawn := &blocking{release: make(chan struct{})}
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{"spawn": {Handler: spawn.handle}}})
	_, err := client(t, br.URL()).Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "spawn", Deadline: 30 * time.Millisecond}, nil)
	if !errors.Is(err, &wire.Error{Code: wire.CodeDeadlineExceeded}) || mesh.OutcomeOf(err) != wire.OutcomeUnknown {
		t.Fatalf("got %v (%s)", err, mesh.OutcomeOf(err))
	}
}

func TestDrainFinishesWhatRunsAndRefusesWhatComes(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	spawn := &blocking{release: make(chan struct{})}
	s := serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"spawn": {Handler: spawn.handle}, "ps": {Handler: echo(inst1), Read: true},
	}})
	c := client(t, br.URL())
	admitted := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "spawn"}, nil)
		admitted <- err
	}()
	eventually(t, "the spawn runs", func() bool { return spawn.running.Load() == 1 })

	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Drain with a running spawn: %v", err)
	}
	_, err := c.Call(t.Context(), mesh.Call{Endpoint: "manager", Command: "ps"}, nil)
	if !errors.Is(err, &wire.Error{Code: wire.CodeUnavailable}) || mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		t.Fatalf("a request during the drain: %v (%s)", err, mesh.OutcomeOf(err))
	}
	close(spawn.release)
	if err := s.Drain(t.Context()); err != nil {
		t.Fatalf("Drain: %v", err)
	}
	if err := <-admitted; err != nil {
		t.Fatalf("the admitted spawn: %v", err)
	}
}

func TestProgressReachesTheCallerAlone(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	mine, other := client(t, br.URL()), client(t, br.URL())
	var mu sync.Mutex
	var got []string
	stop, err := mine.WatchGoal(t.Context(), "manager", inst1, "g1", func(p wire.GoalProgress) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, p.Phase+p.State)
	})
	if err != nil {
		t.Fatal(err)
	}
	var stray atomic.Int32
	stopOther, err := other.WatchGoal(t.Context(), "manager", "", "g1", func(wire.GoalProgress) { stray.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer stopOther()
	// A restart in between raises the epoch; the watch lasts.
	for _, p := range []struct {
		epoch uint64
		wire.GoalProgress
	}{{1, wire.GoalProgress{Phase: wire.PhaseHandoff}}, {2, wire.GoalProgress{Phase: wire.PhaseTerminal, State: wire.GoalSucceeded}}} {
		if err := b.PublishProgress("main", "manager", inst1, p.epoch, mine.Caller(), "g1", p.GoalProgress); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both events came", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == 2
	})
	if s := strings.Join(got, " "); s != "handoff terminalsucceeded" || stray.Load() != 0 {
		t.Fatalf("got %q, %d strayed", s, stray.Load())
	}
	stop()
	if err := b.PublishProgress("main", "manager", inst1, 2, mine.Caller(), "g 1", wire.GoalProgress{}); err == nil {
		t.Error("a malformed goal id was published")
	}
}

func TestARefusalThatQuotesALargeArgumentIsSent(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	serve(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), bus.EndpointConfig{Commands: map[string]bus.Command{
		"quote": {Handler: func(_ context.Context, r *bus.Request) (any, *wire.Error) {
			text := strings.Repeat("<", 400<<10)
			return nil, wire.Refuse(wire.CodeNotFound, "no seat is called %q", text).With("ai.cotal.test.large", map[string]any{"name": text})
		}},
	}})
	_, err := client(t, br.URL()).Call(t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: "quote", Deadline: 5 * time.Second}, nil)
	var werr *wire.Error
	if !errors.As(err, &werr) || werr.Code != wire.CodeNotFound || werr.Outcome != wire.OutcomeNotExecuted {
		t.Fatalf("got %.200v, want the refusal", err)
	}
	if len(werr.Message) > 8<<10 || !strings.HasPrefix(werr.Message, "no seat is called") {
		t.Errorf("a text of %d bytes: %.40s", len(werr.Message), werr.Message)
	}
}
