package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// wasServed makes the files of a workspace whose authenticated host has stopped.
func wasServed(t *testing.T) (root, id string) {
	t.Helper()
	root = t.TempDir()
	i, err := instance.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(i.SetMode(instance.ModeAuthenticated), i.SetPort(12345)); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(filepath.Join(i.Dir, "journal.db"))
	if err == nil {
		err = j.Bind(t.Context(), i.ID, i.Epoch)
	}
	var store *trust.FileStore
	if err == nil {
		store, err = trust.OpenFileStore(t.Context(), root)
	}
	var keys *trust.Keyring
	if err == nil {
		keys, err = trust.MakeKeyring(t.Context(), store, "main")
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := keys.Bundle()
	if err == nil {
		err = j.SetKnown(t.Context(), accountScope(b)+"CHAT_main")
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(i.Dir, authStore, "jetstream", b.Account, "streams", "CHAT_main"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	return root, i.ID
}

func TestExamineSaysWhatIsWrongWithAWorkspace(t *testing.T) {
	auth, host := filepath.Join(".cotal", "auth"), filepath.Join(".cotal", "host")
	for _, c := range []struct {
		what    string
		change  func(root string) error
		fact    string
		verdict trust.Verdict
		says    string // in its text or its repair
	}{
		{"a host that has stopped leaves a workspace in order", func(string) error { return nil }, "permissions", trust.Good, "nobody else"},
		{"nobody holds its lock", func(string) error { return nil }, "lock", trust.Note, "cotal-host serve"},
		{"its store is there", func(string) error { return nil }, "store", trust.Good, "1 streams"},
		{"a store that was removed is named with its repair", func(root string) error {
			return os.RemoveAll(filepath.Join(root, host, authStore))
		}, "store", trust.Wrong, "cotal-host doctor --repair"},
		{"a key that others can read is named", func(root string) error {
			return os.Chmod(filepath.Join(root, auth, "broker.json"), 0o644)
		}, "permissions", trust.Wrong, "chmod 600"},
		{"a directory that others can look into is named", func(root string) error {
			return os.Chmod(filepath.Join(root, auth), 0o755)
		}, "permissions", trust.Wrong, "chmod 700"},
		{"keys that are gone cannot be made again", func(root string) error {
			return os.RemoveAll(filepath.Join(root, auth))
		}, "keys", trust.Wrong, "backup"},
		{"keys that are elsewhere have to be named", func(root string) error {
			return os.Rename(filepath.Join(root, auth, "account.6d61696e.json"), filepath.Join(root, "moved"))
		}, "keys", trust.Wrong, "--keys"},
		{"keys that are damaged are named", func(root string) error {
			return os.Truncate(filepath.Join(root, auth, "broker.json"), 7)
		}, "keys", trust.Wrong, "broker.json"},
		{"an identity that is damaged is named", func(root string) error {
			return os.WriteFile(filepath.Join(root, host, "instance.json"), []byte("{"), 0o600)
		}, "identity", trust.Wrong, "instance.json"},
		{"a journal that is damaged is named", func(root string) error {
			return os.WriteFile(filepath.Join(root, host, "journal.db"), []byte("no journal"), 0o600)
		}, "journal", trust.Wrong, "journal.db"},
		{"a journal that is gone is no harm", func(root string) error {
			return os.Remove(filepath.Join(root, host, "journal.db"))
		}, "journal", trust.Note, "directories"},
		{"an endpoint file that was left is replaced by the next start", func(root string) error {
			return os.WriteFile(filepath.Join(root, host, "endpoint.json"), []byte(`{"url": "nats://127.0.0.1:1", "space": "main", "instanceId": "aaaaaaaaaaaaaaaaaaaaaaaaaa", "pid": 1}`), 0o600)
		}, "endpoint", trust.Note, "gone"},
		{"one that cannot be read is named", func(root string) error {
			return os.WriteFile(filepath.Join(root, host, "endpoint.json"), []byte("{"), 0o600)
		}, "endpoint", trust.Wrong, "endpoint.json"},
	} {
		root, _ := wasServed(t)
		if err := c.change(root); err != nil {
			t.Fatal(err)
		}
		var got []trust.Fact
		for _, f := range Examine(t.Context(), Config{Root: root, SeatRoot: t.TempDir()}) {
			if f.Name == c.fact {
				got = append(got, f)
			}
		}
		if len(got) == 0 || trust.Worst(got) != c.verdict || !strings.Contains(got[0].Text+got[0].Repair, c.says) {
			t.Errorf("%s: %+v, want %s and %q", c.what, got, c.verdict, c.says)
		}
	}
}

// Who looks leaves nothing behind, whatever there is to see.
func TestExamineChangesNothing(t *testing.T) {
	root, _ := wasServed(t)
	list := func() (all []string) {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil {
				st, serr := d.Info()
				if serr != nil {
					return serr
				}
				all = append(all, path+" "+st.Mode().String())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := list()
	Examine(t.Context(), Config{Root: root, SeatRoot: filepath.Join(t.TempDir(), "none")})
	if after := list(); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("before %q, after %q", before, after)
	}
	empty := t.TempDir()
	facts := Examine(t.Context(), Config{Root: empty})
	if len(facts) != 1 || facts[0].Verdict != trust.Note || !strings.Contains(facts[0].Repair, "cotal-host serve") {
		t.Errorf("a directory that was never served: %+v", facts)
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
		t.Errorf("looking made %v, %v", left, err)
	}
}

func TestLifeFact(t *testing.T) {
	const mine, uid = "aaaaaaaaaaaaaaaaaaaaaaaaaa", "cccccccccccccccccccccccccc"
	known := seat.Known{Life: provision.Life{Alias: "worker", Caller: wire.Caller{Owner: "local", Actor: "a", UID: uid}}, State: seat.Running, Began: true}
	whole := provision.Found{
		Slot: &wire.Slot{LifecycleUID: uid, OwnerInstanceID: mine, Phase: wire.SlotActive}, UID: &wire.UIDReservation{Owner: "local", Actor: "a"},
		Gate: &wire.Gate{State: wire.GateOpen}, Head: &wire.LifecycleHead{LifecycleUID: uid, State: wire.LifeActive}, Credential: &wire.CredentialRow{State: wire.CredentialActive},
	}
	without := whole
	without.Credential, without.File = nil, fs.ErrNotExist
	over := whole
	over.Slot = &wire.Slot{LifecycleUID: uid, OwnerInstanceID: mine, Phase: wire.SlotTerminalizing}
	taken := whole
	taken.Slot = &wire.Slot{LifecycleUID: uid, OwnerInstanceID: "b", Phase: wire.SlotActive}
	for _, c := range []struct {
		what    string
		state   seat.State
		found   provision.Found
		verdict trust.Verdict
		repair  string
	}{
		{"a seat that has all it needs is well", seat.Running, whole, trust.Good, ""},
		{"one whose rows are lost has them made again", seat.Running, provision.Found{}, trust.Wrong, "REPAIR"},
		{"one that is being started may lack some still", seat.Starting, provision.Found{}, trust.Note, ""},
		{"one whose credential is gone can only be stopped", seat.Running, without, trust.Wrong, "cotal stop worker: it cannot be given its credential again"},
		{"one that has lost its rows too is repaired before it is stopped", seat.Running, provision.Found{File: fs.ErrNotExist}, trust.Wrong, "REPAIR, then: cotal stop worker: it cannot be given its credential again"},
		{"one on its way out needs nothing", seat.Stopping, over, trust.Note, ""},
		{"one whose slot another host has is for people to decide", seat.Running, taken, trust.Wrong, "look with: cotal slots; end one of the two"},
	} {
		k := known
		k.State = c.state
		f := lifeFact(trust.Fact{Name: "seat worker"}, k, c.found, mine, "REPAIR")
		if f.Verdict != c.verdict || f.Repair != c.repair {
			t.Errorf("%s: %+v", c.what, f)
		}
	}
}

func TestRepairRefusesWhatItCannotRepair(t *testing.T) {
	root := t.TempDir()
	if _, err := Repair(t.Context(), Config{Root: root}); err == nil || !strings.Contains(err.Error(), "never served") {
		t.Errorf("a directory that was never served: %v", err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("it made %v, %v", left, err)
	}
	i, err := instance.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(t.Context(), Config{Root: root}); err == nil || !strings.Contains(err.Error(), ErrNothingToRepair.Error()) {
		t.Errorf("an open workspace: %v", err)
	}
	if err := i.SetMode(instance.ModeAuthenticated); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(t.Context(), Config{Root: root}); !errors.Is(err, errNoBroker) || !strings.Contains(err.Error(), "--server") {
		t.Errorf("a workspace whose broker is elsewhere: %v", err)
	}
	if err := i.SetPort(12345); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(t.Context(), Config{Root: root}); err == nil || !strings.Contains(err.Error(), "cotal-host stop") {
		t.Errorf("beside a host that runs: %v", err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
}
