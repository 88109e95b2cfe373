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
