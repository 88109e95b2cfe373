package seat

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Crash points of a stop.
var (
	fpStopAsked    = failpoint.New("host.stop.asked")
	fpStopRecorded = failpoint.New("host.stop.recorded")
	fpStopProved   = failpoint.New("host.stop.proved")
)

// ending is an end that somebody asked for.
type ending struct {
	mode  sdk.StopMode
	cause string
	by    string // principal; empty: the host itself
}

type stopResult struct {
	report sdk.ReapReport
	err    error
}

// stop ends the seat and returns once its end is proved and nothing of it is left. A stop of a seat
// that is already ending joins that end; "now" overtakes a graceful one. It is idempotent.
func (a *actor) stop(ctx context.Context, e ending) (sdk.ReapReport, error) {
	ch := make(chan stopResult, 1)
	if !a.post(func() { a.onStop(e, ch) }) {
		select {
		case <-a.done:
			return a.finalReport(), nil
		default:
			return sdk.ReapReport{}, errHostGone
		}
	}
	select {
	case r := <-ch:
		return r.report, r.err
	case <-a.done:
		return a.finalReport(), nil
	case <-a.set.life.Done():
		return sdk.ReapReport{}, errHostGone
	case <-ctx.Done():
		return sdk.ReapReport{}, cmp.Or(a.heldNow(), ctx.Err())
	}
}

// begin is stop for who does not wait: it returns once the end that was asked for is recorded. From then on the
// exit is known to be deliberate, whoever dies meanwhile, and the seat has no say any more.
func (a *actor) begin(e ending) error {
	ch := make(chan stopResult, 1)
	waits := true
	err := a.call(func() error {
		a.onStop(e, ch)
		select {
		case r := <-ch: // it could not be recorded
			waits = false
			return r.err
		default:
			return nil
		}
	})
	select {
	case <-a.done:
		return nil // over already
	default:
	}
	if err != nil || !waits {
		return err
	}
	a.background(func() {
		select {
		case r := <-ch:
			if r.err != nil && !errors.Is(r.err, errHostGone) {
				a.log.Warn("stop seat", "err", r.err)
			}
		case <-a.done:
		case <-a.set.life.Done():
		}
	})
	return nil
}

// finalReport is the evidence of a seat that has ended. Only valid once done is closed.
func (a *actor) finalReport() sdk.ReapReport {
	outcome := a.outcome
	if outcome == "" {
		outcome = sdk.ReapAbsent
	}
	return sdk.ReapReport{Outcome: outcome, Exit: a.snapshot().Row.Exit, Killed: a.killed, Removed: a.removed, Evidence: a.evidence}
}

func (a *actor) onStop(e ending, ch chan stopResult) {
	a.waiters = append(a.waiters, ch)
	snap := a.snapshot()
	if snap.State == Exited {
		if a.freeing {
			a.redrive()
		} else {
			a.free()
		}
		return
	}
	if snap.State != Stopping {
		_ = fpStopAsked.Hit()
		// The cause is durable before the first signal, so that the exit of a deliberate stop is
		// never taken for a crash, whoever dies in between.
		err := a.transition(EvStop, func(r *journal.SeatRow) { r.Cause, r.By = e.cause, e.by }, nil)
		if err != nil {
			a.answerWaiters(err)
			return
		}
		_ = fpStopRecorded.Hit()
		a.set.cfg.Goals.Cancelling(goal.Key(snap.Row.RequestID), cancelMode(e.mode)) // while it has no end yet
	}
	if a.cancelLaunch != nil {
		a.cancelLaunch() // the saga undoes itself, or finishes and is stopped then
		a.stopMode = e.mode
		return
	}
	a.ladder(e.mode)
}

// cancelMode is how the goal of a seat that is being stopped says it.
func cancelMode(mode sdk.StopMode) string {
	if mode == sdk.StopGraceful {
		return wire.CancelGraceful
	}
	return wire.CancelTerminate
}

// ladder starts the runtime's stop ladder, or replaces a graceful one that still runs by a hard one.
func (a *actor) ladder(mode sdk.StopMode) {
	if a.stopping != nil {
		if a.stopMode == mode || mode == sdk.StopGraceful {
			return // joins the one that runs
		}
		a.stopping()
	}
	ctx, cancel := context.WithCancel(a.set.life)
	a.stopping, a.stopMode = cancel, mode
	a.background(func() {
		// Keep: the exit becomes durable in the journal before the seat's own record is removed.
		report, err := a.reapCtx(ctx, mode, true)
		overtaken := ctx.Err() != nil
		cancel()
		_ = fpStopProved.Hit()
		a.post(func() { a.onLadderDone(report, err, overtaken) })
	})
}

func (a *actor) onLadderDone(report sdk.ReapReport, err error, overtaken bool) {
	if overtaken && err != nil {
		return // the ladder that replaced this one answers
	}
	a.stopping = nil
	if err != nil && a.snapshot().State == Exited {
		a.free() // the watch saw the end meanwhile; what the ladder could not prove, the reap will
		return
	}
	if err != nil {
		a.log.Warn("stop could not prove the end; the name stays held", "err", err)
		a.note("stop could not prove the end, and is tried again: " + err.Error())
		a.answerWaiters(err)
		// The cause is durable: it is brought to its end, whether or not anybody waits.
		mode := a.stopMode
		a.after(a.stopTries, func() {
			if a.snapshot().State == Stopping && a.stopping == nil && a.cancelLaunch == nil {
				a.ladder(mode)
			}
		})
		a.stopTries++
		return
	}
	if report.Exit != nil && report.Outcome == sdk.ReapStopped { // this stop ended it, whatever its record could see
		exit := *report.Exit
		exit.Asked = true
		report.Exit = &exit
	}
	a.merge(report)
	if row := a.snapshot().Row; report.Exit == nil && report.Outcome == sdk.ReapAbsent && follows(row) {
		report.Exit = row.Restart.Exit // the last process had ended, and the next one never was
	}
	a.onExit(sdk.SeatStatus{State: sdk.SeatExited, Exit: report.Exit, Reason: "ended by a stop; no record of the exit was found"})
}

// answerWaiters tells everyone who waits for the end how it went.
func (a *actor) answerWaiters(err error) {
	for _, ch := range a.waiters {
		ch <- stopResult{a.finalReport(), err}
	}
	a.waiters = nil
}

// Despawn ends one seat for a caller who named its principal and life. For a life that is known to have
// ended it succeeds with that end, however it came: what was asked for is so, and a caller whose reply was
// lost may ask again. by is who asks: an agent that ends itself, one that ends what it spawned, or somebody else.
// Errors: expired (no seat is known with that life), unavailable and not executed (its runtime does not answer:
// nothing was begun), failed-precondition with outcome unknown when the end could not be proved.
func (s *Set) Despawn(ctx context.Context, by wire.Caller, target wire.Target, args wire.DespawnArgs) (wire.DespawnReply, error) {
	graceful := args.Graceful == nil || *args.Graceful
	a, err := s.target(target)
	if err != nil {
		if snap := s.endedLife(target); snap != nil {
			reply := wire.DespawnReply{Name: snap.Row.Alias, Stopped: true, Graceful: graceful}
			if args.WaitForExit {
				reply.Report = hadEnded(snap.Row)
			}
			return reply, nil
		}
		return wire.DespawnReply{}, err
	}
	if err := a.stoppable(ctx); err != nil {
		return wire.DespawnReply{}, err
	}
	mode := sdk.StopNow
	if graceful {
		mode = sdk.StopGraceful
	}
	row := a.snapshot().Row
	reply := wire.DespawnReply{Name: row.Alias, Graceful: graceful}
	end := ending{mode: mode, cause: s.causeBy(by, row), by: by.Principal()}
	if !args.WaitForExit {
		if err := a.begin(end); err != nil {
			return reply, stopError(reply.Name, err)
		}
		reply.Stopped = true
		return reply, nil
	}
	report, err := a.stop(ctx, end)
	if err != nil {
		return reply, stopError(reply.Name, err)
	}
	reply.Stopped = true
	reply.Report = reportOf(report)
	return reply, nil
}

// stoppable refuses a stop that could not begin: a seat that runs, of a runtime that cannot be called. A stop
// that has begun is joined in any case.
func (a *actor) stoppable(ctx context.Context) error {
	snap := a.snapshot()
	if snap.State != Running && snap.State != Unknown {
		return nil
	}
	if _, _, err := a.set.cfg.Plugins.Runtime(ctx, snap.Row.Runtime); err != nil {
		return wire.Refuse(wire.CodeUnavailable, "runtime %s does not answer: %v; nothing was done to %s. Restart the plugin: cotal ext restart %s   then stop it again",
			snap.Row.Runtime, err, snap.Row.Alias, snap.Row.Runtime)
	}
	return nil
}

// stopError says that an end is not proved, and what that means.
func stopError(name string, err error) *wire.Error {
	if held := new(heldError); errors.As(err, &held) {
		return &wire.Error{Code: wire.CodeUnavailable, Outcome: wire.OutcomeExecuted, Message: name + " has ended; " + held.Error()}
	}
	code := wire.CodeFailedPrecondition
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		code = wire.CodeDeadlineExceeded
	case errors.Is(err, errHostGone), errors.Is(err, sdk.ErrPluginDown), errors.Is(err, sdk.ErrUnavailable):
		code = wire.CodeUnavailable
	}
	return &wire.Error{
		Code: code, Outcome: wire.OutcomeUnknown,
		Message: "the end of " + name + " is not proved: " + err.Error() + "; the name stays held, stop it again or look with inspect",
	}
}

// target resolves the life a targeted command names, right before its effect. Its error is expired, and says of a life
// that is known to be over how it ended.
func (s *Set) target(t wire.Target) (*actor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.byID {
		row := a.snapshot().Row
		if row.UID == t.LifecycleUID && row.Principal == t.Owner+"."+t.Actor {
			return a, nil
		}
	}
	if snap, whole := s.overLife(t); snap != nil {
		return nil, s.gone(snap.Row, whole)
	}
	return nil, wire.Refuse(wire.CodeExpired, "no live seat has the lifecycle uid %s; look at ps for the current one", t.LifecycleUID)
}

// endedLife is the last of a life that is over, or nil when it never was or is forgotten.
func (s *Set) endedLife(t wire.Target) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap, _ := s.overLife(t)
	return snap
}

// hadEnded is the report of a stop that found nothing to do.
func hadEnded(row journal.SeatRow) *wire.StopReport {
	if row.Exit == nil {
		return reportOf(sdk.ReapReport{Outcome: sdk.ReapAbsent, Evidence: []string{"its start was undone (" + whyUndone(row) + "), and nothing of it is left"}})
	}
	exit := *row.Exit
	return reportOf(sdk.ReapReport{
		Outcome: sdk.ReapExited, Exit: &exit, Evidence: []string{"the host holds its exit record (" + string(exit.Evidence) + ")"},
	})
}

// StopAll ends every seat, at once, and says for each how it went.
func (s *Set) StopAll(ctx context.Context) (stopped []wire.StoppedSeat, left []wire.AgentRow) {
	type result struct {
		a      *actor
		report sdk.ReapReport
		err    error
	}
	s.mu.Lock()
	actors := make([]*actor, 0, len(s.byID))
	for _, a := range s.byID {
		actors = append(actors, a)
	}
	s.mu.Unlock()
	results := make(chan result, len(actors))
	for _, a := range actors {
		go func() {
			report, err := a.stop(ctx, ending{mode: sdk.StopGraceful, cause: causeShutdown})
			results <- result{a, report, err}
		}()
	}
	for range actors {
		r := <-results
		if r.err != nil {
			row := s.row(r.a.snapshot())
			row.Reason = r.err.Error()
			left = append(left, row)
			continue
		}
		stopped = append(stopped, wire.StoppedSeat{Name: r.a.snapshot().Row.Alias, Report: reportOf(r.report)})
	}
	return stopped, left
}

// Grace is the longest grace of any live seat: what a stop of all of them may take.
func (s *Set) Grace() time.Duration {
	var longest time.Duration
	for _, snap := range s.Snapshots() {
		if snap.State.Live() {
			longest = max(longest, time.Duration(snap.Row.Grace)*time.Millisecond)
		}
	}
	return longest
}
