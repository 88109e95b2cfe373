package retire_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestASlotShowsWhoHoldsItsName(t *testing.T) {
	slot := wire.Slot{
		Owner: "local", Alias: "a", Actor: "A", LifecycleUID: inst1, Phase: wire.SlotActive, OwnerInstanceID: inst1,
		Runtime: &wire.RuntimeRef{Kind: "pty", ID: "c"},
	}
	with := func(edit func(*wire.Slot)) wire.Slot { s := slot; edit(&s); return s }
	ending := with(func(s *wire.Slot) { s.Phase = wire.SlotTerminalizing })
	theirs := with(func(s *wire.Slot) { s.OwnerInstanceID = inst2 })
	for name, c := range map[string]struct {
		slot  wire.Slot
		err   error
		head  retire.HeadRow
		hold  *retire.Hold
		live  bool
		check func(wire.SlotRow) bool
	}{
		"a seat that runs": {slot: slot, live: true, check: func(r wire.SlotRow) bool {
			return r.Live && !r.Sibling && r.Held == nil && r.SlotPhase == wire.SlotActive && r.Runtime.ID == "c" && r.ManagerInstanceID == inst1
		}},
		"a sibling's is not live here, whatever is": {slot: theirs, live: true, check: func(r wire.SlotRow) bool { return r.Sibling && !r.Live && r.Held == nil }},
		"no head was there":                         {slot: slot, check: func(r wire.SlotRow) bool { return r.HeadState == "" && r.HeadRevision == 0 && r.HeadOp == nil }},
		"a head that is on its way out": {
			slot: ending,
			head: retire.HeadRow{Rev: 7, Head: wire.LifecycleHead{State: wire.LifeRetiring, LifecycleUID: inst1, Op: &wire.GateOp{OpID: "op", Kind: wire.OpRetirement}}},
			check: func(r wire.SlotRow) bool {
				return r.HeadState == wire.LifeRetiring && r.HeadRevision == 7 && *r.HeadOp == wire.SlotOp{OpID: "op", Kind: wire.OpRetirement}
			},
		},
		"an end that is tried": {
			slot: ending, hold: &retire.Hold{Authority: true, Attempts: 2, Running: true, LastError: "no proof", Since: time.UnixMilli(5)},
			check: func(r wire.SlotRow) bool {
				h := r.Held
				return h != nil && len(h.Missing) == 2 && h.Missing[0] == "footprint" && h.Missing[1] == "lifecycle" && h.Attempts == 2 && h.Running && h.Reason == "no proof" && h.Since == 5
			},
		},
		"an end that nobody tries": {slot: ending, check: func(r wire.SlotRow) bool { return r.Held != nil && len(r.Held.Missing) == 3 && r.Held.Reason != "" }},
		"one of which only the last word is missing": {
			slot: with(func(s *wire.Slot) { s.Phase, s.CleanupComplete = wire.SlotTerminalizing, true }),
			check: func(r wire.SlotRow) bool {
				return r.CleanupComplete && len(r.Held.Missing) == 1 && r.Held.Missing[0] == "lifecycle"
			},
		},
		"a sibling's end is the sibling's": {
			slot:  with(func(s *wire.Slot) { s.Phase, s.OwnerInstanceID = wire.SlotTerminalizing, inst2 }),
			check: func(r wire.SlotRow) bool { return r.Sibling && r.Held == nil },
		},
		"a row that cannot be read keeps its name": {
			err: errors.New("garbled"), check: func(r wire.SlotRow) bool {
				return r.Unreadable == "garbled" && r.Name == "a" && r.Owner == "local" && !r.Live
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			row := retire.Row{Key: wire.SlotKey("local", "a"), Slot: c.slot, Rev: 3, Err: c.err}
			got := retire.ShowSlot(row, c.head, c.hold, inst1, c.live)
			if !c.check(got) || got.SlotRevision != 3 || got.Consistency != wire.SlotsOrdered || len(got.ReadOrder) != 2 {
				t.Errorf("%+v, held %+v", got, got.Held)
			}
		})
	}
}

// What is listed is what holds names now, read with the credential that stays and writes no slot.
//
// proves: SLOT-1, SLOT-2, MULTI-3
func TestSlotsAreThoseThatAreNotRetired(t *testing.T) {
	r := newRig(t)
	ctx, cancel := limit(t)
	defer cancel()
	over, runs, stuck := r.spawn("over"), r.spawn("runs"), r.spawn("stuck")
	must(t, r.retire(over))
	r.host.refuseReap(errors.New("it does not say"))
	if err := r.retire(stuck); err == nil {
		t.Fatal("a process that was not reaped is gone")
	}
	c, err := r.host.auth.Mint(ctx, trust.Request{Profile: trust.GoalWriter})
	must(t, err)
	b, err := bus.Connect(ctx, bus.Config{URL: r.br.URL(), Credentials: c})
	must(t, err)
	defer b.Close()
	rec, err := b.Rows(space)
	must(t, err)
	s := &retire.Slots{Records: rec, Instance: inst1, Holds: r.host.retire.Holds, Live: func(l provision.Life) bool { return l == runs.Life }}
	rows, err := s.Slots(ctx)
	must(t, err)
	if len(rows) != 2 || rows[0].Name != "runs" || rows[1].Name != "stuck" {
		t.Fatalf("%+v", rows)
	}
	if r := rows[0]; !r.Live || r.HeadState != wire.LifeActive || r.HeadLifecycleUID != runs.Life.UID || r.Held != nil {
		t.Errorf("%+v", r)
	}
	if r := rows[1]; r.Live || r.SlotPhase != wire.SlotTerminalizing || r.HeadState != wire.LifeRetiring || r.HeadOp == nil || r.HeadOp.OpID != wire.RetirementOpID(stuck.Life.UID) ||
		r.Held == nil || r.Held.Reason == "" {
		t.Errorf("%+v, held %+v", r, r.Held)
	}
	if _, found, err := s.Slot(ctx, "over"); found || err != nil {
		t.Errorf("a retired slot: %t, %v", found, err)
	}
	if _, found, err := s.Slot(ctx, "nobody"); found || err != nil {
		t.Errorf("no slot: %t, %v", found, err)
	}
	if row, found, err := s.Slot(ctx, "stuck"); !found || err != nil || row.SlotLifecycleUID != stuck.Life.UID {
		t.Errorf("%+v, %t, %v", row, found, err)
	}
	r.br.Shutdown()
	if _, _, err := s.Slot(ctx, "nobody"); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("a store that is away: %v", err)
	}
}
