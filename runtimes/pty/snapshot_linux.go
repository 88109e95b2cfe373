package pty

import (
	"context"

	"github.com/cotal-ai/cotal-host/sdk"
)

// Snapshot returns the screen of a running seat, from the mirror. After a restart of this plugin it is made
// anew from the seat's output, and so is that of a seat nobody has asked about before.
// Errors: sdk.ErrGone, sdk.ErrNotOurs, sdk.ErrUnavailable (there is no picture now; replay the output).
func (r *Runtime) Snapshot(ctx context.Context, req sdk.SnapshotRequest) (sdk.Snapshot, error) {
	s, err := r.settings()
	if err != nil {
		return sdk.Snapshot{}, err
	}
	s, release, err := s.at(req.Handle)
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
	if err := v.admit(req.InstanceID, v.fence()); err != nil {
		return sdk.Snapshot{}, err
	}
	switch {
	case v.exitErr == nil:
		return sdk.Snapshot{}, sdk.Errorf(sdk.ErrGone, "seat %s has ended", v.id)
	case !v.exists:
		return sdk.Snapshot{}, sdk.Errorf(sdk.ErrGone, "there is no seat %s", v.id)
	case v.tokenErr != nil:
		return sdk.Snapshot{}, unavailable("the token of seat %s cannot be read: %v", v.id, v.tokenErr)
	}
	r.mirror.Add(v.id, v.socket(), v.token)
	snap, err := r.mirror.Snapshot(ctx, v.id)
	if err != nil {
		return sdk.Snapshot{}, unavailable("seat %s: %v", v.id, err)
	}
	return sdk.Snapshot{
		Offset: snap.Offset, Rows: uint16(snap.Rows), Cols: uint16(snap.Cols),
		Modes: snap.Modes, Data: snap.Data, Dirty: snap.Dirty,
	}, nil
}
