package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Crash points of recovery.
var (
	fpAdoptListed   = failpoint.New("host.adopt.listed")
	fpAdoptAnswered = failpoint.New("host.adopt.answered")
	fpAdoptRecorded = failpoint.New("host.adopt.recorded")
)

// adoptLimit is how many seats are verified at once at boot.
const adoptLimit = 8

// Verdict is what recovery concluded for one seat.
type Verdict struct {
	Alias  string
	SeatID string
	State  State
	PID    int
	Reason string
}

// Recover takes back every seat that the journal or a seat directory names, and reports a verdict for
// each. It returns once all verdicts are in; a seat without one is held as unknown and asked again.
func (s *Set) Recover(ctx context.Context) ([]Verdict, error) {
	var rows []journal.SeatRow // of live seats
	var over ends
	if err := s.cfg.Journal.View(func(tx *journal.Tx) error {
		return tx.Seats(func(r journal.SeatRow) error {
			if stateOf(r) == Ended {
				over.add(r)
			} else {
				rows = append(rows, r)
			}
			return nil
		})
	}); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	s.rememberEnded(&over)
	var actors []*actor
	for _, r := range rows {
		actors = append(actors, s.takeBack(r))
	}
	found := s.foundByDirectory(ctx)
	_ = fpAdoptListed.Hit()
	verdicts := s.verdicts(ctx, actors, true)
	verdicts = append(verdicts, s.verdicts(ctx, found, false)...)
	s.orphans(over.lives)
	s.sweepTails()
	s.wg.Add(1)
	go s.health()
	return verdicts, nil
}

// verdicts decides seats side by side. known says whether the journal had rows for them.
func (s *Set) verdicts(ctx context.Context, actors []*actor, known bool) []Verdict {
	out := make([]Verdict, len(actors))
	var g errgroup.Group
	g.SetLimit(adoptLimit)
	for i, a := range actors {
		g.Go(func() error {
			out[i] = a.recover(ctx, known)
			return nil
		})
	}
	_ = g.Wait()
	return out
}

// takeBack registers a seat that an earlier host accepted.
func (s *Set) takeBack(r journal.SeatRow) *actor {
	a := s.newActor(r)
	a.asked.Store(true)
	close(a.accepted)
	s.mu.Lock()
	s.add(a)
	s.cap.adopt()
	a.counted = true
	s.mu.Unlock()
	a.start()
	return a
}

// ends collects the rows of seats that have ended, and keeps the newest keepEnded of them: a journal has thousands. Of
// the others it keeps what is known of a life that is over, and which lives they were.
type ends struct {
	rows  []journal.SeatRow
	past  []past
	lives map[lived]bool
}

// lived is one life of a principal.
type lived struct{ principal, uid string }

func (e *ends) add(r journal.SeatRow) {
	if e.lives == nil {
		e.lives = map[lived]bool{}
	}
	e.lives[lived{r.Principal, r.UID}] = true
	if e.rows = append(e.rows, r); len(e.rows) >= 4*keepEnded {
		e.rows = e.newest()
	}
	if e.past = append(e.past, pastOf(r, r.Ended)); len(e.past) >= 2*keepPast {
		e.past = e.newestPast()
	}
}

// newestPast returns what is kept of all of them, oldest first.
func (e *ends) newestPast() []past {
	slices.SortStableFunc(e.past, func(a, b past) int { return cmp.Compare(a.kept, b.kept) })
	return slices.Delete(e.past, 0, max(0, len(e.past)-keepPast))
}

// newest returns the rows that are kept, oldest first.
func (e *ends) newest() []journal.SeatRow {
	slices.SortStableFunc(e.rows, func(a, b journal.SeatRow) int { return a.Ended.Compare(b.Ended) })
	return slices.Delete(e.rows, 0, max(0, len(e.rows)-keepEnded))
}

// rememberEnded takes over lives that were over before this host.
func (s *Set) rememberEnded(over *ends) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range over.newestPast() {
		s.past.add(p)
	}
	for _, r := range over.newest() {
		s.ended = append(s.ended, &Snapshot{Row: r, State: Ended})
		s.retired.add(life{r.Alias, r.Principal, r.UID})
	}
	s.pruneEnded()
}

// recover decides one seat.
func (a *actor) recover(ctx context.Context, known bool) Verdict {
	if a.snapshot().State == Exited {
		_ = a.call(func() error { a.free(); return nil })
		return a.verdictNow("")
	}
	st, err := a.adopt(ctx, false)
	_ = fpAdoptAnswered.Hit()
	if err != nil {
		st = sdk.SeatStatus{State: sdk.SeatUnknown, Reason: err.Error()}
	}
	recorded := a.snapshot().State
	switch decide(recorded, st.State, known) {
	case doCommit:
		err = a.finishCommit(ctx, st)
	case doRun:
		err = a.call(func() error { return a.onRecoveredRunning(st, known) })
	case doStop:
		_ = a.call(func() error {
			a.observe(st)
			if !known {
				a.try(a.keepHandle(st))
			}
			row := a.snapshot().Row
			a.onStop(ending{sdk.StopGraceful, cmp.Or(row.Cause, causeStartFailed), row.By}, make(chan stopResult, 1))
			return nil
		})
	case doExit:
		_ = a.call(func() error { a.onExit(st); return nil })
	case doCompensate:
		a.compensate(st.Reason)
	case doRestart:
		_ = a.call(func() error { a.goRestart(0); return nil })
	case doHold:
		err = a.call(func() error {
			a.observe(st)
			a.adoptLife(0) // it may live, and longer than its credential
			return a.transition(EvUnknown, func(r *journal.SeatRow) { r.Reason = st.Reason }, nil)
		})
		_ = a.call(func() error { a.watch(); return nil })
	}
	_ = fpAdoptRecorded.Hit()
	if err != nil && !errors.Is(err, errHostGone) {
		a.log.Error("recover seat", "err", err)
		return a.verdictNow(err.Error())
	}
	return a.verdictNow("")
}

func (a *actor) verdictNow(reason string) Verdict {
	snap := a.snapshot()
	if reason == "" {
		reason = snap.Row.Reason
	}
	if snap.Row.Exit != nil && reason == "" {
		reason = "exited" + describeExit(*snap.Row.Exit)
	}
	return Verdict{Alias: snap.Row.Alias, SeatID: snap.Row.SeatID, State: snap.State, PID: snap.Status.Agent.PID, Reason: reason}
}

// keepHandle records the handle of a seat that was found prepared.
func (a *actor) keepHandle(st sdk.SeatStatus) error {
	return a.transition(EvPrepared, func(r *journal.SeatRow) { r.Handle = st.Handle }, nil)
}

// finishCommit goes on with a spawn that an earlier host had prepared: the handle is made durable
// first, then the seat is committed, exactly as in a spawn.
func (a *actor) finishCommit(ctx context.Context, st sdk.SeatStatus) error {
	if err := a.call(func() error { a.observe(st); return a.keepHandle(st) }); err != nil {
		return err
	}
	lctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	err := a.set.awaitLease(lctx)
	if err == nil {
		st, err = a.adopt(ctx, true)
	}
	switch {
	case errors.Is(err, sdk.ErrExecFailed):
		a.compensate(err.Error())
		return nil
	case err != nil:
		st = sdk.SeatStatus{State: sdk.SeatUnknown, Reason: err.Error()}
	}
	switch st.State {
	case sdk.SeatRunning:
		return a.call(func() error { return a.onRecoveredRunning(st, true) })
	case sdk.SeatExited, sdk.SeatNotFound:
		return a.call(func() error { a.onExit(st); return nil })
	default:
		err := a.call(func() error { return a.transition(EvUnknown, func(r *journal.SeatRow) { r.Reason = st.Reason }, nil) })
		_ = a.call(func() error { a.watch(); return nil })
		return err
	}
}

// onRecoveredRunning takes a running seat back. A goal without a terminal gets one: the process runs.
func (a *actor) onRecoveredRunning(st sdk.SeatStatus, known bool) error {
	a.observe(st)
	if !known {
		if err := a.restoreGoal(); err != nil {
			return err
		}
	}
	err := a.foundRunning(st.Handle)
	a.watch()
	return err
}

// restoreGoal rebuilds the goal of a seat whose journal row was lost, so that a retry of the same
// request finds its acceptance and starts nothing twice.
func (a *actor) restoreGoal() error {
	row := a.snapshot().Row
	_, id, ok := goal.Key(row.RequestID).Split()
	if !ok {
		return nil
	}
	owner, name, err := wire.ParsePrincipal(row.Principal)
	if err != nil {
		return nil // an older or foreign form: the seat is taken back, its goal cannot be
	}
	acc := wire.Acceptance{
		Name: row.Alias, Owner: owner, Actor: name, UID: row.UID, GoalID: id, Fingerprint: row.Fingerprint,
		Executor: wire.Executor{LifecycleUID: a.set.cfg.InstanceID, Epoch: a.set.cfg.Epoch},
	}
	ctx, cancel := context.WithTimeout(context.Background(), persistTimeout)
	defer cancel()
	return a.set.cfg.Goals.Restore(ctx, goal.Key(row.RequestID), acceptedBy(row), row.SeatID, acc)
}

// acceptedBy is the command that a seat was accepted by.
func acceptedBy(row journal.SeatRow) string {
	if form, err := launch.ParseForm(row.Form); err == nil && form.Launch != nil {
		return wire.CmdLaunch
	}
	return wire.CmdSpawn
}

// compensate undoes a spawn of which nothing ever ran, and fails its goal.
func (a *actor) compensate(reason string) {
	if follows(a.snapshot().Row) {
		_ = a.call(func() error { a.onNothingFollowed(); return nil }) // when this host stops first, the next one decides
		return
	}
	if reason == "" {
		reason = "nothing was started"
	}
	a.undone.Store(true)
	_, err := a.reap(sdk.StopNow, false)
	if err == nil {
		err = a.endLife(nil)
	}
	if err == nil {
		err = a.set.removeDir(a.snapshot().Row.SeatID)
	}
	if err != nil {
		_ = a.call(func() error {
			err := a.transition(EvUnknown, func(r *journal.SeatRow) { r.Reason = "undo of an interrupted spawn failed: " + err.Error() }, nil)
			a.watch()
			return err
		})
		return
	}
	_ = a.call(func() error { a.onCompensated(reason); return nil }) // when this host stops first, the next one decides
}

// onCompensated fails a spawn that an earlier host left, of which nothing is there any more.
func (a *actor) onCompensated(reason string) {
	if s := a.snapshot().State; s != Starting && s != Prepared {
		return // it was stopped meanwhile
	}
	err := a.transition(EvStartFailed, func(r *journal.SeatRow) { r.Cause = causeStartFailed }, &settle{
		state: wire.GoalFailed, err: &wire.Error{
			Code: wire.CodeFailedPrecondition, Outcome: wire.OutcomeNotExecuted,
			Message: "the host stopped before the agent was started (" + reason + "); spawn it again",
		},
	})
	if err != nil {
		a.log.Error("record an interrupted spawn", "err", err)
		a.after(a.exitTries, func() { a.onCompensated(reason) })
		a.exitTries++
	}
}

// removeDir removes what the host itself made of a seat that no runtime ever knew.
func (s *Set) removeDir(seatID string) error {
	dir := s.dir(seatID)
	if _, err := os.Lstat(filepath.Join(dir, "seat.json")); err == nil {
		return fmt.Errorf("seat directory %s holds a seat record; it is not removed", dir)
	}
	return os.RemoveAll(dir)
}
