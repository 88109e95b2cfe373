package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The file of a life once followed from the alias alone, so that the end of a predecessor took away what its successor connects with.
//
// proves: CRED-21
func TestNoTwoLivesShareACredentialFile(t *testing.T) {
	s, err := OpenFileStore(t.Context(), t.TempDir())
	must(t, err)
	const first, second = "aaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbb"
	lives := map[string]string{}
	for _, l := range [][3]string{
		{"main", "reviewer", first}, {"main", "reviewer", second}, {"main", "writer", first}, {"other", "reviewer", first},
		{"Main", "reviewer", first}, {"main", "Reviewer", first}, {"main_", "reviewer", first}, {"main", "reviewer-", first},
	} {
		name := CredentialFile(l[0], l[1], l[2])
		if was, ok := lives[name]; ok {
			t.Errorf("%v and %s share %s", l, was, name)
		}
		lives[name] = strings.Join(l[:], " ")
		must(t, s.Write(name, []byte(lives[name])))
	}
	must(t, s.Remove(CredentialFile("main", "reviewer", first)))
	for name, who := range lives {
		got, err := s.Read(name)
		if who == "main reviewer "+first {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s was removed: %q, %v", name, got, err)
			}
			continue
		}
		if err != nil || string(got) != who {
			t.Errorf("%s is %q, %v; want that of %s", name, got, err, who)
		}
	}
}

// nameless is a store that does not say which one it is.
type nameless struct{ *FileStore }

func (nameless) Identity() string { return "" }

// Two processes that took two stores for one once minted against each other.
//
// proves: CRED-22
func TestAStoreSaysWhichOneItIs(t *testing.T) {
	root := t.TempDir()
	s, err := OpenFileStore(t.Context(), root)
	must(t, err)
	again, err := OpenFileStore(t.Context(), root)
	must(t, err)
	other, err := OpenFileStore(t.Context(), t.TempDir())
	must(t, err)
	if s.Identity() == "" || s.Identity() != again.Identity() || s.Identity() == other.Identity() {
		t.Errorf("one store is %q and %q, another one is %q", s.Identity(), again.Identity(), other.Identity())
	}
	if _, err := MakeKeyring(t.Context(), nameless{s}, "main"); err == nil || !strings.Contains(err.Error(), "does not say which one it is") {
		t.Errorf("keys were made in a store without an identity: %v", err)
	}
	if names, err := s.List(""); err != nil || len(names) != 0 {
		t.Errorf("a store that was refused was written to: %q, %v", names, err)
	}
	_, err = MakeKeyring(t.Context(), s, "main")
	must(t, err)
	if _, err := OpenKeyring(nameless{s}, "main"); err == nil {
		t.Error("keys were opened in a store without an identity")
	}
	if _, err := os.Stat(filepath.Join(root, ".cotal", "auth", brokerFile)); err != nil {
		t.Errorf("the store of a workspace is not in it: %v", err)
	}
}
