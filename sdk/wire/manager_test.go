package wire

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

func keys(t *testing.T, v any) string {
	t.Helper()
	p, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(p, &m); err != nil {
		t.Fatal(err)
	}
	return strings.Join(slices.Sorted(maps.Keys(m)), " ")
}

// What this host adds to the payloads of the contract is absent when there is nothing to say, so that
// the rest is exactly what another manager would send.
func TestAdditionsAreAbsentWhenUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		v    any
		want string
	}{
		"agent row":   {AgentRow{}, "agent id lifecycleUid mesh mode name space status uptimeMs"},
		"status":      {StatusReply{}, "agentCount classSpawn connectors custody instanceId runtime uptimeMs"},
		"acceptance":  {Acceptance{}, "actor executor fingerprint goalId name owner uid"},
		"goal result": {GoalResultReply{}, "goalId"},
		"despawn":     {DespawnReply{}, "graceful name stopped"},
		"input":       {InputReply{}, "bytes name"},
		"spawn args":  {SpawnArgs{Name: "x"}, "name"},
		"exit":        {SeatExit{}, "asked at evidence"},
	} {
		if got := keys(t, c.v); got != c.want {
			t.Errorf("%s: members %q; want %q", name, got, c.want)
		}
	}
}

// Absent and empty are two things where a list replaces another one, and they stay two on the way.
//
// proves: SPAWN-1
func TestEveryArgumentOfASpawnArrives(t *testing.T) {
	const all = `{"name":"rev","agent":"a","defaultAgent":"b","role":"r","config":"c","identity":"i","model":"m","variant":"v",` +
		`"launchOptions":{"x":1},"resume":"s","resumeClaim":"k","resumeAgent":"a","events":false,"cwd":"/w","prompt":"p",` +
		`"subscribe":["a"],"allowSubscribe":["a.>"],"allowPublish":[],"shareTools":["t"],"supervise":{"restarts":3,"windowMs":120000}}`
	var a SpawnArgs
	if err := DecodeArgs(json.RawMessage(all), &a); err != nil {
		t.Fatal(err)
	}
	back, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	want, err := CanonicalJSON(json.RawMessage(all))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := CanonicalJSON(json.RawMessage(back)); err != nil || string(got) != string(want) {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	if a.AllowPublish == nil || a.Supervise.WindowMs != 120000 {
		t.Errorf("got %+v", a)
	}
	if err := DecodeArgs(json.RawMessage(`{"name":"rev"}`), &a); err != nil {
		t.Fatal(err)
	}
}

// What could be taken for absent is refused by name, and nothing is coerced.
//
// proves: SPAWN-2, SPAWN-3, SPAWN-4
func TestArgumentsOfASpawnAreNotGuessed(t *testing.T) {
	for in, field := range map[string]string{
		`{"name":"a","resume":" "}`:                            "resume is blank",
		`{"name":"a","resume":""}`:                             "resume is blank",
		`{"name":"a","variant":""}`:                            "variant is blank",
		`{"name":"a","resumeClaim":""}`:                        "resumeClaim is blank",
		`{"name":"a","resumeAgent":""}`:                        "resumeAgent is blank",
		`{"name":"a","subscribe":"team"}`:                      "subscribe is string, not an array",
		`{"name":"a","allowPublish":[1]}`:                      "allowPublish",
		`{"name":"a","allowSubscribe":{"a":true}}`:             "allowSubscribe is object, not an array",
		`{"name":"a","subscribe":["a","b c"]}`:                 "subscribe.1",
		`{"name":"a","allowPublish":[""]}`:                     "allowPublish.0",
		`{"name":"a","shareTools":"files"}`:                    "shareTools is string, not an array",
		`{"name":"a","shareTools":[""]}`:                       "shareTools.0",
		`{"name":"a","supervise":{}}`:                          "supervise.restarts",
		`{"name":"a","supervise":{"restarts":0,"windowMs":1}}`: "supervise.restarts",
		`{"name":"a","supervise":{"restarts":1}}`:              "supervise.windowMs",
		// A window that overflows would never end, and every end would be the first one in it.
		`{"name":"a","supervise":{"restarts":1,"windowMs":10000000000000}}`: "supervise.windowMs",
		`{"name":"a","supervise":{"restarts":1001,"windowMs":1}}`:           "supervise.restarts",
		`{"name":"a","supervise":{"restarts":1,"windowMs":1,"x":1}}`:        "supervise.x",
		`{"name":"a","supervise":true}`:                                     "supervise",
		`{"name":"a","events":"yes"}`:                                       "events is string, not a boolean",
		`{"name":"a","launchOptions":[]}`:                                   "launchOptions is array, not an object",
		`{"name":"a","launchOptions":"x"}`:                                  "launchOptions is string, not an object",
	} {
		err := DecodeArgs(json.RawMessage(in), &SpawnArgs{})
		if err == nil || err.Code != CodeBadRequest || err.Outcome != OutcomeNotExecuted || !strings.Contains(err.Message, field) {
			t.Errorf("%s: got %v, want bad-request with %q", in, err, field)
		}
	}
}

// An exit code is a pointer: not known is absent, and never zero.
func TestUnknownExitCodeIsNotZero(t *testing.T) {
	zero := 0
	if got := keys(t, SeatExit{Code: &zero}); !strings.Contains(got, "code") {
		t.Errorf("a known code 0 is lost: %q", got)
	}
}

// A client of an older host reads a newer host's answers, and the other way round.
func TestAnswersTolerateMembersOfOtherVersions(t *testing.T) {
	var row AgentRow
	if err := json.Unmarshal([]byte(`{"name":"a","status":"levitating","shiny":{"x":1}}`), &row); err != nil || row.Name != "a" || row.Status != "levitating" {
		t.Fatalf("got %+v, %v", row, err)
	}
	var p GoalProgress
	if err := json.Unmarshal([]byte(`{"phase":"levitating","more":1}`), &p); err != nil || p.Phase != "levitating" {
		t.Fatalf("got %+v, %v", p, err)
	}
}
