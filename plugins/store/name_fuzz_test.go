package store

import (
	"path/filepath"
	"strings"
	"testing"
)

// A name of an archive that is taken leads nowhere else, whatever it is.
func FuzzName(f *testing.F) {
	for _, s := range []string{"a", "./a/b", "a/", "../a", "/a", "a/../../b", `..\a`, "c:a", "a//b", "./", "", ".", "a/./b", "a\x00", strings.Repeat("a/", 40) + "b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		name, why := checkName(raw)
		if why != "" {
			return
		}
		if !filepath.IsLocal(name) || filepath.Clean(name) != name || strings.ContainsAny(name, "\\:\x00\n") {
			t.Errorf("%q is taken as %q", raw, name)
		}
	})
}
