// Package docs holds the documentation to its word: what it shows as code compiles and runs.
package docs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
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
		write(t, filepath.Join(dir, m[1]), m[2])
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

// A runtime written from the page alone, in a module of its own, keeps every rule of the suite and runs a seat
// in a real host. It once kept the rules and could not start a seat: a host executes a copy in memory, and the
// page looked for its holder by os.Executable.
func TestWritingARuntime(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the example holds seats the way Linux lets it")
	}
	dir, _ := module(t, "writing-a-runtime.md", "main.go", "hold.go")
	run(t, dir, "go", "vet", "./...")
	run(t, dir, "go", "build", "-o", "cotal-runtime-plain", ".")
	plugintest.Binary(t, filepath.Join(dir, "cotal-runtime-plain"), plugintest.Options{})
	tryRuntime(t, filepath.Join(dir, "cotal-runtime-plain"))
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

// A connector written from the page alone, in a module of its own, compiles, passes the page's test,
// describes itself, and runs in a host that finds it in the workspace as the page says.
func TestWritingAConnector(t *testing.T) {
	dir, files := module(t, "writing-a-connector.md", "echo-agent", "main.go", "main_test.go", "plugins.toml", "parrot.md")
	run(t, dir, "go", "vet", "./...")
	run(t, dir, "go", "test", "./...")
	run(t, dir, "go", "build", "-o", "cotal-connector-echo", ".")

	plugintest.Binary(t, filepath.Join(dir, "cotal-connector-echo"), plugintest.Options{})

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
	binary, err := os.ReadFile(filepath.Join(dir, entry.Command))
	if err != nil {
		t.Fatalf("the manifest's command is not what the page builds: %v", err)
	}
	tryConnector(t, files, entry, binary)
}

// tryConnector does what the page does under "Loading it", with a real host.
func tryConnector(t *testing.T, files map[string]string, entry manifest.Entry, binary []byte) {
	w := harness.New(t)
	w.Setenv("PATH", installAgent(t, w, files["echo-agent"]))
	w.Start(harness.HostOptions{})
	if err := os.Chmod(w.Write(".cotal/plugins/"+entry.Command, string(binary)), 0o755); err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(binary)
	w.Write(".cotal/plugins.toml", strings.Replace(files["plugins.toml"], entry.SHA256, hex.EncodeToString(digest[:]), 1))
	if out := w.CLI("ext", "reload").OK().Stdout; !strings.HasPrefix(out, "added     connector echo 0.1.0, pid ") {
		t.Errorf("the reload of the page printed %q", out)
	}

	shows := func(text string) {
		t.Helper()
		harness.Eventually(t, harness.DefaultWait, "the output of parrot", func() (bool, string) {
			out := w.CLI("logs", "parrot").Stdout
			return strings.Contains(out, text), out
		})
	}
	w.CLI("spawn", "--agent", "echo", "--name", "parrot", "--opt", "greeting=hi", "--prompt", "Say something.", "--detach").OK()
	shows("hi! I was told:  And asked: Say something.")
	w.CLI("input", "parrot", "--text", "hello there").OK()
	shows("you said: hello there")
	w.CLI("stop", "parrot").OK()

	w.Persona("parrot", files["parrot.md"])
	w.CLI("spawn", "parrot", "--detach").OK()
	shows("hi! I was told: You repeat what you hear. And asked:")
	w.CLI("stop", "parrot").OK()
	// The bundle's own entries stand beside the workspace's.
	w.Spawn("other", "sleep", "600")
	w.CLI("stop", "other").OK()
}

// installAgent does what the page says to put the agent where the host finds it, and returns the PATH that the
// page gives the host. The page once put it where no host looked.
func installAgent(t *testing.T, w *harness.World, text string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/writing-a-connector.md")
	if err != nil {
		t.Fatal(err)
	}
	script := regexp.MustCompile("(?s)<!-- shell: install -->\n```\n(.*?)```").FindSubmatch(page)
	if script == nil {
		t.Fatal("the page does not install its agent")
	}
	home := w.Path("home")
	w.Write("home/echo-agent", text)
	cmd := exec.Command("/bin/sh", "-ec", string(script[1])+`printf %s "$PATH"`)
	cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("install the agent as the page says: %v", err)
	}
	return string(path)
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
	h := w.LaunchProgram(filepath.Join(prefix, "bin/cotal-host"), []string{"serve", "--open"}, harness.HostOptions{})
	if err := h.WaitReady(harness.DefaultWait); err != nil {
		t.Fatalf("start the installed host: %v\n%s", err, h.Stderr())
	}
	cotal := filepath.Join(prefix, "bin/cotal")
	w.Run(t.Context(), cotal, "spawn", "--agent", "command", "--name", "a", "--detach", "--", "sleep", "600").OK()
	w.Run(t.Context(), cotal, "stop", "a").OK()
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
