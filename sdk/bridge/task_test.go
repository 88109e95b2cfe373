package bridge_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// tasks makes the queue of a role, of which a message comes again ackWait after it was given to somebody.
func (w *world) tasks(role string, ackWait time.Duration) jetstream.Consumer {
	w.t.Helper()
	nc, err := nats.Connect(w.URL(), nats.Token(token))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		w.t.Fatal(err)
	}
	stream, err := wire.StreamName(wire.StreamTask, space)
	if err != nil {
		w.t.Fatal(err)
	}
	filter, err := wire.ServiceFilter(space, role)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := js.CreateConsumer(w.t.Context(), stream, jetstream.ConsumerConfig{
		Durable: wire.DurableService(role), FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// A task that an agent is being woken with when its time is over does not go to another: both would do it.
func TestATaskThatAnAgentIsWokenWithGoesToNobodyElse(t *testing.T) {
	t.Parallel() // it waits, for the most part
	w := newWorld(t)
	ackWait := min(busy.Limit(3*time.Second), 8*time.Second) // a process that stands still for so long has lost it
	queue := w.tasks("review", ackWait)
	member := func(name string, waker bridge.WakerFunc) *bridge.Bridge {
		t.Helper()
		b := bridge.StartWith(w.seat(name, func(m *wire.LaunchMaterial) { m.Seat.Role = "review" }), bridge.Options{NoControl: true, Waker: waker}, 200*time.Millisecond, ackWait/10)
		t.Cleanup(b.Close)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := b.Joined(ctx); err != nil {
			t.Fatal(err)
		}
		return b
	}
	woken, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	member("ann", func(_ context.Context, n bridge.Notice) (bool, error) {
		once.Do(func() { close(woken) })
		<-goOn
		return true, nil
	})
	eve := w.joined(w.seat("eve"), bridge.Options{})
	eve.call("cotal_anycast", map[string]any{"role": "review", "text": "once"})
	<-woken
	second := make(chan string, 8)
	member("bob", func(_ context.Context, n bridge.Notice) (bool, error) {
		second <- n.Text
		return true, nil
	})
	// The time of the task in ann's bridge, and that of the mesh, pass while ann is being woken.
	pause := time.NewTimer(ackWait * 3 / 2)
	select {
	case text := <-second:
		t.Errorf("another has it as well: %s", text)
	case <-pause.C: // not a wait for a fact: that nothing comes within it is the fact
	}
	close(goOn)
	end := time.Now().Add(busy.Limit(patience))
	for {
		info, err := queue.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.NumAckPending == 0 && info.NumPending == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the task is not done: %+v", info)
		}
	}
	eve.call("cotal_anycast", map[string]any{"role": "review", "text": "twice"}) // ann was just woken
	select {
	case text := <-second:
		if strings.Contains(text, "once") {
			t.Errorf("another has the first as well: %s", text)
		}
	case <-time.After(busy.Limit(patience)):
		t.Error("a task does not go to who is idle")
	}
}

// A task that an agent was given and does not read goes to another at once, and no more to the first.
func TestATaskThatAnAgentDoesNotReadGoesToAnother(t *testing.T) {
	w := newWorld(t)
	queue := w.tasks("review", wire.AckWait)
	role := func(m *wire.LaunchMaterial) { m.Seat.Role = "review" }
	first := make(chan struct{}, 100)
	ann := bridge.StartWith(w.seat("ann", role), bridge.Options{NoControl: true, Waker: bridge.WakerFunc(func(context.Context, bridge.Notice) (bool, error) {
		first <- struct{}{}
		return false, bridge.ErrNotNow
	})}, time.Second, wire.AckWait)
	t.Cleanup(ann.Close)
	eve := w.joined(w.seat("eve"), bridge.Options{})
	eve.call("cotal_anycast", map[string]any{"role": "review", "text": "look at this"})
	<-first
	bob := w.agent(w.seat("bob", role), bridge.Options{})
	begin := time.Now()
	bob.until("cotal_inbox", nil, "look at this")
	if took := time.Since(begin); took > busy.Limit(wire.AckWait/2) {
		t.Errorf("it took %v: the mesh was not told", took)
	}
	end := time.Now().Add(busy.Limit(patience))
	for info, err := queue.Info(t.Context()); err != nil || info.NumAckPending > 0; info, err = queue.Info(t.Context()) {
		if time.Now().After(end) {
			t.Fatalf("it is still out: %+v, %v", info, err)
		}
	}
}
