package bus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// memory is the host's memory of the streams it has used.
type memory struct {
	mu    sync.Mutex
	names map[string]bool
}

func (m *memory) known(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names[name]
}

func (m *memory) made(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names == nil {
		m.names = map[string]bool{}
	}
	m.names[name] = true
	return nil
}

func openRecords(t testing.TB, b *bus.Bus, m *memory) *bus.Records {
	t.Helper()
	r, err := b.Records(t.Context(), "main", m.known, m.made)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var alice = wire.Caller{Owner: "local", Actor: "alice", UID: inst3}

func goalRef(id string) wire.GoalRef {
	return wire.GoalRef{Endpoint: wire.EndpointManager, Caller: alice, ID: id}
}

func TestARowIsWrittenByCompareAndSetOnly(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	key := goalRef("g1").Key().Status()
	if _, err := r.Get(ctx, key); !errors.Is(err, bus.ErrAbsent) {
		t.Fatalf("reading a row nobody wrote: %v", err)
	}
	one, err := r.Create(ctx, key, []byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(ctx, key, []byte(`{"a":2}`)); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("creating it again: %v", err)
	}
	two, err := r.Update(ctx, key, []byte(`{"a":3}`), one)
	if err != nil || two <= one {
		t.Fatalf("revision %d after %d: %v", two, one, err)
	}
	if _, err := r.Update(ctx, key, []byte(`{"a":4}`), one); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("updating a revision that is over: %v", err)
	}
	e, err := r.Get(ctx, key)
	if err != nil || string(e.Value) != `{"a":3}` || e.Rev != two {
		t.Fatalf("read %s at %d: %v", e.Value, e.Rev, err)
	}
	if err := r.Delete(ctx, key, two); err == nil {
		t.Error("a goal's status was deleted")
	}
	if _, err := r.Create(ctx, wire.Key{Kind: wire.KindNameClaim, Qualifiers: []string{wire.EndpointManager, "x"}}, nil); err == nil {
		t.Error("a row of a kind that nothing here writes was written")
	}
}

func TestAnIndexEntryThatWasDeletedIsFreeAgain(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	key := goalRef("g1").IndexKey()
	rev, err := r.Create(ctx, key, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(ctx, key, rev+1); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("deleting another revision: %v", err)
	}
	if err := r.Delete(ctx, key, rev); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(ctx, key); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("reading it: %v", err)
	}
	if _, err := r.Create(ctx, key, []byte("2")); err != nil {
		t.Fatal(err)
	}
	// Another client's deletion leaves a marker, and frees it just as well.
	js, err := jetstream.New(raw(t, br.URL()))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(ctx, "cotal_records_main")
	if err != nil {
		t.Fatal(err)
	}
	name, _ := key.Encode()
	if err := kv.Delete(ctx, name); err != nil {
		t.Fatal(err)
	}
	if rows, err := r.Scan(ctx, "goalidx.manager"); err != nil || len(rows) != 0 {
		t.Errorf("scan: %v, %v", rows, err)
	}
	if _, err := r.Create(ctx, key, []byte("3")); err != nil {
		t.Errorf("creating over a marker: %v", err)
	}
}

func TestADeleteMarkerOnARowThatIsNeverDeletedIsDamage(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	key := goalRef("g1").Key().Spec()
	if _, err := r.Create(ctx, key, []byte("1")); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(raw(t, br.URL()))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(ctx, "cotal_records_main")
	if err != nil {
		t.Fatal(err)
	}
	name, _ := key.Encode()
	if err := kv.Delete(ctx, name); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(ctx, key); !errors.Is(err, bus.ErrCorrupt) {
		t.Errorf("get: %v", err)
	}
	if _, err := r.Create(ctx, key, []byte("2")); !errors.Is(err, bus.ErrCorrupt) {
		t.Errorf("create: %v", err)
	}
	if _, err := r.Scan(ctx, "goal.manager"); !errors.Is(err, bus.ErrCorrupt) {
		t.Errorf("scan: %v", err)
	}
}

func TestScanReturnsTheRowsUnderItsPrefixAlone(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	for i := range 20 {
		if _, err := r.Create(ctx, goalRef(fmt.Sprintf("g%d", i)).IndexKey(), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	other := wire.GoalRef{Endpoint: "other", Caller: alice, ID: "g1"}
	for _, k := range []wire.Key{other.IndexKey(), goalRef("g1").Key().Spec()} {
		if _, err := r.Create(ctx, k, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	filter, err := wire.KeyFilter(wire.KindGoalIndex, wire.EndpointManager)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := r.Scan(ctx, filter)
	if err != nil || len(rows) != 20 {
		t.Fatalf("%d rows: %v", len(rows), err)
	}
	for _, e := range rows {
		if ref, ok := wire.GoalRefOf(e.Key); !ok || ref.Endpoint != wire.EndpointManager || e.Rev == 0 || e.At.IsZero() {
			t.Errorf("row %+v", e)
		}
	}
	if _, err := r.Scan(ctx, "nothing.here"); err == nil {
		t.Error("a kind that nobody knows was scanned")
	}
	if rows, err := r.Scan(ctx, "gate"); err != nil || len(rows) != 0 {
		t.Errorf("the auth bucket: %v, %v", rows, err)
	}
}

func TestOfTwoFactsTheFirstStands(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	const n = 16
	var won sync.Map
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := r.PutFact(ctx, goalRef("g1").Result("main"), fmt.Appendf(nil, "%d", i))
			if err == nil {
				won.Store(i, true)
			} else if !errors.Is(err, bus.ErrConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	winners := 0
	won.Range(func(i, _ any) bool {
		winners++
		p, err := r.GetFact(ctx, goalRef("g1").Result("main"))
		if err != nil || string(p) != fmt.Sprint(i) {
			t.Errorf("what stands is %s, not that of %v: %v", p, i, err)
		}
		return true
	})
	if winners != 1 {
		t.Errorf("%d facts were first", winners)
	}
	if _, err := r.GetFact(ctx, goalRef("g2").Result("main")); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("a fact nobody put: %v", err)
	}
	if _, err := r.PutFact(ctx, goalRef("g1").Bind("elsewhere"), nil); err == nil {
		t.Error("a fact of another space was put")
	}
}

func TestArtifactsAreWhatTheirDigestSays(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	doc := []byte(`{"type":"null"}`)
	digest := wire.Digest(doc)
	for range 2 {
		if err := r.PutArtifact(ctx, digest, doc); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := r.GetArtifact(ctx, digest); err != nil || string(p) != string(doc) {
		t.Errorf("%s, %v", p, err)
	}
	if err := r.PutArtifact(ctx, digest, []byte(`{}`)); !errors.Is(err, bus.ErrCorrupt) {
		t.Errorf("other bytes under that digest: %v", err)
	}
	if _, err := r.GetArtifact(ctx, wire.Digest([]byte("x"))); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("an artifact nobody put: %v", err)
	}
}

func TestAStoreThatWasUsedAndIsGoneIsNotMadeAnew(t *testing.T) {
	dir := t.TempDir()
	br := startBroker(t, dir, 0)
	var m memory
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	r := openRecords(t, b, &m)
	if _, err := r.Create(t.Context(), goalRef("g1").IndexKey(), []byte("1")); err != nil {
		t.Fatal(err)
	}
	openRecords(t, b, &m) // what is there is taken
	if _, err := openRecords(t, b, &memory{}).Get(t.Context(), goalRef("g1").IndexKey()); err != nil {
		t.Fatalf("a host without memory: %v", err)
	}
	b.Close()
	br.Shutdown()

	if err := os.RemoveAll(filepath.Join(dir, "jetstream")); err != nil {
		t.Fatal(err)
	}
	br = startBroker(t, dir, 0)
	b = connectBus(t, bus.Config{InProcess: br.InProcess()})
	_, err := b.Records(t.Context(), "main", m.known, m.made)
	if !errors.Is(err, bus.ErrStoreLost) || !strings.Contains(err.Error(), "KV_cotal_records_main") || !strings.Contains(err.Error(), "journal.db") {
		t.Fatalf("the store is gone: %v", err)
	}
	js, err := jetstream.New(raw(t, br.URL()))
	if err != nil {
		t.Fatal(err)
	}
	for name := range js.StreamNames(t.Context()).Name() {
		t.Errorf("stream %s was made all the same", name)
	}
}

func TestAStoreThatWouldForgetIsRefused(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	js, err := jetstream.New(raw(t, br.URL()))
	if err != nil {
		t.Fatal(err)
	}
	b := connectBus(t, bus.Config{InProcess: br.InProcess()})
	fits := jetstream.StreamConfig{Name: "KV_cotal_auth_main", Subjects: []string{"$KV.cotal_auth_main.>"}, MaxMsgsPerSubject: 1}
	for what, spoil := range map[string]func(*jetstream.StreamConfig){
		"":                       func(*jetstream.StreamConfig) {},
		"it forgets after":       func(c *jetstream.StreamConfig) { c.MaxAge = 1e12 },
		"drops old messages":     func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 },
		"more than one value":    func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 },
		"answers reads from any": func(c *jetstream.StreamConfig) { c.AllowDirect = true },
		"not in files":           func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"its subjects are":       func(c *jetstream.StreamConfig) { c.Subjects = []string{"$KV.cotal_auth_main.gate.>"} },
		"its retention is":       func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
	} {
		c := fits
		spoil(&c)
		if _, err := js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		_, err := b.Records(t.Context(), "main", new(memory).known, new(memory).made)
		if what == "" && err != nil || what != "" && (!errors.Is(err, bus.ErrStoreUnfit) || !strings.Contains(err.Error(), what)) {
			t.Errorf("%q: %v", what, err)
		}
		if err := js.DeleteStream(t.Context(), c.Name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAWriteToAStoreThatIsAwayIsNotKeptForLater(t *testing.T) {
	dir := t.TempDir()
	br := startBroker(t, dir, 0)
	var m memory
	b := connectBus(t, bus.Config{URL: br.URL()})
	r := openRecords(t, b, &m)
	br.Shutdown()
	eventually(t, "the loss is noticed", func() bool { return !r.Connected() })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := r.Create(ctx, goalRef("g1").IndexKey(), []byte("1")); !errors.Is(err, bus.ErrUnavailable) || !errors.Is(err, bus.ErrNotWritten) {
		t.Errorf("write: %v", err)
	}
	if _, err := r.Get(ctx, goalRef("g1").IndexKey()); !errors.Is(err, bus.ErrUnavailable) || errors.Is(err, bus.ErrAbsent) {
		t.Errorf("read: %v", err)
	}
	startBroker(t, dir, br.Port())
	eventually(t, "the store is back", func() bool { return r.Connected() })
	if _, err := r.Get(t.Context(), goalRef("g1").IndexKey()); !errors.Is(err, bus.ErrAbsent) {
		t.Errorf("after the return: %v", err)
	}
}

func TestHostsThatOpenTheRecordsAtOnceFindOneStore(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	var wg sync.WaitGroup
	for range 6 {
		b := connectBus(t, bus.Config{InProcess: br.InProcess()})
		wg.Go(func() {
			var m memory
			if _, err := b.Records(t.Context(), "main", m.known, m.made); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// What was deleted stays deleted on a server that was killed: it is started on a copy of its files as they are.
func TestADeletedEntryDoesNotComeBackAfterAKill(t *testing.T) {
	dir := t.TempDir()
	br := startBroker(t, dir, 0)
	r := openRecords(t, connectBus(t, bus.Config{InProcess: br.InProcess()}), &memory{})
	ctx := t.Context()
	if _, err := r.Create(ctx, goalRef("first").Key().Status(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	gone, left := goalRef("gone").IndexKey(), goalRef("left").IndexKey()
	rev, err := r.Create(ctx, gone, []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(ctx, left, []byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(ctx, gone, rev); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(ctx, gone, rev); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("deleting it again: %v", err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	again := openRecords(t, connectBus(t, bus.Config{InProcess: startBroker(t, copied, 0).InProcess()}), &memory{})
	rows, err := again.Scan(ctx, "goalidx.manager")
	if err != nil || len(rows) != 1 || rows[0].Key.Qualifiers[4] != "left" {
		t.Errorf("after the kill: %+v, %v", rows, err)
	}
}
