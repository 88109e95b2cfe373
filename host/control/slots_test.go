package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// shelf is the slots of a space.
type shelf struct {
	rows []wire.SlotRow
	err  error
}

func (s *shelf) Slots(context.Context) ([]wire.SlotRow, error) { return s.rows, s.err }

func (s *shelf) Slot(_ context.Context, alias string) (wire.SlotRow, bool, error) {
	for _, r := range s.rows {
		if r.Name == alias {
			return r, true, s.err
		}
	}
	return wire.SlotRow{}, false, s.err
}

func slotGuarded(t *testing.T, s Slots, seats ...authz.Target) guarded {
	t.Helper()
	h := &house{seats: seats}
	guard := NewGuard(authz.Policy{Regime: authz.Static}, h)
	commands, err := Commands(Deps{Host: h, Seats: h, Slots: s, Policy: guard, Authz: guard.Policy, Fence: NewFence(guard)})
	if err != nil {
		t.Fatal(err)
	}
	return guarded{t, commands}
}

// A name that a slot holds is told from one that nobody has, and what cannot be read is neither.
//
// proves: SLOT-10, MULTI-3
func TestANameThatASlotHoldsIsNotUnknown(t *testing.T) {
	held := &shelf{rows: []wire.SlotRow{
		{Name: "ending", SlotLifecycleUID: "l1", SlotPhase: wire.SlotTerminalizing, ManagerInstanceID: "i1", Held: &wire.SlotHold{Reason: "no proof"}},
		{Name: "theirs", SlotLifecycleUID: "l2", SlotPhase: wire.SlotActive, ManagerInstanceID: "i2", Sibling: true},
		{Name: "gone", SlotLifecycleUID: "l3", SlotPhase: wire.SlotActive, ManagerInstanceID: "i1"},
		{Name: "bad", Unreadable: "it is no slot"},
	}}
	here := life("here", "local", "HERE", "")
	for name, c := range map[string]struct {
		slots  Slots
		ask    string
		code   string
		says   string
		detail string
	}{
		"a seat that is here reads no slot":   {&shelf{err: errors.New("away")}, "here", "", "", ""},
		"nobody has it":                       {held, "nobody", wire.CodeNotFound, `no seat is called "nobody"`, ""},
		"an open space keeps no slots":        {nil, "ending", wire.CodeNotFound, "no seat is called", ""},
		"a life that is ended holds it":       {held, "ending", wire.CodeFailedPrecondition, "still held by life l1 (terminalizing): no proof", wire.DetailSlotObservation},
		"no seat that is here has it":         {held, "gone", wire.CodeFailedPrecondition, "still held by life l3 (active)", wire.DetailSlotObservation},
		"a sibling has it":                    {held, "theirs", wire.CodeFailedPrecondition, "of instance i2; ask that one, with --on i2", wire.DetailSlotObservation},
		"its slot is damaged":                 {held, "bad", wire.CodeFailedPrecondition, "cannot be read: it is no slot", wire.DetailSlotObservation},
		"the slots cannot be read":            {&shelf{err: errors.New("away")}, "nobody", wire.CodeUnavailable, "whether a slot holds the name cannot be read: away", wire.DetailSlotReadFailed},
		"no slot can have such a name at all": {&shelf{err: errors.New("away")}, "no body", wire.CodeNotFound, "no seat is called", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := slotGuarded(t, c.slots, here).call("local", "OP", wire.CmdInspect, wire.AuthzNone, nil, `{"name":"`+c.ask+`"}`)
			if c.code == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || err.Code != c.code || err.Outcome != wire.OutcomeNotExecuted || !strings.Contains(err.Message, c.says) {
				t.Fatalf("%v, want %s with %q", err, c.code, c.says)
			}
			if _, ok := err.Detail(c.detail); c.detail != "" && !ok {
				t.Errorf("no detail %s in %+v", c.detail, err.Details)
			}
		})
	}
}

func TestSlotsAreListedOrRefusedWithTheReason(t *testing.T) {
	for name, c := range map[string]struct {
		slots      Slots
		rows       int
		code, says string
	}{
		"an open space keeps none": {nil, 0, wire.CodeFailedPrecondition, "an open space keeps no slots"},
		"a store that is away":     {&shelf{err: errors.New("no answer")}, 0, wire.CodeUnavailable, "cannot be read: no answer"},
		"none are held":            {&shelf{}, 0, "", ""},
		"those that are":           {&shelf{rows: []wire.SlotRow{{Name: "a"}, {Name: "b"}}}, 2, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := slotGuarded(t, c.slots).call("local", "OP", wire.CmdSlots, wire.AuthzNone, nil, `{}`)
			switch {
			case c.code != "":
				if err == nil || err.Code != c.code || !strings.Contains(err.Message, c.says) {
					t.Errorf("%v", err)
				}
			case err != nil:
				t.Error(err)
			default:
				if rows, ok := got.([]wire.SlotRow); !ok || rows == nil || len(rows) != c.rows {
					t.Errorf("%#v", got)
				}
			}
		})
	}
}
