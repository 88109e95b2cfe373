package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
