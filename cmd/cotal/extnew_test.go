package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A project takes no place but its own: what is there stays as it is, and nothing half-made is left beside it. A file in
// its place was once removed without a word.
func TestWriteProject_TakesNothingThatIsThere(t *testing.T) {
	files := map[string][]byte{"main.go": []byte("package main\n")}
	for _, c := range []struct {
		name string
		put  func(t *testing.T, dir, to string)
		want bool
	}{
		{"nothing is there", func(*testing.T, string, string) {}, true},
		{"an empty directory is taken", func(t *testing.T, _, to string) { must(t, os.Mkdir(to, 0o700)) }, true},
		{"a directory with a file in it is not", func(t *testing.T, _, to string) {
			must(t, os.Mkdir(to, 0o700))
			must(t, os.WriteFile(filepath.Join(to, "mine"), []byte("mine"), 0o600))
		}, false},
		{"a file is not", func(t *testing.T, _, to string) { must(t, os.WriteFile(to, []byte("mine"), 0o600)) }, false},
		{"a link to an empty directory is not", func(t *testing.T, dir, to string) {
			must(t, os.Mkdir(filepath.Join(dir, "other"), 0o700))
			must(t, os.Symlink("other", to))
		}, false},
		{"a link to nothing is not", func(t *testing.T, _, to string) { must(t, os.Symlink("none", to)) }, false},
		{"a place without a parent is none", func(t *testing.T, dir, _ string) { must(t, os.Remove(dir)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "dir")
			must(t, os.Mkdir(dir, 0o700))
			to := filepath.Join(dir, "own")
			c.put(t, dir, to)
			before := listing(dir)
			err := writeProject(to, files)
			if (err == nil) != c.want {
				t.Fatalf("%v, want it made: %v", err, c.want)
			}
			if c.want {
				if text, err := os.ReadFile(filepath.Join(to, "main.go")); err != nil || string(text) != "package main\n" {
					t.Errorf("main.go holds %q, %v", text, err)
				}
				return
			}
			if after := listing(dir); after != before {
				t.Errorf("before: %s, after: %s", before, after)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listing is everything below a directory, links as links.
func listing(dir string) string {
	var names []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil {
			text, _ := os.ReadFile(path)
			names = append(names, d.Type().String()+" "+path+" "+string(text))
		}
		return nil
	})
	return strings.Join(names, ", ")
}
