//go:build linux

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// bundled is what the bundle of the tests holds, sorted by kind and name as the host tells of it.
func bundled(t *testing.T) (*manifest.Manifest, []manifest.Entry) {
	t.Helper()
	bundle, err := manifest.Load(filepath.Join(harness.Bin(t), manifest.FileName))
	if err != nil {
		t.Fatal(err)
	}
	return bundle, slices.SortedFunc(slices.Values(bundle.Entries), func(a, b manifest.Entry) int {
		return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Name, b.Name))
	})
}

// each joins a line about each of the plugins.
func each(plugins []manifest.Entry, line func(manifest.Entry) string, sep string) string {
	var lines []string
	for _, p := range plugins {
		lines = append(lines, line(p))
	}
	return strings.Join(lines, sep)
}

func TestExt_RestartSparesSeatsAndNamesWhatItDid(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	_, plugins := bundled(t)
	w.Start(harness.HostOptions{})
	seat := w.Spawn("worker", "sleep", "600")
	for _, name := range []string{"pty", "command"} {
		old := w.PluginPID(name)
		var reply wire.PluginRestartReply
		w.CLI("ext", "restart", name, "--json").OK().JSON(&reply)
		if reply.Name != name || reply.OldPID != old || reply.PID == old || reply.PID == 0 || reply.Version == "" {
			t.Errorf("%+v, want pid %d replaced", reply, old)
		}
		w.AwaitGone(old)
	}
	if row := w.Inspect("worker"); row.PID != seat.PID || row.Status != "running" {
		t.Errorf("the seat: %+v", row)
	}
	if r := w.CLI("ext", "restart", "pty").OK(); !strings.HasPrefix(r.Stdout, "restarted runtime pty ") || strings.Count(r.Stdout, "\n") != 1 {
		t.Errorf("%v", r)
	}
	names := strings.Fields(each(plugins, func(p manifest.Entry) string { return p.Name }, " "))
	slices.Sort(names)
	if r := w.CLI("ext", "restart", "ptty").Want(4); !strings.Contains(r.Stderr, strings.Join(names, ", ")) {
		t.Errorf("%v", r)
	}
	w.CLI("ext", "restart").Want(2)
	w.CLI("ext", "restart", "pty", "--kind", "seat").Want(2)
	w.CLI("ext", "nonsense").Want(2)

	r := w.CLI("ext", "list").OK()
	for i, line := range strings.Split(r.Stdout, "\n")[:len(plugins)+1] {
		if i == 0 && !strings.HasPrefix(line, "NAME") || i > 0 && !strings.HasPrefix(line, plugins[i-1].Name+" ") {
			t.Errorf("line %d: %v", i+1, r)
		}
	}
	lines := strings.Split(strings.TrimSpace(w.CLI("ext", "list", "--json").OK().Stdout), "\n")
	seen := map[string]wire.PluginStatus{}
	for _, line := range lines {
		var p wire.PluginStatus
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		seen[p.Name] = p
	}
	if p := seen["pty"]; p.Kind != "runtime" || p.State != "ready" || p.Restarts != 2 || p.Crash != "" {
		t.Errorf("pty: %+v", p)
	}
	want := each(plugins, func(p manifest.Entry) string { return fmt.Sprintf("%s\t%s, ready\n", p.Name, p.Kind) }, "") + ":4\n"
	harness.Eventually(t, harness.DefaultWait, "each plugin is offered, ready", func() (bool, string) {
		r := w.CLI("__complete", "ext", "restart", "").OK()
		return r.Stdout == want, r.String()
	})
	w.CLI("stop", "worker").OK()
}

func TestExt_ReloadAppliesTheManifestWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	seat := w.Spawn("worker", "sleep", "600")
	path := w.Path(".cotal", manifest.FileName)
	bundle, plugins := bundled(t)
	entry, ok := bundle.Find(sdk.KindConnector, "command")
	if !ok {
		t.Fatal("the bundle has no connector command")
	}
	before := w.PluginPID("command")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := func(digest, more string) string {
		return fmt.Sprintf("schema = 1\n[[plugin]]\nname = \"command\"\nkind = \"connector\"\ncommand = %q\nversion = %q\nsha256 = %q\n%s\n", entry.Command, entry.Version, digest, more)
	}
	for _, c := range []struct{ name, text, want string }{
		{"an unknown key", text(entry.SHA256, "colour = 1"), `unknown key "colour"`},
		{"no TOML", "schema = ", path},
		{"another digest", text(strings.Repeat("0", 64), ""), "expected sha256 000"},
		{"a configuration it refuses", text(entry.SHA256, "[plugin.config]\nno = \"such\""), `entry connector "command"`},
		{"a removal of what a seat needs", text(entry.SHA256, "enabled = false"), "needed by seat worker"},
	} {
		put(c.text)
		r := w.CLI("ext", "reload").Want(1)
		if !strings.Contains(r.Stderr, c.want) || !strings.Contains(r.Stderr, "nothing was changed") || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s: %v", c.name, r)
		}
		if got := w.PluginPID("command"); got != before {
			t.Errorf("%s: the process is another", c.name)
		}
	}
	put(text(entry.SHA256, "env = [\"EXTRA\"]"))
	var reply wire.PluginReloadReply
	w.CLI("ext", "reload", "--json").OK().JSON(&reply)
	var got []string
	for _, p := range reply.Plugins {
		got = append(got, p.Name+" "+p.Change)
	}
	want := each(plugins, func(p manifest.Entry) string {
		return p.Name + map[bool]string{true: " changed", false: " unchanged"}[p.Name == "command"]
	}, ", ")
	if text := strings.Join(got, ", "); reply.Path != path || text != want {
		t.Errorf("%+v, want %s", reply, want)
	}
	w.AwaitGone(before)
	if row := w.Inspect("worker"); row.PID != seat.PID || row.Status != "running" {
		t.Errorf("the seat: %+v", row)
	}
	w.CLI("stop", "worker").OK()
	put(text(entry.SHA256, "enabled = false"))
	if r := w.CLI("ext", "reload").OK(); !strings.Contains(r.Stdout, "removed   connector command") || !strings.Contains(r.Stdout, fmt.Sprintf("1 of %d plugins changed", len(plugins))) {
		t.Errorf("%v", r)
	}
	w.CLI("spawn", "--agent", "command", "--name", "x", "--detach", "--", "true").Want(4)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r := w.CLI("ext", "reload").OK(); !strings.Contains(r.Stdout, "added     connector command") {
		t.Errorf("%v", r)
	}
	w.Spawn("y", "sleep", "600")
	w.CLI("stop", "--now", "y").OK()
}

func TestPluginsInTroubleSayWhatToDo(t *testing.T) {
	var out bytes.Buffer
	if err := printPlugins(&out, []wire.PluginStatus{
		{Name: "good", Kind: "runtime", State: "ready", PID: 7},
		{Name: "bad", Kind: "connector", State: "quarantined", Restarts: 5, Reason: "it ended\x1b[31m", Fix: "repair it", Crash: "/x/crash.log"},
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"good", "quarantined", `reason    bad: it ended\x1b[31m`, "to do     bad: repair it", "crash log bad: /x/crash.log"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "good: ") {
		t.Errorf("trouble with one that has none:\n%s", out.String())
	}
}
