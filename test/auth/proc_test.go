//go:build linux

package auth

import (
	"iter"
	"maps"
	"os"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// spawnsInARow is 25, and 500 in a long run.
func spawnsInARow() int {
	if os.Getenv("COTAL_LONG") != "" {
		return 500
	}
	return 25
}

func anon(t *testing.T, pid int) int {
	t.Helper()
	_, kib, err := harness.RSS(pid)
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

func entries(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func keysOf[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }
