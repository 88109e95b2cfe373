package member

import (
	"encoding/json"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk/bridge"
)

// after is a view after events, each a line of type and properties.
func after(t *testing.T, events ...[2]string) view {
	t.Helper()
	v := newView()
	v.known = true
	for _, e := range events {
		if !json.Valid([]byte(e[1])) {
			t.Fatalf("properties of %s: %s", e[0], e[1])
		}
		v.apply(api.Event{Type: e[0], Properties: json.RawMessage(e[1])})
	}
	return v
}

var (
	created  = [2]string{"session.created", `{"info":{"id":"ses_a"}}`}
	asked    = [2]string{"message.updated", `{"info":{"id":"msg_1","sessionID":"ses_a","role":"user","agent":"build","model":{"providerID":"p","modelID":"m/x","variant":"high"}}}`}
	working  = [2]string{"session.status", `{"sessionID":"ses_a","status":{"type":"busy"}}`}
	idle     = [2]string{"session.status", `{"sessionID":"ses_a","status":{"type":"idle"}}`}
	bash     = [2]string{"message.part.updated", `{"part":{"sessionID":"ses_a","type":"tool","tool":"bash","state":{"status":"running"}}}`}
	done     = [2]string{"message.part.updated", `{"part":{"sessionID":"ses_a","type":"tool","tool":"bash","state":{"status":"completed"}}}`}
	permit   = [2]string{"permission.asked", `{"id":"per_1","sessionID":"ses_a","permission":"bash","patterns":["touch x"],"metadata":{},"always":[]}`}
	answered = [2]string{"permission.replied", `{"sessionID":"ses_a","requestID":"per_1","reply":"once"}`}
	subagent = [2]string{"session.created", `{"info":{"id":"ses_b","parentID":"ses_a"}}`}
	subBusy  = [2]string{"session.status", `{"sessionID":"ses_b","status":{"type":"busy"}}`}
	subIdle  = [2]string{"session.status", `{"sessionID":"ses_b","status":{"type":"idle"}}`}
)

func failed(text string) [2]string {
	return [2]string{"session.error", `{"sessionID":"ses_a","error":` + text + `}`}
}

// proves: CONN-1
func TestWhatAServerTellsIsTheStateOfItsAgent(t *testing.T) {
	for name, c := range map[string]struct {
		events [][2]string
		want   bridge.Event // without its name
	}{
		"nothing happened: idle":                            {nil, bridge.Event{Status: "idle"}},
		"a session at work: working":                        {[][2]string{created, asked, working}, bridge.Event{Status: "working", Session: "ses_a", Model: "p/m/x"}},
		"a tool that runs is named":                         {[][2]string{working, bash}, bridge.Event{Status: "working", Activity: "bash", Session: "ses_a"}},
		"a tool that ended is not":                          {[][2]string{working, bash, done}, bridge.Event{Status: "working", Session: "ses_a"}},
		"the turn ends: idle":                               {[][2]string{working, bash, idle}, bridge.Event{Status: "idle", Session: "ses_a"}},
		"the older event for that counts too":               {[][2]string{working, {"session.idle", `{"sessionID":"ses_a"}`}}, bridge.Event{Status: "idle", Session: "ses_a"}},
		"a permission that is asked for: waiting":           {[][2]string{working, bash, permit}, bridge.Event{Status: "waiting", Activity: "bash", Condition: "approval", Source: "permission.asked", Message: "bash: touch x", Session: "ses_a"}},
		"once answered, it works on":                        {[][2]string{working, permit, answered}, bridge.Event{Status: "working", Session: "ses_a"}},
		"a turn that ended asks for nothing any more":       {[][2]string{working, permit, idle}, bridge.Event{Status: "idle", Session: "ses_a"}},
		"the newer form of a permission counts too":         {[][2]string{working, {"permission.v2.asked", `{"id":"per_2","sessionID":"ses_a","action":"edit","resources":["a.go"]}`}}, bridge.Event{Status: "waiting", Condition: "approval", Source: "permission.v2.asked", Message: "edit: a.go", Session: "ses_a"}},
		"a question waits for input":                        {[][2]string{working, {"question.asked", `{"id":"que_1","sessionID":"ses_a","questions":[{"question":"Which one?"}]}`}}, bridge.Event{Status: "waiting", Condition: "input", Source: "question.asked", Message: "Which one?", Session: "ses_a"}},
		"a question that is rejected does not":              {[][2]string{working, {"question.asked", `{"id":"que_1","sessionID":"ses_a","questions":[]}`}, {"question.rejected", `{"requestID":"que_1"}`}}, bridge.Event{Status: "working", Session: "ses_a"}},
		"a subagent at work is the agent at work":           {[][2]string{working, subagent, subBusy, idle}, bridge.Event{Status: "working", Session: "ses_a"}},
		"what a subagent asks, the agent waits for":         {[][2]string{working, subagent, subBusy, {"permission.asked", `{"id":"per_1","sessionID":"ses_b","permission":"edit","patterns":[]}`}}, bridge.Event{Status: "waiting", Condition: "approval", Source: "permission.asked", Message: "edit", Session: "ses_a"}},
		"a subagent that fails is its parent's affair":      {[][2]string{subagent, working, subBusy, {"session.error", `{"sessionID":"ses_b","error":{"name":"APIError","data":{"statusCode":500}}}`}, subIdle, idle}, bridge.Event{Status: "idle", Session: "ses_a"}},
		"trying again is work with a reason":                {[][2]string{{"session.status", `{"sessionID":"ses_a","status":{"type":"retry","attempt":1,"message":"Provider is overloaded","next":1}}`}}, bridge.Event{Status: "working", Condition: "overloaded", Source: "session.status", Message: "Provider is overloaded", Session: "ses_a"}},
		"trying again for no known reason is retrying":      {[][2]string{{"session.status", `{"sessionID":"ses_a","status":{"type":"retry"}}`}}, bridge.Event{Status: "working", Condition: "retrying", Source: "session.status", Message: "retrying", Session: "ses_a"}},
		"a failed turn: idle, with why":                     {[][2]string{working, failed(`{"name":"APIError","data":{"message":"slow down","statusCode":429}}`), idle}, bridge.Event{Status: "idle", Condition: "rate_limit", Source: "APIError", Message: "slow down", Session: "ses_a"}},
		"the next turn forgets it":                          {[][2]string{working, failed(`{"name":"APIError","data":{"message":"slow down","statusCode":429}}`), idle, working, idle}, bridge.Event{Status: "idle", Session: "ses_a"}},
		"a turn that was interrupted by hand is no failure": {[][2]string{working, failed(`{"name":"MessageAbortedError","data":{"message":"aborted"}}`), idle}, bridge.Event{Status: "idle", Session: "ses_a"}},
		"a missing login":                                   {[][2]string{working, failed(`{"name":"ProviderAuthError","data":{"message":"no key"}}`), idle}, bridge.Event{Status: "idle", Condition: "auth", Source: "ProviderAuthError", Message: "no key", Session: "ses_a"}},
		"a full context":                                    {[][2]string{working, failed(`{"name":"ContextOverflowError","data":{"message":"too long"}}`), idle}, bridge.Event{Status: "idle", Condition: "context", Source: "ContextOverflowError", Message: "too long", Session: "ses_a"}},
		"a failure that nobody knows":                       {[][2]string{working, failed(`{"name":"UnknownError","data":{"message":"hm"}}`), idle}, bridge.Event{Status: "idle", Condition: "failed", Source: "UnknownError", Message: "hm", Session: "ses_a"}},
		"a session that is deleted ends":                    {[][2]string{working, {"session.deleted", `{"info":{"id":"ses_a"}}`}}, bridge.Event{Status: "idle"}},
		"another session begins":                            {[][2]string{working, idle, {"session.created", `{"info":{"id":"ses_c"}}`}}, bridge.Event{Status: "idle", Session: "ses_c"}},
		"events that nobody knows change nothing":           {[][2]string{working, {"session.next.step", `{"sessionID":"ses_a"}`}, {"session.status", `{"sessionID":"ses_a","status":"odd"}`}, {"session.status", `[]`}}, bridge.Event{Status: "working", Session: "ses_a"}},
	} {
		t.Run(name, func(t *testing.T) {
			v := after(t, c.events...)
			got := v.told()
			if c.want.Name = bridge.EventStatus; got != c.want {
				t.Errorf("told\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

// Only what a person or a message asked for last says in which agent and model the next turn is.
func TestTheLastTurnSaysAgentModelAndVariant(t *testing.T) {
	v := after(t, created, asked, subagent, [2]string{"message.updated", `{"info":{"sessionID":"ses_b","role":"user","agent":"explore","model":{"providerID":"p","modelID":"small"}}}`})
	if v.root != "ses_a" || v.agent != "build" || v.model != "p/m/x" || v.variant != "high" {
		t.Errorf("session %s agent %s model %s variant %s", v.root, v.agent, v.model, v.variant)
	}
}

func FuzzEvents(f *testing.F) {
	for _, e := range [][2]string{created, asked, working, bash, permit, subagent, failed(`{"name":"APIError"}`)} {
		f.Add(e[0], e[1])
	}
	f.Fuzz(func(t *testing.T, kind, properties string) {
		v := after(t, working, permit)
		v.apply(api.Event{Type: kind, Properties: json.RawMessage(properties)})
		if e := v.told(); e.Status != "idle" && e.Status != "working" && e.Status != "waiting" {
			t.Errorf("told %+v", e)
		}
		v.apply(api.Event{Type: idle[0], Properties: json.RawMessage(idle[1])})
		v.apply(api.Event{Type: answered[0], Properties: json.RawMessage(answered[1])})
	})
}
