package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Slots reads the slots of the space; host/retire implements it. Every error means that what was asked for is not
// known: a slot that cannot be read is never absent.
type Slots interface {
	// Slots lists those that are not retired, by alias.
	Slots(ctx context.Context) ([]wire.SlotRow, error)
	// Slot is the one of an alias; false: there is none that is not retired.
	Slot(ctx context.Context, alias string) (wire.SlotRow, bool, error)
}

func slotRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdSlots, Capability: wire.CapManagerRead, Read: true,
			Doc: "The slots of the space that are not retired, of this host and of its siblings: which life holds which name, and how far that is. " +
				"A slot is read before its head, and both may change in between. An open space keeps none.",
		}, func(ctx context.Context, _ *bus.Request, _ none) ([]wire.SlotRow, error) {
			if d.Slots == nil {
				return nil, wire.Refuse(wire.CodeFailedPrecondition, "an open space keeps no slots: the host's own journal holds the names; see ps")
			}
			rows, err := d.Slots.Slots(ctx)
			if err != nil {
				return nil, wire.Refuse(wire.CodeUnavailable, "the slots of the space cannot be read: %v", err)
			}
			if rows == nil {
				rows = []wire.SlotRow{}
			}
			return rows, nil
		}),
	}
}

// observed is the answer about a name of which this host has no seat: err, unless a slot holds it.
func (d Deps) observed(ctx context.Context, name string, err error) error {
	var missing *wire.Error
	if d.Slots == nil || !errors.As(err, &missing) || missing.Code != wire.CodeNotFound || !wire.ValidToken(name) {
		return err
	}
	slot, found, rerr := d.Slots.Slot(ctx, name)
	switch {
	case rerr != nil:
		return wire.Refuse(wire.CodeUnavailable, "no seat of this host is called %q, and whether a slot holds the name cannot be read: %v", name, rerr).
			With(wire.DetailSlotReadFailed, map[string]any{"name": name, "record": "slot-or-head", "operation": "read"})
	case !found:
		return err
	}
	return wire.Refuse(wire.CodeFailedPrecondition, "%s", slotWords(slot, d.Instance)).With(wire.DetailSlotObservation, map[string]any{
		"name": name, "ownerInstanceId": slot.ManagerInstanceID, "answeringInstanceId": d.Instance, "slotLifecycleUid": slot.SlotLifecycleUID, "slotPhase": slot.SlotPhase,
		"headState": slot.HeadState, "sibling": slot.Sibling,
	})
}

// slotWords says in a sentence who holds a name. here is the instance that answers: whoever asks the class does not know
// which one that is.
func slotWords(s wire.SlotRow, here string) string {
	switch {
	case s.Unreadable != "":
		return fmt.Sprintf("no seat of this host is called %q, and the slot of that name cannot be read: %s", s.Name, s.Unreadable)
	case s.Sibling:
		return fmt.Sprintf("seat %q is another host's: instance %s answers here, and the name is held by life %s (%s) of instance %s; ask that one, with --on %s",
			s.Name, here, s.SlotLifecycleUID, s.SlotPhase, s.ManagerInstanceID, s.ManagerInstanceID)
	}
	text := fmt.Sprintf("no seat of this host is called %q any more, and its name is still held by life %s (%s)", s.Name, s.SlotLifecycleUID, s.SlotPhase)
	if s.Held != nil && s.Held.Reason != "" {
		text += ": " + s.Held.Reason
	}
	return text
}
