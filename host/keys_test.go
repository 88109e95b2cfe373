package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever lost the keys of a space is told so: with new ones there would be another space, empty, and no seat that lives
// would be of it.
func TestKeysThatAreGoneAreNotMadeAnew(t *testing.T) {
	root := t.TempDir()
	first := serve(t, Config{Root: root})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	auth, away := filepath.Join(root, ".cotal", "auth"), filepath.Join(t.TempDir(), "away")
	account := "account.6d61696e.json" // of space main
	for name, lose := range map[string]string{"all of them": auth, "the account's alone": filepath.Join(auth, account)} {
		t.Run(name, func(t *testing.T) {
			if err := os.Rename(lose, away); err != nil {
				t.Fatal(err)
			}
			refuse := func(when string) {
				err := refused(t, Config{Root: root})
				if !strings.Contains(err.Error(), "keys of space main are gone") || !strings.Contains(err.Error(), "backup") {
					t.Errorf("%s: got %v", when, err)
				}
				if _, err := os.Lstat(filepath.Join(auth, account)); err == nil {
					t.Errorf("%s: keys were made by a host that was refused", when)
				}
			}
			refuse("with its journal")
			journal := filepath.Join(first.h.inst.Dir, "journal.db")
			if err := os.Remove(journal); err != nil {
				t.Fatal(err)
			}
			refuse("without its journal")
			if err := os.RemoveAll(lose); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(away, lose); err != nil {
				t.Fatal(err)
			}
			again := serve(t, Config{Root: root})
			again.status(again.operator())
			if err := again.stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Where a slot names the life of a file, its seat may live with it, whoever's it is.
func TestNobodyIsToldToRemoveTheCredentialOfALifeThatHasASlot(t *testing.T) {
	if f := strayFact("creds/x.creds", "aaaaaaaaaaaaaaaaaaaaaaaaaa"); strings.Contains(f.Repair, "rm ") || !strings.Contains(f.Repair, "instance.json") {
		t.Errorf("that of another instance: %+v", f)
	}
	if f := strayFact("creds/x.creds", ""); f.Repair != "rm .cotal/auth/creds/x.creds" {
		t.Errorf("that of nobody: %+v", f)
	}
}

// Who starts a host again as it says itself, without the flags of the first start, begins no other space beside the one
// in which the seats live.
func TestAWorkspaceOfABrokerElsewhereIsNotServedOnOneOfItsOwn(t *testing.T) {
	first := serve(t, Config{Root: t.TempDir()})
	root := t.TempDir()
	second := serve(t, Config{Root: root, Server: first.h.url, Keys: first.root})
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	if err := refused(t, Config{Root: root}); !strings.Contains(err.Error(), "--keys") {
		t.Errorf("without keys: %v", err)
	}
	if err := refused(t, Config{Root: root, Keys: first.root}); !strings.Contains(err.Error(), "--server") {
		t.Errorf("without the broker: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(root, ".cotal", "auth", "broker.json")); err == nil {
		t.Error("keys were made by a host that was refused")
	}
	if hasStreams(filepath.Join(second.h.inst.Dir, authStore), "A*") {
		t.Error("a store was made by a host that was refused")
	}
	serve(t, Config{Root: root, Server: first.h.url, Keys: first.root})
}
