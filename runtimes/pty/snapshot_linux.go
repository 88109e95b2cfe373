package pty

import (
	"context"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/sdk"
)

// Snapshot returns the screen of a running seat, from the mirror. After a restart of this plugin it is made
// anew from the seat's output, and so is that of a seat nobody has asked about before.
// Errors: sdk.ErrGone, sdk.ErrNotOurs, sdk.ErrUnavailable (there is no picture now; replay the output).
func (r *Runtime) Snapshot(ctx context.Context, req sdk.SnapshotRequest) (sdk.Snapshot, error) {
	s, release, err := r.settingsAt(req.Handle)
	if err != nil {
		return sdk.Snapshot{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, snapshotBudget)
	defer cancel()
	v, err := s.look(req.SeatID, req.Handle, "")
	if err != nil {
		return sdk.Snapshot{}, err
	}
	if err := v.Admit(req.InstanceID, v.Fence()); err != nil {
		return sdk.Snapshot{}, err
	}
	switch {
	case v.ExitErr == nil:
		return sdk.Snapshot{}, sdk.Errorf(sdk.ErrGone, "seat %s has ended", v.ID)
	case !v.Exists:
		return sdk.Snapshot{}, sdk.Errorf(sdk.ErrGone, "there is no seat %s", v.ID)
	case v.TokenErr != nil:
		return sdk.Snapshot{}, custodied.Unavailable("the token of seat %s cannot be read: %v", v.ID, v.TokenErr)
	}
	r.mirror.Add(v.ID, v.Socket(), v.Token)
	snap, err := r.mirror.Snapshot(ctx, v.ID)
	if err != nil {
		return sdk.Snapshot{}, custodied.Unavailable("seat %s: %v", v.ID, err)
	}
	return sdk.Snapshot{
		Offset: snap.Offset, Rows: uint16(snap.Rows), Cols: uint16(snap.Cols),
		Modes: snap.Modes, Data: snap.Data, Dirty: snap.Dirty,
	}, nil
}
