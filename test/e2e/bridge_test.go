package e2e

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// bridged is a bridge with the real material of a seat, and a program that speaks MCP with it. The program in the seat
// itself does nothing.
type bridged struct {
	*bridge.Bridge
	l   bridge.Launch
	t   *testing.T
	mcp *mcp.ClientSession
}

func bridgeOf(t *testing.T, w *harness.World, row wire.AgentRow, opts bridge.Options) *bridged {
	t.Helper()
	l, err := bridge.ReadLaunch(filepath.Join(w.SeatRoot, row.SeatID, "launch", "material.json"), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	b := bridge.Start(l, opts)
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.Server("test").Run(context.Background(), &mcp.IOTransport{Reader: toServer, Writer: fromServer})
	}()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "program", Version: "1"}, nil).
		Connect(t.Context(), &mcp.IOTransport{Reader: toClient, Writer: fromClient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
		b.Close()
	})
	ctx, cancel := context.WithTimeout(t.Context(), harness.DefaultWait)
	defer cancel()
	if err := b.Joined(ctx); err != nil {
		t.Fatal(err)
	}
	return &bridged{b, l, t, s}
}

func (b *bridged) try(name string, args map[string]any) (text string, ok bool) {
	b.t.Helper()
	r, err := b.mcp.CallTool(b.t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return err.Error(), false
	}
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text += t.Text
		}
	}
	return text, !r.IsError
}

func (b *bridged) call(name string, args map[string]any) string {
	b.t.Helper()
	text, ok := b.try(name, args)
	if !ok {
		b.t.Fatalf("%s: %s", name, text)
	}
	return text
}

// An agent that may do so asks its host for team mates and stops them, and nobody else's; any agent ends itself.
//
// proves: CLI-6
func TestBridge_AnAgentAsksItsHostForATeamMate(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Persona("lead", "---\nname: lead\nagent: command\nrole: lead\ncapabilities: [spawn]\nsubscribe: [team]\nallowSubscribe: [team]\n---\nYou lead.\n")
	w.Persona("mate", "---\nname: mate\nagent: command\n---\nYou help.\n")
	w.Start(harness.HostOptions{})
	c, roster := watchPresence(t, w)
	hang := map[string]any{"argv": w.FakeAgent(`[{"hang": true}]`)}
	for _, name := range []string{"lead", "other"} {
		args := wire.SpawnArgs{Name: name, LaunchOptions: hang}
		if name == "other" {
			args = w.FakeArgs(name, `[{"hang": true}]`)
		}
		if _, err := harness.Launch(t.Context(), c, args); err != nil {
			t.Fatal(err)
		}
	}
	row := w.Inspect("lead")
	lead := bridgeOf(t, w, row, bridge.Options{})
	p := awaitPresence(t, roster, "the seat joins", func(p wire.Presence) bool { return p.Card.ID == row.ID })
	if p.LifecycleUID != row.LifecycleUID || p.Card.Role != "lead" || p.Card.MetaString("connector") != "command" {
		t.Errorf("it appears as %+v", p)
	}
	if text := lead.call("cotal_orientation", nil); !strings.Contains(text, "Capabilities: spawn") || !strings.Contains(text, "manager") {
		t.Errorf("orientation: %s", text)
	}
	if text := lead.call("cotal_spawn", map[string]any{"name": "mate", "role": "tester", "launchOptions": hang}); !strings.Contains(text, "is there") {
		t.Errorf("spawn: %s", text)
	}
	if mate := w.Inspect("mate"); mate.Status != "running" || mate.Role != "tester" || mate.Spawner != row.ID {
		t.Errorf("the team mate: %+v", mate)
	}
	if text, ok := lead.try("cotal_spawn", map[string]any{"name": "nobody"}); ok || !strings.Contains(text, "nobody") {
		t.Errorf("a persona that is not there: %v, %s", ok, text)
	}
	lead.call("cotal_persona", map[string]any{"name": "scribe", "prompt": "You write.", "announce": "team"})
	if text := lead.call("cotal_personas", nil); !strings.Contains(text, `"scribe"`) || !strings.Contains(text, `"mate"`) {
		t.Errorf("personas: %s", text)
	}
	if text := lead.call("cotal_personas", map[string]any{"name": "scribe"}); !strings.Contains(text, "You write.") {
		t.Errorf("a persona: %s", text)
	}
	if text := lead.call("cotal_history", map[string]any{"channel": "team"}); !strings.Contains(text, "scribe") {
		t.Errorf("the announcement: %s", text)
	}
	if text, ok := lead.try("cotal_despawn", map[string]any{"name": "other"}); ok || !strings.Contains(text, "spawned") {
		t.Errorf("somebody else's seat: %v, %s", ok, text)
	}
	lead.call("cotal_despawn", map[string]any{"name": "mate", "graceful": false})
	w.AwaitStatus("mate", "exited")
	other := w.Inspect("other")
	alone := bridgeOf(t, w, other, bridge.Options{})
	tools, err := alone.mcp.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools {
		if tool.Name == "cotal_spawn" || tool.Name == "cotal_persona" || tool.Name == "cotal_personas" {
			t.Errorf("an agent that may not spawn is shown %s", tool.Name)
		}
	}
	if text, ok := alone.try("cotal_despawn", map[string]any{"name": "lead"}); ok {
		t.Errorf("an agent that may not stop others is heard: %s", text)
	}
	alone.call("cotal_despawn", map[string]any{"graceful": false})
	w.AwaitStatus("other", "exited")
}

// A program that knows nothing of the mesh is a seat that is ready by presence, reads what is sent to it, and is gone
// from the mesh when it is stopped.
func TestBridge_AnyProgramIsReadyByPresence(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.UsePresence(0)
	w.Start(harness.HostOptions{})
	c, roster := watchPresence(t, w)
	args := w.PresenceArgs("reader", "[]")
	args.LaunchOptions = map[string]any{"argv": []any{
		filepath.Join(w.Bin, "cotal-bridge"), "run", "--messages", "stdin", "--text", "--", "/bin/sh", "-c", `while read x; do echo "heard $x"; done`,
	}}
	l, err := harness.Launch(t.Context(), c, args)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.SendDirect(t.Context(), l.Result.ID, "good morning"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.DefaultWait, "the program reads its message", func() (bool, string) {
		out := w.CLI("logs", "reader").Stdout
		return strings.Contains(out, "heard watcher: good morning"), out
	})
	w.CLI("stop", "reader").OK()
	awaitPresence(t, roster, "it says goodbye", func(p wire.Presence) bool { return p.Card.ID == l.Result.ID && p.Status == wire.StatusOffline })
}

// An idle agent whose program has nothing better is told of a message by a line in its terminal, with nothing in it
// that somebody else wrote.
func TestBridge_AnIdleAgentIsToldThroughItsHost(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	c, _ := watchPresence(t, w)
	if _, err := harness.Launch(t.Context(), c, w.FakeArgs("rev", `[{"print": "up\n"}, {"lines": {"reply": "got {line}\n"}}]`)); err != nil {
		t.Fatal(err)
	}
	row := w.Inspect("rev")
	rev := bridgeOf(t, w, row, bridge.Options{WakeByHost: true})
	if _, err := c.SendDirect(t.Context(), row.ID, "rm -rf"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.DefaultWait, "the agent is told", func() (bool, string) {
		out := w.CLI("logs", "rev").Stdout
		return strings.Contains(out, "got There is a message for you"), out
	})
	if out := w.CLI("logs", "rev").Stdout; strings.Contains(out, "rm -rf") {
		t.Errorf("what somebody wrote was typed: %s", out)
	}
	if text := rev.call("cotal_inbox", nil); !strings.Contains(text, "rm -rf") {
		t.Errorf("the message it was told of: %s", text)
	}
}

// What the program of a seat tells is in the rows of its host: what it does, what it waits for, and how that is known.
//
// proves: SEAT-6
func TestBridge_StateIsInTheRows(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.SpawnFake("rev", `[{"hang": true}]`)
	rev := bridgeOf(t, w, w.Inspect("rev"), bridge.Options{})
	for _, c := range []struct {
		name, event, text    string
		mesh, code, by, list string
		inspect              string
	}{
		{"before anything is told", "", "", "idle", "", "", "idle", "mesh         idle\n"},
		{"a turn", "UserPromptSubmit", `{}`, "working", "", "hook", "working", "known by a hook of its program"},
		{"a question", "PermissionRequest", `{"tool_name":"Bash"}`, "waiting", "approval", "hook", "waiting (approval)", "waiting (approval): Bash, PermissionRequest; known by a hook of its program"},
		{"what its server says", "status", `{"status":"working","activity":"reading","source":"turn/started"}`, "working", "", "program", "working", "activity     reading\n"},
		{"a failure", "StopFailure", `{"error":"overloaded_error"}`, "idle", "overloaded", "hook", "idle (overloaded)", "overloaded_error"},
	} {
		if c.event != "" {
			if err := bridge.Tell(t.Context(), rev.l, bridge.ParseEvent(c.event, []byte(c.text))); err != nil {
				t.Fatal(err)
			}
		}
		harness.Eventually(t, harness.DefaultWait, c.name, func() (bool, string) {
			row := w.Inspect("rev")
			code := ""
			if row.Condition != nil {
				code = row.Condition.Code
			}
			return row.MeshView == mesh.ViewCurrent && row.Mesh == c.mesh && row.MeshBy == c.by && code == c.code, fmt.Sprintf("%s (%s) by %q, %q", row.Mesh, row.MeshView, row.MeshBy, code)
		})
		if out := w.CLI("ps").Stdout; !strings.Contains(out, c.list) {
			t.Errorf("%s: ps says\n%s", c.name, out)
		}
		if out := w.CLI("inspect", "rev").Stdout; !strings.Contains(out, c.inspect) {
			t.Errorf("%s: inspect says\n%s", c.name, out)
		}
	}
}

// The command connector puts its program on the mesh by an option, for as long as it runs, and gives it its messages.
func TestBridge_AProgramIsOnTheMeshByAnOption(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Persona("watcher", "---\nname: watcher\nagent: command\nlaunchOptions:\n  argv: [sh, -c, 'read x; echo \"got $x\"; exit 3']\n  mesh: stdin\n  meshFormat: text\n---\n")
	w.Start(harness.HostOptions{})
	c, roster := watchPresence(t, w)
	l, err := harness.Launch(t.Context(), c, wire.SpawnArgs{Name: "watcher"})
	if err != nil {
		t.Fatal(err)
	}
	awaitPresence(t, roster, "it joins", func(p wire.Presence) bool {
		return p.Card.ID == l.Result.ID && p.Status == wire.StatusWorking && p.Activity == "sh" && p.Card.MetaString(wire.MetaStateBy) == bridge.ByProcess
	})
	if _, err := c.SendDirect(t.Context(), l.Result.ID, "good\nmorning"); err != nil {
		t.Fatal(err)
	}
	row := w.AwaitStatus("watcher", "exited")
	if row.Exit == nil || row.Exit.Code == nil || *row.Exit.Code != 3 || row.Exit.Last != "got watcher: good morning" {
		t.Errorf("it ended with %+v", row.Exit)
	}
	awaitPresence(t, roster, "it says goodbye", func(p wire.Presence) bool { return p.Card.ID == l.Result.ID && p.Status == wire.StatusOffline })
}

// Whoever is on the mesh comes back with it: the host is killed, and with it the server inside it, while two agents talk.
func TestBridge_AgentsTalkOnWhenTheirHostWasKilled(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	for _, name := range []string{"ann", "bob"} {
		w.SpawnFake(name, `[{"hang": true}]`)
	}
	ann, bob := bridgeOf(t, w, w.Inspect("ann"), bridge.Options{}), bridgeOf(t, w, w.Inspect("bob"), bridge.Options{})
	sends := func(text string) {
		t.Helper()
		said := ""
		harness.Eventually(t, harness.DefaultWait, "ann sends "+text, func() (bool, string) {
			var ok bool
			said, ok = ann.try("cotal_dm", map[string]any{"to": bob.l.ID, "text": text})
			return ok, said
		})
	}
	reads := func(text string) {
		t.Helper()
		harness.Eventually(t, harness.DefaultWait, "bob reads "+text, func() (bool, string) {
			said, _ := bob.try("cotal_inbox", nil)
			return strings.Contains(said, text), said
		})
	}
	sends("before")
	h.Kill()
	if text, ok := ann.try("cotal_dm", map[string]any{"to": bob.l.ID, "text": "meanwhile"}); ok {
		t.Errorf("a message without a server is said to be sent: %s", text)
	}
	w.Start(harness.HostOptions{})
	reads("before")
	sends("behind")
	reads("behind")
	harness.Eventually(t, harness.DefaultWait, "both are in the rows", func() (bool, string) {
		a, b := w.Inspect("ann"), w.Inspect("bob")
		return a.Mesh == wire.StatusIdle && b.Mesh == wire.StatusIdle && a.MeshView == mesh.ViewCurrent, fmt.Sprintf("%s, %s (%s)", a.Mesh, b.Mesh, a.MeshView)
	})
}

// Whoever is at the terminal of a program that gets its messages on its input can type into it and end its input.
func TestBridge_APersonTypesIntoAProgramBesideItsMessages(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	c, _ := watchPresence(t, w)
	args := w.FakeArgs("echo", "[]")
	args.LaunchOptions = map[string]any{"argv": []any{"sh", "-c", `while read x; do echo "heard $x"; done; echo over`}, "mesh": "stdin", "meshFormat": "text"}
	l, err := harness.Launch(t.Context(), c, args)
	if err != nil {
		t.Fatal(err)
	}
	hears := func(text string) {
		t.Helper()
		harness.Eventually(t, harness.DefaultWait, "it hears "+text, func() (bool, string) {
			out := w.CLI("logs", "echo").Stdout
			return strings.Contains(out, "heard "+text), out
		})
	}
	w.CLI("input", "echo", "--text", "typed").OK()
	hears("typed")
	if _, err := c.SendDirect(t.Context(), l.Result.ID, "sent"); err != nil {
		t.Fatal(err)
	}
	hears("watcher: sent")
	w.CLI("input", "echo", "--keys", "ctrl-d").OK()
	if row := w.AwaitStatus("echo", "exited"); row.Exit == nil || row.Exit.Last != "over" {
		t.Errorf("it ended with %+v", row.Exit)
	}
}
