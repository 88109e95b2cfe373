package goal

import (
	"context"
	"errors"
	"fmt"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Result answers goal-result, for the caller's own goals alone, of any host of the space. A goal that is not
// known has no result, which proves nothing: it is neither running nor free to be submitted again.
//
// Errors: unavailable, when the mesh cannot be read; the goal itself is not affected by that.
func (s *Store) Result(ctx context.Context, c wire.Caller, id string) (wire.GoalResultReply, error) {
	k := KeyOf(c, id)
	reply := wire.GoalResultReply{GoalID: id}
	s.mu.Lock()
	reply.Phase = s.phases[k]
	hidden := s.settling[k] > 0
	s.mu.Unlock()
	row, ok, err := s.Lookup(k)
	if err != nil {
		return wire.GoalResultReply{}, fmt.Errorf("read goal: %w", err)
	}
	if ok && row.Local || s.local() {
		if ok && !hidden && row.Result != nil {
			reply.Result, reply.Phase = row.Result, wire.PhaseTerminal
		}
		return reply, nil
	}
	fact, err := s.standingResult(ctx, k.ref())
	switch {
	case err != nil:
		return wire.GoalResultReply{}, &wire.Error{
			Code: wire.CodeUnavailable, Outcome: wire.OutcomeNotExecuted,
			Message: fmt.Sprintf("the end of goal %s cannot be read now (%v); the goal itself is not affected, ask again", id, err),
		}
	case fact != nil:
		result := resultOf(*fact)
		reply.Result, reply.Phase = &result, wire.PhaseTerminal
	case reply.Phase == "":
		reply.Phase = s.recordedPhase(ctx, k.ref())
	}
	return reply, nil
}

// standingResult is the terminal of a goal as far as it is one: a fact that is not of the goal that was
// accepted counts as none.
func (s *Store) standingResult(ctx context.Context, ref wire.GoalRef) (*wire.GoalResultFact, error) {
	fact, err := s.readResult(ctx, ref)
	if err != nil || fact == nil {
		return nil, err
	}
	e, err := s.cfg.Records.Get(ctx, ref.Key().Spec())
	if errors.Is(err, bus.ErrAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	spec, err := wire.DecodeGoalSpec(ref, e.Value)
	if err != nil {
		return nil, err
	}
	if err := fact.Of(spec); err != nil {
		s.cfg.Log.Warn("a terminal does not belong to its goal", "op", string(keyOfRef(ref)), "err", err)
		return nil, nil
	}
	return fact, nil
}

// recordedPhase is the progress of a goal that another host, or an earlier one, drives: as the record has it.
func (s *Store) recordedPhase(ctx context.Context, ref wire.GoalRef) string {
	e, err := s.cfg.Records.Get(ctx, ref.Key().Status())
	if err != nil {
		return ""
	}
	st, err := wire.DecodeGoalStatus(e.Value)
	if err != nil {
		return ""
	}
	switch st.State {
	case wire.GoalAccepted:
		return wire.PhaseHandoff
	case wire.GoalRunning, wire.GoalWaiting, wire.GoalCancelling:
		return wire.PhaseLaunched
	}
	return ""
}
