//go:build linux

package upgrade

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// bundle makes a directory like w.Bin with some files replaced, and a plugins.toml that agrees.
func bundle(t *testing.T, w *harness.World, name string, replace map[string]string) string {
	t.Helper()
	dir := filepath.Join(w.Dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(w.Bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), "cotal") {
			put(t, filepath.Join(w.Bin, e.Name()), filepath.Join(dir, e.Name()))
		}
	}
	swap(t, dir, replace)
	return dir
}

// swap replaces files of a bundle as an installation does, each by rename, and then its plugins.toml.
func swap(t *testing.T, dir string, replace map[string]string) {
	t.Helper()
	for name, from := range replace {
		put(t, from, filepath.Join(dir, name))
	}
	if out, err := exec.Command(filepath.Join(dir, "cotal-host"), "bundle", dir).CombinedOutput(); err != nil {
		t.Fatalf("cotal-host bundle: %v\n%s", err, out)
	}
}

// put makes to the same file as from, atomically: a link where the file system allows it.
func put(t *testing.T, from, to string) {
	t.Helper()
	tmp := to + ".new"
	if err := os.Link(from, tmp); err != nil {
		if err := copyFile(from, tmp); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(tmp, to); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(tmp) // two links to one file: rename did nothing
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// goBuild builds commands of a module as they ship, and gives their files by name.
func goBuild(t *testing.T, module, out string, flags []string, commands ...string) map[string]string {
	t.Helper()
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w"}, flags...)
	args = append(args, "-o", out+"/")
	files := map[string]string{}
	for _, c := range commands {
		args = append(args, "./cmd/"+c)
		files[c] = filepath.Join(out, c)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return files
}

// nextVersion is what the other builds of the plugins call themselves.
const nextVersion = "0.1.1"

// versioned are the files in which a plugin states its version, and the commands built from them.
var versioned = map[string]string{
	"runtimes/pty/doc.go":              "cotal-runtime-pty",
	"runtimes/tmux/doc.go":             "cotal-runtime-tmux",
	"connectors/command/command.go":    "cotal-connector-command",
	"connectors/codex/connector.go":    "cotal-connector-codex",
	"connectors/opencode/connector.go": "cotal-connector-opencode",
	"connectors/claude/connector.go":   "cotal-connector-claude",
	"connectors/pi/pi.go":              "cotal-connector-pi",
	"connectors/qwen/qwen.go":          "cotal-connector-qwen",
}

var next struct {
	once  sync.Once
	dir   string
	files map[string]string
}

// nextPlugins builds every plugin that ships once more, as another version: its source is replaced for the
// compiler alone. The files are made once per test process.
func nextPlugins(t *testing.T) map[string]string {
	t.Helper()
	next.once.Do(func() {
		root, err := harness.ModuleDir()
		if err != nil {
			t.Fatal(err)
		}
		if next.dir, err = os.MkdirTemp("/tmp", "ctup"); err != nil {
			t.Fatal(err)
		}
		overlay := struct{ Replace map[string]string }{map[string]string{}}
		var commands []string
		for file, command := range versioned {
			text, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), `"0.1.0"`); n != 1 {
				t.Fatalf("%s states the version %d times; want once", file, n)
			}
			changed := filepath.Join(next.dir, strings.ReplaceAll(file, "/", "_"))
			if err := os.WriteFile(changed, []byte(strings.Replace(string(text), `"0.1.0"`, `"`+nextVersion+`"`, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			overlay.Replace[filepath.Join(root, file)] = changed
			commands = append(commands, command)
		}
		text, err := json.Marshal(overlay)
		if err != nil {
			t.Fatal(err)
		}
		list := filepath.Join(next.dir, "overlay.json")
		if err := os.WriteFile(list, text, 0o600); err != nil {
			t.Fatal(err)
		}
		next.files = goBuild(t, root, next.dir, []string{"-overlay", list}, commands...)
	})
	if next.files == nil {
		t.Fatal("the other builds of the plugins could not be made")
	}
	return next.files
}

func TestMain(m *testing.M) {
	code := m.Run()
	if next.dir != "" {
		_ = os.RemoveAll(next.dir)
	}
	os.Exit(code)
}

// exe says what a process executes, by content.
func exe(t *testing.T, pid int) string {
	t.Helper()
	sum, err := hashFile(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
