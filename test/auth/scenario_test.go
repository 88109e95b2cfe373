//go:build linux

package auth

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// said waits until a file has a text.
func said(t *testing.T, path, text string) {
	t.Helper()
	harness.Eventually(t, patience, text+" is in "+filepath.Base(path), func() (bool, string) {
		b, _ := os.ReadFile(path)
		return strings.Contains(string(b), text), string(b)
	})
}

// Two agents, one that joins by itself and one that a bridge puts on the mesh, talk, each with a credential of its own;
// the host dies under them and comes back; every command is used with the operator's credential.
//
// proves: PROV-2, CRED-15, DOWN-10
func TestScenario_TwoAgentsAndTheirOperatorLiveThroughTheDeathOfTheirHost(t *testing.T) {
	t.Parallel()
	w := harness.NewAuthenticated(t)
	w.UsePresence(0)
	w.Persona("helper", "---\nname: helper\nagent: command\n---\nYou help.\n")
	r := over(t, w, harness.HostOptions{})
	c := r.Mesh()
	team := []string{"team"}
	inbox, heard, first, second := filepath.Join(r.Dir, "inbox"), filepath.Join(r.Dir, "heard"), filepath.Join(r.Dir, "first"), filepath.Join(r.Dir, "second")
	ann := r.PresenceArgs("ann", fmt.Sprintf(`[{"join": {}}, {"hear": {"channel": "team", "file": %q}}, {"say": {"channel": "team", "text": "ann is here"}},
		{"inbox": {"file": %q}}, {"waitFile": %q}, {"say": {"channel": "team", "text": "ann goes on"}}, {"inbox": {"file": %q}}, {"waitFile": %q}, {"hang": true}]`,
		heard, inbox, first, inbox, second))
	bob := r.FakeArgs("bob", `[{"print": "up\n"}, {"lines": {"reply": "got {line}\n"}}]`)
	bob.LaunchOptions["mesh"] = "stdin"
	var rows []wire.AgentRow
	for _, args := range []wire.SpawnArgs{ann, bob} {
		args.Subscribe, args.AllowSubscribe, args.AllowPublish = team, team, team
		if _, err := harness.Launch(t.Context(), c, args); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r.AwaitStatus(args.Name, "running"))
	}
	harness.Eventually(t, patience, "both are on the mesh", func() (bool, string) {
		a, b := r.Inspect("ann"), r.Inspect("bob")
		return a.Mesh != "" && b.Mesh != "", a.Mesh + ", " + b.Mesh
	})

	creds := map[string][]byte{}
	private := func() {
		t.Helper()
		for i, row := range rows {
			path, text := r.credential(row)
			file, err := os.Stat(path)
			dir, derr := os.Stat(filepath.Dir(path))
			if err != nil || derr != nil || file.Mode().Perm() != 0o600 || dir.Mode().Perm() != 0o700 {
				t.Errorf("the credential of %s is %v in %v: %v, %v", row.Name, file, dir, err, derr)
			}
			for _, other := range rows[:i] {
				if _, hers := r.credential(other); bytes.Equal(text, hers) {
					t.Errorf("%s and %s have one credential", row.Name, other.Name)
				}
			}
			if was, ok := creds[row.Name]; ok && !bytes.Equal(was, text) {
				t.Errorf("the credential of %s was written again before it was due", row.Name)
			}
			creds[row.Name] = text
		}
	}
	private()
	talk := func(word string) {
		t.Helper()
		r.CLI("send", "@ann", "for ann: "+word).OK()
		said(t, inbox, "for ann: "+word)
		r.CLI("send", "@bob", "for bob: "+word).OK()
		harness.Eventually(t, patience, "the bridge brings "+word, func() (bool, string) {
			out := r.CLI("logs", "bob").OK().Stdout
			return strings.Contains(out, "for bob: "+word), out
		})
		r.CLI("send", "team", "for all: "+word).OK()
		said(t, heard, "for all: "+word)
		harness.Eventually(t, patience, "history", func() (bool, string) {
			out := r.CLI("history", "team").OK().Stdout
			return strings.Contains(out, "ann is here") && strings.Contains(out, "for all: "+word), out
		})
	}
	talk("one")

	r.host.Kill()
	r.start(harness.HostOptions{})
	r.connected()
	for i, row := range rows {
		again := r.AwaitStatus(row.Name, "running")
		if again.PID != row.PID || again.LifecycleUID != row.LifecycleUID || again.ID != row.ID {
			t.Errorf("behind the restart %s is %+v, was %+v", row.Name, again, rows[i])
		}
	}
	private()
	if err := writeFile(first, ""); err != nil {
		t.Fatal(err)
	}
	said(t, heard, "ann goes on")
	talk("two")

	r.everyCommand(t)

	// A name is free as soon as the command has returned that ended its seat, and its next life is another one.
	r.CLI("stop", "bob").OK()
	r.Spawn("bob", r.FakeAgent(`[{"print": "up\n"}, {"hang": true}]`)...)
	if again := r.Inspect("bob"); again.LifecycleUID == rows[1].LifecycleUID || again.ID == rows[1].ID {
		t.Errorf("the next bob is the one before: %+v", again)
	}
	r.Run(t.Context(), filepath.Join(r.Bin, "cotal-host"), "stop", "--with-agents", "--root", r.Root).OK()
	if _, ok := r.host.WaitExit(patience); !ok {
		t.Error("the host does not end")
	}
	r.AssertNothingLeft()
	left, err := filepath.Glob(r.Path(".cotal", "auth", "creds", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if !strings.Contains(path, "operator") {
			t.Errorf("the credential of a seat that is gone is left: %s", path)
		}
	}
}

// everyCommand uses each command of the client once, as anybody does who stands in the workspace.
func (r *rig) everyCommand(t *testing.T) {
	t.Helper()
	for _, line := range []string{
		"ps", "ps --json", "ps --all", "status", "status --json", "inspect ann", "inspect bob --json", "logs ann", "roster", "roster --json", "history team --json",
		"send @ann hello", "send team hello", "describe", "describe ps --json", "personas list", "personas show helper", "ext list", "ext info command",
		"invoke manager ps", "input bob --text typed", "spawn helper --detach -- /bin/sleep 3600", "inspect helper", "stop helper", "slots", "auth status", "version", "purge --yes",
	} {
		if res := r.CLI(strings.Fields(line)...); res.Code != 0 {
			t.Errorf("with the operator's credential: %v", res)
		}
	}
	if res := r.Host("status"); res.Code != 0 {
		t.Errorf("with the operator's credential: %v", res)
	}
	if res := r.Host("doctor"); res.Code != 0 {
		t.Errorf("doctor: %v", res)
	}
}
