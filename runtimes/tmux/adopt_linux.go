package tmux

import (
	"context"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/sdk"
)

// Adopt says what a seat is, and with req.Commit starts its agent. It works from the handle or from the
// seat id alone. What counts as proof, in this order: custody answers at its socket; its exit record; the
// death of the custody process (pid, start ticks and boot id), whose survivors are then hunted down and
// the end recorded as custody-lost. tmux is asked for no more than how many look and, of a dead pane, how
// it ended: a tmux that hangs or fails changes no state, it is named in the reason. Whatever cannot be
// proven is sdk.SeatUnknown with a reason. One call takes at most 4 s.
//
// Errors: sdk.ErrNotOurs, sdk.ErrStaleFence, sdk.ErrExecFailed, sdk.ErrInvalid.
func (r *Runtime) Adopt(ctx context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	s, release, err := r.settingsAt(req.Handle)
	if err != nil {
		return sdk.SeatStatus{}, err
	}
	defer release()
	return kind.Adopt(ctx, req, func() (*custodied.Seat, error) { return s.seatOf(req.SeatID, req.Handle, req.Nonce) })
}

// Watch emits the status of a seat at once and after every change of its state or agent (tmux does not
// tell of viewers and sizes unasked). It returns nil after it emitted that the seat has exited or was not
// found. When the seat's connection breaks it is judged as Adopt would, so the loss of custody is told
// too; an unknown seat is told once and looked at again until ctx ends.
// Errors: those of Adopt, of emit, and ctx's.
func (r *Runtime) Watch(ctx context.Context, req sdk.WatchRequest, emit func(sdk.SeatStatus) error) error {
	adopt := func(ctx context.Context) (sdk.SeatStatus, error) {
		return r.Adopt(ctx, sdk.AdoptRequest{SeatID: req.SeatID, InstanceID: req.InstanceID, Handle: req.Handle, Fence: req.Fence})
	}
	return custodied.Watch(ctx, adopt, func() (*custodied.Seat, func(), error) {
		s, release, err := r.settingsAt(req.Handle)
		if err != nil {
			return nil, nil, err
		}
		v, err := s.seatOf(req.SeatID, req.Handle, "")
		if err != nil {
			release()
			return nil, nil, err
		}
		return v, release, nil
	}, emit)
}

// Reap ends a seat, proves its end, and (without req.Keep) removes its directory and sockets. The rungs:
// the polite signal, the grace, SIGKILL of the whole tree, the exit record, the end of the custody
// process, the end of the seat's tmux server, a last search for processes by nonce. Each leaves one
// sentence in ReapReport.Evidence. A seat that is already gone is success. A stop with sdk.StopNow hastens
// a graceful one under way. When ctx ends no further rung is climbed and no signal is sent.
//
// Errors: sdk.ErrUnproven (something may live; nothing was removed), sdk.ErrNotOurs, sdk.ErrStaleFence,
// sdk.ErrInvalid, sdk.ErrUnavailable with sdk.OutcomeExecuted (ended and proven, and something could not be removed).
func (r *Runtime) Reap(ctx context.Context, req sdk.StopRequest) (sdk.ReapReport, error) {
	if _, err := r.settings(); err != nil {
		return sdk.ReapReport{}, err
	}
	if err := custodied.CheckStop(req); err != nil {
		return sdk.ReapReport{}, err
	}
	s, release, err := r.settingsAt(req.Handle)
	if err != nil {
		return sdk.ReapReport{}, err
	}
	defer release()
	return kind.Reap(ctx, &r.locks, req, func() (*custodied.Seat, error) { return s.seatOf(req.SeatID, req.Handle, req.Nonce) })
}

// List returns every seat directory under the seat root that was made for this runtime: ours, those of
// other instances, and those that cannot be read or were never started, with the reason in Problem.
// Directories of other runtimes are theirs. It looks at directories only: Adopt says what lives.
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
		if custodied.CheckID(e.Name()) != nil || !e.IsDir() {
			continue
		}
		v, err := s.read(e.Name(), sdk.Handle{}, "")
		if err != nil {
			continue // nobody can say whose it is: the pty runtime lists it with the reason
		}
		if of, known := v.runtime(); known && of == Name {
			out = append(out, v.Listing(req.InstanceID))
		}
	}
	return out, nil
}

// settingsAt returns the settings for a call with this handle, which may name another seat root than the
// one that is configured now, and a function that releases them.
func (r *Runtime) settingsAt(h sdk.Handle) (*settings, func(), error) {
	s, err := r.settings()
	if err != nil {
		return nil, nil, err
	}
	root, release, err := kind.RootOf(h, s.root)
	if err != nil {
		return nil, nil, err
	}
	other := *s
	other.root = root
	return &other, release, nil
}
