package kept_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/kept"
)

func number(n int) *int { return &n }

func TestWhichSessionsAreSurplus(t *testing.T) {
	now := time.Now()
	days := func(all ...int) []kept.Session {
		var out []kept.Session
		for _, d := range all {
			out = append(out, kept.Session{Path: fmt.Sprint(d), Time: now.Add(-time.Duration(d)*24*time.Hour - time.Minute)})
		}
		return out
	}
	for name, c := range map[string]struct {
		bounds kept.Bounds
		all    []kept.Session
		needed string
		want   string
	}{
		"none of a few":                              {kept.Bounds{}, days(1, 2, 3), "", ""},
		"what is older than the default":             {kept.Bounds{}, days(1, 89, 90, 400), "", "400 90"},
		"the oldest of too many":                     {kept.Bounds{Sessions: number(2)}, days(2, 5, 3, 4), "", "5 4"},
		"old ones count for those that are too many": {kept.Bounds{Sessions: number(2), Days: number(4)}, days(2, 5, 3, 7), "", "7 5"},
		"what is needed stays, and another goes":     {kept.Bounds{Sessions: number(2)}, days(2, 5, 3, 4), "5", "4 3"},
		"what is needed stays however old it is":     {kept.Bounds{}, days(2, 400, 300), "400", "300"},
		"what is of the last day stays":              {kept.Bounds{Sessions: number(1)}, days(0, 0, 0), "", ""},
		"no bound of age":                            {kept.Bounds{Days: number(0)}, days(1, 4000), "", ""},
		"no bound of number":                         {kept.Bounds{Sessions: number(0)}, days(1, 2, 3), "", ""},
	} {
		var got []string
		for _, s := range c.bounds.Surplus(c.all, now, func(path string) bool { return path == c.needed }) {
			got = append(got, s.Path)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
	many := make([]kept.Session, kept.DefaultSessions+3)
	for i := range many {
		many[i] = kept.Session{Path: fmt.Sprint(i), Time: now.Add(-48 * time.Hour).Add(-time.Duration(i) * time.Second)}
	}
	if got := (kept.Bounds{}).Surplus(many, now, nil); len(got) != 3 {
		t.Errorf("of three more than the default %d go", len(got))
	}
	for name, b := range map[string]kept.Bounds{"keep_days": {Days: number(-1)}, "keep_sessions": {Sessions: number(-1)}} {
		if err := b.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPruningRemovesFilesAndTheirEmptyDirectories(t *testing.T) {
	workspace, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(workspace, "[odd]*", "s")
	put := func(name string) string {
		t.Helper()
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	alone, held, beside, other := put("a/1.jsonl"), put("b/2.jsonl"), put("b/3.jsonl"), put("b/notes")
	if err := os.Symlink(other, filepath.Join(root, "b", "4.jsonl")); err != nil {
		t.Fatal(err)
	}
	// Whoever puts a link here means what is there to be his.
	theirs := filepath.Join(t.TempDir(), "theirs")
	if err := errors.Join(os.Mkdir(theirs, 0o700), os.WriteFile(filepath.Join(theirs, "5.jsonl"), nil, 0o600), os.Symlink(theirs, filepath.Join(root, "c"))); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(100 * 24 * time.Hour)
	prune := func(b kept.Bounds, now time.Time) []string {
		t.Helper()
		removed, err := b.Prune(workspace, filepath.Join("[odd]*", "s"), now, func(path string) bool { return path == held }, "*", "*.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		return removed
	}
	if removed := prune(kept.Bounds{Sessions: number(1)}, time.Now()); len(removed) != 0 {
		t.Errorf("on the first day %v are removed", removed)
	}
	linked := t.TempDir()
	if err := os.Symlink(root, filepath.Join(linked, "s")); err != nil {
		t.Fatal(err)
	}
	if removed, err := (kept.Bounds{}).Prune(linked, "s", later, nil, "*", "*.jsonl"); err != nil || len(removed) != 0 {
		t.Errorf("behind a link in place of the store %v are removed, %v", removed, err)
	}
	if removed := prune(kept.Bounds{}, later); !slices.Equal(removed, []string{alone, beside}) && !slices.Equal(removed, []string{beside, alone}) {
		t.Errorf("removed are %v, want %s and %s", removed, alone, beside)
	}
	for path, there := range map[string]bool{filepath.Dir(alone): false, root: true, held: true, other: true, filepath.Join(theirs, "5.jsonl"): true, filepath.Join(root, "b", "4.jsonl"): true} {
		if _, err := os.Lstat(path); (err == nil) != there {
			t.Errorf("%s: %v, want there: %v", path, err, there)
		}
	}
}

// A connector that is killed while it copies leaves as much as the whole conversation, under a name that nobody looks for.
func TestCopiesThatWereCutShortDoNotStay(t *testing.T) {
	root := t.TempDir()
	alone, beside, session := filepath.Join(root, "a", ".new-1"), filepath.Join(root, "b", ".new-2"), filepath.Join(root, "b", "1.jsonl")
	for _, path := range []string{alone, beside, session} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		when  string
		now   time.Time
		stays bool
	}{
		{"while it may still be written", time.Now().Add(23 * time.Hour), true},
		{"a day later", time.Now().Add(25 * time.Hour), false},
	} {
		if removed, err := (kept.Bounds{}).Prune(root, ".", c.now, nil, "*", "*.jsonl"); err != nil || len(removed) != 0 {
			t.Errorf("%s: sessions that are removed: %v, %v", c.when, removed, err)
		}
		for path, there := range map[string]bool{filepath.Dir(alone): c.stays, beside: c.stays, session: true} {
			if _, err := os.Lstat(path); (err == nil) != there {
				t.Errorf("%s: %s: %v, want there: %v", c.when, path, err, there)
			}
		}
	}
}

// A session that somebody goes on with after a long time is as good as new, and no later than it was for whoever looks
// for the latest of several.
func TestARenewedSessionIsNotOld(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "1.jsonl")
	then := time.Now().Add(-400 * 24 * time.Hour).Truncate(time.Second)
	if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Chtimes(path, then, then), kept.Renew(path)); err != nil {
		t.Fatal(err)
	}
	removed, err := kept.Bounds{Sessions: number(1)}.Prune(root, ".", time.Now(), nil, "*.jsonl")
	if err != nil || len(removed) != 0 {
		t.Errorf("removed are %v, %v", removed, err)
	}
	st, err := os.Stat(path)
	if err != nil || !st.ModTime().Equal(then) || st.Mode().Perm() != 0o600 {
		t.Errorf("it is %v, %v", st, err)
	}
}

func TestADirectoryOfSessionsIsNothingForGit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := kept.Ignore(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, ".gitignore")
	if text, err := os.ReadFile(path); err != nil || string(text) != "*\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := errors.Join(os.WriteFile(path, []byte("mine\n"), 0o600), kept.Ignore(dir)); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mine\n" {
		t.Errorf("the user's own became %q, %v", text, err)
	}
}
