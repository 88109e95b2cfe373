package seat

import (
	"context"
	"strings"
	"sync"
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
)

// patience is how long inspect waits for the runtime's word about a running or unknown seat. watched says that a
// watch of its process is established; asked is how long the question that is under way has waited. known says that
// what is known stands when there is no answer by then.
func patience(state State, watched bool, asked time.Duration) (wait time.Duration, known bool) {
	if state == Running && watched && asked < inspectSlow {
		return min(inspectWait, max(0, inspectWait-asked)), true // once it is late it is not waited for again
	}
	return adoptTimeout + inspectWait, false // the question itself ends before, and says why
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
	mu  sync.Mutex
	now *question
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
		wait, known := patience(snap.State, watched, begun.Sub(q.asked))
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
			return st, false, context.DeadlineExceeded
		}
	}
}

// Inspect answers inspect: the row of one seat, freshly verified when it is live. While the seat is watched the
// runtime is waited for but shortly; what it did not answer by then is as the watch told it, and the output
// position, of which a watch tells nothing, is left out. Without a watch, a runtime that does not answer leaves
// the row as last known, and the reason says so.
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
