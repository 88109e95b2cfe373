package pty

import (
	"context"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// Adopt says what a seat is, and with req.Commit starts its agent. It works from the handle or from
// the seat id alone. What counts as proof, in this order: the seat answers at its socket; its exit
// record; the death of its custody process (pid, start ticks and boot id), whose survivors are then
// hunted down and the end recorded as custody-lost. Whatever cannot be proven is sdk.SeatUnknown with a
// reason. One call takes at most 4 s.
//
// Errors: sdk.ErrNotOurs, sdk.ErrStaleFence, sdk.ErrExecFailed, sdk.ErrInvalid.
func (r *Runtime) Adopt(ctx context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	s, release, err := r.settingsAt(req.Handle)
	if err != nil {
		return sdk.SeatStatus{}, err
	}
	defer release()
	st, err := kind.Adopt(ctx, req, func() (*custodied.Seat, error) { return s.look(req.SeatID, req.Handle, req.Nonce) })
	if err == nil && (st.State == sdk.SeatExited || st.State == sdk.SeatNotFound) {
		r.mirror.Remove(req.SeatID)
	}
	return st, err
}

// Watch emits the status of a seat at once and after every change of its state, size, agent or number
// of attached terminals (output offsets alone are no change). It returns nil after it emitted that the
// seat has exited or was not found. When the seat's connection breaks it is judged as Adopt would, so
// the loss of custody is told too; an unknown seat is told once and looked at again until ctx ends.
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
		v, err := s.look(req.SeatID, req.Handle, "")
		if err != nil {
			release()
			return nil, nil, err
		}
		return v, release, nil
	}, emit)
}

// Reap ends a seat, proves its end, and (without req.Keep) removes its directory and socket. The rungs:
// the polite signal, the grace, SIGKILL of the whole tree, the exit record, the end of the custody
// process, a last search for processes by nonce. Each leaves one sentence in ReapReport.Evidence. A
// seat that is already gone is success. A stop with sdk.StopNow hastens a graceful one under way. When
// ctx ends no further rung is climbed and no signal is sent: a caller that died never asked for a kill.
//
// Errors: sdk.ErrUnproven (something may live; nothing was removed), sdk.ErrNotOurs, sdk.ErrStaleFence,
// sdk.ErrInvalid, sdk.ErrUnavailable with sdk.OutcomeExecuted (ended and proven, and something could not be
// removed).
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
	rep, err := kind.Reap(ctx, &r.locks, req, func() (*custodied.Seat, error) { return s.look(req.SeatID, req.Handle, req.Nonce) })
	if err == nil {
		r.mirror.Remove(req.SeatID)
	}
	return rep, err
}

// Attach returns the seat's socket and token. A seat that has ended and was not reaped yet still shows
// its last output. Errors: sdk.ErrGone, sdk.ErrNotOurs, sdk.ErrUnavailable (its state is unknown).
func (r *Runtime) Attach(ctx context.Context, req sdk.AttachRequest) (sdk.AttachTarget, error) {
	s, release, err := r.settingsAt(req.Handle)
	if err != nil {
		return sdk.AttachTarget{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, attachBudget)
	defer cancel()
	v, err := s.look(req.SeatID, req.Handle, "")
	if err != nil {
		return sdk.AttachTarget{}, err
	}
	if err := v.Admit(req.InstanceID, v.Fence()); err != nil {
		return sdk.AttachTarget{}, err
	}
	if err := v.Ownerless(); err != nil {
		return sdk.AttachTarget{}, custodied.Unavailable("%v", err)
	}
	c, why, refusal := v.Dial(ctx, 0, 0)
	switch {
	case refusal != nil:
		return sdk.AttachTarget{}, custodied.Unavailable("seat %s: %v", v.ID, refusal)
	case c != nil:
		c.Close()
		return sdk.AttachTarget{Seat: &sdk.SeatEndpoint{Socket: v.Socket(), Token: v.Token}}, nil
	}
	if v.ExitErr == nil {
		return sdk.AttachTarget{}, sdk.Errorf(sdk.ErrGone, "seat %s has ended", v.ID)
	}
	if id, known := v.Custody(); known {
		if live, proof := seat.Check(id); live != seat.Dead {
			return sdk.AttachTarget{}, custodied.Unavailable("seat %s: %s; %s", v.ID, why, proof)
		}
	} else if v.Exists {
		return sdk.AttachTarget{}, custodied.Unavailable("seat %s: %s", v.ID, why)
	}
	return sdk.AttachTarget{}, sdk.Errorf(sdk.ErrGone, "seat %s is gone: %s", v.ID, why)
}
