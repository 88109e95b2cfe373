package seat

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A spawn that has driven the teardown of another life claims no outcome any more, whatever refuses it then; and
// claims as much as it knows before that.
//
// proves: OUT-3, OUT-4
func TestWhatARefusedSpawnClaims(t *testing.T) {
	held := errNameHeld{name: "ada", by: claim{kind: claimRetiring, who: "stopping", uid: wire.NewUID()}}.refusal()
	for _, c := range []struct {
		name string
		plan *plan
		err  error
		want wire.Outcome
	}{
		{"refused before there was a plan: not-executed", nil, wire.Refuse(wire.CodeNotFound, "no persona"), wire.OutcomeNotExecuted},
		{"refused without effect: not-executed", &plan{}, held, wire.OutcomeNotExecuted},
		{"the name is still held behind a teardown that was driven: unknown", &plan{effects: true}, held, wire.OutcomeUnknown},
		{"the host is full behind it: unknown", &plan{effects: true}, wire.Refuse(wire.CodeResourceExhausted, "full"), wire.OutcomeUnknown},
		{"the mesh did not say whether it accepted: unknown, as before", &plan{effects: true}, wire.Fail(wire.CodeUnavailable, "away"), wire.OutcomeUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := *wire.ErrorFrom(c.err)
			got := wire.ErrorFrom(c.plan.claims(c.err))
			if got.Outcome != c.want || got.Code != before.Code || got.Message != before.Message || len(got.Details) != len(before.Details) {
				t.Errorf("told %+v, was %+v", got, before)
			}
			if after := wire.ErrorFrom(c.err); after.Outcome != before.Outcome {
				t.Error("what others hold was changed")
			}
		})
	}
	if err := (&plan{effects: true}).claims(nil); err != nil {
		t.Errorf("a success became %v", err)
	}
}

// Before the first write an input says that nothing was typed. Behind it nothing is claimed that is not known: not by
// a refusal of a later piece either, which knows only of that piece.
//
// proves: OUT-5
func TestWhatAnInputClaimsThatFailed(t *testing.T) {
	a := newActorForTest(t)
	other := "another process"
	a.into.Store(&other)
	replaced, ended, cannot := a.accepts(), (&Snapshot{State: Exited}).accepts(), error(lacks("mux", "type into a seat", sdk.CapWrite))
	whole := &seat.Error{Code: seat.CodeNotRunning, Outcome: seat.OutcomeNotExecuted}
	for _, c := range []struct {
		name  string
		typed int
		err   error
		want  wire.Outcome
	}{
		{"the process was replaced before the first write: not-executed", 0, replaced, wire.OutcomeNotExecuted},
		{"it had ended before the first write: not-executed", 0, ended, wire.OutcomeNotExecuted},
		{"the runtime cannot type: not-executed", 0, cannot, wire.OutcomeNotExecuted},
		{"the seat says itself that it took nothing of the first write: not-executed", 0, whole, wire.OutcomeNotExecuted},
		{"the first write was rejected, which says nothing of what it delivered: unknown", 0, errors.New("write: rejected"), wire.OutcomeUnknown},
		{"the caller gave up during the first write: unknown", 0, fmt.Errorf("write: %w", context.DeadlineExceeded), wire.OutcomeUnknown},
		{"the process was replaced behind the first piece: that one was typed", 4096, replaced, wire.OutcomeExecuted},
		{"it was ended behind the first piece: that one was typed", 4096, ended, wire.OutcomeExecuted},
		{"the seat took nothing of the second piece: the first one was typed", 4096, whole, wire.OutcomeExecuted},
		{"what became of the second piece is not known: the first one was typed", 1, errors.New("write: rejected"), wire.OutcomeExecuted},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e := inputError("worker", c.typed, c.err); e.Outcome != c.want {
				t.Errorf("%s: %s; want %s", e.Outcome, e.Message, c.want)
			}
		})
	}
}
