package retire

import (
	"context"
	"fmt"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Row is one slot as it was read. With Err it is there and cannot be read.
type Row struct {
	Key  wire.Key
	Slot wire.Slot
	Rev  uint64
	Err  error
}

func rowOf(e bus.Entry) Row {
	s, err := wire.DecodeSlot(e.Key, e.Value)
	if err != nil {
		err = fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
	}
	return Row{Key: e.Key, Slot: s, Rev: e.Rev, Err: err}
}

// Rows reads every slot of the space from the leader.
//
// Errors: bus.ErrUnavailable, bus.ErrCorrupt (a row that is never deleted was), those of trust.Authority. There are
// no rows then: half of them would pass for all.
func (r *Retirer) Rows(ctx context.Context) ([]Row, error) {
	var out []Row
	err := r.look(ctx, func(ctx context.Context, rec *bus.Records) error {
		entries, err := rec.Scan(ctx, wire.KindSlot)
		byName := map[string]int{}
		for _, e := range entries {
			row := rowOf(e)
			if i, again := byName[nameOf(row)]; again {
				out[i] = row // it was rewritten meanwhile
				continue
			}
			byName[nameOf(row)] = len(out)
			out = append(out, row)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read slots: %w", err)
	}
	return out, nil
}

// Row reads one slot from the leader.
//
// Errors: bus.ErrAbsent, as of Rows.
func (r *Retirer) Row(ctx context.Context, key wire.Key) (Row, error) {
	var row Row
	err := r.look(ctx, func(ctx context.Context, rec *bus.Records) error {
		e, err := rec.Get(ctx, key)
		if err == nil {
			row = rowOf(e)
		}
		return err
	})
	if err != nil {
		return Row{}, fmt.Errorf("read slot: %w", err)
	}
	return row, nil
}

// HeadRow is the head of a principal as it was read after a slot; Rev is 0 when there is none.
type HeadRow struct {
	Head wire.LifecycleHead
	Rev  uint64
}

// look reads rows of the space, and writes none.
func (r *Retirer) look(ctx context.Context, do func(context.Context, *bus.Records) error) error {
	ctx, cancel := context.WithTimeout(ctx, recordsBound)
	defer cancel()
	return r.cfg.Auth.With(ctx, trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(r.cfg.Space)
		if err != nil {
			return err
		}
		return do(ctx, rec)
	})
}
