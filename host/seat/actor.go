package seat

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Causes of an end, as shown in rows and logs.
const (
	causeRequested      = "stopped-requested"         // by an operator, or by whoever may
	causeSelf           = "stopped-self"              // by the agent itself
	causeParent         = "stopped-parent"            // by the agent that had spawned it
	causeReap           = "stopped-reap"              // with the agent that had spawned it
	causeShutdown       = "stopped-shutdown"          // with the host
	causeProcessExit    = "process-exit"              // by itself
	causeCrashLoop      = "supervise-crash-loop"      // by itself, once too often
	causeRecoveryFailed = "supervise-recovery-failed" // by itself, and it could not be started again
	causeStartFailed    = "start-failed"
)

// deliberate reports whether somebody asked for an end with this cause. Such an end is never taken for a crash.
func deliberate(cause string) bool {
	switch cause {
	case causeRequested, causeSelf, causeParent, causeReap, causeShutdown:
		return true
	}
	return false
}

// Crash points of the end of a seat.
var (
	fpExitSeen     = failpoint.New("host.exit.seen")
	fpExitRecorded = failpoint.New("host.exit.recorded")
	fpExitReaped   = failpoint.New("host.exit.reaped")
)

// Bounds of the calls an actor makes, with the reason of each.
const (
	adoptTimeout     = 5 * time.Second  // one seat's share of a boot
	reapMargin       = 15 * time.Second // beyond the grace: kill, tree walk, removal
	connectorTimeout = 10 * time.Second // removal of a program's own leftovers
	persistTimeout   = 10 * time.Second // a journal commit; longer means the disk hangs
)

// retryDelays are the waits between attempts of something that must finish sooner or later: a reap, a
// verdict, a journal write. The last one repeats.
var retryDelays = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}

func retryDelay(attempt int) time.Duration { return retryDelays[min(attempt, len(retryDelays)-1)] }

// Snapshot is an immutable view of one seat.
type Snapshot struct {
	Row    journal.SeatRow
	State  State
	Status sdk.SeatStatus // the runtime's last word; zero before the first

	Ending time.Time // since when its process has ended and the end is not recorded; zero: it has not

	Degraded string // what the seat has lost while it runs on, as of the last health check; empty: nothing
	Auth     auth   // how its credential stands, where that is not well
}

// actor owns one seat. Its fields belong to the goroutine that runs loop, but for snap and those
// marked otherwise; everybody else posts functions into box.
type actor struct {
	set  *Set
	log  hclog.Logger
	box  chan func()
	done chan struct{} // closed when the seat has ended and its name is free
	snap atomic.Pointer[Snapshot]

	accepted  chan struct{} // closed when acceptance is decided
	acceptErr *wire.Error   // valid once accepted is closed
	elsewhere bool          // with acceptErr: another host accepted it, and its acceptance is the answer
	counted   bool          // guarded by Set.mu: counted as live, no longer as pending
	inputs    atomic.Int32  // under way, with those that wait for typing
	typing    turn          // held by one input at a time, so that two texts never mix

	into    atomic.Pointer[string]           // custody id of the process that is being typed into, by whoever holds typing
	socket  atomic.Pointer[sdk.SeatEndpoint] // where it was typed last; in memory only, for the token
	watched atomic.Pointer[watching]         // the newest watch that has told something; nil before the first
	gone    atomic.Pointer[string]           // custody id of the process of which it is proved that nothing is left
	holds   atomic.Pointer[trust.Standing]   // its credential; nil where this host has none to renew
	asks    questions
	leaving context.Context // ends when the seat is being stopped or has ended: nothing is typed any more
	leave   context.CancelFunc

	ports []int // minted for the launch; given back when the seat has ended
	kept  *plan // of the first process, for those that may follow; nil when none may, or another host made it

	cancelLaunch context.CancelFunc // non-nil while the saga runs
	stopping     context.CancelFunc // non-nil while a stop's ladder runs
	stopMode     sdk.StopMode       // of that ladder
	stopTries    int                // ladders that failed
	exitTries    int                // exits that could not be recorded
	flaps        brake              // of the lines on a seat that comes and goes
	freeing      bool
	reaping      bool               // what is left is being removed right now
	reaps        int                // attempts at that
	renewing     bool               // what the life has on the mesh is looked after
	undone       atomic.Bool        // it is known that nothing of the seat was ever executed
	asked        atomic.Bool        // a runtime was asked to start something of the seat, by this host or an earlier one
	watching     string             // custody id of the process that is being watched
	endRace      context.CancelFunc // ends the wait for its readiness; nil before the first
	racing       string             // custody id of the process whose readiness is awaited; empty: none
	killed       []sdk.Killed
	evidence     []string
	removed      []string
	outcome      sdk.ReapOutcome
	waiters      []chan stopResult
}

// newActor makes an actor for a row; start runs it.
func (s *Set) newActor(row journal.SeatRow) *actor {
	a := &actor{
		set: s, box: make(chan func(), 32), done: make(chan struct{}), accepted: make(chan struct{}), typing: make(turn, 1),
		log: s.cfg.Log.With("seat", row.Alias, "uid", row.UID, "epoch", s.cfg.Epoch),
	}
	a.leaving, a.leave = context.WithCancel(context.Background())
	a.snap.Store(&Snapshot{Row: row, State: stateOf(row)})
	return a
}

func (a *actor) snapshot() *Snapshot { return a.snap.Load() }

func (a *actor) start() {
	a.set.wg.Add(1)
	go func() {
		defer a.set.wg.Done()
		a.loop()
	}()
}

// loop runs until the seat has ended or the host gives its seats up.
func (a *actor) loop() {
	for {
		select {
		case fn := <-a.box:
			a.guard(fn)
			if a.snapshot().State == Ended {
				a.set.freed(a) // before anyone is told, so that the name can be used at once
				a.answerWaiters(nil)
				close(a.done)
				return
			}
		case <-a.set.life.Done():
			return
		}
	}
}

// guard keeps a panic in one seat from taking the host, and so every other seat's owner, down.
func (a *actor) guard(fn func()) {
	defer func() {
		if p := recover(); p != nil {
			a.log.Error("seat actor panicked; the seat is kept as it is", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	fn()
}

// post hands fn to the actor. It reports false when the actor has ended.
func (a *actor) post(fn func()) bool {
	select {
	case a.box <- fn:
		return true
	case <-a.done:
		return false
	case <-a.set.life.Done():
		return false
	}
}

// errHostGone says that the host gave its seats up before the actor could act.
var errHostGone = errors.New("the host is stopping")

// call runs fn in the actor and waits for it. Error: errHostGone when fn did not run, because the actor has ended
// or ends before fn's turn comes, or because the host gives its seats up; else what fn returns.
func (a *actor) call(fn func() error) error {
	ch := make(chan error, 1)
	if !a.post(func() {
		err := errors.New("seat actor panicked")
		defer func() { ch <- err }()
		err = fn()
	}) {
		return errHostGone
	}
	select {
	case err := <-ch:
		return err
	case <-a.done: // what is in the box then is run by nobody
	case <-a.set.life.Done():
	}
	select { // fn may have run all the same
	case err := <-ch:
		return err
	default:
		return errHostGone
	}
}

// settle is a terminal to write together with a transition.
type settle struct {
	state string
	data  any
	err   *wire.Error
}

// transition is the one place where a seat changes state: Next decides, the journal makes it durable,
// together with the goal's terminal when there is one, and only then is it shown.
func (a *actor) transition(ev Event, mutate func(*journal.SeatRow), end *settle) error {
	old := a.snapshot()
	to, err := Next(old.State, ev)
	if err != nil {
		return err
	}
	row := old.Row
	if mutate != nil {
		mutate(&row)
	}
	row.State = to.rowState()
	moved := row.SeatID != old.Row.SeatID // another process of the same seat
	row.Fence = a.set.cfg.Epoch
	key := goal.Key(row.RequestID)
	var landed wire.GoalResult
	var first bool
	show := func() {}
	if end != nil {
		show = a.set.cfg.Goals.Hide(key)
		defer func() { show() }()
	}
	ctx, cancel := context.WithTimeout(context.Background(), persistTimeout)
	defer cancel()
	err = a.set.cfg.Journal.Update(ctx, func(tx *journal.Tx) error {
		if end != nil && key != "" {
			result, err := end.result()
			if err != nil {
				return err
			}
			if landed, first, err = a.set.cfg.Goals.Settle(tx, key, result); err != nil {
				return err
			}
		}
		if to == Ended && row.Exit == nil {
			return tx.DeleteSeat(row.SeatID)
		}
		if moved {
			if err := tx.DeleteSeat(old.Row.SeatID); err != nil {
				return err
			}
		}
		return tx.PutSeat(row)
	})
	if err != nil {
		return fmt.Errorf("record %s: %w", to, err)
	}
	a.show(func(s *Snapshot) { s.Row, s.State = row, to })
	if moved {
		a.set.rekey(a, old.Row.SeatID)
	}
	if to == Stopping || to == Exited || to == Ended {
		a.leave()
	}
	if to == Exited && old.State != Exited {
		a.set.endChildren(row)
	}
	if to != Running && to != Unknown && a.endRace != nil {
		a.endRace()
	}
	if end != nil {
		show()
		show = func() {}
		if first {
			a.set.cfg.Goals.Announce(key, landed)
		}
		a.set.settled(key)
	}
	if to != old.State {
		a.logState(old.State, to, ev, row.Reason)
	}
	return nil
}

// logState tells of a change. A seat that comes and goes without end is told of now and then.
func (a *actor) logState(from, to State, ev Event, reason string) {
	args := []any{"event", string(ev), "reason", reason}
	if from == Unknown && to == Running || from == Running && to == Unknown {
		ok, held := a.flaps.allow(time.Now())
		if !ok {
			return
		}
		if held > 0 {
			args = append(args, "changes-not-told", held)
		}
	}
	a.log.Info("seat is "+string(to), args...)
}

// observe stores what the runtime last said, without a transition.
func (a *actor) observe(st sdk.SeatStatus) {
	if st.Exit == nil {
		st.Exit = a.snapshot().Status.Exit
	}
	a.show(func(s *Snapshot) {
		s.Status = st
		switch gone := st.State == sdk.SeatRunning && st.Agent.PID == 0 && st.Reason != ""; {
		case !gone:
			s.Ending = time.Time{}
		case s.Ending.IsZero():
			s.Ending = time.Now()
		}
	})
}

// show replaces the view that everybody sees by a changed copy.
func (a *actor) show(change func(*Snapshot)) {
	next := *a.snapshot()
	change(&next)
	a.snap.Store(&next)
	a.set.changes.Add(1)
}

// onExit records the end, once, and then removes what is left of the seat.
func (a *actor) onExit(st sdk.SeatStatus) {
	state := a.snapshot().State
	if state == Exited || state == Ended {
		a.free()
		return
	}
	_ = fpExitSeen.Hit()
	exit := exitOf(st)
	if exit.At.IsZero() {
		exit.At = time.Now()
	}
	if exit.Evidence != sdk.EvidenceReaped && deliberate(a.snapshot().Row.Cause) {
		exit.Asked = true // whoever saw the end did not see who asked for it; this host did ask
	}
	again, cause, err := a.restarts(exit)
	if again && err == nil {
		return
	}
	if err == nil {
		err = a.transition(EvExited, func(r *journal.SeatRow) { ended(r, exit, cause) }, nil)
	}
	if err != nil {
		// The exit record is still in the seat's directory: nothing is lost, try again.
		a.log.Error("record exit", "err", err)
		if errors.Is(err, journal.ErrRowTooLarge) { // the same one will never be written
			st.Exit = essence(exit)
		}
		a.after(a.exitTries, func() { a.onExit(st) })
		a.exitTries++
		return
	}
	_ = fpExitRecorded.Hit()
	a.logExit(exit)
	a.free()
}

// free removes what is left of an exited seat and frees its name. It is started once; a failure holds
// the name, says why in the row, and is retried.
func (a *actor) free() {
	if a.freeing || a.stopping != nil || a.snapshot().State != Exited {
		return // a ladder that still runs has the proof to tell, and comes here when it is done
	}
	a.freeing = true
	a.goReap(0)
}

func (a *actor) goReap(attempt int) {
	if a.reaping {
		return
	}
	a.reaping = true
	a.reaps++
	this := a.reaps
	a.background(func() {
		if attempt == 0 {
			a.keepTail()
		}
		report, left := a.reap(sdk.StopNow, false)
		_ = fpExitReaped.Hit()
		err := left
		if err == nil {
			a.post(func() { a.merge(report) })
			err = a.endLife(func(err error) { a.post(func() { a.tellHeld(err.Error(), err, attempt) }) })
		}
		a.post(func() {
			a.reaping = false
			if err == nil {
				err = a.transition(EvReaped, func(r *journal.SeatRow) { r.Reaped, r.Reason = true, "" }, a.exitTerminal())
			}
			if err == nil {
				return
			}
			a.log.Warn("remove what is left of the seat; its name stays held", "err", err, "attempt", attempt)
			a.tellHeld("cleanup failed, will be retried: "+err.Error(), err, attempt)
			a.after(attempt, func() {
				if a.reaps == this { // else somebody has driven it since, and its next attempt is another one's
					a.goReap(attempt + 1)
				}
			})
		})
	})
}

// tellHeld says of a seat whose end is proved why its name is held still. Nobody has to wait for its end any longer.
func (a *actor) tellHeld(reason string, err error, attempt int) {
	a.note(reason)
	if attempt == 0 {
		a.try(a.transition(EvExited, nil, a.exitTerminal()))
	}
	a.answerWaiters(err)
}

// reap runs the runtime's Reap and, when nothing is to be kept, the connector's.
func (a *actor) reap(mode sdk.StopMode, keep bool) (sdk.ReapReport, error) {
	return a.reapCtx(a.set.life, mode, keep)
}

func (a *actor) reapCtx(parent context.Context, mode sdk.StopMode, keep bool) (sdk.ReapReport, error) {
	row := a.snapshot().Row
	limit := reapMargin
	if mode == sdk.StopGraceful {
		limit += time.Duration(row.Grace) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	if !keep {
		a.reapConnector(ctx, row)
	}
	rt, _, err := a.set.cfg.Plugins.Runtime(ctx, row.Runtime)
	if err != nil {
		return sdk.ReapReport{}, fmt.Errorf("runtime %s: %w", row.Runtime, err)
	}
	report, _, err := byHandle(row.Handle, func(h sdk.Handle) (sdk.ReapReport, error) {
		return rt.Reap(ctx, sdk.StopRequest{
			SeatID: row.SeatID, InstanceID: a.set.cfg.InstanceID, Handle: h, Nonce: row.Nonce,
			Fence: a.set.cfg.Epoch, Mode: mode, GraceMs: row.Grace, Keep: keep,
		})
	})
	if err == nil && !keep {
		a.gone.Store(&row.SeatID)
	}
	return report, err
}

// reapConnector lets the connector remove its program's own leftovers. Its failure is told, and does
// not hold the name: the runtime's proof is about processes, and those are gone.
func (a *actor) reapConnector(ctx context.Context, row journal.SeatRow) {
	if row.Agent == "" || row.State == journal.StateIntent {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectorTimeout)
	defer cancel()
	con, _, err := a.set.cfg.Plugins.Connector(ctx, row.Agent)
	if err == nil {
		var report sdk.ReapReport
		report, err = con.Reap(ctx, sdk.LeftoverRequest{
			SeatID: row.SeatID, Name: row.Alias, LifecycleUID: row.UID, WorkspaceRoot: a.set.cfg.Root,
			Cwd: row.Cwd, Dir: launchDir(a.set.dir(row.SeatID)),
		})
		// "Nothing was there" is no part of the proof, and must not stand in place of the runtime's.
		if err == nil && (report.Outcome != sdk.ReapAbsent || len(report.Removed) > 0) {
			a.post(func() {
				a.removed = append(a.removed, report.Removed...)
				a.evidence = append(a.evidence, report.Evidence...)
			})
		}
	}
	if err != nil {
		a.log.Warn("connector could not remove its leftovers", "plugin", row.Agent, "err", err)
	}
}

// merge collects the evidence of an end over its steps. The step that ended the seat speaks for the
// proof; a later one only adds what it removed.
func (a *actor) merge(r sdk.ReapReport) {
	for _, k := range r.Killed {
		if !slices.ContainsFunc(a.killed, func(have sdk.Killed) bool { return have.PID == k.PID }) {
			a.killed = append(a.killed, k)
		}
	}
	a.removed = append(a.removed, r.Removed...)
	if a.outcome == "" {
		a.outcome, a.evidence = r.Outcome, append(a.evidence, r.Evidence...)
	}
}

// note puts a reason into the row without a transition and without a commit: it is for people.
func (a *actor) note(reason string) {
	a.show(func(s *Snapshot) { s.Row.Reason = reason })
}

// try logs a transition that could not be made; the next status tries again.
func (a *actor) try(err error) {
	if err != nil {
		a.log.Error("seat transition", "err", err)
	}
}

// after runs fn in the actor after the delay of attempt.
func (a *actor) after(attempt int, fn func()) {
	a.background(func() {
		select {
		case <-time.After(retryDelay(attempt)):
			a.post(fn)
		case <-a.done:
		case <-a.set.life.Done():
		}
	})
}

// background runs fn beside the actor and is waited for when the host closes.
func (a *actor) background(fn func()) {
	a.set.wg.Add(1)
	go func() {
		defer a.set.wg.Done()
		fn()
	}()
}
