package custodied

import (
	"context"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// Watch emits the status of a seat at once and after every change of its state, size, agent or number
// of attached terminals (output offsets alone are no change). It returns nil after it emitted that the
// seat has exited or was not found. When the seat's connection breaks it is judged by adopt, so the loss of
// custody is told too; an unknown seat is told once and looked at again until ctx ends. open reads the seat
// and returns what releases it.
// Errors: those of adopt, of open, of emit, and ctx's.
func Watch(ctx context.Context, adopt func(context.Context) (sdk.SeatStatus, error), open func() (*Seat, func(), error), emit func(sdk.SeatStatus) error) error {
	w := &watch{open: open, emit: emit}
	retry := watchRetry
	for {
		st, err := adopt(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := w.tell(st); err != nil || w.over {
			return err
		}
		if st.State != sdk.SeatUnknown {
			began := time.Now()
			heard, err := w.follow(ctx)
			if err != nil || w.over {
				return err
			}
			if heard && time.Since(began) > PollEvery {
				retry = watchRetry
				continue // most likely it has just exited
			}
		}
		if err := proctree.Pause(ctx, retry); err != nil {
			return err
		}
		retry = min(2*retry, watchRetryMax)
	}
}

type watch struct {
	open func() (*Seat, func(), error)
	emit func(sdk.SeatStatus) error
	last sdk.SeatStatus
	told bool
	over bool
}

// tell emits st if it is news.
func (w *watch) tell(st sdk.SeatStatus) error {
	if w.told && same(w.last, st) {
		return nil
	}
	w.last, w.told = st, true
	w.over = st.State == sdk.SeatExited || st.State == sdk.SeatNotFound
	return w.emit(st)
}

func same(a, b sdk.SeatStatus) bool {
	return a.State == b.State && a.Reason == b.Reason && a.Rows == b.Rows && a.Cols == b.Cols &&
		a.Attached == b.Attached && a.Agent == b.Agent && a.Identity == b.Identity
}

// follow stays on one connection as long as it lasts. heard reports whether there was one. An error is
// emit's or the context's: everything else is for the next look to judge.
func (w *watch) follow(ctx context.Context) (heard bool, err error) {
	v, release, err := w.open()
	if err != nil {
		return false, err
	}
	defer release()
	c, _, _ := v.Dial(ctx, 0, 0)
	if c == nil {
		return false, nil
	}
	defer c.Close()
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	var redo *time.Timer
	news := func(now seat.Status) {
		st, ok := v.live(now)
		v.Term.Carry(&st, w.last)
		if now.State == seat.StateDraining && redo == nil {
			// Why the end of its agent is not told may change without a word of the seat.
			redo = time.AfterFunc(drainLook, cancel)
		}
		if failed == nil && ok {
			if failed = w.tell(st); failed != nil {
				cancel()
			}
		}
	}
	news(c.Welcome())
	_ = c.Run(run, seat.Handler{Status: news})
	if redo != nil {
		redo.Stop()
	}
	if failed != nil {
		return true, failed
	}
	return true, ctx.Err()
}
