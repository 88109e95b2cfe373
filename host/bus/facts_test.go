package bus_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A fact is replaced by what is left of it without a moment in which there is none, and that can be done again.
func TestAFactIsEvicted(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	f := goalRef("g1").Result("main")
	if _, err := r.NextFact(ctx, wire.EndpointManager, wire.FactGoalResult, 0); !errors.Is(err, bus.ErrAbsent) {
		t.Fatalf("the first of none: %v", err)
	}
	seq, err := r.PutFact(ctx, f, []byte(`{"whole":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.PutFact(ctx, goalRef("g1").Bind("main"), []byte(`{}`)); err != nil { // of another kind
		t.Fatal(err)
	}
	for range 2 {
		if err := r.EvictFact(ctx, f, []byte(`{"left":1}`), seq); err != nil {
			t.Fatal(err)
		}
		last, err := r.LastFact(ctx, f)
		if err != nil || string(last.Value) != `{"left":1}` {
			t.Fatalf("%s, %v", last.Value, err)
		}
		next, err := r.NextFact(ctx, wire.EndpointManager, wire.FactGoalResult, 0)
		if err != nil || next.Seq != last.Seq || next.Subject != f || next.At.IsZero() {
			t.Errorf("the first is %+v, %v; the last %+v", next, err, last)
		}
	}
	if _, err := r.PutFact(ctx, f, []byte(`{"again":1}`)); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("another one while something is left: %v", err)
	}
	last, err := r.LastFact(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.DropFact(ctx, last.Seq); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.LastFact(ctx, f); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("after it was dropped: %v", err)
	}
	if _, err := r.PutFact(ctx, f, []byte(`{"again":1}`)); err != nil {
		t.Errorf("a new one: %v", err)
	}
}

// The record of a goal goes without a marker, which would be damage to the next one of its id.
func TestTheRecordOfAGoalIsDropped(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	ref := goalRef("g1")
	for range 2 {
		if _, err := r.Create(ctx, ref.Key().Spec(), []byte(`{"s":1}`)); err != nil {
			t.Fatal(err)
		}
		rev, err := r.Create(ctx, ref.Key().Status(), []byte(`{"t":1}`))
		if err == nil {
			_, err = r.Update(ctx, ref.Key().Status(), []byte(`{"t":2}`), rev)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.DropGoal(ctx, ref); err != nil {
				t.Fatal(err)
			}
		}
		for _, key := range []wire.Key{ref.Key().Spec(), ref.Key().Status()} {
			if _, err := r.Get(ctx, key); !errors.Is(err, bus.ErrAbsent) {
				t.Errorf("after it was dropped: %v", err)
			}
		}
	}
}

// Facts are written at most twice under a subject, and none is dropped for another.
func TestFactsAreRefusedRatherThanDropped(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	r := openRecords(t, b, &memory{})
	js, err := jetstream.New(raw(t, br.URL()))
	if err != nil {
		t.Fatal(err)
	}
	f := goalRef("g1").Result("main")
	subject, err := f.Subject()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := js.Publish(t.Context(), subject, []byte{'a' + byte(i)}); (err != nil) != (i == 2) {
			t.Errorf("write %d: %v", i+1, err)
		}
	}
	if last, err := r.LastFact(t.Context(), f); err != nil || string(last.Value) != "b" {
		t.Errorf("%s, %v", last.Value, err)
	}
	// What was cut off between the two is brought to its end, whatever else is refused.
	first, err := r.NextFact(t.Context(), wire.EndpointManager, wire.FactGoalResult, 0)
	if err != nil || string(first.Value) != "a" {
		t.Fatalf("%s, %v", first.Value, err)
	}
	if err := r.EvictFact(t.Context(), f, []byte("c"), first.Seq); err != nil {
		t.Fatal(err)
	}
	if next, err := r.NextFact(t.Context(), wire.EndpointManager, wire.FactGoalResult, 0); err != nil || string(next.Value) != "b" {
		t.Errorf("%s, %v", next.Value, err)
	}
	// A stream that is bounded per subject in the other way is not taken: there the old one goes.
	info, err := js.Stream(t.Context(), "EPF_main")
	if err != nil {
		t.Fatal(err)
	}
	c := info.CachedInfo().Config
	c.DiscardNewPerSubject = false
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Records(t.Context(), "main", new(memory).known, new(memory).made); !errors.Is(err, bus.ErrStoreUnfit) {
		t.Errorf("a stream that drops old facts: %v", err)
	}
}
