package bus_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// shared are the buckets in which everybody has a row of his own.
var shared = []string{"presence", "channels", "membership", "manager"}

// clears tries to clear a bucket with a write of one row, and says what became of the row beside it.
func clears(t *testing.T, js nats.JetStreamContext, bucket string) error {
	t.Helper()
	beside := "$KV.cotal_" + bucket + "_main.hers"
	if _, err := js.Publish(beside, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"all", "sub"} {
		m := nats.NewMsg("$KV.cotal_" + bucket + "_main.mine")
		m.Header.Set("Nats-Rollup", how)
		if _, err := js.PublishMsg(m); err == nil {
			return fmt.Errorf("a rollup of %s is taken", how)
		}
	}
	if _, err := js.GetLastMsg("KV_cotal_"+bucket+"_main", beside); err != nil {
		return fmt.Errorf("the row beside it: %w", err)
	}
	return nil
}

// Whoever could write his own row of presence, membership or leases could clear all of them with one header.
func TestAWriteOfOneRowClearsTheBucketOfAll(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	var book memory
	if err := b.SetUpMessaging(t.Context(), "main", book.known, book.made); err != nil {
		t.Fatal(err)
	}
	if err := openLeases(t, b, &book).Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, js := jetStream(t, br.URL())
	for _, bucket := range shared {
		if err := clears(t, js, bucket); err != nil {
			t.Errorf("%s: %v", bucket, err)
		}
	}
	// What a participant's row leaves behind when it is removed needs none.
	p := wire.Principal{Owner: "local", Actor: "bob"}
	if err := b.PutMembership(t.Context(), "main", p, wire.Membership{Live: []string{}, Durable: []string{}}); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveMembership(t.Context(), "main", p); err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue("cotal_membership_main")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(p.String()); err == nil {
		t.Errorf("a row that was removed: %s", e.Value())
	}
}

// Buckets that a client library has made, or an earlier version, were used as they were: with rollups.
func TestABucketThatSomebodyElseMadeGoesOnToAllowRollups(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	_, js := jetStream(t, br.URL())
	was := map[string]nats.StreamConfig{}
	for _, bucket := range shared {
		c := &nats.KeyValueConfig{Bucket: "cotal_" + bucket + "_main", Description: "somebody else's", MaxBytes: 1 << 20}
		switch bucket {
		case "presence":
			c.TTL = wire.PresenceWindow
		case "manager":
			c.TTL = wire.LeaseTTL
		}
		if _, err := js.CreateKeyValue(c); err != nil {
			t.Fatal(err)
		}
		i, err := js.StreamInfo("KV_" + c.Bucket)
		if err != nil || !i.Config.AllowRollup {
			t.Fatalf("%+v, %v", i, err)
		}
		was[bucket] = i.Config
	}
	// One with marks of its own for what has aged, which are rollups.
	marks := was["membership"]
	marks.AllowMsgTTL, marks.SubjectDeleteMarkerTTL = true, time.Minute
	if _, err := js.UpdateStream(&marks); err != nil {
		t.Fatal(err)
	}
	var book memory
	if err := b.SetUpMessaging(t.Context(), "main", book.known, book.made); err != nil {
		t.Fatal(err)
	}
	if err := openLeases(t, b, &book).Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		if err := b.ForbidRollups(t.Context(), "main"); err != nil {
			t.Fatal(err)
		}
	}
	for _, bucket := range shared {
		i, err := js.StreamInfo("KV_cotal_" + bucket + "_main")
		if err != nil {
			t.Fatal(err)
		}
		if c := i.Config; c.AllowRollup || c.Description != "somebody else's" || c.MaxBytes != 1<<20 || c.MaxAge != was[bucket].MaxAge || !c.AllowDirect || !c.DenyDelete || c.MaxMsgsPerSubject != 1 {
			t.Errorf("%s: %+v", bucket, c)
		}
		if err := clears(t, js, bucket); err != nil {
			t.Errorf("%s: %v", bucket, err)
		}
	}
}
