// Package docs holds the documentation to its word: what it shows as code compiles and runs.
package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
)

var block = regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```[a-z]*\n(.*?)```")

// A connector written from the page alone, in a module of its own, compiles, passes the page's test,
// describes itself, and its manifest entry is one the host takes.
func TestWritingAConnectorCompiles(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "writing-a-connector.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := map[string]bool{}
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		files[m[1]] = true
		write(t, filepath.Join(dir, m[1]), m[2])
	}
	for _, name := range []string{"main.go", "main_test.go", "plugins.toml"} {
		if !files[name] {
			t.Fatalf("the page shows no %s", name)
		}
	}
	// The module stands in for what go get writes: this clone, with the versions it was built with.
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(mod), "module example.org/echo")
	text += "\nrequire github.com/cotal-ai/cotal-host v0.0.0\n\nreplace github.com/cotal-ai/cotal-host => " + root + "\n"
	write(t, filepath.Join(dir, "go.mod"), text)
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "go.sum"), string(sum))
	run(t, dir, "go", "vet", "./...")
	run(t, dir, "go", "test", "./...")
	run(t, dir, "go", "build", "-o", "cotal-connector-echo", ".")

	var info sdk.Info
	if err := json.Unmarshal(run(t, dir, "./cotal-connector-echo", sdk.DescribeFlag), &info); err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Load(filepath.Join(dir, "plugins.toml"))
	if err != nil {
		t.Fatal(err)
	}
	entry, ok := m.Find(sdk.KindConnector, "echo")
	if !ok || info.Name != entry.Name || info.Version != entry.Version || info.Kind != entry.Kind {
		t.Errorf("the binary describes itself as %s %s %s, the manifest says %+v", info.Kind, info.Name, info.Version, entry)
	}
	if _, err := os.Stat(filepath.Join(dir, entry.Command)); err != nil {
		t.Errorf("the manifest's command is not what the page builds: %v", err)
	}
}

// Every launch option of the bundled connectors stands in the page about them, and the reference
// connector is as short as the page says.
func TestConnectorPageNamesEveryOption(t *testing.T) {
	page, err := os.ReadFile("../../docs/connectors.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"command/command.go", "opencode/options.go"} {
		text, err := os.ReadFile("../../connectors/" + source)
		if err != nil {
			t.Fatal(err)
		}
		_, body, ok := strings.Cut(string(text), "type options struct {")
		body, _, closed := strings.Cut(body, "\n}")
		names := regexp.MustCompile(`json:"(\w+)"`).FindAllStringSubmatch(body, -1)
		if !ok || !closed || len(names) == 0 {
			t.Fatalf("%s has no options struct", source)
		}
		for _, n := range names {
			if !strings.Contains(string(page), "| `"+n[1]+"` |") {
				t.Errorf("docs/connectors.md does not describe launch option %s of %s", n[1], source)
			}
		}
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
