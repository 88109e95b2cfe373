//go:build linux

package wire

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// members reads an object and fails unless it has all that are required and no other than those and the
// optional ones. No value may be null.
func (r *rig) members(what string, data json.RawMessage, required, optional string) map[string]any {
	r.t.Helper()
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		r.t.Fatalf("%s is no object: %s", what, data)
	}
	may := append(strings.Fields(required), strings.Fields(optional)...)
	for _, name := range strings.Fields(required) {
		if _, ok := m[name]; !ok {
			r.t.Errorf("%s has no %s: %s", what, name, data)
		}
	}
	for name, v := range m {
		if !slices.Contains(may, name) {
			r.t.Errorf("%s has %s, which is in no contract: %s", what, name, data)
		}
		if v == nil {
			r.t.Errorf("%s.%s is null: %s", what, name, data)
		}
	}
	return m
}

const (
	rowRequired = "name id agent space mode status uptimeMs mesh lifecycleUid"
	rowOptional = "role condition activeAt meshView offlineSince authHealth authReason model variant provider cwd pid spawner instanceId host resume " +
		"seatId seatPid goalId attached output startedAt exit reason" // the second line are additions of this host
	acceptRequired = "name owner actor uid goalId fingerprint executor"
	acceptOptional = "readinessDeadlineMs warnings"
)

// TestEachCommandAnswersAsTheContractHasIt calls every command right, on every rail it has, and reads the
// answers.
//
// proves: INPUT-1
func TestEachCommandAnswersAsTheContractHasIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Persona("scribe", "---\nname: scribe\nagent: command\nrole: writer\nlaunchOptions:\n  argv: [cat]\n---\nYou write.\n")
	a := r.recorder("victim", "typed")
	r.victim = a.seat()

	t.Run("status", func(t *testing.T) {
		r := r.under(t)
		m := r.members("status", r.must(r.request("status", nil)),
			"instanceId runtime custody agentCount uptimeMs classSpawn connectors", "staticReconciliation version space pid epoch plugins foreignSeats occupancy lease")
		if m["instanceId"] != r.instance || m["agentCount"] != 1.0 || m["classSpawn"] != true || m["custody"] != "custodied" {
			t.Errorf("status %v", m)
		}
		states := map[any]any{}
		for _, c := range m["connectors"].([]any) {
			row := r.members("connector", json.RawMessage(text(c)), "agent state binaries", "reason")
			if _, ok := row["binaries"].(map[string]any); !ok || row["state"] == "unavailable" && row["reason"] == nil {
				t.Errorf("connector %v", row)
			}
			states[row["agent"]] = row["state"]
		}
		if states["command"] != "available" {
			t.Errorf("connectors are %v", states)
		}
	})
	t.Run("ps", func(t *testing.T) {
		r := r.under(t)
		var rows []json.RawMessage
		r.into(r.request("ps", map[string]any{}), &rows)
		if len(rows) != 1 {
			t.Fatalf("%d rows", len(rows))
		}
		m := r.members("row", rows[0], rowRequired, rowOptional)
		if m["name"] != "victim" || m["id"] != r.victim.principal() || m["lifecycleUid"] != r.victim.uid || m["status"] != "running" || m["spawner"] != r.me.principal() {
			t.Errorf("row %v", m)
		}
		for _, mode := range []string{"inst", "all"} {
			var again []map[string]any
			r.into(r.request("ps", nil).on(mode), &again)
			if len(again) != 1 || again[0]["lifecycleUid"] != r.victim.uid {
				t.Errorf("on the rail %s: %v", mode, again)
			}
		}
	})
	t.Run("instances", func(t *testing.T) {
		r := r.under(t)
		m := r.members("instances", r.must(r.request("instances", nil)), "instances", "")
		all := m["instances"].([]any)
		if len(all) != 1 {
			t.Fatalf("instances %v", m)
		}
		row := r.members("instance", json.RawMessage(text(all[0])), "instanceId epoch registrationRevision", "")
		if row["instanceId"] != r.instance || row["epoch"] != float64(r.epoch) {
			t.Errorf("instance %v", row)
		}
	})
	t.Run("slots, of which an open space has none", func(t *testing.T) {
		r := r.under(t)
		if p := r.call(r.request("slots", nil)); p.OK || p.Error == nil || p.Error.Code != "failed-precondition" {
			t.Errorf("slots: %+v", p)
		}
	})
	t.Run("inspect", func(t *testing.T) {
		r := r.under(t)
		m := r.members("row", r.must(r.request("inspect", map[string]any{"name": "victim"})), rowRequired, rowOptional)
		if m["lifecycleUid"] != r.victim.uid {
			t.Errorf("row %v", m)
		}
	})
	t.Run("a request that is bound to who answers", func(t *testing.T) {
		r := r.under(t)
		q := r.request("ps", nil)
		q.body["bind"] = map[string]any{"instanceId": r.instance, "epoch": r.epoch}
		r.must(q)
		r.must(q.on("inst"))
	})
	t.Run("members nobody knows in the envelope are ignored", func(t *testing.T) {
		r := r.under(t)
		q := r.request("ps", nil)
		q.body["later"] = map[string]any{"x": []any{1, nil}}
		q.body["correlation"] = map[string]any{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		q.body["auth"] = "opaque"
		q.header.Set("Nats-Msg-Id", "x")
		r.must(q)
	})
	t.Run("terminal", func(t *testing.T) {
		r := r.under(t)
		m := r.members("terminal", r.must(r.request("terminal", map[string]any{}).at("owner", r.victim)), "name runtime seatId", "argv snapshot reason")
		if m["name"] != "victim" || m["runtime"] != "pty" {
			t.Errorf("terminal %v", m)
		}
	})
	t.Run("input and nudge", func(t *testing.T) {
		r := r.under(t)
		for _, mode := range []string{"owner", "any"} {
			m := r.members("input", r.must(r.request("input", map[string]any{"text": "hé"}).at(mode, r.victim)), "name bytes", "")
			if m["name"] != "victim" || m["bytes"] != 4.0 { // three bytes and the Return
				t.Errorf("input %v", m)
			}
		}
		r.must(r.request("input", map[string]any{"text": "x", "enter": false}).at("any", r.victim))
		r.must(r.request("input", map[string]any{"text": "y", "enter": true}).at("any", r.victim))
		q := r.request("nudge", map[string]any{"text": "look"}).as(r.victim)
		q.authz = []string{"self"}
		if m := r.members("nudge", r.must(q), "name bytes", ""); m["name"] != "victim" || m["bytes"] != 5.0 {
			t.Errorf("nudge %v", m)
		}
		r.awaitTyped("typed", "hé\rhé\rxy\rlook\r")
	})
	t.Run("models", func(t *testing.T) {
		r := r.under(t)
		m := r.members("models", r.must(r.request("models", nil)), "catalogs", "")
		for _, c := range m["catalogs"].([]any) {
			row := c.(map[string]any)
			if _, ok := row["models"].([]any); !ok || row["agent"] == "" {
				t.Errorf("catalog %v", row)
			}
		}
		m = r.members("models", r.must(r.request("models", map[string]any{"agent": "command"})), "catalogs", "")
		if rows := m["catalogs"].([]any); len(rows) != 1 || rows[0].(map[string]any)["agent"] != "command" {
			t.Errorf("models of one connector: %v", m)
		}
	})
	t.Run("resolve-cwd", func(t *testing.T) {
		r := r.under(t)
		if err := os.Symlink(r.Root, r.Path("link")); err != nil {
			t.Fatal(err)
		}
		m := r.members("resolve-cwd", r.must(r.request("resolve-cwd", map[string]any{"cwd": r.Root + "/link/../ws"})), "cwd host", "")
		if m["cwd"] != r.Root || m["host"] == "" {
			t.Errorf("resolve-cwd %v, want %s", m, r.Root)
		}
	})
	t.Run("resolve-agent", func(t *testing.T) {
		r := r.under(t)
		m := r.members("resolve-agent", r.must(r.request("resolve-agent", map[string]any{"name": "scribe"})), "agent", "")
		if m["agent"] != "command" {
			t.Errorf("resolve-agent %v", m)
		}
	})
	t.Run("personas", func(t *testing.T) {
		r := r.under(t)
		m := r.members("define-persona", r.must(r.request("define-persona", map[string]any{"name": "helper", "persona": "You help.", "agent": "command", "role": "aide"})), "name path", "")
		if m["name"] != "helper" || !strings.HasSuffix(fmt.Sprint(m["path"]), "helper.md") {
			t.Errorf("define-persona %v", m)
		}
		m = r.members("show-persona", r.must(r.request("show-persona", map[string]any{"name": "helper"})), "name", "role model description owner persona error")
		if m["owner"] != r.me.principal() && m["owner"] != r.me.owner || m["role"] != "aide" || !strings.Contains(fmt.Sprint(m["persona"]), "You help.") {
			t.Errorf("show-persona %v", m)
		}
		m = r.members("list-personas", r.must(r.request("list-personas", nil)), "personas", "")
		var names []string
		for _, p := range m["personas"].([]any) {
			names = append(names, p.(map[string]any)["name"].(string))
		}
		if slices.Sort(names); !slices.Equal(names, []string{"helper", "scribe"}) {
			t.Errorf("list-personas %v", names)
		}
	})
	t.Run("purge", func(t *testing.T) {
		r := r.under(t)
		if m := r.members("purge", r.must(r.request("purge", nil)), "chat", ""); m["chat"] != 0.0 {
			t.Errorf("purge %v", m)
		}
		r.members("purge", r.must(r.request("purge", map[string]any{"includeDms": true})), "chat dm", "")
	})
	t.Run("launch", func(t *testing.T) {
		r := r.under(t)
		data := r.must(r.request("launch", map[string]any{"runId": "run1", "name": "planned", "spec": r.launchSpec("run1", "planned")}))
		m := r.members("launch", data, acceptRequired, acceptOptional)
		var b acceptance
		if err := json.Unmarshal(data, &b); err != nil || r.terminal(b.GoalID) != "succeeded" {
			t.Errorf("launch %v: %s", m, r.goal(b.GoalID))
		}
		r.despawn(b.seat())
	})
	t.Run("stop", func(t *testing.T) {
		r := r.under(t)
		b := r.spawn("quitter", idle)
		q := r.request("stop", map[string]any{"graceful": false}).as(b.seat())
		q.authz = []string{"self"}
		m := r.members("stop", r.must(q), "name stopped graceful", "report")
		if m["name"] != "quitter" || m["graceful"] != false {
			t.Errorf("stop %v", m)
		}
		harness.Eventually(t, patience, "the seat has ended", func() (bool, string) {
			row, ok := r.rows()["quitter"]
			return !ok || row["status"] == "exited", text(row)
		})
	})
	t.Run("plugin-restart", func(t *testing.T) {
		r := r.under(t)
		m := r.members("plugin-restart", r.must(r.request("plugin-restart", map[string]any{"name": "command"})), "name kind pid durMs", "version oldPid")
		if m["name"] != "command" || m["oldPid"] == m["pid"] {
			t.Errorf("plugin-restart %v", m)
		}
	})
	t.Run("plugin-reload", func(t *testing.T) {
		r := r.under(t)
		r.members("plugin-reload", r.must(r.request("plugin-reload", nil)), "path plugins", "")
	})
	t.Run("despawn", func(t *testing.T) {
		r := r.under(t)
		m := r.members("despawn", r.must(r.request("despawn", map[string]any{"graceful": false, "waitForExit": true}).at("owner", r.victim)), "name stopped graceful", "report")
		if m["name"] != "victim" || m["stopped"] != true || m["graceful"] != false {
			t.Errorf("despawn %v", m)
		}
		if left := r.ProcsLike("hexlog"); len(left) != 0 {
			t.Errorf("the seat was stopped and runs: %v", left)
		}
		if row := r.rows()["victim"]; row != nil && row["status"] != "exited" {
			t.Errorf("the seat is listed as %v", row)
		}
	})
	t.Run("shutdown", func(t *testing.T) {
		r := r.under(t)
		r.members("shutdown", r.must(r.request("shutdown", map[string]any{"withAgents": true})), "", "spared stopped left")
		if e, ok := r.host.WaitExit(patience); !ok || e.Code != 0 {
			t.Errorf("the host ended %v, %v", ok, e)
		}
	})
}

// awaitTyped waits until an agent has written down exactly this.
func (r *rig) awaitTyped(file, want string) {
	r.t.Helper()
	harness.Eventually(r.t, patience, "what was typed arrived", func() (bool, string) {
		got, err := os.ReadFile(r.Path(file))
		return string(got) == fmt.Sprintf("%x", want), fmt.Sprintf("%s %v", got, err)
	})
}

// goal is the answer of goal-result.
func (r *rig) goal(id string) string {
	r.t.Helper()
	return string(r.must(r.request("goal-result", map[string]any{"goalId": id})))
}

// TestRefusalsOfHandlersLeaveNoTrace: what a handler refuses before it does anything.
//
// proves: OUT-3
func TestRefusalsOfHandlersLeaveNoTrace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Persona("scribe", "---\nname: scribe\nagent: command\nlaunchOptions:\n  argv: [cat]\n---\nYou write.\n")
	r.Persona("broken", "---\nagent: [\n---\n")
	r.Write("file", "x")
	r.victim = r.recorder("victim", "typed").seat()
	with := func(name, script string, more map[string]any) map[string]any {
		args := r.spawnArgs(name, script)
		maps.Copy(args, more)
		return args
	}
	cases := []struct {
		what    string
		command string
		args    map[string]any
		codes   string // any of these
	}{
		{"a seat nobody has", "inspect", map[string]any{"name": "nobody"}, "not-found"},
		{"a connector nobody has", "models", map[string]any{"agent": "nosuch"}, "not-found failed-precondition"},
		{"a relative directory", "resolve-cwd", map[string]any{"cwd": "ws"}, "failed-precondition"},
		{"a directory that is not there", "resolve-cwd", map[string]any{"cwd": "/nosuch/dir"}, "failed-precondition"},
		{"a directory that is a file", "resolve-cwd", map[string]any{"cwd": r.Path("file")}, "failed-precondition"},
		{"the agent of a persona nobody wrote", "resolve-agent", map[string]any{"name": "nosuch"}, "failed-precondition not-found"},
		{"a persona nobody wrote", "spawn", map[string]any{"name": "nosuch"}, "failed-precondition not-found"},
		{"a persona that cannot be read", "spawn", map[string]any{"name": "broken"}, "failed-precondition"},
		{"a persona outside the directory", "spawn", map[string]any{"name": "../../file"}, "failed-precondition bad-request"},
		{"a name that is taken", "spawn", with("victim", idle, nil), "failed-precondition"},
		{"a name with a dash in front", "spawn", with("-x", idle, nil), "failed-precondition bad-request"},
		{"a reserved name", "spawn", with("chat_x", idle, nil), "failed-precondition bad-request"},
		{"a directory to run in that is not there", "spawn", with("x", idle, map[string]any{"cwd": "/nosuch/dir"}), "failed-precondition"},
		{"an agent program nobody connects", "spawn", with("x", idle, map[string]any{"agent": "nosuch"}), "failed-precondition not-found"},
		{"a runtime nobody has", "spawn", with("x", idle, map[string]any{"runtime": "nosuch"}), "failed-precondition not-found unimplemented"},
		{"a resume that the connector cannot do", "spawn", with("x", idle, map[string]any{"resume": "session"}), "failed-precondition"},
		{"keys that do not exist", "input", map[string]any{"keys": []string{"any"}}, "bad-request"},
		{"a persona nobody wrote", "show-persona", map[string]any{"name": "nosuch"}, "not-found"},
		{"a persona outside the directory", "show-persona", map[string]any{"name": "../../file"}, "not-found failed-precondition bad-request"},
		{"a persona that somebody else wrote", "define-persona", map[string]any{"name": "scribe", "persona": "Mine."}, "failed-precondition permission-denied"},
		{"a persona outside the directory", "define-persona", map[string]any{"name": "../x", "persona": "Mine."}, "failed-precondition bad-request"},
		{"a run that nobody wrote down", "launch", map[string]any{"runId": "nosuch", "name": "x"}, "failed-precondition not-found unimplemented"},
		{"a specification of another run", "launch", map[string]any{"runId": "run1", "name": "x", "spec": r.launchSpec("run2", "x")}, "failed-precondition bad-request"},
		{"a specification with something nobody knows", "launch", map[string]any{"runId": "run1", "name": "x", "spec": map[string]any{"nosuch": 1}}, "failed-precondition bad-request"},
		{"a plugin nobody has", "plugin-restart", map[string]any{"name": "nosuch"}, "not-found failed-precondition"},
	}
	before := r.settled()
	for _, x := range cases {
		t.Run(x.command+"/"+x.what, func(t *testing.T) {
			r := r.under(t)
			mark := r.mark()
			q := r.request(x.command, x.args)
			if i := slices.IndexFunc(table, func(c command) bool { return c.name == x.command }); table[i].targeted() {
				q = r.aim(table[i], q)
			}
			p := r.call(q)
			if p.Error == nil || p.Error.Outcome != "not-executed" || !slices.Contains(strings.Fields(x.codes), p.Error.Code) {
				t.Errorf("%v; want %s, not-executed", p, x.codes)
			}
			r.strays(mark)
			after := r.traces()
			if d := difference(before, after); d != "" {
				t.Errorf("it left traces:%s", d)
				before = r.settled()
			}
		})
	}
	// A name that was refused is free: nothing was reserved for it.
	a := r.spawn("x", idle)
	r.despawn(a.seat())
}
