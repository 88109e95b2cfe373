package seat

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
)

// The ends of seats on a runtime that tells of none by itself are asked for: often while somebody waits for the
// seat to get ready, rarely later.
const (
	exitPoll     = time.Second // default of Config.ExitPoll
	exitPollSlow = 5           // times slower once the seat is ready
)

// watching is one watch of a process, of which every change is told while it is not over.
type watching struct {
	seatID string
	over   atomic.Bool
}

// watch follows the process of the seat until it ends. It runs once per process, in its own goroutine.
func (a *actor) watch() {
	id := a.snapshot().Row.SeatID
	if a.watching == id {
		return
	}
	a.watching = id
	a.set.wg.Add(1)
	go func() {
		defer a.set.wg.Done()
		for attempt := 0; a.snapshot().Row.SeatID == id; attempt++ {
			err := a.watchOnce(id)
			if err == nil {
				return
			}
			a.log.Warn("watch seat", "err", err, "attempt", attempt)
			select {
			case <-a.done:
				return
			case <-a.set.life.Done():
				return
			case <-time.After(retryDelay(attempt)):
			}
		}
	}()
}

// watchOnce subscribes, or asks again and again, and returns nil once the process has ended. Before it gives up
// it asks for one verdict, so that an end between two subscriptions is seen.
func (a *actor) watchOnce(id string) error {
	row := a.snapshot().Row
	ctx, cancel := context.WithCancel(a.set.life)
	defer cancel()
	go func() {
		select {
		case <-a.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	rt, info, err := a.set.cfg.Plugins.Runtime(ctx, row.Runtime)
	if err != nil {
		return err
	}
	w, ok := rt.(sdk.Watcher)
	if !ok || !info.Has(sdk.CapWatch) {
		return a.poll(ctx, id)
	}
	here := &watching{seatID: id}
	defer here.over.Store(true)
	_, _, err = byHandle(row.Handle, func(h sdk.Handle) (struct{}, error) {
		return struct{}{}, w.Watch(ctx, sdk.WatchRequest{
			SeatID: id, InstanceID: a.set.cfg.InstanceID, Handle: h, Fence: a.set.cfg.Epoch,
		}, func(st sdk.SeatStatus) error {
			a.post(func() { a.onStatusOf(id, st); a.watched.Store(here) })
			return nil
		})
	})
	if err == nil || ctx.Err() != nil {
		return nil
	}
	ended, verr := a.look(ctx, id)
	if ended {
		return nil
	}
	return errors.Join(err, verr)
}

// look asks for one verdict and tells the actor. It reports whether the end of the process is proved.
func (a *actor) look(ctx context.Context, id string) (ended bool, err error) {
	st, err := a.adopt(ctx, false)
	if err != nil {
		return false, err
	}
	a.post(func() { a.onStatusOf(id, st) })
	return st.State == sdk.SeatExited || st.State == sdk.SeatNotFound, nil
}

// poll asks until the end is proved. Only a proof counts: a runtime that does not know has not seen an end.
func (a *actor) poll(ctx context.Context, id string) error {
	for {
		if ended, err := a.look(ctx, id); ended || err != nil {
			return err
		}
		wait := a.set.cfg.ExitPoll
		if !a.snapshot().Row.Ready.IsZero() {
			wait *= exitPollSlow
		}
		if sleep(ctx, wait) != nil {
			return nil
		}
		if a.snapshot().Row.SeatID != id {
			return nil
		}
	}
}

// onStatusOf takes a word about one process of the seat; about an earlier one it is too late.
func (a *actor) onStatusOf(id string, st sdk.SeatStatus) {
	if a.snapshot().Row.SeatID == id {
		a.onStatus(st)
	}
}

// onStatus takes the runtime's word for a seat whose saga is over.
func (a *actor) onStatus(st sdk.SeatStatus) {
	a.observe(st)
	if a.cancelLaunch != nil {
		return // the saga draws its own conclusions
	}
	state := a.snapshot().State
	switch st.State {
	case sdk.SeatRunning:
		switch {
		case state == Unknown, state == Starting, state == Prepared: // the last two, when the journal did not take it back at boot
			a.try(a.foundRunning(st.Handle))
		case state == Stopping && a.stopping == nil:
			a.ladder(sdk.StopGraceful) // a stop that lost its runtime goes on once the seat answers
		}
	case sdk.SeatUnknown:
		if state == Running {
			a.try(a.transition(EvUnknown, func(r *journal.SeatRow) { r.Reason = st.Reason }, nil))
		}
	case sdk.SeatExited, sdk.SeatNotFound:
		a.onExit(st)
	}
}
