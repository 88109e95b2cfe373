package seat

import (
	"context"
	"errors"
	"fmt"

	"github.com/cotal-ai/cotal-host/sdk"
)

// adopt asks the runtime for its verdict.
func (a *actor) adopt(ctx context.Context, commit bool) (sdk.SeatStatus, error) {
	row := a.snapshot().Row
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	rt, _, err := a.set.cfg.Plugins.Runtime(ctx, row.Runtime)
	if err != nil {
		return sdk.SeatStatus{}, fmt.Errorf("runtime %s: %w", row.Runtime, err)
	}
	st, refused, err := byHandle(row.Handle, func(h sdk.Handle) (sdk.SeatStatus, error) {
		return rt.Adopt(ctx, sdk.AdoptRequest{
			SeatID: row.SeatID, InstanceID: a.set.cfg.InstanceID, Handle: h, Nonce: row.Nonce,
			Fence: a.set.cfg.Epoch, Commit: commit,
		})
	})
	if refused && err == nil && st.Handle.Ref != "" {
		a.post(func() { a.show(func(s *Snapshot) { s.Row.Handle = st.Handle }) })
	}
	return st, err
}

// byHandle makes a call that names a seat by its handle, and once more by its custody id alone when the
// handle is refused: it may be of a newer runtime than the one that runs, or have been wrong from the start,
// and a seat that nobody can name cannot be stopped. A call that is refused as invalid did nothing.
func byHandle[T any](h sdk.Handle, call func(sdk.Handle) (T, error)) (out T, refused bool, err error) {
	out, err = call(h)
	if !errors.Is(err, sdk.ErrInvalid) || h.Version == 0 && h.Ref == "" && len(h.State) == 0 {
		return out, false, err
	}
	again, aerr := call(sdk.Handle{})
	switch {
	case errors.Is(aerr, sdk.ErrInvalid): // so it was not the handle
		return out, false, err
	case aerr != nil:
		return again, true, fmt.Errorf("%w (by the custody id alone; its handle was refused: %v)", aerr, err)
	}
	return again, true, nil
}
