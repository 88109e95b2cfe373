//go:build linux

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Every line that a command prints with --json against a real host is what docs/cli.md says of it.
func TestJSON_IsWhatTheDocumentationSays(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Persona("reviewer", "---\nname: reviewer\nagent: command\ndescription: reads\nrole: review\nlaunchOptions:\n  argv: [sleep, \"600\"]\n---\nYou read.\n")
	tried := map[string]bool{}
	run := func(code int, args ...string) string {
		t.Helper()
		path := "cotal " + args[0]
		if of := outputs[path+" "+args[min(1, len(args)-1)]]; of != nil {
			path += " " + args[1]
		}
		r := w.CLI(append([]string{args[0], "--json"}, args[1:]...)...)
		if args[0] == "personas" || args[0] == "ext" {
			r = w.CLI(append(args, "--json")...)
		}
		r.Want(code)
		if code == 0 && r.Stdout == "" {
			t.Errorf("nothing was printed: %v", r)
		}
		for text := range strings.Lines(r.Stdout) {
			tried[path] = true
			checkLine(t, text, outputs[path])
		}
		return r.Stdout
	}
	join(t, w, "ann")
	run(0, "version")
	run(0, "status")
	end := jsonLines[spawned](t, lastLines(run(0, "spawn", "reviewer"), 1)[0])[0]
	run(1, neverReady("bad", "echo one; exit 3")...)
	run(0, "goal", end.GoalID)
	run(0, "goal", end.GoalID, "--follow")
	run(75, "goal", "nobody-knows-this-one")
	run(0, "ps")
	run(0, "ps", "--all")
	run(0, "inspect", "reviewer")
	run(0, "input", "reviewer", "--text", "x")
	harness.Eventually(t, harness.DefaultWait, "its output is kept", func() (bool, string) {
		r := w.CLI("logs", "--json", "bad")
		return r.Code == 0 && r.Stdout != "", r.String()
	})
	run(0, "logs", "bad")
	run(0, "models")
	run(0, "personas", "list")
	run(0, "personas", "show", "reviewer")
	run(0, "personas", "define", "writer", "--agent", "command", "--prompt", "You write.")
	run(0, "roster")
	run(0, "send", "team", "hello")
	run(0, "send", "@reviewer", "hello")
	run(0, "history", "team")
	run(0, "describe")
	run(0, "describe", "spawn")
	run(0, "invoke", "manager", "status")
	run(0, "invoke", "manager", "ps", "--all")
	run(0, "stop", "reviewer")
	run(0, "stop", "bad")
	run(0, "purge", "--yes", "--include-dms")
	run(0, "ext", "list")
	run(0, "ext", "restart", "command")
	run(0, "ext", "reload")
	plugin := filepath.Join(harness.Bin(t), "cotal-fakeplugin")
	digest, err := manifest.HashFile(plugin)
	if err != nil {
		t.Fatal(err)
	}
	honest := []string{plugin, "--command", "cotal-fakeplugin--honest-connector", "--sha256", digest}
	run(0, append([]string{"ext", "install"}, honest...)...)
	run(0, "ext", "info")
	run(0, append([]string{"ext", "upgrade", "fake"}, honest...)...)
	run(0, "ext", "disable", "fake")
	run(0, "ext", "enable", "fake")
	run(0, "ext", "remove", "fake")
	run(0, "ext", "rollback", "fake")
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	run(0, "ext", "new", "mine", "--sdk", root, "--dir", w.Path("mine"))
	for path := range outputs {
		if !tried[path] {
			t.Errorf("%s was not tried", path)
		}
	}
}
