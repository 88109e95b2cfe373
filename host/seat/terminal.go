package seat

import (
	"context"
	"errors"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// maxSnapshot bounds a screen in a reply, in bytes: in base64 it still fits into one message.
const maxSnapshot = 512 << 10

// Terminal says how the terminal of a seat is reached and, when asked, what its screen shows. A screen that
// cannot be had is no error: the reply says why, and the caller replays output instead.
// Errors: expired (no live seat with that life), failed-precondition (it has ended or is being started),
// unavailable (its runtime does not answer).
func (s *Set) Terminal(ctx context.Context, target wire.Target, args wire.TerminalArgs) (wire.TerminalReply, error) {
	a, err := s.target(target)
	if err != nil {
		return wire.TerminalReply{}, err
	}
	snap := a.snapshot()
	row := snap.Row
	reply := wire.TerminalReply{Name: row.Alias, Runtime: row.Runtime, SeatID: row.SeatID}
	switch snap.State {
	case Running, Stopping, Unknown:
	default:
		return reply, wire.Refuse(wire.CodeFailedPrecondition, "%s is %s: it has no terminal to show", row.Alias, statusOf(snap.State))
	}
	rt, info, err := s.cfg.Plugins.Runtime(ctx, row.Runtime)
	if err != nil {
		return reply, wire.Refuse(wire.CodeUnavailable, "runtime %s: %v", row.Runtime, err)
	}
	type shot struct {
		snap *wire.TerminalSnapshot
		why  string
	}
	shots := make(chan shot, 1)
	if args.Snapshot { // beside the question where the terminal is: somebody waits for both
		go func() {
			snap, why := screenOf(ctx, rt, info, sdk.SnapshotRequest{SeatID: row.SeatID, InstanceID: s.cfg.InstanceID, Handle: row.Handle})
			shots <- shot{snap, why}
		}()
	} else {
		shots <- shot{}
	}
	at, err := rt.Attach(ctx, sdk.AttachRequest{SeatID: row.SeatID, InstanceID: s.cfg.InstanceID, Handle: row.Handle})
	screen := <-shots
	reply.Snapshot, reply.Reason = screen.snap, screen.why
	switch {
	case err == nil:
		reply.Argv = at.Argv
		return reply, nil
	case errors.Is(err, sdk.ErrGone):
		return reply, wire.Refuse(wire.CodeFailedPrecondition, "%s has ended: %v", row.Alias, err)
	case errors.Is(err, sdk.ErrUnsupported):
		return reply, wire.Refuse(wire.CodeUnimplemented, "runtime %s cannot show the terminal of %s: %v", row.Runtime, row.Alias, err)
	default:
		return reply, wire.Refuse(wire.CodeUnavailable, "reach the terminal of %s: %v", row.Alias, err)
	}
}

// screenOf asks a runtime for a screen. Without one it says why.
func screenOf(ctx context.Context, rt sdk.Runtime, info sdk.Info, req sdk.SnapshotRequest) (*wire.TerminalSnapshot, string) {
	sn, ok := rt.(sdk.Snapshotter)
	if !ok || !info.Has(sdk.CapSnapshot) {
		return nil, lacks(info.Name, "show a screen", sdk.CapSnapshot).Message
	}
	got, err := sn.Snapshot(ctx, req)
	switch {
	case err != nil:
		return nil, err.Error()
	case len(got.Data) > maxSnapshot:
		return nil, "the screen is too large to be sent"
	}
	return &wire.TerminalSnapshot{Offset: got.Offset, Rows: got.Rows, Cols: got.Cols, Modes: got.Modes, Data: got.Data, Dirty: got.Dirty}, ""
}
