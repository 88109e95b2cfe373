package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
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
		err = j.SetKnown(t.Context(), accountScope(b)+"CHAT_main", authenticatedKey)
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

// A workspace without its instance.json, or with one that is damaged, was once looked at as an open one: nothing was said of its
// keys and lives, and its store was that of nobody.
func TestAWorkspaceThatLostItsRecordIsNotTakenForAnOpenOne(t *testing.T) {
	host := func(root string, name ...string) string {
		return filepath.Join(append([]string{root, ".cotal", "host"}, name...)...)
	}
	lose := func(names ...string) func(string) error {
		return func(root string) error {
			var errs []error
			for _, name := range names {
				errs = append(errs, os.RemoveAll(host(root, name)))
			}
			return errors.Join(errs...)
		}
	}
	for what, c := range map[string]struct {
		change  func(root string) error
		verdict trust.Verdict
		says    string // of the workspace
		keys    bool   // they are looked at
		repair  string // why it is refused; empty: for no such reason
	}{
		"the record is gone":                    {lose("instance.json"), trust.Good, "authenticated", true, ""},
		"with its store":                        {lose("instance.json", authStore), trust.Good, "authenticated", true, "broker of its own"},
		"the record is damaged":                 {func(root string) error { return os.WriteFile(host(root, "instance.json"), []byte("{"), 0o600) }, trust.Good, "authenticated", true, "instance.json"},
		"it was made again and has no mode yet": {func(root string) error { return recordWithoutMode(root) }, trust.Good, "authenticated", true, ""},
		"the journal is damaged, too": {func(root string) error {
			return errors.Join(lose("instance.json")(root), os.WriteFile(host(root, "journal.db"), []byte("no journal"), 0o600))
		}, trust.Good, "authenticated", true, ""},
		"and nothing is left that could tell it": {func(root string) error {
			return errors.Join(lose("instance.json", authStore)(root), os.WriteFile(host(root, "journal.db"), []byte("no journal"), 0o600))
		}, trust.Unasked, "not known", false, "instance.json is lost"},
	} {
		root, id := wasServed(t)
		if err := c.change(root); err != nil {
			t.Fatal(err)
		}
		facts := Examine(t.Context(), Config{Root: root, SeatRoot: t.TempDir()})
		of := func(name string) (got []trust.Fact) {
			for _, f := range facts {
				if f.Name == name {
					got = append(got, f)
				}
			}
			return got
		}
		if w := of("workspace"); len(w) != 1 || w[0].Verdict != c.verdict || !strings.Contains(w[0].Text, c.says) {
			t.Errorf("%s: the workspace: %+v", what, w)
		}
		if keys := of("broker"); len(keys) > 0 != c.keys {
			t.Errorf("%s: of keys and broker: %+v", what, facts)
		}
		for _, f := range of("store") {
			if strings.Contains(f.Text+f.Repair, host(root, openStore)+":") {
				t.Errorf("%s: it is told of another store: %+v", what, f)
			}
		}
		if c.says == "authenticated" && what == "the record is gone" && !strings.Contains(of("workspace")[0].Text, id) {
			t.Errorf("%s: the journal knows the instance: %+v", what, of("workspace"))
		}
		switch err := repairable(Config{Root: root}); {
		case c.repair == "" && err != nil, c.repair != "" && (err == nil || !strings.Contains(err.Error(), c.repair)):
			t.Errorf("%s: a repair: %v, want %q", what, err, c.repair)
		}
	}
}

// recordWithoutMode is what a start leaves that is killed after it made a lost instance.json again.
func recordWithoutMode(root string) error {
	if err := os.Remove(filepath.Join(root, ".cotal", "host", "instance.json")); err != nil {
		return err
	}
	i, err := instance.OpenWith(context.Background(), root, func(dir string) (string, uint64, error) {
		j, err := journal.Open(filepath.Join(dir, journalName))
		if err != nil {
			return "", 0, err
		}
		defer j.Close()
		return j.Identity()
	})
	if err != nil {
		return err
	}
	return i.Close()
}

// Fifty seats, one after the other over a slow broker, once took longer than a look may.
func TestLivesAreLookedAtSideBySide(t *testing.T) {
	var known []seat.Known
	for _, name := range []string{"one", "two"} {
		known = append(known, seat.Known{Life: provision.Life{Alias: name, Caller: wire.Caller{Owner: "local", Actor: name, UID: wire.NewUID()}}})
	}
	both := &meeting{want: len(known), met: make(chan struct{})}
	facts := lifeFacts(t.Context(), both, nil, "main", "", known, "")
	for i, f := range facts {
		if f.Name != "seat "+known[i].Life.Alias || f.Verdict != trust.Unasked || !strings.Contains(f.Text, errMet.Error()) {
			t.Errorf("fact %d: %+v", i, f)
		}
	}
}

var errMet = errors.New("all are here")

// meeting is an authority that lets nobody in before all are there.
type meeting struct {
	trust.Authority
	want int
	came atomic.Int32
	met  chan struct{}
}

func (m *meeting) With(context.Context, trust.Request, func(context.Context, *bus.Bus) error) error {
	if m.came.Add(1) == int32(m.want) {
		close(m.met)
	}
	for begin := time.Now(); !busy.Over(begin, 10*time.Second); {
		select {
		case <-m.met:
			return errMet
		case <-time.After(10 * time.Millisecond):
		}
	}
	return errors.New("nobody else came")
}

func TestWhichSweepFollows(t *testing.T) {
	for _, c := range []struct {
		what          string
		kind          string
		swept, listed bool
		next          string
		wait          time.Duration
	}{
		{"one that came to no plan is tried again soon", retire.SweepStartup, false, true, retire.SweepStartup, sweepAgain},
		{"one that did not know which seats there are is followed soon", retire.SweepStartup, true, false, retire.SweepAdoption, sweepAgain},
		{"and by another one, until it is known", retire.SweepAdoption, true, false, retire.SweepAdoption, sweepAgain},
		{"then they come at their interval", retire.SweepAdoption, true, true, retire.SweepScheduled, sweepEvery},
		{"as behind one that knew all", retire.SweepStartup, true, true, retire.SweepScheduled, sweepEvery},
	} {
		if next, wait := nextSweep(c.kind, c.swept, c.listed); next != c.next || wait != c.wait {
			t.Errorf("%s: %s after %v, want %s after %v", c.what, next, wait, c.next, c.wait)
		}
	}
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
