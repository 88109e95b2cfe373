//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk/describe"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// bundleOf makes a directory with cotal and other programs of the bundle in it, under names of their own.
func bundleOf(t *testing.T, w *harness.World, programs map[string]string, entries ...manifest.Entry) (run func(args ...string) harness.Result) {
	t.Helper()
	dir := w.Path("bundle")
	programs["cotal"] = "cotal"
	for to, from := range programs {
		text, err := os.ReadFile(filepath.Join(harness.Bin(t), from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(w.Write(filepath.Join("bundle", to), string(text)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := manifest.Write(filepath.Join(dir, manifest.FileName), entries); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) harness.Result {
		return w.Run(t.Context(), filepath.Join(dir, "cotal"), args...)
	}
}

func TestExtInstall_ByTheNameOfWhatLiesBesideCotal(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	_, plugins := bundled(t)
	var tmux manifest.Entry
	for _, e := range plugins {
		if e.Name == "tmux" {
			tmux = e
		}
	}
	run := bundleOf(t, w, map[string]string{
		"cotal-connector-command": "cotal-connector-command", "cotal-runtime-tmux": "cotal-runtime-tmux", "cotal-connector-liar": "cotal-fakeplugin",
	}, tmux)
	digest := func(program string) string {
		sum, err := manifest.HashFile(w.Path("bundle", program))
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	// What the manifest of the bundle names is installed by that, unless it was turned off.
	if r := run("ext", "install", "tmux").OK(); !strings.HasPrefix(r.Stdout, "unchanged runtime tmux") {
		t.Errorf("%v", r)
	}
	run("ext", "remove", "tmux").OK()
	if r := run("ext", "install", "tmux").OK(); !strings.HasPrefix(r.Stdout, "enabled runtime tmux 0.1.0") || strings.TrimSpace(userManifest(t, w)) != "schema = 1" {
		t.Errorf("%v\n%s", r, userManifest(t, w))
	}
	// What it does not name is installed as any other file is.
	if r := run("ext", "install", "command").Want(2); !strings.Contains(r.Stderr, "--sha256 "+digest("cotal-connector-command")) {
		t.Errorf("%v", r)
	}
	if r := run("ext", "install", "command", "--sha256", digest("cotal-connector-command")).OK(); !strings.HasPrefix(r.Stdout, "installed connector command") {
		t.Errorf("%v", r)
	}
	var info extInfo
	run("ext", "info", "command", "--json").OK().JSON(&info)
	if !info.Sound || !strings.HasPrefix(info.File, filepath.Join(w.Home, ".local", "share", "cotal", "store")+"/") {
		t.Errorf("%+v, want it in the store", info)
	}
	if r := run("ext", "install", "liar", "--sha256", digest("cotal-connector-liar")).Want(1); !strings.Contains(r.Stderr, "describes itself as connector fake 0.1.0, not as connector liar") {
		t.Errorf("%v", r)
	}
	if r := run("ext", "install", "tmux", "--kind", "connector").Want(4); !strings.Contains(r.Stderr, "./tmux") {
		t.Errorf("%v", r)
	}
	if r := run("__complete", "ext", "install", "").OK(); !strings.Contains(r.Stdout, "liar\tconnector, in the bundle") {
		t.Errorf("%v", r)
	}
}

func TestExtInstall_AsksAPersonForTheDigest(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	path, digest := variant(t, w, "cotal-fakeplugin", "asked")
	r := worldRig(t, w)
	for _, c := range []struct {
		answer string
		code   int
		want   string
	}{
		{"no\r", 1, "not confirmed; nothing was done"},
		{"", 130, "interrupted; nothing was done"},
		{"yes\r", 0, "installed connector fake 0.1.0"},
	} {
		s := r.run("ext", "install", path, "--command", honest)
		s.see("sha256 " + digest)
		s.see("Type yes to go on")
		if got := userManifest(t, w); got != "" {
			t.Errorf("before the answer:\n%s", got)
		}
		if c.answer == "" {
			if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		} else {
			s.send(c.answer)
		}
		if code, shown := s.wait(); code != c.code || !strings.Contains(shown, c.want) {
			t.Errorf("exit code %d: %q, want %d and %q", code, tail(shown), c.code, c.want)
		}
		if left, _ := filepath.Glob(filepath.Join(w.Home, ".local", "share", "cotal", "store", ".staging", "*")); len(left) > 0 {
			t.Errorf("left in staging: %v", left)
		}
	}
	if got := userManifest(t, w); !strings.Contains(got, digest) {
		t.Errorf("after yes:\n%s", got)
	}
}

// proves: M8
func TestExtInfo_NamesFilesThatOthersCanWrite(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	path, digest := variant(t, w, "cotal-fakeplugin", "open")
	var got extChange
	w.CLI("ext", "install", path, "--command", honest, "--sha256", digest, "--json").OK().JSON(&got)
	user := filepath.Join(w.Home, ".config", "cotal", manifest.FileName)
	root := filepath.Join(w.Home, ".local", "share", "cotal", "store")
	for _, c := range []struct {
		path string
		mode os.FileMode
		args []string
	}{
		{got.File, 0o777, []string{"ext", "info", "fake"}},
		{user, 0o666, []string{"ext", "info", "fake"}},
		{filepath.Dir(user), 0o777, []string{"ext", "disable", "fake"}},
		{root, 0o777, []string{"ext", "disable", "fake"}},
	} {
		st, err := os.Stat(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(c.path, c.mode); err != nil {
			t.Fatal(err)
		}
		r := w.CLI(c.args...).Want(1)
		if !strings.Contains(r.Stdout+r.Stderr, c.path) || !strings.Contains(r.Stdout+r.Stderr, "chmod") {
			t.Errorf("%s: %v", c.path, r)
		}
		if err := os.Chmod(c.path, st.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
		w.CLI("ext", "info", "fake").OK()
	}
}

func TestFieldN7_TheTextOfACatalogueIsEscaped(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: cli.NewOutput(&out)}
	var models []json.RawMessage
	for _, id := range []string{"a/b/c", "x:y", "m m", "\x1b[31mred\x07", "a\nb"} {
		raw, err := json.Marshal(modelRow{ID: id, Name: id})
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, raw)
	}
	a.printCatalog(wire.ModelCatalog{Agent: "fake\x1b[2J", Supported: true, Models: models})
	text := out.String()
	for _, want := range []string{"a/b/c", "x:y", "m m"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.ContainsAny(text, "\x1b\x07") || strings.Count(text, "\n") != 2+len(models) {
		t.Errorf("%q", text)
	}
}

func TestNeeds(t *testing.T) {
	for _, c := range []struct {
		name, form, runtime string
		unreadable          bool
		kind                describe.Kind
		plugin              string
		want                bool
	}{
		{"a seat needs its connector", `{"agent":"echo"}`, "", false, describe.Connector, "echo", true},
		{"a seat needs no other connector", `{"agent":"echo"}`, "", false, describe.Connector, "other", false},
		{"a seat needs the runtime of its form", `{"agent":"a","runtime":"tmux"}`, "pty", false, describe.Runtime, "tmux", true},
		{"a form without a runtime goes by what the seat was meant for", `{"agent":"a"}`, "tmux", false, describe.Runtime, "tmux", true},
		{"without either it is pty", `{"agent":"a"}`, "", false, describe.Runtime, "pty", true},
		{"where that cannot be read it may be any", `{"agent":"a"}`, "", true, describe.Runtime, "tmux", true},
		{"a form that cannot be read may name any", `{`, "", false, describe.Connector, "echo", true},
		{"a connector is not a runtime of that name", `{"agent":"pty"}`, "tmux", false, describe.Runtime, "pty", false},
	} {
		if got := needs([]byte(c.form), c.runtime, c.unreadable, c.kind, c.plugin); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// With several hosts in a space the host of the workspace takes what is installed in it, and no other is asked; where
// the space is named and not the workspace, nobody is.
func TestExtInstall_InASpaceOfTwoHosts(t *testing.T) {
	t.Parallel()
	a, b := harness.New(t), harness.New(t)
	broker := a.StartBroker()
	a.Start(harness.HostOptions{})
	server := []string{"--server", broker.URL, "--token-file", broker.TokenFile}
	b.Start(harness.HostOptions{Args: server})
	path, digest := variant(t, a, "cotal-fakeplugin", "two-hosts")
	install := []string{"ext", "install", path, "--command", honest, "--sha256", digest, "--json"}
	var got extChange
	a.CLI(install...).OK().JSON(&got)
	if got.Host != hostReloaded || got.PID == 0 || got.PID != a.PluginPID("fake") {
		t.Errorf("%+v", got)
	}
	for _, p := range b.Status().Plugins {
		if p.Name == "fake" {
			t.Errorf("the other host took it too: %+v", p)
		}
	}
	got = extChange{}
	b.CLI(append(install, server...)...).OK().JSON(&got)
	if got.Host != hostElsewhere || !strings.Contains(got.Note, "cotal ext reload") {
		t.Errorf("%+v", got)
	}
}
