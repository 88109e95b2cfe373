package wire

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// docs/wire-decisions.md decides each of the 22 open points of the contract once, and every test that it
// names exists.
func TestDecisionsAreCompleteAndHeld(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "wire-decisions.md"))
	if err != nil {
		t.Fatal(err)
	}
	for i, l := 1, regexp.MustCompile(`(?m)^\| A(\d+): .*$`).FindAllStringSubmatch(string(text), -1); i <= 22; i++ {
		n := 0
		for _, m := range l {
			if m[1] == strconv.Itoa(i) {
				n++
				if cells := strings.Split(m[0], " | "); len(cells) != 3 || len(strings.TrimRight(cells[2], " |")) < 4 {
					t.Errorf("A%d does not have point, decision and test", i)
				}
			}
		}
		if n != 1 {
			t.Errorf("A%d is decided %d times", i, n)
		}
	}

	funcs := map[string]bool{}
	for _, dir := range []string{"sdk", "host", "cmd", "plugins", "test", "runtimes", "connectors"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return nil // a directory that went away while it was read belongs to another test
			}
			p, err := os.ReadFile(path)
			if err != nil {
				return nil
			}
			for line := range strings.SplitSeq(string(p), "\n") {
				if name, ok := strings.CutPrefix(line, "func "); ok {
					name, _, _ = strings.Cut(name, "(")
					funcs[name] = true
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 50 {
		t.Errorf("%d tests are named", len(named))
	}
	for _, m := range named {
		if !funcs[m[1]] {
			t.Errorf("%s is named and does not exist", m[1])
		}
	}
}
