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

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/saga"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Crash points of a spawn, in order. design: docs/architecture.md, "Spawn is a saga".
var (
	fpReserved  = failpoint.New("host.spawn.reserved")
	fpAccepted  = failpoint.New("host.spawn.accepted")
	fpBuilding  = failpoint.New("host.spawn.building")
	fpBuilt     = failpoint.New("host.spawn.built")
	fpSpawning  = failpoint.New("host.spawn.spawning")
	fpSpawned   = failpoint.New("host.spawn.spawned")
	fpPersisted = failpoint.New("host.spawn.handle-persisted")
	fpCommitted = failpoint.New("host.spawn.committed")
	fpRunning   = failpoint.New("host.spawn.running-persisted")
)

// launchTimeout bounds one saga from acceptance to running. The parts have bounds of their own; this
// one is for their sum.
const launchTimeout = 60 * time.Second

// launchDir is where a connector may write files of one launch.
func launchDir(seatDir string) string { return filepath.Join(seatDir, "launch") }

// Spawn accepts one launch and returns its acceptance; the launch itself goes on behind it and ends in
// the goal's terminal. The request id is the goal id: the same caller, id and fingerprint get the same
// acceptance again and start nothing.
//
// Whichever host of the space accepted it first has it: its acceptance is returned then.
//
// Errors, not-executed: bad-request, not-found (persona, connector), failed-precondition (among them: the id
// was used for another request), resource-exhausted (the ceiling), unavailable (the host stops or cannot prove that it
// holds its lease, a plugin is not ready, the mesh does not answer). When the mesh did not say whether it accepted, the outcome is unknown,
// and nothing is started.
func (s *Set) Spawn(ctx context.Context, caller wire.Caller, id, fingerprint string, args wire.SpawnArgs) (wire.Acceptance, error) {
	return s.start(ctx, id, fingerprint, order{caller: caller, args: args})
}

// start is Spawn for any order.
func (s *Set) start(ctx context.Context, id, fingerprint string, o order) (_ wire.Acceptance, err error) {
	var p *plan
	defer func() { err = p.claims(err) }()
	key := goal.KeyOf(o.caller, id)
	if err := s.cfg.Goals.Ready(); err != nil {
		return wire.Acceptance{}, err
	}
	if acc, ok, err := s.accepted(ctx, key, fingerprint); ok || err != nil {
		return acc, err
	}
	if err := s.mayStart(); err != nil {
		return wire.Acceptance{}, err
	}
	if p, err = s.plan(ctx, o); err != nil {
		return wire.Acceptance{}, err
	}
	minted, err := mint(p.facts, s.cfg.Lives)
	if errors.Is(err, sdk.ErrInvalid) {
		return wire.Acceptance{}, wire.Refuse(wire.CodeFailedPrecondition, "connector %s: %v", p.profile.Agent, err)
	}
	if err != nil {
		return wire.Acceptance{}, wire.Refuse(wire.CodeUnavailable, "mint: %v", err)
	}
	if err := s.checkLife(p, minted); err != nil {
		minted.release()
		return wire.Acceptance{}, err
	}
	a, acc, other, err := s.take(ctx, key, fingerprint, p, minted)
	if err != nil {
		minted.release()
		return wire.Acceptance{}, err
	}
	if !other {
		defer s.wg.Done()
	} else {
		minted.release()
		acc, _, err := s.accepted(ctx, key, fingerprint)
		return acc, err
	}
	_ = fpReserved.Hit()
	row := a.snapshot().Row
	if !s.has(row.Runtime) {
		// Whoever removes a runtime hides it first and then looks for its seats; this one is looked for from
		// now on, so one of the two sees the other.
		return wire.Acceptance{}, a.unaccepted(wire.Refuse(wire.CodeUnavailable, "runtime %s is being removed", row.Runtime))
	}
	err = s.cfg.Journal.Update(ctx, func(tx *journal.Tx) error {
		if err := tx.PutSeat(row); err != nil {
			return err
		}
		return s.cfg.Goals.Accept(tx, key, acceptedBy(row), row.SeatID, acc, time.Now().Add(readyWindow(row)))
	})
	if err != nil {
		why := wire.Refuse(wire.CodeUnavailable, "record the spawn: %v", err)
		if _, there, lerr := s.cfg.Goals.Lookup(key); there || lerr != nil {
			// A commit that failed may be on the disk all the same: then this was no refusal without effect.
			why.Outcome = wire.OutcomeUnknown
			return wire.Acceptance{}, a.undoAcceptance(key, why)
		}
		if errors.Is(err, journal.ErrRowTooLarge) { // it will never be taken: to try again is no way out
			why.Code = wire.CodeFailedPrecondition
		}
		return wire.Acceptance{}, a.unaccepted(why)
	}
	// The mesh decides: what this host could not accept there has no effect here.
	won, standing, err := s.cfg.Goals.Bind(ctx, key)
	if !won {
		return standing, a.undoAcceptance(key, err)
	}
	_ = fpAccepted.Hit()
	lctx, cancel := context.WithTimeout(s.life, launchTimeout)
	a.cancelLaunch = cancel
	close(a.accepted)
	a.start()
	s.cfg.Goals.Phase(key, wire.PhaseHandoff)
	a.background(func() {
		defer cancel()
		a.launch(lctx, p, minted)
	})
	return acc, nil
}

// mayStart refuses what would start a process while this host cannot prove that it holds its lease.
func (s *Set) mayStart() error {
	if s.cfg.Lease == nil {
		return nil
	}
	if err := s.cfg.Lease.Check(); err != nil {
		return wire.Refuse(wire.CodeUnavailable, "nothing new is started: %v", err)
	}
	return nil
}

// awaitLease waits until this host may start a process.
func (s *Set) awaitLease(ctx context.Context) error {
	if s.cfg.Lease == nil {
		return nil
	}
	if err := s.cfg.Lease.Await(ctx); err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	return nil
}

// claims is how a spawn tells of an error. A refusal behind an effect, the teardown of another life that was driven
// again, leaves that effect standing: it is not said that nothing was done.
func (p *plan) claims(err error) error {
	refused := wire.ErrorFrom(err)
	if p == nil || !p.effects || refused == nil || refused.Outcome != wire.OutcomeNotExecuted {
		return err
	}
	told := *refused
	told.Outcome = wire.OutcomeUnknown
	return &told
}

// unaccepted gives back what a spawn reserved that was not accepted.
func (a *actor) unaccepted(why *wire.Error) error {
	a.acceptErr = why
	a.set.freed(a)
	close(a.accepted)
	close(a.done)
	return why
}

// undoAcceptance takes back what stands in the journal of a spawn that the mesh did not accept here: another
// host was first (err nil), it was refused, or what the mesh made of it is not known. In the last case, and
// when the journal does not take it back, the goal is ended as one of which nothing was started; its outbox
// finds out whether there is anybody to tell. It returns err.
func (a *actor) undoAcceptance(key goal.Key, err error) error {
	werr := wire.ErrorFrom(err)
	if werr == nil {
		a.elsewhere = true
		werr = wire.Refuse(wire.CodeConflict, "another host accepted the goal")
	}
	if werr.OutcomeOrUnknown() == wire.OutcomeNotExecuted {
		ctx, cancel := context.WithTimeout(context.Background(), persistTimeout)
		defer cancel()
		row := a.snapshot().Row
		jerr := a.set.cfg.Journal.Update(ctx, func(tx *journal.Tx) error {
			if err := tx.DeleteSeat(row.SeatID); err != nil {
				return err
			}
			return a.set.cfg.Goals.Forget(tx, key)
		})
		if jerr == nil {
			_ = a.unaccepted(werr)
			return err
		}
		a.log.Error("take back a spawn that was not accepted", "err", jerr)
		if err != nil {
			err = wire.Fail(werr.Code, "%s (and what was recorded of it cannot be taken back yet: %v)", werr.Message, jerr)
		}
	}
	a.acceptErr = werr
	close(a.accepted)
	a.start()
	a.post(func() { a.onLaunchDone(fmt.Errorf("nothing was started: %w", werr), nil) })
	return err
}

// has reports whether a runtime is there and stays. The one for new seats always is: it cannot be removed.
func (s *Set) has(runtime string) bool {
	return runtime == s.cfg.Runtime || slices.Contains(s.cfg.Plugins.Runtimes(), runtime)
}

// accepted looks for an earlier acceptance of the same request.
func (s *Set) accepted(ctx context.Context, key goal.Key, fingerprint string) (wire.Acceptance, bool, error) {
	s.mu.Lock()
	a := s.spawning[key]
	s.mu.Unlock()
	if a != nil {
		select {
		case <-a.accepted:
		case <-ctx.Done():
			return wire.Acceptance{}, false, wire.Fail(wire.CodeDeadlineExceeded, "the first request with this id is still being accepted")
		}
		if a.acceptErr != nil && !a.elsewhere {
			return wire.Acceptance{}, false, a.acceptErr
		}
	}
	return s.cfg.Goals.Recall(ctx, key, fingerprint)
}

// launch is the saga: build → prepare → persist → commit. Everything it needs to find an interrupted
// step again stands in the accepted row, so no further intent is recorded before a step; each undo is
// keyed by the custody id and harmless when there is nothing to undo.
func (a *actor) launch(ctx context.Context, p *plan, m *minting) {
	row := a.snapshot().Row
	var spec sdk.LaunchSpec
	var rt sdk.Runtime
	var unanswered bool // the commit was sent, and nobody said what became of it
	var undone sdk.ReapReport
	next := func() {} // it is the next launch's turn
	defer func() { next() }()
	// A host that is going down undoes nothing: what it has done so far is recorded, may be running,
	// and is the next host's to decide.
	undo := func(fn func() error) func(context.Context) error {
		return func(context.Context) error {
			if a.set.life.Err() != nil {
				return errHostGone
			}
			return fn()
		}
	}
	provide, activate, over := a.lifeSteps(row, m, undo)
	defer over()
	steps := slices.Concat([]saga.Step{
		{
			Name: "take a turn",
			Do: func(ctx context.Context) error {
				done, err := a.set.pace.take(ctx)
				if err == nil {
					next = done
				}
				return err
			},
		},
		{
			Name: "make seat directory", Before: fpBuilding,
			Do:   func(context.Context) error { return a.makeDir(row) },
			Undo: undo(func() error { return a.set.removeDir(row.SeatID) }),
		},
	}, provide, []saga.Step{
		{
			Name: "build launch", After: fpBuilt,
			Do: func(ctx context.Context) (err error) { spec, err = a.build(ctx, row, p, m); return err },
		},
		{
			Name: "prepare seat", Before: fpSpawning, After: fpSpawned,
			Do: func(ctx context.Context) (err error) {
				if rt, _, err = a.set.cfg.Plugins.Runtime(ctx, row.Runtime); err != nil {
					return err
				}
				// A host that was frozen, or cut off, may not know yet that another one is in its place.
				if err := a.set.awaitLease(ctx); err != nil {
					return err
				}
				a.asked.Store(true)
				handle, err := rt.Spawn(ctx, sdk.SpawnRequest{
					SeatID: row.SeatID, Nonce: row.Nonce, Fence: a.set.cfg.Epoch, Owner: a.owner(row), Launch: spec,
					Cwd: row.Cwd, Rows: p.profile.Rows, Cols: p.profile.Cols, StopGraceMs: row.Grace, Form: row.Form,
				})
				if err != nil {
					return err
				}
				// The handle is durable before anything executes.
				return a.call(func() error {
					return a.transition(EvPrepared, func(r *journal.SeatRow) { r.Handle = handle }, nil)
				})
			},
			Undo: undo(func() (err error) { undone, err = a.reap(sdk.StopNow, false); return err }),
		},
	}, activate, []saga.Step{
		{
			Name: "commit seat", Before: fpPersisted, After: fpCommitted,
			Do: func(ctx context.Context) error {
				next()
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := a.set.awaitLease(ctx); err != nil { // it may have been frozen since
					return err
				}
				st, err := a.adopt(ctx, true)
				if err != nil {
					unanswered = sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted && !errors.Is(err, sdk.ErrExecFailed)
					return err
				}
				return a.call(func() error { return a.onCommitted(st, spec.Probe) })
			},
		},
	})
	err := saga.Run(ctx, "spawn", nil, steps)
	if err != nil && unanswered && !neverRan(undone) {
		err = &mayHaveRun{err}
	}
	a.post(func() { a.onLaunchDone(err, spec.Probe) })
}

// makeDir makes the seat's directory and says in it whose it is, before anything else is put there.
func (a *actor) makeDir(row journal.SeatRow) error {
	dir := a.set.dir(row.SeatID)
	if err := os.MkdirAll(launchDir(dir), 0o700); err != nil {
		return fmt.Errorf("make seat directory: %w", err)
	}
	return record.WriteIntent(dir, record.Intent{
		CustodyID: row.SeatID, Owner: record.Owner(a.owner(row)), Nonce: row.Nonce, Fence: a.set.cfg.Epoch,
		Form: row.Form, Created: row.Created, Runtime: row.Runtime,
	})
}

// build lets the connector say what to start.
func (a *actor) build(ctx context.Context, row journal.SeatRow, p *plan, m *minting) (sdk.LaunchSpec, error) {
	con, _, err := a.set.cfg.Plugins.Connector(ctx, row.Agent)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	env, err := a.launchEnv(p, launchDir(a.set.dir(row.SeatID)))
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := launch.WriteShared(launchDir(a.set.dir(row.SeatID)), p.servers); err != nil {
		return sdk.LaunchSpec{}, err
	}
	spec, err := con.BuildLaunch(ctx, sdk.LaunchRequest{
		SeatID: row.SeatID, InstanceID: a.set.cfg.InstanceID, Space: a.set.cfg.Space, Name: row.Alias, Role: row.Role,
		Principal: row.Principal, LifecycleUID: row.UID, Servers: a.set.cfg.Servers,
		PersonaPath: row.Persona, Persona: p.profile.Body, Model: row.Model, Variant: row.Variant,
		Prompt: p.profile.Prompt, Resume: p.profile.Resume, Continue: p.session, LaunchOptions: p.profile.LaunchOptions,
		BaseEnv: env, Binaries: p.binaries, WorkspaceRoot: a.set.cfg.Root, Cwd: row.Cwd, Dir: launchDir(a.set.dir(row.SeatID)),
		Ports: m.ports, Secrets: m.secrets, SessionIDs: m.sessionIDs,
	})
	if err != nil {
		return spec, fmt.Errorf("connector %s: %w", row.Agent, err)
	}
	if !filepath.IsAbs(spec.Path) {
		return spec, fmt.Errorf("connector %s gave the program path %q, which is not absolute", row.Agent, spec.Path)
	}
	// Whose seat it is stands in its environment whatever the connector made of that.
	spec.Env = sdk.SetEnv(spec.Env, "COTAL_MANAGER_INSTANCE="+a.set.cfg.InstanceID)
	if spec.Probe != nil && !loopback(spec.Probe.Addr) {
		return spec, fmt.Errorf("connector %s gave the probe address %q, which is not a loopback address with a port", row.Agent, spec.Probe.Addr)
	}
	return spec, nil
}

func (a *actor) owner(row journal.SeatRow) sdk.SeatOwner {
	return sdk.SeatOwner{
		InstanceID: a.set.cfg.InstanceID, Space: a.set.cfg.Space, Alias: row.Alias, Principal: row.Principal,
		LifecycleUID: row.UID, RequestID: row.RequestID, Fingerprint: row.Fingerprint,
	}
}

// onCommitted records what the commit gave.
func (a *actor) onCommitted(st sdk.SeatStatus, p *sdk.Probe) error {
	a.observe(st)
	switch st.State {
	case sdk.SeatRunning, sdk.SeatExited:
		var end *settle
		row := a.snapshot().Row
		if readyAtCommit(row, p) && st.State == sdk.SeatRunning && a.snapshot().State != Stopping && !follows(row) {
			end = &settle{state: wire.GoalSucceeded, data: a.spawnResult()}
		}
		a.tellLaunched(row)
		// A program that ended at once did run: Running first, then its exit.
		err := a.transition(EvRunning, func(r *journal.SeatRow) {
			if r.Started = time.Now(); end != nil {
				r.Ready = r.Started
			}
		}, end)
		if err != nil {
			return err
		}
		_ = fpRunning.Hit()
		a.set.launched(a)
		return nil
	case sdk.SeatNotFound:
		return sdk.Errorf(sdk.ErrGone, "the seat was gone before its commit: %s", st.Reason)
	default:
		return fmt.Errorf("the commit gave no verdict (%s): %s", st.State, st.Reason)
	}
}

// onLaunchDone ends the saga: the seat runs and is watched, or everything is undone, or what could not
// be undone holds the name.
func (a *actor) onLaunchDone(err error, p *sdk.Probe) {
	a.cancelLaunch = nil
	snap := a.snapshot()
	if err == nil {
		if snap.Status.State == sdk.SeatExited {
			a.onExit(snap.Status)
			return
		}
		a.watch()
		if snap.State == Stopping {
			a.ladder(a.stopMode)
			return
		}
		if follows(snap.Row) {
			a.onFollowed(nil, p)
			return
		}
		a.awaitReady(p, readyWindow(snap.Row))
		return
	}
	if a.set.life.Err() != nil {
		return // the host is going down; the next one decides by what is recorded
	}
	var failed *saga.Error
	if errors.As(err, &failed) && len(failed.Undo) > 0 || snap.State == Running {
		a.log.Error("spawn failed and could not be undone; the name stays held", "err", err)
		end := &settle{
			state: wire.GoalUncertain, err: &wire.Error{Code: wire.CodeInternal, Outcome: wire.OutcomeUnknown, Message: err.Error()},
		}
		if snap.State != Running && lifeAlone(failed) { // its process is known never to have been
			end = &settle{state: wire.GoalFailed, err: launchError(err)}
		}
		a.try(a.transition(EvUnknown, func(r *journal.SeatRow) { r.Reason = err.Error() }, end))
		a.watch()
		if snap.State == Stopping {
			a.ladder(a.stopMode)
		}
		return
	}
	if follows(snap.Row) {
		a.onFollowed(err, p)
		return
	}
	end := &settle{state: wire.GoalFailed, err: launchError(err)}
	if snap.State == Stopping {
		end = &settle{state: wire.GoalCancelled, data: map[string]string{"cancelledBy": snap.Row.Cause}}
	}
	a.log.Warn("spawn failed", "err", err)
	if werr := a.transition(EvStartFailed, func(r *journal.SeatRow) { r.Cause = cmp.Or(r.Cause, causeStartFailed) }, end); werr != nil {
		a.log.Error("record failed spawn", "err", werr)
		a.after(0, func() { a.onLaunchDone(err, p) })
	}
}

// mayHaveRun is a launch of which nothing is left, and whose program may have been executed all the same.
type mayHaveRun struct{ err error }

func (e *mayHaveRun) Error() string { return e.err.Error() }
func (e *mayHaveRun) Unwrap() error { return e.err }

// neverRan reports whether what was taken away proves that nothing of the agent was executed.
func neverRan(r sdk.ReapReport) bool {
	return r.Exit != nil && (r.Exit.Evidence == sdk.EvidenceUncommitted || r.Exit.Evidence == sdk.EvidenceExecFailed)
}

// launchError is the goal's error for a launch of which nothing is left.
func launchError(err error) *wire.Error {
	code, outcome, note := wire.CodeFailedPrecondition, wire.OutcomeNotExecuted, ""
	var details []wire.Detail
	if errors.As(err, new(*mayHaveRun)) {
		outcome, note = wire.OutcomeUnknown, "; whether the agent ran is not known, and nothing of it is left"
	}
	var told *wire.Error
	var slot *slotError
	switch {
	case errors.As(err, &slot):
		details = slot.details()
	case errors.As(err, &told): // a refusal keeps its code
		code, details = told.Code, told.Details
	case errors.Is(err, sdk.ErrInvalid), errors.Is(err, trust.ErrRefused), errors.Is(err, trust.ErrTooLarge):
		code = wire.CodeBadRequest
	case errors.Is(err, sdk.ErrUnavailable), errors.Is(err, sdk.ErrPluginDown), errors.Is(err, bus.ErrUnavailable), errors.Is(err, bus.ErrUnreachable):
		code = wire.CodeUnavailable
	case errors.Is(err, sdk.ErrUnsupported):
		code = wire.CodeUnimplemented
	case errors.Is(err, context.DeadlineExceeded):
		code = wire.CodeDeadlineExceeded
	}
	// The step is for the log; a person reads the cause, and what could not be undone.
	var failed *saga.Error
	if errors.As(err, &failed) && len(failed.Undo) == 0 {
		err = failed.Err
	}
	return &wire.Error{Code: code, Message: err.Error() + note, Outcome: outcome, Details: details}
}
