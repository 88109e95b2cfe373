package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// casTries is how often a lost compare-and-set is read and decided again.
const casTries = 8

// ErrMove: a slot does not go from the phase it has to the one that was asked for.
var ErrMove = errors.New("a slot does not go back")

// ReadSlot reads a slot from the leader, with its revision.
//
// Errors: bus.ErrAbsent, bus.ErrCorrupt (it cannot be read; that is not absence), bus.ErrUnavailable.
func ReadSlot(ctx context.Context, rec *bus.Records, key wire.Key) (wire.Slot, uint64, error) {
	row, err := rec.Get(ctx, key)
	if err != nil {
		return wire.Slot{}, 0, err
	}
	s, err := wire.DecodeSlot(key, row.Value)
	if err != nil {
		return wire.Slot{}, 0, fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
	}
	return s, row.Rev, nil
}

// ChangeSlot reads a slot, lets decide say what it is to be (nil: there is none), and writes that, again until its
// write was not overtaken. What stands already is not written again. It returns what stands.
//
// Errors: ErrMove, that of decide, bus.ErrCorrupt, bus.ErrUnavailable (unknown), bus.ErrConflict (it changes all
// the time).
func ChangeSlot(ctx context.Context, rec *bus.Records, key wire.Key, decide func(*wire.Slot) (wire.Slot, error)) (wire.Slot, error) {
	for range casTries {
		have, rev, err := ReadSlot(ctx, rec, key)
		was := &have
		if errors.Is(err, bus.ErrAbsent) {
			was, err = nil, nil
		}
		if err != nil {
			return wire.Slot{}, err
		}
		next, err := decide(was)
		if err != nil {
			return have, err
		}
		value, err := next.Encode()
		if err != nil {
			return have, err
		}
		if was != nil {
			if now, err := have.Encode(); err == nil && bytes.Equal(now, value) {
				return have, nil
			}
		}
		if from := phaseOf(was); !(was != nil && from == next.Phase && have.LifecycleUID == next.LifecycleUID) && !wire.SlotMove(from, next.Phase) {
			return have, fmt.Errorf("%w: %s is %s, not to be %s", ErrMove, key.Qualifiers[1], from, next.Phase)
		}
		if was == nil {
			_, err = rec.Create(ctx, key, value)
		} else {
			_, err = rec.Update(ctx, key, value, rev)
		}
		if !errors.Is(err, bus.ErrConflict) {
			return next, err
		}
	}
	return wire.Slot{}, fmt.Errorf("slot %s: %w all the time", key.Qualifiers[1], bus.ErrConflict)
}

func phaseOf(s *wire.Slot) string {
	if s == nil {
		return ""
	}
	return s.Phase
}
