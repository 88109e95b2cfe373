package bus_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func openLeases(t testing.TB, b *bus.Bus, m *memory) *bus.Leases {
	t.Helper()
	l, err := b.Leases(bus.LeasesConfig{Space: "main", Known: m.known, Made: m.made})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Rows of the bucket end by the TTL of the bucket: one of a key alone would be lost with the first renewal. Other
// clients open it with their own library.
//
// proves: LEASE-2
func TestTheBucketOfLeasesIsMadeAsTheContractSays(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	var wg sync.WaitGroup
	for range 4 { // hosts that start at once
		wg.Go(func() {
			if _, err := openLeases(t, b, &memory{}).Get(t.Context(), inst1); !errors.Is(err, bus.ErrAbsent) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	_, js := jetStream(t, br.URL())
	info, err := js.StreamInfo("KV_cotal_manager_main")
	if err != nil {
		t.Fatal(err)
	}
	if c := info.Config; c.MaxAge != wire.LeaseTTL || c.MaxMsgsPerSubject != 1 || c.Storage != nats.FileStorage || c.Retention != nats.LimitsPolicy || c.AllowMsgTTL {
		t.Errorf("%+v", c)
	}
	kv, err := js.KeyValue("cotal_manager_main")
	if err != nil {
		t.Fatal(err)
	}
	l := openLeases(t, b, &memory{})
	rev, err := l.Create(t.Context(), inst1, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(inst1)
	if err != nil || string(e.Value()) != "1" || e.Revision() != rev {
		t.Errorf("another client reads %v, %v", e, err)
	}
	// A row that another client has deleted is free.
	if err := kv.Delete(inst1); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get(t.Context(), inst1); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("after a deletion: %v", err)
	}
	if _, err := l.Create(t.Context(), inst1, []byte("2")); err != nil {
		t.Error(err)
	}
	if rows, err := l.List(t.Context()); err != nil || len(rows) != 1 || rows[0].InstanceID != inst1 || string(rows[0].Value) != "2" {
		t.Errorf("%+v, %v", rows, err)
	}
}

func TestALeaseIsWrittenByCompareAndSetOnly(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	l := openLeases(t, b, &memory{})
	ctx := t.Context()
	one, err := l.Create(ctx, inst1, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(ctx, inst1, []byte("2")); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("creating it again: %v", err)
	}
	two, err := l.Update(ctx, inst1, []byte("3"), one)
	if err != nil || two <= one {
		t.Fatalf("revision %d after %d: %v", two, one, err)
	}
	if _, err := l.Update(ctx, inst1, []byte("4"), one); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("updating a revision that is over: %v", err)
	}
	if err := l.Delete(ctx, inst1, one); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("deleting a revision that is over: %v", err)
	}
	if err := l.Delete(ctx, inst1, two); err != nil {
		t.Error(err)
	}
	if _, err := l.Update(ctx, inst1, []byte("5"), two); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("renewing one that was given back: %v", err)
	}
	for _, id := range []string{"", "*", "a.b", ">"} {
		if _, err := l.Create(ctx, id, []byte("6")); err == nil {
			t.Errorf("%q is an instance", id)
		}
	}
}

// A bucket that is gone says nothing about who holds what, and is not made anew by whoever renews; at a start it is,
// which is told, and no revision of the old one fits anything in it.
func TestABucketOfLeasesThatIsGoneIsNotAbsence(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	var m memory
	l := openLeases(t, b, &m)
	rev, err := l.Create(t.Context(), inst1, []byte("1"))
	if err != nil || l.Remade() {
		t.Fatal(err, l.Remade())
	}
	_, js := jetStream(t, br.URL())
	if err := js.DeleteStream("KV_cotal_manager_main"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get(t.Context(), inst1); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("reading: %v", err)
	}
	if _, err := l.Create(t.Context(), inst1, []byte("2")); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("creating: %v", err)
	}
	if _, err := l.List(t.Context()); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("listing: %v", err)
	}
	next := openLeases(t, b, &m)
	if _, err := next.Create(t.Context(), inst1, []byte("3")); err != nil || !next.Remade() {
		t.Fatal(err, next.Remade())
	}
	if _, err := l.Update(t.Context(), inst1, []byte("4"), rev); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("a revision of the bucket before: %v", err)
	}
}

func TestABucketThatCannotKeepLeasesIsRefused(t *testing.T) {
	for name, c := range map[string]jetstream.KeyValueConfig{
		"rows live for ever":             {Bucket: "cotal_manager_main"},
		"rows live for another time":     {Bucket: "cotal_manager_main", TTL: time.Minute},
		"older values of a key are left": {Bucket: "cotal_manager_main", TTL: wire.LeaseTTL, History: 3},
	} {
		t.Run(name, func(t *testing.T) {
			br := startBroker(t, t.TempDir(), 0)
			js, err := jetstream.New(raw(t, br.URL()))
			if err == nil {
				_, err = js.CreateKeyValue(t.Context(), c)
			}
			if err != nil {
				t.Fatal(err)
			}
			l := openLeases(t, connectBus(t, bus.Config{URL: br.URL()}), &memory{})
			if _, err := l.Create(t.Context(), inst1, []byte("1")); !errors.Is(err, bus.ErrStoreUnfit) {
				t.Errorf("%v", err)
			}
		})
	}
	// One that another client made as the contract says will do.
	br := startBroker(t, t.TempDir(), 0)
	js, err := jetstream.New(raw(t, br.URL()))
	if err == nil {
		_, err = js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "cotal_manager_main", TTL: wire.LeaseTTL})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openLeases(t, connectBus(t, bus.Config{URL: br.URL()}), &memory{}).Create(t.Context(), inst1, []byte("1")); err != nil {
		t.Error(err)
	}
}
