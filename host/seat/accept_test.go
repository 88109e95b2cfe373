package seat_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A request that is wrong in every way is refused for its first fault, in the order of the contract; mended one
// fault after another, it is accepted in the end. None of the refusals took anything.
//
// proves: SPAWN-8, SPAWN-9, SPAWN-11, OUT-3, OUT-7
func TestChecksOfASpawnHaveAnOrder(t *testing.T) {
	w := newWorld(t)
	w.crash()
	w.max = 1
	w.boot()
	write := func(ref, text string) {
		t.Helper()
		if err := os.MkdirAll(persona.Dir(w.root), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(persona.Dir(w.root), ref+".md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	facts := func(set func(*sdk.Info)) {
		info := command.Info()
		info.Name = "picky"
		set(&info)
		w.plugins.mu.Lock()
		defer w.plugins.mu.Unlock()
		w.plugins.conns["picky"], w.plugins.facts["picky"] = command.Connector{}, info
	}
	w.plugins.also("other", nil)
	holder := w.run("holder", `[{"print": "up\n"}, {"hang": true}]`)
	w.eventually("the holder is counted as running", func() (bool, string) { // its goal is known to have ended a moment before
		occ := w.set.Occupancy()
		return occ.Pending == 0 && occ.Live == 1, fmt.Sprintf("%+v", occ)
	})

	bad := func(s string) *string { return &s }
	yes := true
	args := wire.SpawnArgs{
		Name: "a b", Identity: "a b", Runtime: "other", Cwd: "nowhere", Resume: bad("s"), Supervise: &wire.Supervise{Restarts: 1, WindowMs: 1},
		ResumeClaim: bad("c"), Role: "manager", Prompt: bad("p"), Events: &yes, AllowSubscribe: []string{"events.local.UABC"},
		LaunchOptions: map[string]any{"argv": []any{filepath.Join(bundle, "cotal-fakeagent"), `[{"print": "up\n"}, {"hang": true}]`}},
	}
	steps := []struct {
		name string
		code string
		says string
		mend func()
	}{
		{"a name that is no token", wire.CodeBadRequest, "only letters", func() { args.Name = "rev" }},
		{"a persona that is not there", wire.CodeNotFound, "no persona", func() { write("rev", "---\nname: rev\nagent: picky\nagnet: x\n---\n") }},
		{"a connector that is not there", wire.CodeNotFound, `no connector "picky" (the connector comes from the persona); to install one: cotal ext install picky`, func() {
			facts(func(i *sdk.Info) {
				i.Connector.ReadinessTimeoutMs, i.Connector.Requires, i.Connector.InstallHint = -1, []string{"no-such-program"}, "install it"
			})
		}},
		{"a window that is none", wire.CodeFailedPrecondition, "readiness window of -1 ms", func() {
			facts(func(i *sdk.Info) {
				i.Connector.Requires, i.Connector.InstallHint = []string{"no-such-program"}, "install it"
			})
		}},
		{"a full host", wire.CodeResourceExhausted, "all 1 seats are taken: 1 running", func() {
			if _, err := w.stop(holder, false); err != nil {
				t.Fatal(err)
			}
		}},
		{"a program that is not there", wire.CodeFailedPrecondition, "connector picky needs no-such-program, not found on this host's PATH (" + launch.ShortPath(os.Getenv("PATH")) + "); install it; or say where it is in COTAL_NO_SUCH_PROGRAM_BIN of the host", func() { facts(func(*sdk.Info) {}) }},
		{"a session to fork from", wire.CodeFailedPrecondition, "connector picky does not support resume", func() { args.Resume = nil }},
		{"supervision on a runtime that has none", wire.CodeFailedPrecondition, "supervise: seats of runtime other", func() { args.Supervise, args.Runtime = nil, "" }},
		{"a transcript of another host", wire.CodeUnimplemented, "resumeClaim", func() { args.ResumeClaim = nil }},
		{"a directory that is not there", wire.CodeFailedPrecondition, `nowhere" cannot be used`, func() { args.Cwd = "" }},
		{"an identity that is no name", wire.CodeBadRequest, "identity: ", func() { args.Identity = "rev" }},
		{"a role that only an operator gives", wire.CodeFailedPrecondition, "role manager needs the capability spawn", func() { args.Role = "x" }},
		{"a prompt for a program that takes none", wire.CodeFailedPrecondition, "connector picky does not support prompt", func() { args.Prompt = nil }},
		{"events of a program that has none", wire.CodeFailedPrecondition, "events: the connector has no event channel", func() { args.Events = nil }},
		{"the event channel of somebody", wire.CodeFailedPrecondition, `"events.local.UABC" is the event channel of local.UABC`, func() { args.AllowSubscribe = nil }},
	}
	for _, s := range steps {
		_, err := w.spawn(wire.NewID(), args)
		if code(err) != s.code || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), s.says) {
			t.Fatalf("%s: got %v (%s); want %s with %q", s.name, err, outcome(err), s.code, s.says)
		}
		if occ := w.set.Occupancy(); occ.Pending != 0 {
			t.Fatalf("%s: holds a place: %+v", s.name, occ)
		}
		s.mend()
	}
	if entries, _ := os.ReadDir(w.seatRoot); len(entries) != 0 {
		t.Errorf("refused spawns left %d seat directories", len(entries))
	}
	id := wire.NewID()
	acc, err := w.spawn(id, args)
	if err != nil || acc.Name != "rev" {
		t.Fatalf("%+v, %v", acc, err)
	}
	// A key that was mistyped is no reason to refuse; whoever asked is told.
	if len(acc.Warnings) == 0 || !strings.Contains(acc.Warnings[0], "did you mean agent?") {
		t.Errorf("warnings %q", acc.Warnings)
	}
	if r := w.terminal(id); r.State != wire.GoalSucceeded {
		t.Errorf("%+v", r)
	}
}

func launchSpec(run, space string, agent map[string]any) json.RawMessage {
	a := map[string]any{"agent": "command", "subscribe": []string{}, "allowSubscribe": []string{}, "allowPublish": []string{}, "hash": "0a1b"}
	for k, v := range agent {
		a[k] = v
	}
	raw, err := json.Marshal(map[string]any{"apiVersion": wire.LaunchVersion, "space": space, "runId": run, "agents": []any{a}})
	if err != nil {
		panic(err)
	}
	return raw
}

func (w *world) launch(id string, args wire.LaunchArgs) (wire.Acceptance, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fp, err := wire.DigestJSON(args)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.set.Launch(ctx, w.caller, id, fp, args)
}

// An agent of a run is launched from its spec alone, under the name the spec gives it; the end of its goal says
// which entry of which run it was.
//
// proves: MAN-3, MAN-5, MAN-8, MAN-9, MAN-12, SPAWN-22
func TestLaunchIsASpawnFromASpec(t *testing.T) {
	w := newWorld(t)
	agent := map[string]any{
		"name": "rev", "role": "reviewer", "body": "You review.", "subscribe": []string{"a"}, "allowSubscribe": []string{"a", "b"},
		"launchOptions": map[string]any{"argv": []any{filepath.Join(bundle, "cotal-fakeagent"), `[{"print": "up\n"}, {"hang": true}]`}},
	}
	with := func(key string, v any) map[string]any {
		a := map[string]any{}
		for k, val := range agent {
			a[k] = val
		}
		a[key] = v
		return a
	}
	ofUser := json.RawMessage(strings.Replace(string(launchSpec("run1", "main", agent)), `"runId"`, `"owner":"u_aaaaaaaaaaaaaaaaaaaaaaaaaa","runId"`, 1))
	for _, c := range []struct {
		name string
		args wire.LaunchArgs
		code string
		says string
	}{
		{"no spec", wire.LaunchArgs{RunID: "run1", Name: "rev"}, wire.CodeFailedPrecondition, "keeps no files of runs"},
		{"a spec that is none", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: json.RawMessage(`{"x":1}`)}, wire.CodeBadRequest, "spec: x is not a member of a launch spec"},
		{"another version", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: json.RawMessage(strings.Replace(string(launchSpec("run1", "main", agent)), "/v1", "/v2", 1))}, wire.CodeBadRequest, "spec: apiVersion"},
		{"another run", wire.LaunchArgs{RunID: "run2", Name: "rev", Spec: launchSpec("run1", "main", agent)}, wire.CodeBadRequest, "runId is run1, the request says run2"},
		{"another space", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "other", agent)}, wire.CodeFailedPrecondition, "space is other, this host serves main"},
		{"another owner's", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: ofUser}, wire.CodePermissionDenied, "only the owner of a spec may launch it"},
		{"no such agent", wire.LaunchArgs{RunID: "run1", Name: "nobody", Spec: launchSpec("run1", "main", agent)}, wire.CodeNotFound, "run run1 has no agent nobody"},
		{"a name that is a path", wire.LaunchArgs{RunID: "run1", Name: "../x", Spec: launchSpec("run1", "main", with("name", "../x"))}, wire.CodeBadRequest, "agents.0.name"},
		{"a capability that nobody gives", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", with("capabilities", []string{"admin"}))}, wire.CodeBadRequest, "agents.0.capabilities.0"},
		{"a pattern for a channel", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", with("allowPublish", []string{"a.>"}))}, wire.CodeBadRequest, "agents.0.allowPublish.0"},
		{"a channel that may not be read", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", with("subscribe", []string{"c"}))}, wire.CodeBadRequest, "agents.0.subscribe.0"},
		{"a session to fork from", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", with("resume", "s"))}, wire.CodeBadRequest, "agents.0.resume is not a member"},
		{"a member nobody knows", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", with("identity", "x"))}, wire.CodeBadRequest, "agents.0.identity is not a member"},
		{"the role manager without the right to spawn", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", with("role", "manager"))}, wire.CodeFailedPrecondition, "needs the capability spawn"},
		{"a connector nobody has", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", with("agent", "nope"))}, wire.CodeNotFound, "the connector comes from the launch spec"},
		{"exact continuity of a program that cannot", wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", with("continuity", "exact"))}, wire.CodeFailedPrecondition, "continuity exact"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.launch(wire.NewID(), c.args)
			if code(err) != c.code || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v (%s); want %s with %q", err, outcome(err), c.code, c.says)
			}
		})
	}
	if rows := w.set.Rows(); len(rows) != 0 {
		t.Errorf("refused launches left rows: %+v", rows)
	}
	id, args := wire.NewID(), wire.LaunchArgs{RunID: "run1", Name: "rev", Spec: launchSpec("run1", "main", agent)}
	acc, err := w.launch(id, args)
	if err != nil || acc.Name != "rev" || acc.GoalID != id {
		t.Fatalf("%+v, %v", acc, err)
	}
	if again, err := w.launch(id, args); err != nil || again.UID != acc.UID {
		t.Errorf("sent again: %+v, %v", again, err)
	}
	if row, ok, err := w.goals.Lookup(goal.KeyOf(w.caller, id)); err != nil || !ok || row.Command != wire.CmdLaunch {
		t.Errorf("the goal is recorded as one of %q (%v, %v)", row.Command, ok, err)
	}
	var data wire.SpawnResult
	if r := w.terminal(id); r.State != wire.GoalSucceeded || json.Unmarshal(r.Data, &data) != nil ||
		data.Requested != "rev" || data.RunID != "run1" || data.Hash != "0a1b" || data.ID != acc.Owner+"."+acc.Actor {
		t.Errorf("ended %+v: %s", r, r.Data)
	}
	// Its name is pinned: a second one is refused and not numbered.
	if _, err := w.launch(wire.NewID(), args); code(err) != wire.CodeFailedPrecondition || !strings.Contains(err.Error(), "rev") {
		t.Errorf("a second one: %v", err)
	}
	if _, err := os.Stat(filepath.Join(w.root, ".cotal", "run")); !os.IsNotExist(err) {
		t.Errorf("a launch wrote files: %v", err)
	}
}

// Who may act on a seat is decided first, and takes its time; whoever acts then looks whether it is still there.
//
// proves: AUTHZ-5
func TestATargetIsLookedForAgainWhenItIsActedOn(t *testing.T) {
	w := newWorld(t)
	acc := w.run("worker", `[{"print": "up\n"}, {"hang": true}]`)
	target := wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID}
	self := wire.Caller{Owner: acc.Owner, Actor: acc.Actor, UID: acc.UID}
	other := target
	other.LifecycleUID = wire.NewUID()
	if s, ok := w.set.Subject(target); !ok || s.Spawner != w.caller.Principal() || s.Name != "worker" || w.set.Stands(self) != authz.Seated {
		t.Fatalf("%+v, %v, %s", s, ok, w.set.Stands(self))
	}
	if _, ok := w.set.Subject(other); ok || w.set.Stands(w.caller) != authz.Outside {
		t.Error("another life of the same principal is taken for it")
	}
	if _, err := w.stop(acc, false); err != nil {
		t.Fatal(err)
	}
	if _, err := w.set.Input(context.Background(), target, wire.InputArgs{Text: "x"}); code(err) != wire.CodeExpired || outcome(err) != wire.OutcomeNotExecuted {
		t.Errorf("input: %v", err)
	}
	if _, err := w.set.Terminal(context.Background(), target, wire.TerminalArgs{}); code(err) != wire.CodeExpired {
		t.Errorf("terminal: %v", err)
	}
	if w.set.Stands(self) != authz.Retired {
		t.Errorf("it stands %s", w.set.Stands(self))
	}
	// It is still told of: whoever could end it may ask again how it ended.
	if s, ok := w.set.Subject(target); !ok || s.Spawner != w.caller.Principal() {
		t.Errorf("%+v, %v", s, ok)
	}
}
