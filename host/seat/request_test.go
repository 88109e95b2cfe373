package seat_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// recording is the command connector with every feature; it remembers what it was asked to launch.
type recording struct {
	command.Connector
	mu    sync.Mutex
	asked []sdk.LaunchRequest
	fail  error
}

func (r *recording) BuildLaunch(ctx context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, req)
	if r.fail != nil {
		return sdk.LaunchSpec{}, errors.Join(r.fail, os.WriteFile(filepath.Join(req.Dir, "carrier"), []byte("x"), 0o600))
	}
	req.Model, req.Variant, req.Prompt, req.Resume, req.Continue = "", "", "", "", ""
	spec, err := r.Connector.BuildLaunch(ctx, req)
	spec.Env = sdk.SetEnv(spec.Env, "COTAL_MANAGER_INSTANCE=mine-now")
	return spec, err
}

func (r *recording) last(t *testing.T) sdk.LaunchRequest {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.asked) == 0 {
		t.Fatal("no launch was built")
	}
	return r.asked[len(r.asked)-1]
}

// record gives the world a connector that records.
func (w *world) record() *recording {
	r := &recording{}
	info := command.Info()
	info.Name = "recording"
	f := &info.Connector
	f.SupportsResume, f.SupportsModel, f.SupportsModelVariant, f.SupportsPrompt, f.EventChannel = true, true, true, true, true
	w.plugins.mu.Lock()
	defer w.plugins.mu.Unlock()
	w.plugins.conns["recording"], w.plugins.facts["recording"] = r, info
	return r
}

func (w *world) agentFile(ref, text string) string {
	w.t.Helper()
	path := filepath.Join(persona.Dir(w.root), ref+".md")
	if err := errors.Join(os.MkdirAll(persona.Dir(w.root), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// A connector is told everything it may build from, the same of the host for a persona and for a spec; and what
// it makes of that, the seat's environment says whose it is.
//
// proves: LAUNCH-1, LAUNCH-2, LAUNCH-3, LAUNCH-4, LAUNCH-8, EVENT-2, SPAWN-15, MULTI-10
func TestWhatAConnectorIsToldOfALaunch(t *testing.T) {
	w := newWorld(t)
	rec := w.record()
	out := filepath.Join(w.dir, "env")
	argv := []any{"/bin/sh", "-c", "env > " + out + ".tmp && mv " + out + ".tmp " + out + " && sleep 600"}
	if err := os.Mkdir(filepath.Join(w.root, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := w.agentFile("review", "---\nname: rev\nrole: reviewer\nagent: recording\nmodel: m/1\nvariant: low\ncwd: sub\nsubscribe: [a]\nallowSubscribe: [a, b]\nallowPublish: [c]\ncapabilities: [spawn]\nlaunchOptions: {env: {K: v}}\n---\nYou review.\n")
	high, session, prompt := "high", "s1", "go"
	id := wire.NewID()
	acc, err := w.spawn(id, wire.SpawnArgs{
		Name: "review", Variant: &high, Resume: &session, Prompt: &prompt, LaunchOptions: map[string]any{"argv": argv}, AllowPublish: []string{"d"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := w.terminal(id); r.State != wire.GoalSucceeded {
		t.Fatalf("%+v", r)
	}
	row, got := w.row("rev"), rec.last(t)
	principal := acc.Owner + "." + acc.Actor
	env := got.BaseEnv
	want := sdk.LaunchRequest{
		SeatID: row.SeatID, InstanceID: w.instanceID, Space: "main", Name: "rev", Role: "reviewer", Principal: principal, LifecycleUID: acc.UID,
		PersonaPath: path, Persona: "You review.", Model: "m/1", Variant: "high", Prompt: "go", Resume: "s1",
		LaunchOptions: map[string]any{"env": map[string]any{"K": "v"}, "argv": argv}, WorkspaceRoot: w.root, Cwd: filepath.Join(w.root, "sub"),
		Dir: got.Dir, BaseEnv: env, Binaries: map[string]string{},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("told %+v\nwant %+v", got, want)
	}
	if filepath.Dir(got.Dir) != filepath.Join(w.seatRoot, row.SeatID) {
		t.Errorf("its directory is %s", got.Dir)
	}
	for _, kv := range []string{
		"COTAL_SPACE=main", "COTAL_NAME=rev", "COTAL_ROLE=reviewer", "COTAL_ID=" + principal, "COTAL_LIFECYCLE_UID=" + acc.UID,
		"COTAL_AGENT_FILE=" + path, "COTAL_MODEL=m/1", "COTAL_VARIANT=high", "COTAL_SUBSCRIBE=a", "COTAL_ALLOW_SUBSCRIBE=a,b",
		"COTAL_ALLOW_PUBLISH=d,events." + principal, "COTAL_CAPABILITIES=spawn", "COTAL_EVENTS=1", "COTAL_WORKSPACE_ROOT=" + w.root,
		"COTAL_MANAGER_INSTANCE=" + w.instanceID,
	} {
		if !slices.Contains(env, kv) {
			t.Errorf("the environment lacks %s", kv)
		}
	}
	var seen string
	w.eventually("the program wrote its environment", func() (bool, string) {
		raw, err := os.ReadFile(out)
		seen = string(raw)
		return err == nil, ""
	})
	if !strings.Contains(seen, "COTAL_MANAGER_INSTANCE="+w.instanceID+"\n") {
		t.Errorf("the connector's word counts:\n%s", seen)
	}
	var phases []string
	w.events.mu.Lock()
	for _, e := range w.events.all[id] {
		phases = append(phases, e.Phase)
	}
	w.events.mu.Unlock()
	if !slices.Equal(phases, []string{wire.PhaseHandoff, wire.PhaseLaunched, wire.PhaseTerminal}) {
		t.Errorf("phases %q", phases)
	}
	raw, _ := os.ReadFile(path)
	var record struct {
		Form launch.Form `json:"form"`
	}
	text, err := os.ReadFile(filepath.Join(w.seatRoot, row.SeatID, "intent.json"))
	if err != nil || json.Unmarshal(text, &record) != nil || record.Form.PersonaDigest != wire.Digest(raw) || record.Form.PersonaPath != path {
		t.Errorf("recorded %s, %v", text, err)
	}

	// A spec says all there is to the seat, and nothing of the host.
	id = wire.NewID()
	if _, err := w.launch(id, wire.LaunchArgs{RunID: "run1", Name: "planned", Spec: launchSpec("run1", "main", map[string]any{
		"name": "planned", "agent": "recording", "body": "You plan.", "prompt": "start", "cwd": "sub", "launchOptions": map[string]any{"argv": []any{"/bin/sleep", "600"}},
	})}); err != nil {
		t.Fatal(err)
	}
	if r := w.terminal(id); r.State != wire.GoalSucceeded {
		t.Fatalf("%+v", r)
	}
	spec := rec.last(t)
	if spec.Persona != "You plan." || spec.PersonaPath != "" || spec.Prompt != "start" || spec.Resume != "" || spec.Name != "planned" {
		t.Errorf("told %+v", spec)
	}
	if spec.Space != got.Space || spec.InstanceID != got.InstanceID || spec.WorkspaceRoot != got.WorkspaceRoot || spec.Cwd != got.Cwd || spec.Servers != got.Servers || !reflect.DeepEqual(spec.Binaries, got.Binaries) {
		t.Errorf("the host told another story: %+v", spec)
	}
}

// What a connector made for a launch goes with the launch that fails.
//
// proves: LAUNCH-10
func TestWhatWasMadeForAFailedLaunchIsRemoved(t *testing.T) {
	w := newWorld(t)
	rec := w.record()
	rec.fail = errors.New("cannot be built")
	id := wire.NewID()
	args := w.args("x", `[]`)
	args.Agent = "recording"
	if _, err := w.spawn(id, args); err != nil {
		t.Fatal(err)
	}
	if r := w.terminal(id); r.State != wire.GoalFailed || r.Error == nil || !strings.Contains(r.Error.Message, "cannot be built") || r.Error.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(rec.last(t).Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the launch's directory: %v", err)
	}
}

// The policy is read for every spawn, where every way of launching passes, and a configuration that cannot be
// read refuses what it might have refused.
//
// proves: MODEL-1, MODEL-2, MODEL-3
func TestTheModelPolicyIsReadForEverySpawn(t *testing.T) {
	w := newWorld(t)
	w.record()
	w.agentFile("rev", "---\nname: rev\nrole: reviewer\nagent: recording\nmodel: m/old\n---\n")
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(w.root, ".cotal", "config.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(says string, spawn func() (wire.Acceptance, error)) {
		t.Helper()
		_, err := spawn()
		if code(err) != wire.CodeFailedPrecondition || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
	args := wire.SpawnArgs{Name: "rev"}
	configure("[modelPolicy.reviewer]\nmodels = [\"m/new\"]\n")
	refused("model m/old of its definition is not what role reviewer may run on: m/new; nothing was launched",
		func() (wire.Acceptance, error) { return w.spawn(wire.NewID(), args) })
	refused("agent planned of run run1: role reviewer may run on model m/new only", func() (wire.Acceptance, error) {
		return w.launch(wire.NewID(), wire.LaunchArgs{RunID: "run1", Name: "planned", Spec: launchSpec("run1", "main", map[string]any{"name": "planned", "agent": "recording", "role": "reviewer"})})
	})
	configure("[modelPolicy.reviewer]\nmodel = \"m/old\"\n")
	refused("modelPolicy.reviewer.model is not a known key", func() (wire.Acceptance, error) { return w.spawn(wire.NewID(), args) })
	if occ := w.set.Occupancy(); occ.Live+occ.Pending != 0 || len(w.set.Rows()) != 0 {
		t.Errorf("refused spawns left %+v", occ)
	}
	configure("[modelPolicy.reviewer]\nmodels = [\"m/old\"]\n")
	id := wire.NewID()
	if _, err := w.spawn(id, args); err != nil {
		t.Errorf("the edit does not count: %v", err)
	}
	w.terminal(id) // a program it was not told of: how it ends does not matter here
}

// scopes is a ledger.
type scopes map[string][]string

func (s scopes) Scope(_ context.Context, principal string) ([]string, error) {
	return s[principal], nil
}

// In a space of users a seat is its caller's, and the event plane is armed by who may.
//
// proves: AUTHZ-19, AUTHZ-20, AUTHZ-24, EVENT-3, PERS-9
func TestASpawnInASpaceOfUsers(t *testing.T) {
	const anna, bert = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa", "u_bbbbbbbbbbbbbbbbbbbbbbbbbb"
	w := newWorld(t)
	w.crash()
	w.policy = authz.Policy{Regime: authz.User, Ledger: scopes{bert + ".op": {"admin"}}}
	w.boot()
	w.record()
	run := []any{"/bin/sleep", "600"}
	script, _ := json.Marshal(run)
	w.agentFile("annas", "---\nname: annas\nagent: recording\nowner: "+anna+"\nlaunchOptions: {argv: "+string(script)+"}\n---\n")
	yes := true
	by := func(owner, actor string, args wire.SpawnArgs) (string, wire.Acceptance, error) {
		w.caller = wire.Caller{Owner: owner, Actor: actor, UID: wire.NewUID()}
		id := wire.NewID()
		acc, err := w.spawn(id, args)
		return id, acc, err
	}
	if _, _, err := by("local", "OP", wire.SpawnArgs{Name: "x", Identity: "x", Agent: "recording"}); code(err) != wire.CodePermissionDenied || !strings.Contains(err.Error(), "log in first") {
		t.Errorf("a caller that is no user: %v", err)
	}
	if _, _, err := by(bert, "lead", wire.SpawnArgs{Name: "annas"}); code(err) != wire.CodeNotFound || !strings.Contains(err.Error(), "no persona") {
		t.Errorf("a persona of somebody else: %v", err)
	}
	if _, _, err := by(anna, "lead", wire.SpawnArgs{Name: "annas", Events: &yes}); code(err) != wire.CodePermissionDenied || outcome(err) != wire.OutcomeNotExecuted {
		t.Errorf("events without the scope: %v", err)
	}
	end := func(id string) (data wire.SpawnResult) {
		t.Helper()
		r := w.terminal(id)
		if r.State != wire.GoalSucceeded || json.Unmarshal(r.Data, &data) != nil {
			t.Fatalf("%+v", r)
		}
		return data
	}
	id, acc, err := by(anna, "lead", wire.SpawnArgs{Name: "annas"})
	if err != nil || acc.Owner != anna || !slices.Contains(acc.Warnings, authz.EventsNotice) {
		t.Fatalf("%+v, %v", acc, err)
	}
	if data := end(id); data.EventsNotice != authz.EventsNotice || !strings.HasPrefix(data.ID, anna+".") {
		t.Errorf("ended with %+v", data)
	}
	id, acc, err = by(bert, "op", wire.SpawnArgs{Name: "annas", Events: &yes})
	if err != nil || acc.Owner != bert || len(acc.Warnings) != 0 {
		t.Fatalf("%+v, %v", acc, err)
	}
	if data := end(id); data.EventsNotice != "" {
		t.Errorf("ended with %+v", data)
	}
}
