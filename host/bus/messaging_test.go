package bus_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func jetStream(t testing.TB, url string) (*nats.Conn, nats.JetStreamContext) {
	t.Helper()
	nc, err := nats.Connect(url, nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func TestTheMessagingPlaneIsMadeAsTheContractSays(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	var book memory
	for range 2 { // the second time it is all there
		if err := b.SetUpMessaging(t.Context(), "main", book.known, book.made); err != nil {
			t.Fatal(err)
		}
	}
	names := slices.Sorted(maps.Keys(book.names))
	if want := []string{"CHAT_main", "DM_main", "KV_cotal_channels_main", "TASK_main"}; !slices.Equal(names, want) {
		t.Errorf("remembered %q, want %q", names, want)
	}
	_, js := jetStream(t, br.URL())
	for name, want := range map[string]nats.StreamConfig{
		"CHAT_main":                {Subjects: []string{"cotal.main.chat.>"}, Retention: nats.LimitsPolicy, MaxMsgsPerSubject: 1000, Discard: nats.DiscardOld, AllowDirect: true},
		"DM_main":                  {Subjects: []string{"cotal.main.inst.>"}, Retention: nats.LimitsPolicy, MaxMsgsPerSubject: -1, Discard: nats.DiscardOld},
		"TASK_main":                {Subjects: []string{"cotal.main.svc.>"}, Retention: nats.WorkQueuePolicy, MaxMsgsPerSubject: -1, Discard: nats.DiscardOld},
		"KV_cotal_presence_main":   {Subjects: []string{"$KV.cotal_presence_main.>"}, MaxMsgsPerSubject: 1, MaxAge: 6 * time.Second, Discard: nats.DiscardNew, AllowDirect: true},
		"KV_cotal_channels_main":   {Subjects: []string{"$KV.cotal_channels_main.>"}, MaxMsgsPerSubject: 1, Discard: nats.DiscardNew, AllowDirect: true},
		"KV_cotal_membership_main": {Subjects: []string{"$KV.cotal_membership_main.>"}, MaxMsgsPerSubject: 1, Discard: nats.DiscardNew, AllowDirect: true},
	} {
		info, err := js.StreamInfo(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c := info.Config
		if !slices.Equal(c.Subjects, want.Subjects) || c.Retention != want.Retention || c.MaxMsgsPerSubject != want.MaxMsgsPerSubject ||
			c.MaxAge != want.MaxAge || c.Discard != want.Discard || c.AllowDirect != want.AllowDirect || c.Storage != nats.FileStorage {
			t.Errorf("%s: %+v", name, c)
		}
	}
	// Other clients open the buckets with their own library, and find the defaults.
	kv, err := js.KeyValue("cotal_channels_main")
	if err != nil {
		t.Fatal(err)
	}
	entry, err := kv.Get(wire.DefaultsKey)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := wire.DecodeChannelDefaults(entry.Value()); err != nil || d.DeliveryClass != wire.DeliveryDurable || entry.Revision() != 1 {
		t.Errorf("defaults at revision %d: %+v, %v", entry.Revision(), d, err)
	}
	if _, err := js.KeyValue("cotal_presence_main"); err != nil {
		t.Error(err)
	}
}

func TestDefaultsOfASpaceAreWrittenOnce(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	var book memory
	if err := b.SetUpMessaging(t.Context(), "main", book.known, book.made); err != nil {
		t.Fatal(err)
	}
	_, js := jetStream(t, br.URL())
	kv, err := js.KeyValue("cotal_channels_main")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(wire.DefaultsKey, []byte(`{"deliveryClass":"live"}`)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 { // hosts that start at once
		wg.Go(func() {
			if err := b.SetUpMessaging(t.Context(), "main", book.known, book.made); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if e, err := kv.Get(wire.DefaultsKey); err != nil || string(e.Value()) != `{"deliveryClass":"live"}` {
		t.Errorf("the defaults: %v, %v", e, err)
	}
}

func TestAMessageStreamThatIsGoneIsNotMadeAnew(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	var book memory
	if err := b.SetUpMessaging(t.Context(), "main", book.known, book.made); err != nil {
		t.Fatal(err)
	}
	_, js := jetStream(t, br.URL())
	for _, name := range []string{"CHAT_main", "DM_main", "TASK_main", "KV_cotal_channels_main"} {
		info, err := js.StreamInfo(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := js.DeleteStream(name); err != nil {
			t.Fatal(err)
		}
		err = b.SetUpMessaging(t.Context(), "main", book.known, book.made)
		if !errors.Is(err, bus.ErrStoreLost) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "journal.db") {
			t.Errorf("%s is gone: %v", name, err)
		}
		if _, err := js.StreamInfo(name); !errors.Is(err, nats.ErrStreamNotFound) {
			t.Errorf("%s was made anew: %v", name, err)
		}
		if _, err := js.AddStream(&info.Config); err != nil { // the backup
			t.Fatal(err)
		}
	}
	// What is said again within seconds is worth no refusal.
	for _, name := range []string{"KV_cotal_presence_main", "KV_cotal_membership_main"} {
		if err := js.DeleteStream(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SetUpMessaging(t.Context(), "main", book.known, book.made); err != nil {
		t.Errorf("presence is gone: %v", err)
	}
	if _, err := js.StreamInfo("KV_cotal_presence_main"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"CHAT_main", "DM_main"} {
		if err := js.DeleteStream(name); err != nil {
			t.Fatal(err)
		}
	}
	err := b.SetUpMessaging(t.Context(), "main", book.known, book.made)
	if !errors.Is(err, bus.ErrStoreLost) || !strings.Contains(err.Error(), "messages in CHAT_main, DM_main") || strings.Count(err.Error(), "journal.db") != 1 {
		t.Errorf("two are gone: %v", err)
	}
}

func TestAStreamThatCannotServeIsRefused(t *testing.T) {
	for name, config := range map[string]*nats.StreamConfig{
		"its subjects are":           {Name: "CHAT_main", Subjects: []string{"cotal.main.chat.*.*.dev"}},
		"its retention is workqueue": {Name: "DM_main", Subjects: []string{"cotal.main.inst.>"}, Retention: nats.WorkQueuePolicy},
		"a record of it lives 1m0s":  {Name: "KV_cotal_presence_main", Subjects: []string{"$KV.cotal_presence_main.>"}, MaxAge: time.Minute, MaxMsgsPerSubject: 1},
		"it keeps more than one":     {Name: "KV_cotal_membership_main", Subjects: []string{"$KV.cotal_membership_main.>"}, MaxMsgsPerSubject: 5}, // what was removed would be back
		"it answers direct reads":    {Name: "DM_main", Subjects: []string{"cotal.main.inst.>"}, AllowDirect: true},
	} {
		t.Run(name, func(t *testing.T) {
			br := startBroker(t, t.TempDir(), 0)
			b := connectBus(t, bus.Config{URL: br.URL()})
			_, js := jetStream(t, br.URL())
			if _, err := js.AddStream(config); err != nil {
				t.Fatal(err)
			}
			var book memory
			err := b.SetUpMessaging(t.Context(), "main", book.known, book.made)
			if !errors.Is(err, bus.ErrStoreUnfit) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), config.Name) {
				t.Errorf("%v", err)
			}
			if len(book.names) > 0 {
				t.Errorf("remembered %v", book.names)
			}
		})
	}
}

// proves: PURGE-1
func TestPurgeClearsWhatItIsAskedToAndCounts(t *testing.T) {
	br := startBroker(t, t.TempDir(), 0)
	b := connectBus(t, bus.Config{URL: br.URL()})
	var book memory
	if err := b.SetUpMessaging(t.Context(), "main", book.known, book.made); err != nil {
		t.Fatal(err)
	}
	c := client(t, br.URL())
	p, err := c.Join(t.Context(), mesh.JoinConfig{Card: wire.AgentCard{Name: "worker"}})
	if err != nil {
		t.Fatal(err)
	}
	send := func() {
		for _, m := range []wire.Message{{Channel: "dev"}, {Channel: "ops"}, {To: "local.bob"}, {ToService: "reviewer"}} {
			m.Parts = mesh.Text("x")
			if _, err := c.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	nc, _ := jetStream(t, br.URL())
	count := func(stream string) (n uint64) {
		var info struct {
			State struct {
				Messages uint64 `json:"messages"`
			} `json:"state"`
		}
		reply, err := nc.Request("$JS.API.STREAM.INFO."+stream, nil, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(reply.Data, &info); err != nil {
			t.Fatal(err)
		}
		return info.State.Messages
	}
	send()
	chat, dm, err := b.Purge(t.Context(), "main", false)
	if err != nil || chat != 2 || dm != nil || count("DM_main") != 1 || count("TASK_main") != 1 {
		t.Errorf("purged %d and %v, %v", chat, dm, err)
	}
	send()
	chat, dm, err = b.Purge(t.Context(), "main", true)
	if err != nil || chat != 2 || dm == nil || *dm != 2 || count("CHAT_main")+count("DM_main") != 0 || count("TASK_main") != 2 {
		t.Errorf("purged %d and %v, %v", chat, dm, err)
	}
	// Whoever is there stays there.
	if err := p.SetStatus(t.Context(), wire.StatusWorking, ""); err != nil {
		t.Error(err)
	}
	if chat, dm, err = b.Purge(t.Context(), "main", true); err != nil || chat != 0 || *dm != 0 {
		t.Errorf("nothing to purge: %d, %v, %v", chat, dm, err)
	}
	if _, _, err := b.Purge(t.Context(), "elsewhere", true); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("a space that is not there: %v", err)
	}
}
