package seat

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// How long inspect waits for the runtime while the seat is being watched. A runtime that starts twenty seats
// answers in tens of milliseconds, and a change of state is told by the watch without being asked for.
const (
	inspectWait = 5 * time.Millisecond
	// inspectSlow is how long a question may go unanswered before the runtime counts as one that hangs, whose
	// watch proves nothing.
	inspectSlow = time.Second
	// inspectMost is how long a question is waited for at all. Whoever waits holds one of the reads of the host, and
	// one seat that hangs must not take all of them.
	inspectMost = 2 * time.Second
)

// patience is how long inspect waits for the runtime's word about a running or unknown seat. watched says that a
// watch of its process is established; asked is how long the question that is under way has waited; silent that the
// one before it was not answered. known says that what is known stands when there is no answer by then; else it is
// told as not verified.
func patience(state State, watched bool, asked time.Duration, silent bool) (wait time.Duration, known bool) {
	switch {
	case silent:
		return max(0, inspectWait-asked), false // the next answer is for whoever asks then
	case state == Running && watched && asked < inspectSlow:
		return max(0, inspectWait-asked), true // once it is late it is not waited for again
	}
	return max(0, inspectMost-asked), false
}

// question is one question to the runtime for the state of a seat. st and err are valid once done is closed.
type question struct {
	asked time.Time
	done  chan struct{}
	st    sdk.SeatStatus
	err   error
}

// questions are those of one seat: one at a time, however many want to know.
type questions struct {
	mu     sync.Mutex
	now    *question
	silent atomic.Bool // the last one was not answered in the time that anybody waits
}

// ask returns the question that is under way, or a new one. mine says that it is new: the answer to an earlier
// one may be older than the call.
func (a *actor) ask() (q *question, mine bool) {
	a.asks.mu.Lock()
	defer a.asks.mu.Unlock()
	if a.asks.now != nil {
		return a.asks.now, false
	}
	q = &question{asked: time.Now(), done: make(chan struct{})}
	a.asks.now = q
	id := a.snapshot().Row.SeatID
	a.background(func() {
		q.st, q.err = a.adopt(a.set.life, false)
		a.asks.silent.Store(time.Since(q.asked) >= inspectMost)
		if q.err == nil {
			told := make(chan struct{})
			if a.post(func() { defer close(told); a.onStatusOf(id, q.st) }) {
				select {
				case <-told:
				case <-a.done:
				case <-a.set.life.Done():
				}
			}
		}
		a.asks.mu.Lock()
		a.asks.now = nil
		a.asks.mu.Unlock()
		close(q.done)
	})
	return q, true
}

// verify asks the runtime for the state of the seat, and tells the actor, whoever waits for it. ok is false when
// there was no answer in the time that patience gives: then what is known stands, since the seat is watched.
func (a *actor) verify(ctx context.Context) (st sdk.SeatStatus, ok bool, err error) {
	begun := time.Now()
	for {
		q, mine := a.ask()
		snap := a.snapshot()
		w := a.watched.Load()
		watched := w != nil && w.seatID == snap.Row.SeatID && !w.over.Load()
		wait, known := patience(snap.State, watched, max(0, begun.Sub(q.asked)), a.asks.silent.Load())
		t := time.NewTimer(wait - time.Since(begun))
		select {
		case <-q.done:
			t.Stop()
			if mine || q.err != nil {
				return q.st, q.err == nil, q.err
			}
		case <-ctx.Done():
			t.Stop()
			return st, false, ctx.Err()
		case <-t.C:
			if known {
				return st, false, nil
			}
			return st, false, fmt.Errorf("its runtime has not answered for %s", time.Since(q.asked).Round(time.Millisecond))
		}
	}
}

// Inspect answers inspect: the row of one seat, freshly verified when it is live. While the seat is watched the
// runtime is waited for but shortly; what it did not answer by then is as the watch told it, and the output
// position, of which a watch tells nothing, is left out. A runtime that does not answer within inspectMost leaves the row
// as last known, and the reason says so.
func (s *Set) Inspect(ctx context.Context, name string) (wire.AgentRow, error) {
	a, err := s.find(name)
	if err != nil {
		if snap := s.endedRow(name); snap != nil {
			return s.row(snap), nil
		}
		if err == ErrNoSeat {
			return wire.AgentRow{}, wire.Refuse(wire.CodeNotFound, "no seat is called %q; see cotal ps", name)
		}
		return wire.AgentRow{}, wire.Refuse(wire.CodeBadRequest, "%v; use the full custody id", err)
	}
	snap := a.snapshot()
	if snap.State != Running && snap.State != Unknown {
		return s.row(snap), nil
	}
	st, ok, err := a.verify(ctx)
	if err != nil {
		row := s.row(snap)
		row.Reason = strings.TrimPrefix(row.Reason+"; ", "; ") + "not verified now: " + err.Error()
		return row, nil
	}
	a.checkHealth()
	row := s.row(a.snapshot())
	if ok {
		row.Output = st.Next
	}
	return row, nil
}
