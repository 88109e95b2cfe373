package broker_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/test/diskfull"
)

// A full disk stops the store, and the server would never write to it again; it does, with what it had, as
// soon as there is room.
func TestTheStoreGoesOnOnceThereIsRoom(t *testing.T) {
	how, here := diskfull.Private(t)
	if !here {
		return
	}
	if how == diskfull.Injected {
		t.Skip("no small disk can be made here")
	}
	dir, at := t.TempDir(), filepath.Join(t.TempDir(), "disk")
	disk, err := diskfull.Small(at, 8<<20, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Unmount()
	br, err := broker.Start(t.Context(), broker.Config{StoreDir: dir, Token: "token-of-a-test-0123"})
	if err != nil {
		t.Fatal(err)
	}
	defer br.Shutdown()
	nc, err := nats.Connect(br.URL(), nats.Token("token-of-a-test-0123"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	publish := func(size int) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.Publish(ctx, "s.x", make([]byte, size), jetstream.WithRetryAttempts(0))
		return err
	}
	if err := publish(100); err != nil {
		t.Fatal(err)
	}
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	limit := time.Now().Add(20 * time.Second)
	for publish(64<<10) == nil {
		if time.Now().After(limit) {
			t.Fatal("the disk is full and the store is written")
		}
	}
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	for err := publish(100); err != nil; err = publish(100) {
		if time.Now().After(limit) {
			t.Fatalf("there is room, and the store is not written: %v", err)
		}
	}
	// What fits is written before the store is closed and opened again; in that moment the server knows no stream.
	first := func() (*jetstream.RawStreamMsg, error) {
		s, err := js.Stream(t.Context(), "S")
		if err != nil {
			return nil, err
		}
		return s.GetMsg(t.Context(), 1)
	}
	m, err := first()
	for err != nil && time.Now().Before(limit) {
		m, err = first()
	}
	if err != nil || len(m.Data) != 100 {
		t.Errorf("what was there before: %v", err)
	}
}
