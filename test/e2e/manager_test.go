//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

const standing = `[{"print": "up\n"}, {"hang": true}]`

// as connects to the host as one caller.
func as(t *testing.T, w *harness.World, caller wire.Caller) *mesh.Client {
	t.Helper()
	e := w.Endpoint()
	c, err := mesh.Connect(t.Context(), mesh.Config{URL: e.URL, TokenFile: e.TokenFile, Space: e.Space, Name: "test", Caller: caller, Timeout: harness.DefaultWait})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// ask makes one call and returns its refusal, nil for none.
func ask(t *testing.T, c *mesh.Client, call mesh.Call, out any) *wire.Error {
	t.Helper()
	call.Endpoint = wire.EndpointManager
	if call.Deadline == 0 {
		call.Deadline = harness.DefaultWait
	}
	_, err := c.Call(t.Context(), call, out)
	var refused *wire.Error
	if err != nil && !errors.As(err, &refused) {
		t.Fatalf("%s: %v", call.Command, err)
	}
	return refused
}

func targetOf(row wire.AgentRow) *wire.Target {
	owner, actor, _ := wire.ParsePrincipal(row.ID)
	return &wire.Target{Owner: owner, Actor: actor, LifecycleUID: row.LifecycleUID}
}

// TestWhoMayActOnASeatOfAnOpenSpace: whoever spawned a seat reaches it in mode owner, nobody else does; in mode
// any everybody does; a seat may end itself, and has no say once it is ending.
//
// proves: AUTHZ-3, AUTHZ-6, AUTHZ-16, FENCE-6, FENCE-12, OUT-2
func TestWhoMayActOnASeatOfAnOpenSpace(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	spawner, other := w.Mesh(), w.Mesh()
	for _, name := range []string{"one", "two", "stubborn"} {
		script := standing
		if name == "stubborn" {
			script = `[{"ignore": ["TERM", "HUP", "INT"]}, {"print": "up\n"}, {"hang": true}]`
		}
		if _, err := harness.Launch(t.Context(), spawner, w.FakeArgs(name, script)); err != nil {
			t.Fatal(err)
		}
	}
	one, two, stubborn := w.Inspect("one"), w.Inspect("two"), w.Inspect("stubborn")
	if one.Spawner != spawner.Caller().Principal() {
		t.Errorf("spawner %q, want %q", one.Spawner, spawner.Caller().Principal())
	}
	text := wire.InputArgs{Text: "x"}
	gone := *targetOf(one)
	gone.LifecycleUID = wire.NewUID()
	now := false
	for _, c := range []struct {
		name    string
		by      *mesh.Client
		command string
		mode    wire.Authz
		target  *wire.Target
		args    any
		code    string
		says    string
	}{
		{"its spawner in mode owner", spawner, wire.CmdInput, wire.AuthzOwner, targetOf(one), text, "", ""},
		{"somebody else in mode owner types", other, wire.CmdInput, wire.AuthzOwner, targetOf(one), text, wire.CodePermissionDenied, "may not input seat one"},
		{"somebody else in mode owner looks", other, wire.CmdTerminal, wire.AuthzOwner, targetOf(one), wire.TerminalArgs{}, wire.CodePermissionDenied, "may not terminal seat one"},
		{"somebody else in mode owner attaches", other, wire.CmdAttach, wire.AuthzOwner, targetOf(one), wire.AttachArgs{}, wire.CodePermissionDenied, "may not attach seat one"},
		{"somebody else in mode owner stops", other, wire.CmdDespawn, wire.AuthzOwner, targetOf(one), wire.DespawnArgs{}, wire.CodePermissionDenied, "may not despawn seat one"},
		{"a life that never was", spawner, wire.CmdDespawn, wire.AuthzOwner, &gone, wire.DespawnArgs{}, wire.CodeExpired, gone.LifecycleUID},
		{"no seat ends itself", other, wire.CmdStop, wire.AuthzSelf, nil, wire.StopArgs{}, wire.CodeExpired, "no live seat is " + other.Caller().Principal()},
		{"somebody else in mode any", other, wire.CmdDespawn, wire.AuthzAny, targetOf(two), wire.DespawnArgs{Graceful: &now, WaitForExit: true}, "", ""},
	} {
		err := ask(t, c.by, mesh.Call{Command: c.command, Authz: c.mode, Target: c.target, Args: c.args}, nil)
		switch {
		case c.code == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.code != "" && (err == nil || err.Code != c.code || err.Outcome != wire.OutcomeNotExecuted || !strings.Contains(err.Message, c.says)):
			t.Errorf("%s: got %v, want %s with %q", c.name, err, c.code, c.says)
		}
	}
	if row := w.Inspect("one"); row.Status != "running" || row.LifecycleUID != one.LifecycleUID {
		t.Errorf("one is %s", row.Status)
	}

	// As the seat itself, with its own identity.
	self := func(row wire.AgentRow) *mesh.Client {
		target := targetOf(row)
		return as(t, w, wire.Caller{Owner: target.Owner, Actor: target.Actor, UID: target.LifecycleUID})
	}
	seat := self(one)
	var reply wire.DespawnReply
	if err := ask(t, seat, mesh.Call{Command: wire.CmdStop, Authz: wire.AuthzSelf, Args: wire.StopArgs{Graceful: &now}}, &reply); err != nil || reply.Name != "one" || reply.Graceful {
		t.Errorf("stop: %+v, %v", reply, err)
	}
	w.AwaitStatus("one", "exited")
	if err := ask(t, seat, mesh.Call{Command: wire.CmdPs}, nil); err == nil || err.Code != wire.CodePermissionDenied || !strings.Contains(err.Message, "a seat that is reti") {
		t.Errorf("a seat that has ended: %v", err)
	}
	// One that takes its time to end is refused meanwhile.
	seat = self(stubborn)
	if err := ask(t, seat, mesh.Call{Command: wire.CmdStop, Authz: wire.AuthzSelf}, nil); err != nil {
		t.Error(err)
	}
	for _, call := range []mesh.Call{{Command: wire.CmdPs}, {Command: wire.CmdSpawn, Args: w.FakeArgs("child", standing)}, {Command: wire.CmdStop, Authz: wire.AuthzSelf}} {
		if err := ask(t, seat, call, nil); err == nil || err.Code != wire.CodePermissionDenied || err.Outcome != wire.OutcomeNotExecuted || !strings.Contains(err.Message, "retiring") {
			t.Errorf("%s of a seat that is ending: %v", call.Command, err)
		}
	}
	if err := ask(t, other, mesh.Call{Command: wire.CmdDespawn, Authz: wire.AuthzAny, Target: targetOf(stubborn), Args: wire.DespawnArgs{Graceful: &now, WaitForExit: true}}, nil); err != nil {
		t.Error(err)
	}
}

// TestPersonasOverTheMesh: they are defined, used and shown by who owns them; what is broken says where and how
// to mend it.
//
// proves: PERS-6, PERS-8, PERS-10, PERS-11, PERS-16
func TestPersonasOverTheMesh(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Persona("operators", "---\nname: op\nagent: command\nrole: boss\n---\nMine.\n")
	w.Persona("broken", "---\nname: broken\nagnet: [opencode]\n---\n")
	me, other := w.Mesh(), w.Mesh()
	define := func(c *mesh.Client, args wire.DefinePersonaArgs) *wire.Error {
		t.Helper()
		return ask(t, c, mesh.Call{Command: wire.CmdDefinePersona, Args: args}, nil)
	}
	script, _ := json.Marshal(w.FakeAgent(standing))
	text := "---\nlaunchOptions:\n  argv: " + string(script) + "\n---\nYou help."
	if err := define(me, wire.DefinePersonaArgs{Name: "helper", Persona: text, Agent: "command", Role: "aide"}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		by   *mesh.Client
		args wire.DefinePersonaArgs
		says string
	}{
		"somebody else's":    {other, wire.DefinePersonaArgs{Name: "helper", Persona: "x"}, "belongs to " + me.Caller().Principal()},
		"the operator's":     {me, wire.DefinePersonaArgs{Name: "operators", Persona: "x"}, "edit the file"},
		"one that is broken": {me, wire.DefinePersonaArgs{Name: "broken", Persona: "x"}, "did you mean agent?; it stays as it is"},
		"a right":            {me, wire.DefinePersonaArgs{Name: "mighty", Persona: "---\ncapabilities: [spawn]\n---\nx"}, "given by the operator alone"},
		"a path":             {me, wire.DefinePersonaArgs{Name: "../escape", Persona: "x"}, "is not a name"},
	} {
		if err := define(c.by, c.args); err == nil || err.Code != wire.CodeFailedPrecondition || err.Outcome != wire.OutcomeNotExecuted || !strings.Contains(err.Message, c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if files, _ := os.ReadDir(w.Path(".cotal", "agents")); len(files) != 3 {
		t.Errorf("the directory holds %v", files)
	}
	var agent wire.ResolveAgentReply
	if err := ask(t, other, mesh.Call{Command: wire.CmdResolveAgent, Args: wire.ResolveAgentArgs{Name: "helper", DefaultAgent: "opencode"}}, &agent); err != nil || agent.Agent != "command" {
		t.Errorf("resolve-agent: %+v, %v", agent, err)
	}
	var show wire.PersonaRow
	if err := ask(t, me, mesh.Call{Command: wire.CmdShowPersona, Args: wire.NameArgs{Name: "helper"}}, &show); err != nil ||
		show != (wire.PersonaRow{Name: "helper", Role: "aide", Owner: me.Caller().Principal(), Persona: "You help."}) {
		t.Errorf("show-persona: %+v, %v", show, err)
	}
	for _, name := range []string{"helper", "broken", "nobody"} {
		if err := ask(t, other, mesh.Call{Command: wire.CmdShowPersona, Args: wire.NameArgs{Name: name}}, nil); err == nil || err.Code != wire.CodeNotFound {
			t.Errorf("show-persona %s of somebody else: %v", name, err)
		}
	}
	var list wire.ListPersonasReply
	if err := ask(t, other, mesh.Call{Command: wire.CmdListPersonas}, &list); err != nil || len(list.Personas) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	if b := list.Personas[0]; b.Name != "broken" || !strings.Contains(b.Error, "broken.md: line 3: agnet") || !strings.Contains(b.Error, "did you mean agent?") {
		t.Errorf("broken: %+v", b)
	}
	if list.Personas[1] != (wire.PersonaRow{Name: "helper"}) || list.Personas[2] != (wire.PersonaRow{Name: "operators", Role: "boss"}) {
		t.Errorf("list: %+v", list.Personas)
	}
	// Whoever defined it, it can be started; a file that does not say what it should names line, key and remedy.
	l, err := harness.Launch(t.Context(), other, wire.SpawnArgs{Name: "helper"})
	if err != nil || l.Result.Name != "helper" || l.Result.Role != "aide" {
		t.Errorf("spawn: %+v, %v", l, err)
	}
	if err := ask(t, me, mesh.Call{Command: wire.CmdSpawn, Args: wire.SpawnArgs{Name: "broken"}}, nil); err == nil || err.Code != wire.CodeFailedPrecondition ||
		!strings.Contains(err.Message, "line 3: agnet is not a known key") || !strings.Contains(err.Message, "did you mean agent?") {
		t.Errorf("spawn of a broken one: %v", err)
	}
	if err := harness.Despawn(t.Context(), me, l.Acceptance); err != nil {
		t.Error(err)
	}
}

// TestCataloguesAndPlaces: models has a row for each connector of the manifest, and resolve-cwd tells where a
// directory really is.
//
// proves: CAT-1, CAT-2, CAT-3, SPAWN-17
func TestCataloguesAndPlaces(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Setenv("PATH", "/usr/bin:/bin") // no OpenCode
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	var models wire.ModelsReply
	if err := ask(t, c, mesh.Call{Command: wire.CmdModels}, &models); err != nil {
		t.Fatal(err)
	}
	rows := map[string]wire.ModelCatalog{}
	for _, r := range models.Catalogs {
		rows[r.Agent] = r
	}
	if r, ok := rows["command"]; !ok || r.Supported || r.Error != "" || r.Models == nil {
		t.Errorf("command: %+v", r)
	}
	if r := rows["opencode"]; !r.Supported || !strings.Contains(r.Error, "opencode") || len(r.Models) != 0 {
		t.Errorf("opencode: %+v", r)
	}
	for agent, code := range map[string]string{"command": "", "opencode": wire.CodeUnavailable, "nosuch": wire.CodeNotFound} {
		err := ask(t, c, mesh.Call{Command: wire.CmdModels, Args: wire.ModelsArgs{Agent: agent}}, nil)
		if (err == nil) != (code == "") || err != nil && (err.Code != code || err.Outcome != wire.OutcomeNotExecuted) {
			t.Errorf("models of %s: %v", agent, err)
		}
	}

	if err := os.Mkdir(w.Path("deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.Write("file", "x")
	if err := os.Symlink(w.Path("deep"), w.Path("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(w.Path("nowhere"), w.Path("dangling")); err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	for cwd, want := range map[string]string{w.Path("link"): w.Path("deep"), w.Root + "/./link/..": w.Root, "/": "/"} {
		var reply wire.ResolveCwdReply
		if err := ask(t, c, mesh.Call{Command: wire.CmdResolveCwd, Args: wire.ResolveCwdArgs{Cwd: cwd}}, &reply); err != nil || reply != (wire.ResolveCwdReply{Cwd: want, Host: host}) {
			t.Errorf("%s: %+v, %v; want %s", cwd, reply, err, want)
		}
	}
	for _, cwd := range []string{"deep", "./deep", "~", w.Path("nowhere"), w.Path("file"), w.Path("dangling"), w.Path("deep") + "/\x00"} {
		if err := ask(t, c, mesh.Call{Command: wire.CmdResolveCwd, Args: wire.ResolveCwdArgs{Cwd: cwd}}, nil); err == nil || err.Code != wire.CodeFailedPrecondition || err.Outcome != wire.OutcomeNotExecuted {
			t.Errorf("%q: %v", cwd, err)
		}
	}
	if _, err := os.Lstat(w.Path("nowhere")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a directory that was asked for was made")
	}
}

// TestPurgeClearsHistoryAndNothingElse: channels always, direct messages when told, seats never.
//
// proves: PURGE-1
func TestPurgeClearsHistoryAndNothingElse(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	row := w.SpawnFake("worker", standing)
	c := w.Mesh()
	for range 3 {
		if _, err := c.SendChannel(t.Context(), "general", "hello"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.SendDirect(t.Context(), row.ID, "psst"); err != nil {
		t.Fatal(err)
	}
	purge := func(dms bool) (reply wire.PurgeReply) {
		t.Helper()
		if err := ask(t, c, mesh.Call{Command: wire.CmdPurge, Args: wire.PurgeArgs{IncludeDMs: dms}}, &reply); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if r := purge(false); r.Chat != 3 || r.DM != nil {
		t.Errorf("purged %+v", r)
	}
	if r := purge(true); r.Chat != 0 || r.DM == nil || *r.DM != 1 {
		t.Errorf("purged with direct messages %+v", r)
	}
	if again := w.Inspect("worker"); again.Status != "running" || again.PID != row.PID {
		t.Errorf("the seat is %+v", again)
	}
}
