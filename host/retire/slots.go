package retire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Slots shows the slots of a space to people. It only reads, over a connection that may read the rows and write none
// of these: a look at them mints nothing.
type Slots struct {
	// Records reads the rows: those of the goal writer, which stays.
	Records  *bus.Records
	Instance string // id of this host's instance
	// Live reports whether this host has a seat of a life.
	Live func(provision.Life) bool
	// Holds are the names that are on their way out here (Retirer.Holds). May be nil.
	Holds func() []Hold
}

// slotsBound bounds one look: there may be some thousand rows, of which each is one exchange.
const slotsBound = 10 * time.Second

// Slots lists the slots of the space that are not retired, by alias.
//
// Errors: bus.ErrUnavailable; bus.ErrCorrupt (a row that is never deleted was).
func (s *Slots) Slots(ctx context.Context) ([]wire.SlotRow, error) {
	ctx, cancel := context.WithTimeout(ctx, slotsBound)
	defer cancel()
	entries, err := s.Records.Scan(ctx, wire.KindSlot)
	if err != nil {
		return nil, err
	}
	found := map[string]wire.SlotRow{}
	for _, e := range entries {
		row := rowOf(e)
		shown, open, err := s.show(ctx, row)
		if err != nil {
			return nil, err
		}
		if delete(found, nameOf(row)); open { // one that was rewritten meanwhile comes twice
			found[nameOf(row)] = shown
		}
	}
	out := make([]wire.SlotRow, 0, len(found))
	for _, row := range found {
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b wire.SlotRow) int { return strings.Compare(a.Name+"\x00"+a.Owner, b.Name+"\x00"+b.Owner) })
	return out, nil
}

// Slot is the slot of an alias, outside user mode; false: there is none, or it is retired.
//
// Errors: as of Slots.
func (s *Slots) Slot(ctx context.Context, alias string) (wire.SlotRow, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, slotsBound)
	defer cancel()
	e, err := s.Records.Get(ctx, wire.SlotKey(wire.OwnerLocal, alias))
	if errors.Is(err, bus.ErrAbsent) {
		return wire.SlotRow{}, false, nil
	}
	if err != nil {
		return wire.SlotRow{}, false, err
	}
	return s.show(ctx, rowOf(e))
}

// show reads what belongs to a slot. false: it is retired.
func (s *Slots) show(ctx context.Context, row Row) (wire.SlotRow, bool, error) {
	if row.Err == nil && row.Slot.Phase == wire.SlotRetired {
		return wire.SlotRow{}, false, nil
	}
	var head HeadRow
	if row.Err == nil {
		var err error
		if head, err = readHead(ctx, s.Records, row.Slot); err != nil {
			return wire.SlotRow{}, false, err
		}
	}
	var hold *Hold
	if s.Holds != nil {
		for _, h := range s.Holds() {
			if row.Err == nil && h.Life == provision.LifeOf(row.Slot) {
				hold = &h
			}
		}
	}
	live := row.Err == nil && s.Live != nil && s.Live(provision.LifeOf(row.Slot))
	return ShowSlot(row, head, hold, s.Instance, live), true, nil
}

// readHead reads the head of the life that a slot is of.
func readHead(ctx context.Context, rec *bus.Records, s wire.Slot) (HeadRow, error) {
	p := wire.Principal{Owner: s.Owner, Actor: s.Actor}
	e, err := rec.Get(ctx, wire.LifecycleKey(p))
	if errors.Is(err, bus.ErrAbsent) {
		return HeadRow{}, nil
	}
	if err != nil {
		return HeadRow{}, err
	}
	head, err := wire.DecodeLifecycleHead(p, e.Value)
	if err != nil {
		return HeadRow{}, fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
	}
	return HeadRow{Head: head, Rev: e.Rev}, nil
}

// Reason of a hold that nobody works on.
const nobodyEnds = "its end is decided, and nobody works on it now; the next sweep goes on with it"

// ShowSlot is how a slot is shown: from its row, the head that was read after it (Rev 0: none), what holds its name
// here (nil: nothing), and whether this host, whose instance is given, has a seat of this very life.
func ShowSlot(row Row, head HeadRow, hold *Hold, instance string, live bool) wire.SlotRow {
	out := wire.SlotRow{SlotRevision: row.Rev, ReadOrder: []string{wire.ReadSlot, wire.ReadHead}, Consistency: wire.SlotsOrdered}
	if q := row.Key.Qualifiers; len(q) == 2 {
		out.Owner, out.Name = q[0], q[1]
	}
	if row.Err != nil {
		out.Unreadable = row.Err.Error()
		return out
	}
	s := row.Slot
	out.Actor, out.SlotLifecycleUID, out.SlotPhase, out.CleanupComplete = s.Actor, s.LifecycleUID, s.Phase, s.CleanupComplete
	out.ManagerInstanceID, out.Sibling = s.OwnerInstanceID, s.OwnerInstanceID != instance
	out.Live, out.Runtime = live && !out.Sibling, s.Runtime
	if head.Rev > 0 {
		out.HeadState, out.HeadLifecycleUID, out.HeadRevision = head.Head.State, head.Head.LifecycleUID, head.Rev
		if op := head.Head.Op; op != nil {
			out.HeadOp = &wire.SlotOp{OpID: op.OpID, Kind: op.Kind}
		}
	}
	switch {
	case hold != nil:
		out.Held = &wire.SlotHold{
			Since: millis(hold.Since), Missing: missing(hold.Authority, hold.Footprint, hold.Lifecycle),
			Attempts: hold.Attempts, Running: hold.Running, Reason: hold.LastError,
		}
	case s.Phase == wire.SlotTerminalizing && !out.Sibling:
		// Whether its credentials are revoked, its gate and its ledger know; that is not looked at here.
		out.Held = &wire.SlotHold{Missing: missing(s.CleanupComplete, s.CleanupComplete, false), Reason: nobodyEnds}
	}
	return out
}

// missing names the parts of an end that are not done.
func missing(authority, footprint, lifecycle bool) []string {
	out := []string{}
	for _, part := range []struct {
		name string
		done bool
	}{{"authority", authority}, {"footprint", footprint}, {"lifecycle", lifecycle}} {
		if !part.done {
			out = append(out, part.name)
		}
	}
	return out
}
