// Package docs holds the documentation to its word: what it shows as code compiles and runs.
package docs

import (
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

var block = regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```[a-z]*\n(.*?)```")

// module takes the files of a page and puts them into a module of its own, which stands in for what go mod
// tidy writes: this clone, with the versions it was built with.
func module(t *testing.T, page string, names ...string) (dir string, files map[string]string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	dir, files = t.TempDir(), map[string]string{}
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		files[m[1]] = m[2]
		path := filepath.Join(dir, m[1])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, m[2])
	}
	for _, name := range names {
		if files[name] == "" {
			t.Fatalf("the page shows no %s", name)
		}
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(mod), "module example.org/own")
	own += "\nrequire github.com/cotal-ai/cotal-host v0.0.0\n\nreplace github.com/cotal-ai/cotal-host => " + root + "\n"
	write(t, filepath.Join(dir, "go.mod"), own)
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "go.sum"), string(sum))
	return dir, files
}

// The pages' source is as gofmt leaves it.
func TestPagesShowFormattedCode(t *testing.T) {
	for _, page := range []string{"writing-a-connector.md", "writing-a-runtime.md", "joining-a-mesh.md"} {
		_, files := module(t, page)
		for name, text := range files {
			if !strings.HasSuffix(name, ".go") {
				continue
			}
			if got, err := format.Source([]byte(text)); err != nil || string(got) != text {
				t.Errorf("%s: %s is not formatted: %v", page, name, err)
			}
		}
	}
}

// What make install puts away finds itself again through the links.
func TestInstalledBundleRunsThroughItsLinks(t *testing.T) {
	w := harness.New(t)
	prefix := filepath.Join(w.Dir, "usr")
	// -o build: the binaries under test are there already.
	run(t, "../..", "make", "-o", "build", "install", "PREFIX="+prefix, "BUNDLE="+w.Bin)
	if _, err := os.Stat(filepath.Join(prefix, "lib/cotal-host/cotal-fakeagent")); err == nil {
		t.Error("the scripted agent of the tests was installed")
	}
	if _, err := os.Stat(filepath.Join(prefix, "lib/cotal-host/cotal-fakeplugin")); err == nil {
		t.Error("the faulty plugin of the tests was installed")
	}
	sample, err := os.ReadFile("../../docs/examples/agents/shell.md")
	if err != nil {
		t.Fatal(err)
	}
	w.Persona("shell", string(sample))
	h := w.LaunchProgram(filepath.Join(prefix, "bin/cotal-host"), []string{"serve"}, harness.HostOptions{})
	if err := h.WaitReady(harness.DefaultWait); err != nil {
		t.Fatalf("start the installed host: %v\n%s", err, h.Stderr())
	}
	cotal := filepath.Join(prefix, "bin/cotal")
	w.Run(t.Context(), cotal, "spawn", "--agent", "command", "--name", "a", "--detach", "--", "sleep", "600").OK()
	w.Run(t.Context(), cotal, "stop", "a").OK()
	w.Run(t.Context(), cotal, "spawn", "shell", "--detach").OK() // the first command of the README
	w.Run(t.Context(), cotal, "stop", "shell").OK()
}

// Every launch option of the bundled connectors stands in the page about them, and the reference
// connector is as short as the page says.
func TestConnectorPageNamesEveryOption(t *testing.T) {
	page, err := os.ReadFile("../../docs/connectors.md")
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("../../connectors/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	connectors := 0
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		_, body, ok := strings.Cut(string(text), "\ntype options struct {")
		if !ok {
			continue
		}
		connectors++
		name := filepath.Base(filepath.Dir(source))
		_, section, ok := strings.Cut(string(page), "\n## "+name+"\n")
		if !ok {
			t.Errorf("docs/connectors.md says nothing of %s", name)
			continue
		}
		section, _, _ = strings.Cut(section, "\n## ")
		body, _, _ = strings.Cut(body, "\n}")
		for _, n := range regexp.MustCompile(`json:"(\w+)"`).FindAllStringSubmatch(body, -1) {
			if !strings.Contains(section, "| `"+n[1]+"` |") {
				t.Errorf("docs/connectors.md does not describe launch option %s of %s", n[1], name)
			}
		}
	}
	if connectors < 3 {
		t.Errorf("%d connectors have options: they are not read rightly", connectors)
	}
	text, err := os.ReadFile("../../connectors/command/command.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n >= 100 {
		t.Errorf("connectors/command has %d lines, the page says under 100", n)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	// mod: the versions stand there already. off: the test needs no network.
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		stderr := ""
		if exit, ok := err.(*exec.ExitError); ok {
			stderr = string(exit.Stderr)
		}
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr)
	}
	return out
}
