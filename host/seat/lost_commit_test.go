package seat_test

import (
	"context"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// lostCommit is the real runtime, whose answer to a commit is lost. carried: it was done all the same.
type lostCommit struct {
	sdk.Runtime
	carried bool
}

func (l *lostCommit) Adopt(ctx context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	if !req.Commit {
		return l.Runtime.Adopt(ctx, req)
	}
	if l.carried {
		if _, err := l.Runtime.Adopt(ctx, req); err != nil {
			return sdk.SeatStatus{}, err
		}
	}
	return sdk.SeatStatus{}, context.DeadlineExceeded
}

// A commit that is not answered may have executed the agent. That it did not is said only where what was taken away
// proves it.
func TestACommitWithoutAnAnswerIsNotCalledNotExecuted(t *testing.T) {
	for name, c := range map[string]struct {
		carried bool
		want    wire.Outcome
	}{
		"the agent was executed":   {true, wire.OutcomeUnknown},
		"the seat says it was not": {false, wire.OutcomeNotExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.plugins.mu.Lock()
			w.plugins.runtime = &lostCommit{w.plugins.runtime, c.carried}
			w.plugins.mu.Unlock()
			id := wire.NewID()
			if _, err := w.spawn(id, w.args("lost", `[{"hang": true}]`)); err != nil {
				t.Fatal(err)
			}
			r := w.terminal(id)
			if r.State != wire.GoalFailed || r.Error == nil || r.Error.Outcome != c.want || r.Error.Code != wire.CodeDeadlineExceeded {
				t.Errorf("%s: %+v", r.State, r.Error)
			}
			w.eventually("nothing of it is left", func() (bool, string) {
				occ := w.set.Occupancy()
				return occ.Live+occ.Pending == 0, ""
			})
		})
	}
}
