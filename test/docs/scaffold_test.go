package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// scaffolded is a project as cotal ext new makes it, in an empty directory.
func scaffolded(t *testing.T, w *harness.World, args ...string) (dir string) {
	t.Helper()
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "own")
	w.CLI(append([]string{"ext", "new", "--dir", dir, "--sdk", root}, args...)...).OK()
	return dir
}

// What an author of the page's connector writes himself is less than 60 lines, its test included: the rest was
// generated.
func TestScaffold_ThePageNeedsFewerThan60Lines(t *testing.T) {
	w := harness.New(t)
	generated := scaffolded(t, w, "echo", "--program", "echo-agent")
	_, page := module(t, "writing-a-connector.md", "main.go", "main_test.go")
	own := 0
	for _, name := range []string{"main.go", "main_test.go"} {
		text, err := os.ReadFile(filepath.Join(generated, name))
		if err != nil {
			t.Fatal(err)
		}
		left := strings.Split(string(text), "\n")
		for line := range strings.Lines(page[name]) {
			line = strings.TrimRight(line, "\n")
			if i := slices.Index(left, line); i >= 0 {
				left = slices.Delete(left, i, i+1)
				continue
			}
			if strings.TrimSpace(line) != "" {
				own++
			}
		}
	}
	if own == 0 || own >= 60 {
		t.Errorf("%d lines of the page are not generated, want some and fewer than 60", own)
	}
	t.Logf("%d lines written by hand", own)
}

// install accepts the digest of a plugin and installs it, for a host that runs.
func install(t *testing.T, w *harness.World, file string) {
	t.Helper()
	binary, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w.CLI("ext", "install", file, "--sha256", hash(binary)).OK()
}
