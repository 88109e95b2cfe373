package control

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Whoever asks the class gets some host. When that one has no such seat and a sibling has, the refusal says which of them
// answered, which has it and what its slot is, in words and in members: the question can be put to the right one.
//
// proves: MULTI-2, MULTI-15
func TestTheSeatOfASiblingIsToldOfWithBothInstances(t *testing.T) {
	h := &house{}
	guard := NewGuard(authz.Policy{Regime: authz.Static}, h)
	commands, err := Commands(Deps{Host: h, Seats: h, Policy: guard, Authz: guard.Policy, Fence: NewFence(guard), Instance: "here1", Slots: &shelf{rows: []wire.SlotRow{
		{Name: "a", SlotLifecycleUID: "life1", SlotPhase: wire.SlotActive, ManagerInstanceID: "there2", HeadState: wire.LifeActive, Sibling: true},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	_, refusal := guarded{t, commands}.call("local", "OP", wire.CmdInspect, wire.AuthzNone, nil, `{"name":"a"}`)
	if refusal == nil || refusal.Code != wire.CodeFailedPrecondition || refusal.Outcome != wire.OutcomeNotExecuted {
		t.Fatalf("%+v", refusal)
	}
	for _, want := range []string{`"a"`, "instance here1 answers", "life1 (active) of instance there2", "--on there2"} {
		if !strings.Contains(refusal.Message, want) {
			t.Errorf("%q does not say %q", refusal.Message, want)
		}
	}
	detail, ok := refusal.Detail(wire.DetailSlotObservation)
	if !ok {
		t.Fatalf("no observation in %+v", refusal.Details)
	}
	text, err := json.Marshal(detail)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"ownerInstanceId":"there2"`, `"answeringInstanceId":"here1"`, `"slotLifecycleUid":"life1"`, `"slotPhase":"active"`, `"sibling":true`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the observation %s has no %s", text, want)
		}
	}
}
