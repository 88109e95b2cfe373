//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/describe"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// variant is a plugin of the bundle with more bytes at its end, which changes nothing but its digest.
func variant(t *testing.T, w *harness.World, program, more string) (path, digest string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Bin(t), program))
	if err != nil {
		t.Fatal(err)
	}
	path = w.Write(filepath.Join("src", more, program), string(text)+more)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if digest, err = manifest.HashFile(path); err != nil {
		t.Fatal(err)
	}
	return path, digest
}

const honest = "cotal-fakeplugin--honest-connector"

// userManifest is the one that cotal ext writes; empty when there is none.
func userManifest(t *testing.T, w *harness.World) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.Home, ".config", "cotal", manifest.FileName))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

func TestAPluginThatIsAnotherThanWasSaidIsRefused(t *testing.T) {
	id := describe.Identity{Kind: describe.Connector, Name: "echo", Version: "2"}
	was := &manifest.Entry{Kind: describe.Connector, Name: "other", Version: "1"}
	for name, c := range map[string]struct {
		src     found
		flags   installFlags
		was     *manifest.Entry
		refusal string
	}{
		"nothing was said":                 {found{}, installFlags{}, nil, ""},
		"all is as an index has it":        {found{kind: "connector", name: "echo", version: "2"}, installFlags{}, nil, ""},
		"another version than in an index": {found{kind: "connector", name: "echo", version: "3"}, installFlags{}, nil, "the index has it as 3"},
		"another name":                     {found{name: "echoes"}, installFlags{}, nil, "not as echoes"},
		"another kind than the flag":       {found{}, installFlags{kind: "runtime"}, nil, "not as runtime"},
		"another than it replaces":         {found{}, installFlags{}, was, "not as connector other"},
	} {
		t.Run(name, func(t *testing.T) {
			err := rightOne(id, c.src, c.flags, c.was)
			if c.refusal == "" && err != nil || c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal)) {
				t.Errorf("%v, want %q", err, c.refusal)
			}
		})
	}
}

func TestExtInstall_UnderAHostThatRuns(t *testing.T) {
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	path, digest := variant(t, w, "cotal-fakeplugin", "one")

	r := w.CLI("ext", "install", path, "--command", honest).Want(2)
	if !strings.Contains(r.Stderr, "--sha256 "+digest) || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("where nobody can be asked: %v, want the digest and how to say it", r)
	}
	wrong := strings.Repeat("0", 64)
	r = w.CLI("ext", "install", path, "--command", honest, "--sha256", wrong).Want(1)
	if !strings.Contains(r.Stderr, "expected sha256 "+wrong) || !strings.Contains(r.Stderr, "actual "+digest) {
		t.Errorf("%v, want both digests", r)
	}
	w.CLI("ext", "install", path, "--command", honest, "--sha256", "abc").Want(2)
	w.CLI("ext", "install", path, "--command", honest, "--sha256", digest, "--kind", "runtime").Want(1)
	w.CLI("ext", "install", "./nothing").Want(1)
	w.CLI("ext", "install", "nothing").Want(4)
	if got := userManifest(t, w); got != "" {
		t.Fatalf("something was installed:\n%s", got)
	}

	var got extChange
	w.CLI("ext", "install", path, "--command", honest, "--sha256", digest, "--json").OK().JSON(&got)
	if got.Change != "installed" || got.Name != "fake" || got.Version != "0.1.0" || got.Host != hostReloaded || got.PID == 0 || got.SHA256 != digest || !strings.Contains(got.File, digest) {
		t.Errorf("%+v", got)
	}
	if pid := w.PluginPID("fake"); pid != got.PID {
		t.Errorf("the host has it as %d", pid)
	}
	if r := w.CLI("ext", "install", path, "--command", honest, "--sha256", digest).OK(); !strings.HasPrefix(r.Stdout, "unchanged connector fake 0.1.0") {
		t.Errorf("again: %v", r)
	}

	two, digest2 := variant(t, w, "cotal-fakeplugin", "two")
	if r := w.CLI("ext", "install", two, "--command", honest, "--sha256", digest2).Want(1); !strings.Contains(r.Stderr, "cotal ext upgrade fake") {
		t.Errorf("a name that is taken: %v", r)
	}
	// The text around what is changed is the user's.
	file := filepath.Join(w.Home, ".config", "cotal", manifest.FileName)
	if err := os.WriteFile(file, []byte("# mine\n"+userManifest(t, w)+"env = [\"EXTRA\"] # for tests\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.CLI("ext", "upgrade", "fake", two, "--command", honest, "--sha256", digest2, "--json").OK().JSON(&got)
	if got.Change != "upgraded" || got.SHA256 != digest2 || got.PID == 0 {
		t.Errorf("%+v", got)
	}
	if text := userManifest(t, w); !strings.HasPrefix(text, "# mine\n") || !strings.Contains(text, "env = [\"EXTRA\"] # for tests\n") || strings.Contains(text, digest) {
		t.Errorf("after the upgrade:\n%s", text)
	}
	w.CLI("ext", "rollback", "fake", "--json").OK().JSON(&got)
	if got.Change != "rolled-back" || got.SHA256 != digest {
		t.Errorf("%+v", got)
	}

	// One that says it is another while it is installed than when it runs: the host does not take it, and nothing is
	// different afterwards.
	before, pid := userManifest(t, w), w.PluginPID("fake")
	r = w.CLI("ext", "upgrade", "fake", two, "--command", "cotal-fakeplugin--describes-something-else", "--sha256", digest2).Want(1)
	if !strings.Contains(r.Stderr, "0.2.0") || userManifest(t, w) != before || w.PluginPID("fake") != pid {
		t.Errorf("a plugin that lies: %v", r)
	}
	// One that says from the start that it is another.
	other, digestO := variant(t, w, "cotal-connector-command", "other")
	r = w.CLI("ext", "upgrade", "fake", other, "--sha256", digestO).Want(1)
	if !strings.Contains(r.Stderr, "describes itself as connector command") || userManifest(t, w) != before {
		t.Errorf("another plugin: %v", r)
	}
	if r := w.CLI("ext", "install", other, "--sha256", digestO).Want(1); !strings.Contains(r.Stderr, "come with cotal-host") {
		t.Errorf("one that would hide another: %v", r)
	}

	w.CLI("ext", "remove", "fake").OK()
	w.CLI("ext", "info", "fake").Want(4)
	if r := w.CLI("__complete", "ext", "info", "p").OK(); !strings.Contains(r.Stdout, "pty\truntime, ") {
		t.Errorf("%v", r)
	}
}

func TestFieldM9_AnUpgradeSparesSeatsAndARemovalWaitsForThem(t *testing.T) {
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	seat := w.Spawn("worker", "sleep", "600")
	path, digest := variant(t, w, "cotal-connector-command", "next")
	old := w.PluginPID("command")

	var got extChange
	w.CLI("ext", "install", path, "--sha256", digest, "--replace", "--json").OK().JSON(&got)
	if got.PID == old || got.SHA256 != digest {
		t.Errorf("%+v, was %d", got, old)
	}
	w.AwaitGone(old)
	if row := w.Inspect("worker"); row.PID != seat.PID || row.Status != "running" {
		t.Errorf("the seat: %+v", row)
	}
	w.Spawn("next", "sleep", "600")
	w.CLI("stop", "next").OK()

	if r := w.CLI("ext", "disable", "command").Want(1); !strings.Contains(r.Stderr, "seat worker") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("%v", r)
	}
	// Its bundled self takes its place: nobody is left without.
	if r := w.CLI("ext", "remove", "command").OK(); !strings.Contains(r.Stdout, "takes its place") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("ext", "remove", "command").Want(1); !strings.Contains(r.Stderr, "seat worker") {
		t.Errorf("%v", r)
	}
	w.Host("stop").OK()
	if r := w.CLI("ext", "remove", "command").Want(1); !strings.Contains(r.Stderr, "seat worker") {
		t.Errorf("without a host: %v", r)
	}
	w.Start(harness.HostOptions{})
	if row := w.Inspect("worker"); row.PID != seat.PID {
		t.Errorf("the seat: %+v", row)
	}
	w.CLI("stop", "worker").OK()
	w.CLI("ext", "remove", "command").OK()
	w.CLI("spawn", "--agent", "command", "--name", "x", "--detach", "--", "true").Want(4)
}

func TestFieldM6_ARemovedPluginOfTheBundleStaysRemoved(t *testing.T) {
	w := harness.New(t)
	if r := w.CLI("ext", "remove", "tmux").OK(); !strings.Contains(r.Stdout, "no host runs here") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("ext", "remove", "tmux").OK(); !strings.HasPrefix(r.Stdout, "unchanged") {
		t.Errorf("again: %v", r)
	}
	w.Start(harness.HostOptions{})
	if r := w.CLI("ext", "list").OK(); strings.Contains(r.Stdout, "tmux") {
		t.Errorf("%v", r)
	}
	var info extInfo
	w.CLI("ext", "info", "tmux", "--json").OK().JSON(&info)
	if info.Enabled || info.Of != ofUser || !info.Sound {
		t.Errorf("%+v", info)
	}
	w.CLI("ext", "enable", "tmux").OK()
	if got := userManifest(t, w); strings.Contains(got, "tmux") {
		t.Errorf("the copy that turned it off is left, and would hide the next one:\n%s", got)
	}
	w.PluginPID("pty")
	if r := w.CLI("ext", "list").OK(); !strings.Contains(r.Stdout, "tmux") {
		t.Errorf("%v", r)
	}
}

func TestFieldM3_AChangedFileOfTheStoreIsSeenAndNotRun(t *testing.T) {
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	path, digest := variant(t, w, "cotal-fakeplugin", "one")
	var got extChange
	w.CLI("ext", "install", path, "--command", honest, "--sha256", digest, "--workspace", "--json").OK().JSON(&got)
	if got.Manifest != w.Path(".cotal", manifest.FileName) {
		t.Errorf("%+v, want it in the workspace", got)
	}
	if err := os.Chmod(got.File, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(got.File, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("!"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if r := w.CLI("ext", "info", "fake").Want(1); !strings.Contains(r.Stdout, "expected sha256 "+digest) || !strings.Contains(r.Stdout, got.File) {
		t.Errorf("%v", r)
	}
	if r := w.CLI("ext", "restart", "fake").Want(1); !strings.Contains(r.Stderr, digest) {
		t.Errorf("%v", r)
	}
	w.CLI("ext", "install", path, "--command", honest, "--sha256", digest, "--workspace", "--replace").OK()
	w.CLI("ext", "info", "fake").OK()
	w.CLI("ext", "restart", "fake").OK()
}

// What is generated compiles, keeps every rule, and is installed and runs, as it is.
func TestExtNew_MakesAConnectorThatRuns(t *testing.T) {
	w := harness.New(t)
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	bin := w.Path("bin")
	agent := w.Write("bin/echo-agent", "#!/bin/sh\necho \"$1: $(cat \"$MY_ECHO_PROMPT_FILE\")\"\nexec sleep 600\n")
	if err := os.Chmod(agent, 0o755); err != nil {
		t.Fatal(err)
	}
	w.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	dir := w.Path("mine")
	var made scaffolded
	w.CLI("ext", "new", "my-echo", "--program", "echo-agent", "--dir", dir, "--sdk", root, "--json").OK().JSON(&made)
	if made.Dir != dir || !strings.Contains(strings.Join(made.Files, " "), "main_test.go") {
		t.Errorf("%+v", made)
	}
	w.CLI("ext", "new", "my-echo", "--dir", dir, "--sdk", root).Want(1)
	w.CLI("ext", "new", "My Echo", "--sdk", root).Want(2)
	w.CLI("ext", "new", "x", "--sdk", dir).Want(2)
	goRun(t, dir, "vet", "./...")
	goRun(t, dir, "test", "./...")
	goRun(t, dir, "build", "-o", "cotal-connector-my-echo", ".")
	program := filepath.Join(dir, "cotal-connector-my-echo")
	digest, err := manifest.HashFile(program)
	if err != nil {
		t.Fatal(err)
	}
	w.Start(harness.HostOptions{})
	w.CLI("ext", "install", program, "--sha256", digest).OK()
	w.Persona("parrot", "---\nname: parrot\nagent: my-echo\nlaunchOptions:\n  args: [hi]\n---\nYou repeat what you hear.\n")
	w.CLI("spawn", "parrot", "--prompt", "hello", "--detach").OK()
	harness.Eventually(t, harness.DefaultWait, "what it printed", func() (bool, string) {
		out := w.CLI("logs", "parrot").Stdout
		return strings.Contains(out, "hi: hello"), out
	})
	w.CLI("stop", "parrot").OK()
}

func TestExtNew_MakesARuntimeThatKeepsTheRules(t *testing.T) {
	w := harness.New(t)
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := w.Path("mine")
	w.CLI("ext", "new", "plot", "--kind", "runtime", "--dir", dir, "--sdk", root).OK()
	goRun(t, dir, "vet", "./...")
	goRun(t, dir, "build", "-o", "cotal-runtime-plot", ".")
	out, err := exec.Command(filepath.Join(dir, "cotal-runtime-plot"), sdk.DescribeFlag).Output()
	if err != nil || !strings.Contains(string(out), `"name": "plot"`) {
		t.Errorf("%v: %s", err, out)
	}
	// Its own test, which is the whole suite, is run in test/docs.
	w.CLI("ext", "verify", filepath.Join(dir, "cotal-runtime-plot"), "--rule", "exit-code-is-exact").OK()
}

func goRun(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOPROXY=off", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
