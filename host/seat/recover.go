package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

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

// listTimeout bounds the enumeration of seat directories.
const listTimeout = 10 * time.Second

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
	var rows []journal.SeatRow
	if err := s.cfg.Journal.View(func(tx *journal.Tx) error {
		return tx.Seats(func(r journal.SeatRow) error { rows = append(rows, r); return nil })
	}); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	var actors []*actor
	for _, r := range rows {
		if stateOf(r) == Ended {
			s.rememberEnded(r)
			continue
		}
		actors = append(actors, s.takeBack(r))
	}
	s.mu.Lock()
	slices.SortStableFunc(s.ended, func(a, b *Snapshot) int { return a.Row.Ended.Compare(b.Row.Ended) })
	s.mu.Unlock()
	found, err := s.foundByDirectory(ctx)
	if err != nil {
		s.cfg.Log.Error("list seat directories; no new seats until it succeeds", "err", err)
		s.setUnlisted(err)
		s.wg.Add(1)
		go s.listLater()
	}
	_ = fpAdoptListed.Hit()
	verdicts := s.verdicts(ctx, actors, true)
	verdicts = append(verdicts, s.verdicts(ctx, found, false)...)
	s.sweepTails()
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

func (s *Set) setUnlisted(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlisted = ""
	if err != nil {
		s.unlisted = err.Error()
	}
}

// listLater asks for the seat directories again until it is answered.
func (s *Set) listLater() {
	defer s.wg.Done()
	for attempt := 0; ; attempt++ {
		select {
		case <-time.After(retryDelay(attempt)):
		case <-s.life.Done():
			return
		}
		found, err := s.foundByDirectory(s.life)
		if err == nil {
			for _, v := range s.verdicts(s.life, found, false) {
				s.cfg.Log.Info("took back seat, late", "seat", v.Alias, "state", string(v.State), "pid", v.PID, "reason", v.Reason)
			}
			s.setUnlisted(nil)
			return
		}
		s.setUnlisted(err)
	}
}

// takeBack registers a seat that an earlier host accepted.
func (s *Set) takeBack(r journal.SeatRow) *actor {
	a := s.newActor(r)
	close(a.accepted)
	s.mu.Lock()
	s.add(a)
	s.cap.adopt()
	a.counted = true
	s.mu.Unlock()
	a.start()
	return a
}

func (s *Set) rememberEnded(r journal.SeatRow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, &Snapshot{Row: r, State: Ended})
}

// foundByDirectory takes back our seats that nothing but their directory knows, and counts foreign ones.
func (s *Set) foundByDirectory(ctx context.Context) ([]*actor, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	rt, _, err := s.cfg.Plugins.Runtime(ctx, s.cfg.Runtime)
	if err != nil {
		return nil, err
	}
	l, ok := rt.(sdk.Lister)
	if !ok {
		return nil, nil
	}
	list, err := l.List(ctx, sdk.ListRequest{InstanceID: s.cfg.InstanceID})
	if err != nil {
		return nil, err
	}
	var found []*actor
	foreign := 0
	for _, e := range list {
		s.mu.Lock()
		known := s.byID[e.SeatID] != nil || slices.ContainsFunc(s.ended, func(o *Snapshot) bool { return o.Row.SeatID == e.SeatID })
		s.mu.Unlock()
		switch {
		case known:
		case !e.Ours:
			foreign++
			if e.Problem != "" {
				s.cfg.Log.Warn("seat directory cannot be read; it is left alone", "seat", e.SeatID, "err", e.Problem)
			}
		default:
			found = append(found, s.takeBack(s.rowFromListing(e)))
		}
	}
	s.mu.Lock()
	s.foreign = foreign
	s.mu.Unlock()
	return found, nil
}

// rowFromListing rebuilds the row of a seat from its directory.
func (s *Set) rowFromListing(e sdk.SeatListing) journal.SeatRow {
	f, err := launch.ParseForm(e.Form)
	if err != nil && len(e.Form) > 0 {
		s.cfg.Log.Warn("launch form of a found seat cannot be read; the seat is taken back without it", "seat", e.SeatID, "err", err)
	}
	return journal.SeatRow{
		SeatID: e.SeatID, UID: e.Owner.LifecycleUID, Alias: e.Owner.Alias, Principal: e.Owner.Principal, Nonce: e.Nonce,
		RequestID: e.Owner.RequestID, Fingerprint: e.Owner.Fingerprint, Persona: f.PersonaPath, Agent: f.Agent,
		Runtime: cmp.Or(f.Runtime, s.cfg.Runtime), Role: f.Role, Model: f.Model, Variant: f.Variant, Cwd: f.Cwd, Grace: cmp.Or(f.GraceMs, sdk.DefaultStopGraceMs), Form: e.Form,
		ReadinessMs: f.ReadinessMs, State: journal.StateIntent, Created: e.Created, Started: e.Created,
	}
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
			a.onStop(sdk.StopGraceful, cmp.Or(a.snapshot().Row.Cause, causeStartFailed), make(chan stopResult, 1))
			return nil
		})
	case doExit:
		_ = a.call(func() error { a.onExit(st); return nil })
	case doCompensate:
		a.compensate(st.Reason)
	case doHold:
		err = a.call(func() error {
			a.observe(st)
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
	st, err := a.adopt(ctx, true)
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
	// A spawn whose host died while it waited for a probe is decided by what is known: it runs.
	err := a.transition(EvRunning, func(r *journal.SeatRow) {
		r.Handle, r.Reason = st.Handle, ""
		if r.Started.IsZero() {
			r.Started = time.Now()
		}
	}, &settle{state: wire.GoalSucceeded, data: a.spawnResult()})
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
	return a.set.cfg.Journal.Update(ctx, func(tx *journal.Tx) error {
		return a.set.cfg.Goals.Accept(tx, goal.Key(row.RequestID), row.SeatID, acc, time.Time{})
	})
}

// compensate undoes a spawn of which nothing ever ran, and fails its goal.
func (a *actor) compensate(reason string) {
	if reason == "" {
		reason = "nothing was started"
	}
	_, err := a.reap(sdk.StopNow, false)
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
	_ = a.call(func() error {
		return a.transition(EvStartFailed, func(r *journal.SeatRow) { r.Cause = causeStartFailed }, &settle{
			state: wire.GoalFailed, err: &wire.Error{
				Code: wire.CodeFailedPrecondition, Outcome: wire.OutcomeNotExecuted,
				Message: "the host stopped before the agent was started (" + reason + "); spawn it again",
			},
		})
	})
}

// removeDir removes what the host itself made of a seat that no runtime ever knew.
func (s *Set) removeDir(seatID string) error {
	dir := s.dir(seatID)
	if _, err := os.Lstat(filepath.Join(dir, "seat.json")); err == nil {
		return fmt.Errorf("seat directory %s holds a seat record; it is not removed", dir)
	}
	return os.RemoveAll(dir)
}
