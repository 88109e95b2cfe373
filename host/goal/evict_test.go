package goal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// later boots the next incarnation of a host with a clock that is ahead by what ahead says.
func (h *host) later(ahead *atomic.Int64, retention time.Duration, through ...func(goal.Records) goal.Records) *host {
	h.ahead, h.retention = ahead, retention
	return h.boot(through...).serve()
}

// done submits a goal and waits until its terminal is on the mesh and noted here.
func (h *host) done(id string) goal.Key {
	h.t.Helper()
	k := goal.KeyOf(wire.Caller{Owner: "local", Actor: "op", UID: operator}, id)
	if _, started, err := h.submit(k, fingerprintOf(id)); err != nil || !started {
		h.t.Fatalf("submit: %v, %v", started, err)
	}
	h.end(k, wire.GoalSucceeded)
	h.eventually("it is noted", func() bool {
		row, ok, err := h.store.Lookup(k)
		return err == nil && ok && row.Committed
	})
	return k
}

const operator = "aaaaaaaaaaaaaaaaaaaaaaaaaa"

func (h *host) evict() {
	h.t.Helper()
	if err := h.store.Evict(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// results is how many messages there are of terminals, of any age.
func (h *host) results() (n int) {
	h.t.Helper()
	for from := uint64(1); ; n++ {
		f, err := h.records.NextFact(h.t.Context(), wire.EndpointManager, wire.FactGoalResult, from)
		if errors.Is(err, bus.ErrAbsent) {
			return n
		}
		if err != nil {
			h.t.Fatal(err)
		}
		from = f.Seq + 1
	}
}

// What becomes of a result with time: whole, then how it ended, then nothing, and the id is new work.
//
// proves: GOAL-23
func TestAResultIsEvictedAndForgotten(t *testing.T) {
	var ahead atomic.Int64
	m := newMesh(t)
	h, other := m.host().later(&ahead, time.Hour), m.host().later(&ahead, time.Hour)
	k, theirs := h.done("g1"), other.done("g2")
	h.evict()
	if r := h.terminal(k); fmt.Sprint(string(r.Data)) == `{"evicted":true}` {
		t.Fatal("it was evicted at once")
	}
	first, _, err := h.submit(k, fingerprintOf("g1"))
	if err != nil {
		t.Fatal(err)
	}

	ahead.Store(int64(time.Hour + time.Minute))
	h.evict()
	h.evict() // what is left is not evicted again
	if r := h.terminal(k); r.State != wire.GoalSucceeded || string(r.Data) != `{"evicted":true}` || r.Error != nil {
		t.Errorf("after the retention: %+v %s", r, r.Data)
	}
	if r := h.terminal(theirs); string(r.Data) == `{"evicted":true}` {
		t.Error("another host's was evicted")
	}
	if n := h.results(); n != 2 {
		t.Errorf("%d messages of terminals; want 2", n)
	}
	if acc, started, err := h.submit(k, fingerprintOf("g1")); err != nil || started || acc.UID != first.UID {
		t.Errorf("the same request again: %+v, %v, %v", acc, started, err)
	}
	if _, _, err := h.submit(k, fingerprintOf("else")); wire.ErrorFrom(err) == nil || wire.ErrorFrom(err).Code != wire.CodeFailedPrecondition {
		t.Errorf("another request: %v", err)
	}
	// Without the row of the journal the outcome is in the refusal.
	err = h.journal.Update(t.Context(), func(tx *journal.Tx) error { return h.store.Forget(tx, k) })
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = h.submit(k, fingerprintOf("g1"))
	werr := wire.ErrorFrom(err)
	if werr == nil || werr.Code != wire.CodeFailedPrecondition || werr.Outcome != wire.OutcomeNotExecuted {
		t.Fatalf("the same request without the row: %v", err)
	}
	if raw, ok := werr.Detail(goal.DetailAlreadyTerminal); !ok {
		t.Errorf("no outcome: %+v", werr)
	} else if d := fmt.Sprint(raw); !strings.Contains(d, "evicted:true") || !strings.Contains(d, "state:succeeded") {
		t.Errorf("details %v", raw)
	}

	// What is left was written just now, by the broker's clock.
	ahead.Store(int64(wire.IdempotencyHorizon - time.Minute))
	h.evict()
	if n := h.results(); n != 2 {
		t.Errorf("%d messages of terminals before the horizon; want 2", n)
	}
	ahead.Store(int64(wire.IdempotencyHorizon + time.Minute))
	h.evict()
	if n := h.results(); n != 1 {
		t.Errorf("%d messages of terminals; want the other host's", n)
	}
	if r := h.result(k); r.Result != nil {
		t.Errorf("after the horizon: %+v", r)
	}
	acc, started, err := h.submit(k, fingerprintOf("new work"))
	if err != nil || !started || acc.UID == first.UID {
		t.Fatalf("new work: %+v, %v, %v", acc, started, err)
	}
	h.end(k, wire.GoalFailed)
	if r := h.terminal(k); r.State != wire.GoalFailed {
		t.Errorf("the new one ended %s", r.State)
	}
}

// cut lets nothing through from the nth change on, as a host that is killed there.
type cut struct {
	goal.Records
	left int
}

var errCut = fmt.Errorf("%w: cut", bus.ErrUnavailable)

func (c *cut) step() error {
	if c.left--; c.left < 0 {
		return errCut
	}
	return nil
}

func (c *cut) EvictFact(ctx context.Context, f wire.FactSubject, value []byte, seq uint64) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.Records.EvictFact(ctx, f, value, seq)
}

func (c *cut) DropFact(ctx context.Context, seq uint64) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.Records.DropFact(ctx, seq)
}

func (c *cut) DropGoal(ctx context.Context, ref wire.GoalRef) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.Records.DropGoal(ctx, ref)
}

// Wherever a host ends while it forgets a goal, the id is not taken for new work before everything is gone, and the
// next host goes on.
func TestForgettingAGoalMayEndAnywhere(t *testing.T) {
	for steps := range 4 {
		t.Run(fmt.Sprintf("after %d changes", steps), func(t *testing.T) {
			var ahead atomic.Int64
			h := newMesh(t).host().later(&ahead, time.Hour)
			k := h.done("g1")
			ahead.Store(int64(time.Hour + time.Minute))
			var c *cut
			h.later(&ahead, time.Hour, func(r goal.Records) goal.Records { c = &cut{r, steps}; return c })
			err := h.store.Evict(t.Context())
			ahead.Store(int64(wire.IdempotencyHorizon + time.Minute))
			if err == nil {
				err = h.store.Evict(t.Context())
			}
			if !errors.Is(err, bus.ErrUnavailable) {
				t.Fatalf("it was not cut: %v", err)
			}
			h.later(&ahead, time.Hour)
			if _, started, err := h.submit(k, fingerprintOf("g1")); started {
				t.Fatalf("it was taken for new work: %v", err)
			}
			h.evict() // its data
			h.evict() // and the rest: the clock is ahead of both
			if n := h.results(); n != 0 {
				t.Errorf("%d messages of terminals are left", n)
			}
			if _, started, err := h.submit(k, fingerprintOf("new work")); err != nil || !started {
				t.Errorf("new work: %v, %v", started, err)
			}
		})
	}
}
