package pty

import (
	"context"
	"strings"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
)

// List returns every seat directory under the seat root: ours, those of other instances, and those
// that cannot be read or were never started, with the reason in Problem. It sweeps away what a killed
// Reap left half removed. It looks at directories only: Adopt says what lives.
// Errors: sdk.ErrUnavailable when the seat root itself cannot be read.
func (r *Runtime) List(_ context.Context, req sdk.ListRequest) ([]sdk.SeatListing, error) {
	s, err := r.settings()
	if err != nil {
		return nil, err
	}
	entries, err := s.root.Entries()
	if err != nil {
		return nil, custodied.Unavailable("list seats: %v", err)
	}
	out := []sdk.SeatListing{}
	for _, e := range entries {
		name := e.Name()
		if id, hidden := seatdir.Hidden(name); hidden && custodied.CheckID(id) == nil {
			// It got this name after its end was proven; only its removal was interrupted. What
			// cannot be removed now is tried again the next time.
			_ = s.root.Sweep(id)
			continue
		}
		switch {
		case strings.HasPrefix(name, "."):
			// Not a seat and not ours to judge.
		case custodied.CheckID(name) != nil || !e.IsDir():
			out = append(out, sdk.SeatListing{SeatID: name, Problem: s.root.Of(name) + " is no seat directory (a name of 32 hex digits)"})
		default:
			v, err := s.read(name, sdk.Handle{}, "")
			if err != nil {
				out = append(out, sdk.SeatListing{SeatID: name, Problem: err.Error()})
			} else if v.Exists && ofAnother(v) == nil { // else it was removed meanwhile, or is another runtime's
				out = append(out, v.Listing(req.InstanceID))
			}
		}
	}
	return out, nil
}
