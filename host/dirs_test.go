package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPrivateDirRefusesWhatIsNotOurs(t *testing.T) {
	base := t.TempDir()
	open := filepath.Join(base, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o750); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(base, "foreign")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ path, says string }{
		"open to the group":          {open, "chmod 700"},
		"a link, even to our own":    {link, "not a directory"},
		"a file":                     {file, "not a directory"},
		"a new one is made":          {filepath.Join(base, "new"), ""},
		"an existing private one":    {filepath.Join(base, "new"), ""},
		"a new one in a new parent":  {filepath.Join(base, "p", "q"), ""},
		"another user's (root only)": {foreign, "belongs to user"},
	}
	if os.Getuid() == 0 {
		if err := os.Chown(foreign, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	} else {
		delete(cases, "another user's (root only)")
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := privateDir(c.path)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.path)) {
				t.Errorf("got %v, want a text with %q and the path", err, c.says)
			}
			if st, serr := os.Lstat(c.path); c.says == "" && (serr != nil || st.Mode().Perm() != 0o700) {
				t.Errorf("mode %v, %v", st.Mode(), serr)
			}
		})
	}
}

func TestRuntimeDirIsShortOrSaysSo(t *testing.T) {
	deep := "/" + strings.Repeat("d", 120)
	t.Setenv("XDG_RUNTIME_DIR", deep)
	t.Setenv("TMPDIR", "/tmp")
	dir, err := runtimeDir("")
	if err != nil || dir != fmt.Sprintf("/tmp/cotal-%d", os.Getuid()) {
		t.Errorf("a long XDG_RUNTIME_DIR gave %q, %v; want the temporary directory", dir, err)
	}
	t.Setenv("TMPDIR", deep)
	if _, err := runtimeDir(""); err == nil || !strings.Contains(err.Error(), "100 bytes") || !strings.Contains(err.Error(), "XDG_RUNTIME_DIR") {
		t.Errorf("nothing short: %v", err)
	}
	if _, err := runtimeDir("relative"); err == nil {
		t.Error("a relative directory was taken")
	}
}

func TestTheLogFileStaysBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.log")
	f, err := openBounded(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if _, err := fmt.Fprintf(f, "line %04d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 {
		t.Fatalf("%d files, %v; want the log and one older one", len(entries), err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err != nil || st.Size() > 1000 || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), st, err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(string(text), "line 0499\n") {
		t.Errorf("the last line is lost: %v %q", err, text)
	}
}
