//go:build linux

package wire

import "strings"

// command is what the contract says of one command, written down here and not taken from the host.
type command struct {
	name string
	// args are arguments that would be carried out, so that whatever is wrong with a request is the one thing
	// that a case made wrong.
	args func(r *rig) map[string]any
	// modes are the authorization modes a targeted command admits.
	modes []string
	// refused are arguments that the schema does not take: each is JSON, and is refused bad-request.
	refused []string
}

func (c command) targeted() bool { return len(c.modes) > 0 }

func none(*rig) map[string]any { return map[string]any{} }

var ownerAny = []string{"owner", "any"}

// big is a text of n bytes, as JSON.
func big(n int) string { return `"` + strings.Repeat("x", n) + `"` }

// table is every command of the manager that this host serves.
var table = []command{
	{name: "describe", args: none},
	{name: "status", args: none},
	{name: "ps", args: none},
	{name: "instances", args: none},
	{name: "slots", args: none},
	{
		name:    "inspect",
		args:    func(*rig) map[string]any { return map[string]any{"name": "victim"} },
		refused: []string{`{}`, `{"name":""}`, `{"name":5}`, `{"name":null}`, `{"name":["victim"]}`, `{"Name":"victim"}`, `{"name":"victim","name":"victim"}`},
	},
	{
		name:    "models",
		args:    func(*rig) map[string]any { return map[string]any{"agent": "command"} },
		refused: []string{`{"agent":5}`, `{"agent":["command"]}`, `{"refresh":"yes"}`, `{"refresh":1}`, `{"agent":"command","agent":"opencode"}`},
	},
	{
		name:    "resolve-cwd",
		args:    func(r *rig) map[string]any { return map[string]any{"cwd": r.Root} },
		refused: []string{`{}`, `{"cwd":""}`, `{"cwd":5}`, `{"cwd":null}`, `{"cwd":"/","cwd":"/tmp"}`},
	},
	{
		name:    "resolve-agent",
		args:    func(*rig) map[string]any { return map[string]any{"name": "scribe"} },
		refused: []string{`{}`, `{"name":""}`, `{"name":{}}`, `{"name":"scribe","agent":5}`},
	},
	{
		name: "spawn",
		args: func(r *rig) map[string]any { return r.spawnArgs("intruder", idle) },
		refused: []string{
			`{}`, `{"name":""}`, `{"name":5}`, `{"name":"a","agent":5}`, `{"name":"a","launchOptions":[]}`,
			`{"name":"a","events":"on"}`, `{"name":"a","cwd":7}`, `{"name":"a","prompt":7}`, `{"name":"a","subscribe":"general"}`,
			`{"name":"a","subscribe":[5]}`, `{"name":"a","rows":-1}`, `{"name":"a","cols":1.5}`, `{"name":"a","rows":70000}`,
			`{"name":"a","capabilities":["admin"]}`, `{"name":"a","identity":"x","identity":"y"}`,
			`{"name":"a","supervise":{"restarts":0,"windowMs":1}}`, `{"name":"a","supervise":{"restarts":1}}`,
		},
	},
	{
		name: "launch",
		args: func(r *rig) map[string]any {
			return map[string]any{"runId": "run1", "name": "intruder", "spec": r.launchSpec("run1", "intruder")}
		},
		refused: []string{`{}`, `{"runId":"run1"}`, `{"name":"a"}`, `{"runId":"","name":"a"}`, `{"runId":"../x","name":"a"}`, `{"runId":"r","name":"a","spec":[]}`, `{"runId":"r","name":"a","spec":"x"}`},
	},
	{
		name: "despawn", modes: ownerAny,
		args:    func(*rig) map[string]any { return map[string]any{"graceful": false} },
		refused: []string{`{"graceful":"no"}`, `{"graceful":0}`, `{"waitForExit":1}`, `{"graceful":true,"graceful":false}`},
	},
	{
		name: "stop", modes: []string{"self"},
		args:    func(*rig) map[string]any { return map[string]any{"graceful": false} },
		refused: []string{`{"graceful":"no"}`, `{"graceful":[]}`},
	},
	{
		name: "nudge", modes: []string{"self"},
		args:    func(*rig) map[string]any { return map[string]any{"text": "look"} },
		refused: []string{`{}`, `{"text":""}`, `{"text":5}`, `{"text":"a\nb"}`, `{"text":"\u001b[A"}`, `{"text":` + big(501) + `}`, `{"text":"a","enter":false}`},
	},
	{
		name: "attach", modes: ownerAny,
		args:    none,
		refused: []string{`{"role":"owner"}`, `{"role":5}`, `{"takeover":"yes"}`, `{"rows":-1}`, `{"cols":"80"}`, `{"role":"observer","takeover":true}`},
	},
	{
		name: "input", modes: ownerAny,
		args: func(*rig) map[string]any { return map[string]any{"text": "typed", "enter": false} },
		refused: []string{
			`{}`, `{"text":""}`, `{"text":5}`, `{"text":null}`, `{"text":"x","enter":"yes"}`, `{"text":"x","keys":["esc"]}`, `{"keys":[]}`, `{"keys":"esc"}`,
			`{"text":` + big(65537) + `}`, `{"text":"a","text":"b"}`,
		},
	},
	{
		name: "terminal", modes: ownerAny,
		args:    none,
		refused: []string{`{"snapshot":"yes"}`, `{"snapshot":1}`},
	},
	{
		name:    "goal-result",
		args:    func(*rig) map[string]any { return map[string]any{"goalId": "nobodys"} },
		refused: []string{`{}`, `{"goalId":""}`, `{"goalId":5}`, `{"goalId":"a.b"}`, `{"goalId":` + big(65) + `}`},
	},
	{
		name: "define-persona",
		args: func(*rig) map[string]any {
			return map[string]any{"name": "forged", "persona": "You are.", "agent": "command"}
		},
		refused: []string{`{}`, `{"name":"a"}`, `{"persona":"x"}`, `{"name":"","persona":"x"}`, `{"name":"a","persona":5}`, `{"name":"a","persona":"x","capabilities":["admin"]}`, `{"name":"a","persona":"x","subscribe":"general"}`, `{"name":"a","persona":"x","allowPublish":[{}]}`},
	},
	{name: "list-personas", args: none},
	{
		name:    "show-persona",
		args:    func(*rig) map[string]any { return map[string]any{"name": "scribe"} },
		refused: []string{`{}`, `{"name":""}`, `{"name":5}`},
	},
	{
		name:    "purge",
		args:    none,
		refused: []string{`{"includeDms":"yes"}`, `{"includeDms":1}`},
	},
	{
		name:    "plugin-restart",
		args:    func(*rig) map[string]any { return map[string]any{"name": "command"} },
		refused: []string{`{}`, `{"name":""}`, `{"name":5}`},
	},
	{name: "plugin-reload", args: none},
	{
		name:    "shutdown",
		args:    none,
		refused: []string{`{"withAgents":"yes"}`, `{"withAgents":1}`},
	},
}

// launchSpec is the launch specification of one agent of a run.
func (r *rig) launchSpec(run, name string) map[string]any {
	return map[string]any{"apiVersion": "cotal-launch/v1", "space": r.space, "runId": run, "agents": []any{map[string]any{
		"name": name, "agent": "command", "launchOptions": map[string]any{"argv": r.FakeAgent(idle)},
		"subscribe": []any{}, "allowSubscribe": []any{}, "allowPublish": []any{}, "hash": "0a1b",
	}}}
}

// right makes a request for a command that would be carried out, aimed at the victim when it has a target.
func (r *rig) right(c command) *request {
	q := r.request(c.name, c.args(r))
	return r.aim(c, q)
}

// aim gives a request the target that its command needs.
func (r *rig) aim(c command, q *request) *request {
	switch {
	case !c.targeted():
		return q
	case c.modes[0] == "self":
		q.as(r.victim).authz = []string{"self"}
		return q
	}
	return q.at(c.modes[len(c.modes)-1], r.victim)
}
