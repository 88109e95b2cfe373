package seat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Crash points of a process that follows another one, in order; those of a spawn come between the last two.
var (
	fpRestartRecorded = failpoint.New("host.restart.recorded")
	fpRestartReaped   = failpoint.New("host.restart.reaped")
	fpRestartFollowed = failpoint.New("host.restart.followed")
	fpRestartProved   = failpoint.New("host.restart.proved")
)

// A seat whose connector reopens sessions is started again this often without anybody asking.
const (
	sessionRestarts = 3
	sessionWindow   = 2 * time.Minute
)

// restartWait is the wait before the second process in a row that follows one; it doubles up to restartWaitMax.
// The first follows at once.
const (
	restartWait    = time.Second
	restartWaitMax = 30 * time.Second
)

// restartPolicy is what is kept of a seat that is started again; nil: it is not.
func restartPolicy(asked *wire.Supervise, f sdk.ConnectorFacts) *journal.Restart {
	switch {
	case asked != nil:
		return &journal.Restart{Restarts: asked.Restarts, WindowMs: asked.WindowMs, Asked: true, Continue: f.SupportsSessionContinuation}
	case f.SupportsSessionContinuation:
		return &journal.Restart{Restarts: sessionRestarts, WindowMs: sessionWindow.Milliseconds(), Continue: true}
	}
	return nil
}

// follow is what comes after the end of a process.
type follow string

const (
	followNone   follow = "none"   // the seat has ended with it
	followNext   follow = "next"   // another process
	followLoop   follow = "loop"   // it ended by itself once too often: the seat has ended, and it is told
	followFailed follow = "failed" // it was a replacement that never proved itself: the same
)

// afterEnd decides what follows on the end of a process. session is the one that it worked in, if it is known.
// An end that somebody asked for, that is not fully known, or that the program calls a success, is final, and so
// is every end before the spawn was decided.
func afterEnd(row journal.SeatRow, exit sdk.Exit, session string, now time.Time) follow {
	r := row.Restart
	switch {
	case r == nil, row.Ready.IsZero(), deliberate(row.Cause), exit.Asked:
		return followNone
	case exit.Evidence != sdk.EvidenceReaped: // custody was lost, or the machine went down: that was not the program
		return followNone
	case r.Proving:
		return followFailed
	case exit.Code != nil && *exit.Code == 0 && exit.Signal == "":
		return followNone
	case !r.Asked && session == "":
		return followNone // nothing to go on with
	case len(within(r, now)) >= r.Restarts:
		return followLoop
	}
	return followNext
}

// within are the ends that still count.
func within(r *journal.Restart, now time.Time) []time.Time {
	var left []time.Time
	for _, at := range r.Ends {
		if now.Sub(at) < time.Duration(r.WindowMs)*time.Millisecond {
			left = append(left, at)
		}
	}
	return left
}

// follows reports whether a row is of a process that follows another one.
func follows(row journal.SeatRow) bool { return row.Restart != nil && row.Restart.Exit != nil }

// restarts takes the end of a process for what it is. It reports false when the seat has ended with it; cause is
// then why, when it is not simply the end of its process.
func (a *actor) restarts(exit sdk.Exit) (yes bool, cause string, err error) {
	snap := a.snapshot()
	row := snap.Row
	if row.Restart == nil || snap.State != Running && snap.State != Unknown {
		return false, "", nil
	}
	now := time.Now()
	there, _ := a.set.view().Row(row.Principal)
	if there.LifecycleUID != row.UID {
		there = wire.Presence{}
	}
	session := sessionOf(row.Restart, there)
	switch afterEnd(row, exit, session, now) {
	case followLoop:
		a.log.Error("seat ended by itself too often; it is not started again", "restarts", row.Restart.Restarts,
			"window", (time.Duration(row.Restart.WindowMs) * time.Millisecond).String(), "exit", describeExit(exit))
		return false, causeCrashLoop, nil
	case followFailed:
		a.log.Error("seat was started again and ended before it was ready; it is not started again", "exit", describeExit(exit))
		return false, causeRecoveryFailed, nil
	case followNext:
	default:
		return false, "", nil
	}
	if a.set.isClosing() {
		return true, "", nil // the exit record stays where it is, and the next host goes on with it
	}
	next := *row.Restart
	next.Ends = append(within(row.Restart, now), now)
	next.Exit = lastExit(exit)
	next.Session = session
	next.Begun = begun(row.Restart, there, exit.At, a.kept != nil)
	// Whatever that process said of itself, it said before it ended: its clock is this machine's.
	next.Floor = max(there.TS, exit.At.UnixMilli())
	when := "" // at once
	if wait := restartDelay(a.set.cfg.RestartWait, len(next.Ends)); wait > 0 {
		when = " in " + wait.String()
	}
	reason := fmt.Sprintf("ended%s; started again%s (%d of %d within %s)", describeExit(exit), when, len(next.Ends), next.Restarts,
		time.Duration(next.WindowMs)*time.Millisecond)
	err = a.transition(EvCrashed, func(r *journal.SeatRow) { r.Restart, r.Reason = &next, reason }, nil)
	if err != nil {
		return true, "", err
	}
	_ = fpRestartRecorded.Hit()
	a.log.Warn("seat ended by itself and is started again", "exit", describeExit(exit), "attempt", len(next.Ends), "pid", snap.Status.Agent.PID)
	a.goRestart(0)
	return true, "", nil
}

// lastExit is what is kept of the exit of a process that is followed by another.
func lastExit(exit sdk.Exit) *sdk.Exit {
	exit.Reaped = nil
	const long = 1024
	if len(exit.Detail)+len(exit.Last)+len(exit.Signal)+len(exit.Evidence) > long {
		return essence(exit)
	}
	return &exit
}

// sessionOf is the session that a process worked in, by the last that is known of its life on the mesh. A card that
// has an empty one says that there is none any more, as behind a conversation that was cleared; one without says nothing.
func sessionOf(r *journal.Restart, last wire.Presence) string {
	if _, told := last.Card.Meta[metaSession]; told {
		return last.Card.MetaString(metaSession)
	}
	return r.Session
}

// metaSession is the key of a card under which a bridge tells the session that its program can be reopened in.
const metaSession = "sessionId"

// lastWord is how old the last word of a process may be when it ends: nothing was begun between the two.
const lastWord = 2 * wire.PresenceWindow

// begun reports whether something was said, or may have been, in the fork that a process was which ended at end: then
// what it was forked from is not forked again, which would pass old work off as the latest. last is the last that is known
// of its life on the mesh, none when it has no LifecycleUID; ours says that this host launched it and was there all the time.
func begun(r *journal.Restart, last wire.Presence, end time.Time, ours bool) bool {
	_, told := last.Card.Meta[metaSession]
	switch {
	case r.Begun, r.Session != "", told:
		return true
	case last.LifecycleUID == "" || last.TS <= r.Floor: // it was not on the mesh, as far as this host has seen
		return !ours
	}
	return end.Sub(time.UnixMilli(last.TS)) > lastWord
}

func (s *Set) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing != ""
}

// goRestart makes the next process of a seat that is restarting: what is left of the last one goes, a custody id
// is recorded, and then it is launched as in a spawn. It is also how a host goes on that finds the work half
// done. Failures of the removal are retried, all others end the seat.
func (a *actor) goRestart(attempt int) {
	row := a.snapshot().Row
	ctx, cancel := context.WithCancel(a.set.life)
	a.cancelLaunch = cancel
	a.background(func() {
		defer cancel()
		_, err := a.reapCtx(ctx, sdk.StopNow, false)
		if err == nil {
			err = a.set.removeDir(row.SeatID) // of a process that no runtime ever knew
		}
		if err != nil {
			a.post(func() { a.onNotRemoved(err, attempt) })
			return
		}
		_ = fpRestartReaped.Hit()
		if err := a.restart(ctx, row); err != nil {
			a.post(func() { a.onLaunchDone(err, nil) })
		}
	})
}

// onNotRemoved tries again to remove what is left of a process before the next one is made.
func (a *actor) onNotRemoved(err error, attempt int) {
	a.cancelLaunch = nil
	if a.set.life.Err() != nil {
		return
	}
	if a.snapshot().State == Stopping {
		a.ladder(a.stopMode)
		return
	}
	a.log.Warn("remove what is left of the last process; the next one waits for it", "err", err, "attempt", attempt)
	a.note("cleanup of the last process failed, will be retried: " + err.Error())
	a.after(attempt, func() {
		if a.snapshot().State == Restarting && a.cancelLaunch == nil {
			a.goRestart(attempt + 1)
		}
	})
}

// restart launches the next process. An error says that nothing of it was made.
func (a *actor) restart(ctx context.Context, row journal.SeatRow) error {
	if err := sleep(ctx, restartDelay(a.set.cfg.RestartWait, len(row.Restart.Ends))); err != nil {
		return err
	}
	// The seat is not lost for an outage: it waits. Of a host that was replaced it is the next one's, and this one is
	// on its way out.
	if err := a.set.awaitLease(ctx); err != nil {
		<-ctx.Done()
		return err
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	p, err := a.replan(ctx, row)
	if err != nil {
		return err
	}
	m, err := mint(p.facts, nil) // the life goes on with the key it has
	if err != nil {
		return err
	}
	// Its custody id is recorded before anything exists under it.
	err = a.call(func() error {
		err := a.transition(EvFollowed, func(r *journal.SeatRow) {
			next := *r.Restart
			next.Proving = true
			r.SeatID, r.Nonce, r.Handle, r.Restart = m.seatID, m.nonce, sdk.Handle{}, &next
		}, nil)
		if err == nil {
			launch.ReleasePorts(a.ports)
			a.ports = m.ports
			a.socket.Store(nil)
			a.show(func(s *Snapshot) { s.Status, s.Ending, s.Degraded = sdk.SeatStatus{}, time.Time{}, "" })
		}
		return err
	})
	if err != nil {
		m.release()
		return err
	}
	_ = fpRestartFollowed.Hit()
	begun := time.Now()
	if err := a.lifeFollows(outer); err != nil {
		return err
	}
	if time.Since(begun) > launchTimeout/2 { // what it waited for is none of the launch's time
		ctx, cancel = context.WithTimeout(outer, launchTimeout)
		defer cancel()
	}
	a.launch(ctx, p, m)
	return nil
}

// restartDelay is the wait before a process that follows n ends in a row.
func restartDelay(first time.Duration, n int) time.Duration {
	if n < 2 {
		return 0
	}
	return min(first<<min(n-2, 16), restartWaitMax)
}

// replan is the plan of a process that follows another: that of the first, as far as it is known, without its
// prompt, in the session that the last one worked in; the session that it was forked from is forked again where it is
// known that nothing was said in the fork. What it needs of this machine is looked for anew.
func (a *actor) replan(ctx context.Context, row journal.SeatRow) (*plan, error) {
	profile, err := a.set.profileAgain(a.kept, row)
	if err != nil {
		return nil, err
	}
	profile.Prompt = ""
	_, info, err := a.set.cfg.Plugins.Connector(ctx, row.Agent)
	if err != nil {
		return nil, err
	}
	session := row.Restart.Session
	if !info.Connector.SupportsSessionContinuation {
		session, profile.Resume = "", "" // how far it came in its session, nobody knows
	}
	if session != "" || row.Restart.Begun {
		profile.Resume = ""
	} // else nothing was said in the fork: it is made again, and does not start blank
	if session == "" && profile.Resume == "" && !info.Connector.SupportsFreshStart {
		return nil, fmt.Errorf("connector %s cannot start without a session, and none is known", row.Agent)
	}
	bins, err := a.set.programs(info)
	if err != nil {
		return nil, err
	}
	cwd, err := launch.ResolveCwd(a.set.cfg.Root, row.Cwd)
	if err != nil {
		return nil, err
	}
	servers, err := a.set.sharedAgain(a.log, info, profile.ShareTools, a.kept)
	if err != nil {
		return nil, err
	}
	p := a.set.planned(profile, nil, info, servers, row.Runtime, cwd, bins)
	p.session = session
	return p, nil
}

// profileAgain is the profile of a seat that was launched before: as it was, or, when that was another host's
// doing, from its launch form and its persona.
func (s *Set) profileAgain(kept *plan, row journal.SeatRow) (launch.Profile, error) {
	if kept != nil {
		return kept.profile, nil
	}
	f, err := launch.ParseForm(row.Form)
	if err != nil {
		return launch.Profile{}, err
	}
	if len(f.Withheld) > 0 {
		return launch.Profile{}, fmt.Errorf("its launch options %v were given to an earlier host and are not stored", f.Withheld)
	}
	out := f.Profile(row.Alias)
	switch {
	case f.Launch != nil:
		return launch.Profile{}, errors.New("it was launched from a spec that an earlier host had")
	case f.PersonaPath != "":
		p, err := persona.LoadFile(s.cfg.Root, f.PersonaPath)
		if err != nil {
			return launch.Profile{}, err
		}
		out.Body = p.Body
	}
	return out, nil
}

// onFollowed ends the launch of a process that follows another one: it has to prove itself, or it was undone.
func (a *actor) onFollowed(err error, p *sdk.Probe) {
	snap := a.snapshot()
	if err != nil {
		a.log.Error("seat could not be started again", "err", err)
		a.retire(err)
		return
	}
	window := readyWindow(snap.Row)
	if readyAtCommit(snap.Row, p) {
		a.proved()
		return
	}
	a.race(snap.Row, p, window, func(ready bool) {
		if ready {
			a.proved()
			return
		}
		a.log.Error("seat was started again and did not get ready; it is ended", "window", window.String())
		a.onStop(ending{mode: sdk.StopGraceful, cause: causeRecoveryFailed}, make(chan stopResult, 1))
	})
}

// proved records that the process is what it follows.
func (a *actor) proved() {
	snap := a.snapshot()
	if snap.State != Running && snap.State != Unknown || !snap.Row.Restart.Proving {
		return
	}
	ev := EvRunning
	if snap.State == Unknown {
		ev = EvUnknown
	}
	err := a.transition(ev, func(r *journal.SeatRow) {
		next := *r.Restart
		next.Proving = false
		r.Restart = &next
		if ev == EvRunning {
			r.Reason = ""
		}
	}, nil)
	if err != nil {
		a.log.Error("record that the seat runs again", "err", err)
		a.after(0, a.proved)
		return
	}
	_ = fpRestartProved.Hit()
	a.log.Info("seat runs again", "pid", snap.Status.Agent.PID, "session", snap.Row.Restart.Session)
}

// retire ends a seat of which no process is left, by the exit of the last one.
func (a *actor) retire(why error) {
	err := a.transition(EvExited, func(r *journal.SeatRow) {
		exit := *r.Restart.Exit
		if !deliberate(r.Cause) {
			r.Cause = causeRecoveryFailed
			exit.Detail = "it was not started again: " + why.Error()
		}
		r.Exit, r.Ended, r.Reason = lastExit(exit), time.Now(), ""
	}, nil)
	if err != nil {
		a.log.Error("record the end of the seat", "err", err)
		a.after(a.exitTries, func() { a.retire(why) })
		a.exitTries++
		return
	}
	a.logExit(*a.snapshot().Row.Exit)
	a.free()
}

// onNothingFollowed goes on with a restart whose process was recorded and never executed.
func (a *actor) onNothingFollowed() {
	if s := a.snapshot().State; s != Starting && s != Prepared {
		return // it was stopped meanwhile
	}
	if err := a.transition(EvUndone, nil, nil); err != nil {
		a.log.Error("record an interrupted restart", "err", err)
		a.after(a.exitTries, a.onNothingFollowed)
		a.exitTries++
		return
	}
	a.goRestart(0)
}

// tellLaunched tells the followers of a spawn that its process runs; those of a later process have no goal.
func (a *actor) tellLaunched(row journal.SeatRow) {
	if !follows(row) {
		a.set.cfg.Goals.Phase(goal.Key(row.RequestID), wire.PhaseLaunched)
	}
}
