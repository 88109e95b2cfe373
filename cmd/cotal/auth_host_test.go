//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// With a host that serves with credentials, every command does with the operator's what it does in an open space: over
// a restart of the host too, as the same caller. What runs in a seat calls as the seat, and is told what it may not.
func TestCotalOverACredential(t *testing.T) {
	t.Parallel()
	w := harness.NewAuthenticated(t)
	h := w.Start(harness.HostOptions{})
	w.Persona("reviewer", "---\nname: reviewer\nagent: command\nallowPublish: [general]\nlaunchOptions:\n  argv: [sh]\n---\nYou read.\n")
	spawned := jsonLines[spawned](t, lastLines(w.CLI("spawn", "reviewer", "--json").OK().Stdout, 1)[0])[0]
	row := w.Inspect("reviewer")
	slots := func() []wire.SlotRow {
		t.Helper()
		return jsonLines[wire.SlotRow](t, w.CLI("slots", "--json").OK().Stdout)
	}
	if s := slots(); len(s) != 1 || s[0].SlotLifecycleUID != row.LifecycleUID || s[0].SlotPhase != wire.SlotActive || !s[0].Live || s[0].Runtime.ID != row.SeatID || s[0].HeadState != wire.LifeActive {
		t.Errorf("slots of a seat that runs: %+v", s)
	}
	has := func(args string, want string) {
		t.Helper()
		if r := w.CLI(strings.Fields(args)...).OK(); !strings.Contains(r.Stdout, want) {
			t.Errorf("%s says nothing of %q: %v", args, want, r)
		}
	}
	has("status", "credentials are well\n")
	has("roster", "manager@")
	has("send team hello", "sent to team")
	has("send @reviewer hello", "sent to @reviewer")
	has("describe", "slots")
	has("describe spawn", "The answer says that the goal is accepted")
	has("invoke manager status", "instanceId")
	has("invoke manager ps --all", "reviewer")
	has("ps --all", "reviewer")
	has("personas list", "reviewer")
	has("models", "")
	has("input reviewer --text true", "to reviewer")
	has("goal "+spawned.GoalID, wire.GoalSucceeded)
	for args, want := range map[string]string{"attach r": "reviewer", "history t": "team", "--on x": w.Endpoint().InstanceID} {
		harness.Eventually(t, harness.DefaultWait, args+" is completed", func() (bool, string) { // a host that is slow completes nothing
			r := w.CLI(append([]string{"__complete"}, strings.Fields(args)...)...)
			return strings.Contains(r.Stdout, want), r.String()
		})
	}
	var readers sync.WaitGroup
	for range 4 { // of one principal
		readers.Go(func() { has("history team", "hello") })
	}
	readers.Wait()
	if kept, _ := filepath.Glob(filepath.Join(w.Home, ".local/state/cotal/operator/*")); len(kept) > 0 {
		t.Errorf("an identity is kept beside the credential: %q", kept)
	}

	// In the seat.
	w.CLI("input", "reviewer", "--text", `export PATH="`+w.Bin+`:$PATH"; cotal send general "it is me"; cotal send secret hush; cotal ps; echo "$COTAL_CREDS" is it`).OK()
	harness.Eventually(t, harness.DefaultWait, "the commands in the seat end", func() (bool, string) {
		r := w.CLI("logs", "reviewer")
		return strings.Contains(r.Stdout, row.LifecycleUID+".creds is it"), r.String()
	})
	said := w.CLI("logs", "reviewer").OK().Stdout
	for _, want := range []string{"sent to general", "send message to secret: this caller may not write to that channel", "does not permit this caller to publish on cotal.main.ep."} {
		if !strings.Contains(strings.ReplaceAll(strings.ReplaceAll(said, "\n", ""), "\r", ""), want) {
			t.Errorf("the seat is not told %q: %s", want, said)
		}
	}
	if msgs := jsonLines[historyRow](t, w.CLI("history", "general", "--json").OK().Stdout); len(msgs) != 1 || msgs[0].From.ID != row.ID {
		t.Errorf("the seat spoke as %+v", msgs)
	}

	h.Kill()
	if r := w.CLI("ps").Want(3); !strings.Contains(r.Stderr, "cotal-host serve --root") {
		t.Errorf("the way to start it again: %v", r)
	}
	w.Start(harness.HostOptions{})
	has("goal "+spawned.GoalID, wire.GoalSucceeded)
	has("ps", "reviewer")
	has("stop reviewer", "stopped reviewer")
	harness.Eventually(t, harness.DefaultWait, "its name is free", func() (bool, string) {
		r := w.CLI("slots")
		return r.Stdout == "(no name is held)\n", r.String()
	})
	has("purge --yes --include-dms", "deleted 2 channel messages and 1 direct message")
}

// A credential that cannot be used is an error that says what to do.
func TestACredentialThatCannotBeUsedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	w := harness.NewAuthenticated(t)
	w.Start(harness.HostOptions{})
	e := w.Endpoint()
	open := w.Write("open.creds", read(t, e.CredsFile))
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	token := w.Write("token", "x")
	if err := os.Chmod(token, 0o600); err != nil {
		t.Fatal(err)
	}
	other := harness.NewAuthenticated(t)
	other.Start(harness.HostOptions{})
	for name, c := range map[string]struct {
		args string
		code int
		says string
	}{
		"that of another space's keys": {"--creds " + other.Endpoint().CredsFile, 1, "is not good there"},
		"one that others can read":     {"--creds " + open, 1, "chmod 600 " + open},
		"one that is not there":        {"--creds " + open + ".gone", 1, "open.creds.gone"},
		"a token instead":              {"--token-file " + token, 1, "or that of a credential with --creds or COTAL_CREDS"},
		"both":                         {"--token-file " + token + " --creds " + e.CredsFile, 2, "exclude each other"},
		"none, of a server":            {"--server " + e.URL, 1, "no token was sent"},
	} {
		r := w.CLI(strings.Fields("ps " + c.args)...)
		if r.Code != c.code || !strings.Contains(r.Stderr, c.says) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s: %v", name, r)
		}
	}
	w.CLI("ps", "--server", e.URL, "--creds", e.CredsFile).OK()
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
