package provision

import (
	"errors"
	"slices"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestLiving(t *testing.T) {
	l := Life{Alias: "reviewer", Caller: wire.Caller{Owner: "local", Actor: "a", UID: "aaaaaaaaaaaaaaaaaaaaaaaaaa"}}
	slot := func(uid, phase string) *wire.Slot { return &wire.Slot{LifecycleUID: uid, Phase: phase} }
	for _, c := range []struct {
		what  string
		slot  *wire.Slot
		lives bool
	}{
		{"a slot that is gone is nobody's", nil, false},
		{"a life that is being provisioned lives", slot(l.UID, wire.SlotProvisioning), true},
		{"a seat that runs lives", slot(l.UID, wire.SlotActive), true},
		{"one whose end is decided gets nothing any more", slot(l.UID, wire.SlotTerminalizing), false},
		{"one that is retired does not either", slot(l.UID, wire.SlotRetired), false},
		{"a successor's slot is not its own", slot("bbbbbbbbbbbbbbbbbbbbbbbbbb", wire.SlotActive), false},
	} {
		if err := living(c.slot, l); (err == nil) != c.lives || err != nil && !errors.Is(err, ErrOver) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func TestPatternsAreNobodysMembership(t *testing.T) {
	got := concrete([]string{"team.>", "general", "*", "a.b", "general"})
	if want := []string{"a.b", "general"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAHeldAliasSaysByWhom(t *testing.T) {
	own := &HeldError{Slot: wire.Slot{Alias: "reviewer", LifecycleUID: "u", Phase: wire.SlotActive}}
	theirs := &HeldError{Slot: own.Slot, Foreign: true}
	if !errors.Is(own, ErrHeld) || errors.Is(own, ErrForeign) || !errors.Is(theirs, ErrHeld) || !errors.Is(theirs, ErrForeign) {
		t.Errorf("%v, %v", own, theirs)
	}
}
