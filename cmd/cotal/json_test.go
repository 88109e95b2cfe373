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
		if args[0] == "personas" || args[0] == "ext" || args[0] == "auth" {
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
	t.Run("a text that cannot be written was lost with exit code 0", func(t *testing.T) { loseOutput(t, w) })
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
	keys := t.TempDir() // of a workspace whose host is not running
	w.Host("auth", "export", "--root", keys).OK()
	run(0, "auth", "status", "--root", keys)
	run(0, "auth", "rotate", "--root", keys)
	w = harness.NewAuthenticated(t)
	w.Start(harness.HostOptions{})
	w.Spawn("sleeper", "sleep", "600")
	run(0, "slots")
	run(0, "auth", "mint", "observer", "--output", w.Path("watch.creds"))
	for path := range outputs {
		if !tried[path] {
			t.Errorf("%s was not tried", path)
		}
	}
}

// loseOutput runs commands whose output takes nothing: each says so, and what it did.
func loseOutput(t *testing.T, w *harness.World) {
	bin := harness.Bin(t)
	for command, want := range map[string]string{
		"cotal ps": "", "cotal ps --all": "", "cotal ps --json": "", "cotal inspect reviewer": "", "cotal status": "", "cotal roster": "", "cotal roster --watch": "", "cotal ps --watch": "", "cotal models": "",
		"cotal describe": "", "cotal personas list": "", "cotal personas show reviewer": "", "cotal ext list": "", "cotal version": "", "cotal ps --help": "",
		"cotal-host status": "", "cotal logs bad": "", "cotal goal --help": "",
		"cotal personas define lost --agent command --prompt x":       "lost.md was written, and only",
		"cotal spawn --agent command --name lost -- sleep 600":        "lost was spawned (end it: cotal stop lost), and only",
		"cotal spawn --json --agent command --name lost2 -- sleep 60": "lost2 was spawned (end it: cotal stop lost2), and only",
		"cotal input reviewer --text x":                               "2 bytes of input went to reviewer, and only",
		"cotal send team hello":                                       "the message was sent, and only",
	} {
		r := w.Run(t.Context(), "sh", "-c", "exec "+filepath.Join(bin, command)+" >/dev/full").Want(1)
		if !strings.Contains(r.Stderr, want+" the output is lost: ") || !strings.Contains(r.Stderr, "write /dev/stdout: no space left on device") {
			t.Errorf("%v", r)
		}
	}
	r := w.Run(t.Context(), "sh", "-c", "exec "+filepath.Join(bin, "cotal stop lost lost2 --now")+" >/dev/full").Want(1)
	if !strings.Contains(r.Stderr, "lost, lost2 ended, and only the output is lost: ") {
		t.Errorf("%v", r)
	}
}
