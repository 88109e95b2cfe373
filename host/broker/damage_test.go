package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// fill makes a store with one stream of some messages, one of them removed, and one consumer, and returns its directory.
func fill(t *testing.T, messages int) (store, stream string) {
	t.Helper()
	store = t.TempDir()
	b := start(t, Config{StoreDir: store})
	js, err := dial(t, b).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddConsumer("S", &nats.ConsumerConfig{Durable: "D", AckPolicy: nats.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		m := &nats.Msg{Subject: fmt.Sprintf("s.%d", i), Data: []byte(strings.Repeat("x", i%50))}
		if i%2 == 0 {
			m.Header = nats.Header{"K": {"v"}}
		}
		if _, err := js.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []uint64{2, 3} {
		if err := js.SecureDeleteMsg("S", seq); err != nil {
			t.Fatal(err)
		}
		_ = js.DeleteMsg("S", seq+2)
	}
	b.Shutdown()
	dirs, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", "S"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("stream directories: %v, %v", dirs, err)
	}
	return store, dirs[0]
}

// damaged are the parts of a store that are.
func damaged(t *testing.T, store string) map[string]string {
	t.Helper()
	all, err := ExamineStore(store)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("the store has no streams")
	}
	out := map[string]string{}
	for _, s := range all {
		if s.Damage != "" {
			out[s.Name()] = s.Damage
		}
	}
	return out
}

func edit(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(raw), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDamageIsFoundBeforeAServerRuns(t *testing.T) {
	block := filepath.Join("msgs", "1.blk")
	for _, c := range []struct {
		what, file string
		change     func([]byte) []byte
		name, says string // of what is damaged; empty: nothing is
	}{
		{"a store that a server has left is whole", "meta.inf", func(b []byte) []byte { return b }, "", ""},
		{"a description that was cut off is damage", "meta.inf", func(b []byte) []byte { return b[:len(b)/2] }, "stream S", "checksum"},
		{"an empty description is damage", "meta.inf", func([]byte) []byte { return nil }, "stream S", "checksum"},
		{"a flipped bit in a description is damage", "meta.inf", func(b []byte) []byte { b[10] ^= 1; return b }, "stream S", "checksum"},
		{"an empty checksum is damage", "meta.sum", func([]byte) []byte { return nil }, "stream S", "checksum"},
		{"a flipped bit in a message is damage", block, func(b []byte) []byte { b[200] ^= 1; return b }, "stream S", block},
		{"a flipped bit in the last message is damage", block, func(b []byte) []byte { b[len(b)-3] ^= 1; return b }, "stream S", block},
		{"a length that makes no sense is damage", block, func(b []byte) []byte { b[3] = 0x7f; return b }, "stream S", "length"},
		{"a last message that was cut off when the server was killed is none", block, func(b []byte) []byte { return b[:len(b)-5] }, "", ""},
		{"nor is one of which only the first bytes were written", block, func(b []byte) []byte { return append(b, 1, 2, 3) }, "", ""},
		{"a consumer whose description is garbled is damaged alone", filepath.Join("obs", "D", "meta.inf"), func([]byte) []byte { return []byte("{") }, "consumer D of stream S", "JSON"},
	} {
		store, dir := fill(t, 12)
		edit(t, filepath.Join(dir, c.file), c.change)
		got := damaged(t, store)
		if c.name == "" && len(got) > 0 || c.name != "" && (len(got) != 1 || !strings.Contains(got[c.name], c.says)) {
			t.Errorf("%s: %v, want %q of %q", c.what, got, c.says, c.name)
		}
	}
}

// What is set aside is not there for a server, which starts where it did not before, and is kept for people.
func TestAServerStartsOnceWhatIsDamagedIsSetAside(t *testing.T) {
	store, dir := fill(t, 3)
	edit(t, filepath.Join(dir, "meta.inf"), func(b []byte) []byte { return b[:4] })
	if _, err := Start(t.Context(), Config{StoreDir: store, Token: token}); !errors.Is(err, ErrStore) {
		t.Fatalf("start on a damaged store: %v", err)
	}
	all, err := ExamineStore(store)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Damage == "" {
			continue
		}
		to, err := SetAside(store, s, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(to, "msgs", "1.blk")); err != nil {
			t.Errorf("what was set aside is not kept: %v", err)
		}
	}
	b := start(t, Config{StoreDir: store})
	js, err := dial(t, b).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.StreamInfo("S"); !errors.Is(err, nats.ErrStreamNotFound) {
		t.Errorf("the stream that was set aside: %v", err)
	}
}

func TestAStoreThatIsNotThereHasNoStreams(t *testing.T) {
	all, err := ExamineStore(filepath.Join(t.TempDir(), "none"))
	if err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
}
