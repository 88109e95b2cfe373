package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Whoever may not remove messages has them removed by somebody else, who is there for a moment: nothing is left to be
// scanned at every boot, and what is removed together goes over one connection or a few. With nobody there a marker says
// that the row is gone.
func TestWhatRecordsMayNotRemoveIsRemovedForThemAndLeavesNothing(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	cfg := bus.Config{InProcess: br.InProcess(), Strict: true}
	b := connectBus(t, cfg)
	openRecords(t, b, &memory{})
	js, err := jetstream.New(raw(t, br.URL()))
	if err != nil {
		t.Fatal(err)
	}
	stored := func() uint64 {
		t.Helper()
		s, err := js.Stream(t.Context(), "KV_cotal_records_main")
		if err != nil {
			t.Fatal(err)
		}
		info, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Msgs
	}
	rec, err := b.Rows("main")
	if err != nil {
		t.Fatal(err)
	}
	var opened, ended atomic.Int32
	var away atomic.Bool
	rec.EraseBy(func(ctx context.Context) (*bus.Records, func(), error) {
		if away.Load() {
			return nil, nil, errors.New("nobody is there")
		}
		opened.Add(1)
		by := connectBus(t, cfg)
		r, err := by.Rows("main")
		return r, func() { ended.Add(1); by.Close() }, err
	})
	defer rec.Close()
	const many = 30
	var revs [many]uint64
	for i := range revs {
		if revs[i], err = rec.Create(t.Context(), goalRef(fmt.Sprint("g", i)).IndexKey(), []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i, rev := range revs {
		wg.Go(func() {
			if err := rec.Delete(t.Context(), goalRef(fmt.Sprint("g", i)).IndexKey(), rev); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := stored(); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	if n := opened.Load(); n > 3 { // one, unless the machine made a pause
		t.Errorf("%d connections were opened for it", n)
	}
	eventually(t, "whoever removed them is gone", func() bool { return ended.Load() == opened.Load() })
	if err := rec.Delete(t.Context(), goalRef("g0").IndexKey(), revs[0]); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("a row that is gone: %v", err)
	}
	away.Store(true)
	eventually(t, "nobody is left of the last", func() bool { return ended.Load() == opened.Load() })
	key := goalRef("marked").IndexKey()
	rev, err := rec.Create(t.Context(), key, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Delete(t.Context(), key, rev); err != nil {
		t.Errorf("with nobody there: %v", err)
	}
	if _, err := rec.Get(t.Context(), key); !errors.Is(err, bus.ErrAbsent) || stored() != 1 {
		t.Errorf("with nobody there: %v, %d messages", err, stored())
	}
	f := wire.FactSubject{Space: "main", Endpoint: wire.EndpointManager, Kind: wire.FactGoalBind, Caller: alice, ID: "f"}
	seq, err := rec.PutFact(t.Context(), f, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.DropFact(t.Context(), seq); !errors.Is(err, bus.ErrUnavailable) || !errors.Is(err, bus.ErrNotWritten) {
		t.Errorf("a fact, with nobody there: %v", err)
	}
	away.Store(false)
	if err := rec.DropFact(t.Context(), seq); err != nil {
		t.Errorf("a fact: %v", err)
	}
	rec.Close()
	if o, e := opened.Load(), ended.Load(); o != e {
		t.Errorf("%d connections were opened and %d ended", o, e)
	}
	if err := rec.DropFact(t.Context(), seq+1); !errors.Is(err, bus.ErrUnavailable) && err != nil {
		t.Errorf("behind its end: %v", err)
	}
}
