package tmux

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// Adopt says what a seat is, and with req.Commit starts its agent. It works from the handle or from the
// seat id alone. What counts as proof, in this order: custody answers at its socket; its exit record; the
// death of the custody process (pid, start ticks and boot id), whose survivors are then hunted down and
// the end recorded as custody-lost. tmux is asked for no more than how many look and, of a dead pane, how
// it ended: a tmux that hangs or fails changes no state, it is named in the reason. Whatever cannot be
// proven is sdk.SeatUnknown with a reason. One call takes at most 5 s.
//
// Errors: sdk.ErrNotOurs, sdk.ErrStaleFence, sdk.ErrExecFailed, sdk.ErrInvalid.
func (r *Runtime) Adopt(ctx context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	s, err := r.settings()
	if err != nil {
		return sdk.SeatStatus{}, err
	}
	s, release, err := s.at(req.Handle)
	if err != nil {
		return sdk.SeatStatus{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, adoptBudget)
	defer cancel()
	if err := fpAdoptBegin.Hit(); err != nil {
		return sdk.SeatStatus{}, retryable("%v", err)
	}
	a := &adoption{s: s, req: req, started: time.Now()}
	for {
		st, again, err := a.try(ctx)
		if err != nil || !again {
			return st, err
		}
		if proctree.Pause(ctx, pollEvery) != nil {
			return st, nil
		}
	}
}

// adoption is one Adopt under way.
type adoption struct {
	s       *settings
	req     sdk.AdoptRequest
	started time.Time
	looked  bool // for a file that may have appeared between two looks
}

// try looks once. With again the verdict may change by itself within the budget: st is then the answer
// if it does not.
func (a *adoption) try(ctx context.Context) (st sdk.SeatStatus, again bool, err error) {
	v, err := a.s.view(a.req.SeatID, a.req.Handle, a.req.Nonce)
	if err != nil {
		return st, false, err
	}
	if err := v.admit(a.req.InstanceID, a.req.Fence); err != nil {
		return st, false, err
	}
	if err := v.ownerless(); err != nil {
		return v.unknown("%v", err), false, nil
	}
	c, why, refusal := v.dial(ctx, seat.RoleControl, a.req.Fence)
	switch {
	case errors.Is(refusal, seat.ErrStaleFence):
		return st, false, sdk.Errorf(sdk.ErrStaleFence, "seat %s: %v", v.id, refusal)
	case refusal != nil:
		return v.unknown("%v", refusal), false, nil
	case c != nil:
		defer c.Close()
		return a.welcomed(ctx, v, c)
	}
	switch {
	case v.exitErr == nil:
		return v.ended(ctx), false, nil
	case !missing(v.exitErr):
		return v.unknown("%v", v.exitErr), false, nil
	case v.recErr == nil:
		return a.silent(ctx, v, why)
	case !missing(v.recErr):
		return v.unknown("%v", v.recErr), false, nil
	}
	return a.unrecorded(ctx, v, why)
}

// welcomed handles a seat that answers.
func (a *adoption) welcomed(ctx context.Context, v *view, c *seat.Conn) (sdk.SeatStatus, bool, error) {
	now := c.Welcome()
	if a.req.Commit {
		if err := fpAdoptCommit.Hit(); err != nil {
			return sdk.SeatStatus{}, false, retryable("%v", err)
		}
		if err := proctree.Over(ctx); err != nil {
			return v.unknown("%v", err), false, nil
		}
		s, err := c.Commit(ctx)
		switch {
		case errors.Is(err, seat.ErrExec):
			return sdk.SeatStatus{}, false, sdk.Errorf(sdk.ErrExecFailed, "%s", refusalText(err))
		case errors.Is(err, seat.ErrStaleFence):
			return sdk.SeatStatus{}, false, sdk.Errorf(sdk.ErrStaleFence, "seat %s: %v", v.id, err)
		case err != nil:
			// The connection broke with the outcome unknown. Commit is idempotent: look again.
			return v.unknown("the seat did not answer the commit: %v", err), true, nil
		}
		now = s
		v.remember(now) // before anybody knows that it runs
		if err := fpAdoptCommitted.Hit(); err != nil {
			return sdk.SeatStatus{}, false, &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeUnknown, Retryable: true, Detail: err.Error()}
		}
	}
	v.remember(now)
	if st, ok := v.live(now); ok {
		v.glance(ctx, &st)
		return st, false, nil
	}
	if err := v.read(); err != nil {
		return sdk.SeatStatus{}, false, err
	}
	if v.exitErr != nil {
		return v.unknown("the seat says it has exited, and its record cannot be read: %v", v.exitErr), false, nil
	}
	return v.ended(ctx), false, nil
}

func refusalText(err error) string {
	var e *seat.Error
	if errors.As(err, &e) && e.Text != "" {
		return e.Text
	}
	return err.Error()
}

// glance adds what tmux knows of a living seat: how many look at it, and the modes of its screen.
func (v *view) glance(ctx context.Context, st *sdk.SeatStatus) {
	if !v.place.known() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, glanceTimeout)
	defer cancel()
	p, err := v.server().look(ctx, v.place.Pane)
	if err != nil {
		st.Reason = "tmux: " + err.Error()
		return
	}
	st.Attached, st.Modes = p.attached, uint32(p.modes)
}

// ended is the status of a seat with an exit record. As long as its dead pane stands, that is asked for
// the last line and heard as a second witness.
func (v *view) ended(ctx context.Context) sdk.SeatStatus {
	v.testify(ctx, glanceTimeout)
	return v.exited(v.exit)
}

// testify completes the exit record in memory from the dead pane.
func (v *view) testify(ctx context.Context, bound time.Duration) {
	if !v.place.known() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	p, screen, _ := v.deadPane(ctx)
	if !p.dead {
		return
	}
	if said := witness(v.exit, p); said != "" {
		if v.exit.Detail != "" {
			said = v.exit.Detail + "; " + said
		}
		v.exit.Detail = said
	}
	if v.exit.Last == "" {
		v.exit.Last = lastLine(screen)
	}
}

// deadPane returns what tmux says of the pane of a seat that has ended, as far as it says it by the end of
// ctx. Custody writes its record a moment before it ends; tmux notices the end of the terminal a moment
// later, and after that how the process ended. An error is that of the last call.
func (v *view) deadPane(ctx context.Context) (p pane, screen string, err error) {
	sv := v.server()
	for {
		out, err := sv.call(ctx, nil, "display-message", "-p", "-t", v.place.Pane, paneFormat, ";", "capture-pane", "-p", "-J", "-t", v.place.Pane)
		if err != nil {
			return p, screen, err // with what it said when it last answered
		}
		head, shown := cutLine(out)
		now, err := parsePane(head)
		if err != nil {
			return p, screen, err
		}
		p, screen = now, shown
		if p.dead && p.told() {
			return p, screen, nil
		}
		if p.dead {
			v.tellAgain(sv)
		}
		if proctree.Pause(ctx, pollEvery) != nil {
			return p, screen, nil
		}
	}
}

// tellAgain repeats to the server the signal that the process of its pane has ended. When a terminal comes
// and when it goes, tmux has libutempter run a helper, which takes the handler of SIGCHLD away for that
// long; the process of the pane ends in just that moment every third time, and then it stays a zombie and
// the pane never tells. A server that says that the pane is dead is through with its helper, so this one
// arrives.
func (v *view) tellAgain(sv server) {
	st, err := seat.ReadProc(v.place.PanePID)
	if err == nil && st.State == 'Z' && sv.id.PID != 0 && st.PPID == sv.id.PID {
		_ = seat.SignalExact(sv.id, unix.SIGCHLD)
	}
}

// silent judges a seat that has a record, no exit record, and does not answer.
func (a *adoption) silent(ctx context.Context, v *view, why string) (sdk.SeatStatus, bool, error) {
	switch live, proof := seat.Check(v.rec.Identity()); live {
	case seat.Alive:
		return v.unknown("custody process %d lives and does not answer (%s)", v.rec.PID, why), true, nil
	case seat.Unknown:
		return v.unknown("custody process %d: %s", v.rec.PID, proof), false, nil
	default:
		if !a.looked {
			a.looked = true // it may have written its exit record and ended after we looked for one
			return v.unknown("%s", proof), true, nil
		}
		x, _, err := v.lost(ctx, false)
		if err != nil {
			return v.unknown("%v", err), false, nil
		}
		return v.exited(x), false, nil
	}
}

// unrecorded judges a seat without a record: never started, just being started, or removed. What is left
// of a start that was interrupted before anything could execute, an empty tmux server, is ended.
func (a *adoption) unrecorded(ctx context.Context, v *view, why string) (sdk.SeatStatus, bool, error) {
	if id, known := v.custody(); known {
		live, proof := seat.Check(id)
		if live != seat.Dead {
			return v.unknown("the record in %s is gone and custody process %d is %s (%s)", v.dir, id.PID, live, proof), false, nil
		}
		why = proof + "; " + why
	}
	if v.intentErr != nil && !missing(v.intentErr) {
		return v.unknown("%v", v.intentErr), false, nil
	}
	if v.nonce == "" {
		if !missing(v.tokenErr) {
			return v.unknown("%s has a token and no record, and nobody knows the nonce to look for", v.dir), false, nil
		}
		return v.notFound("no seat was started: %s", why), false, nil
	}
	if v.agentErr != nil && !missing(v.agentErr) {
		return v.unknown("%v", v.agentErr), false, nil
	}
	found, doubts, err := proctree.Look(v.quarry())
	if err != nil {
		return v.unknown("%v", err), false, nil
	}
	if len(found) > 0 {
		// A Spawn was interrupted a moment ago: its custody process writes the record, or ends.
		var pids []string
		for _, p := range found {
			pids = append(pids, fmt.Sprintf("%d (%s)", p.PID, p.Comm))
		}
		return v.unknown("no record, and processes of the seat live: %s", join(pids)), v.exists && time.Since(a.started) < startingWait, nil
	}
	if len(doubts) > 0 {
		return v.unknown("no record, and the seat is not proven gone: %s", join(doubts)), false, nil
	}
	if !a.looked {
		a.looked = true // it may have written its record between our looks
		return v.unknown("%s", why), true, nil
	}
	if live, pid := v.paneLives(ctx); live {
		return v.unknown("no record, and the process %d of its pane lives", pid), time.Since(a.started) < startingWait, nil
	}
	if how, err := v.endServer(ctx); err != nil {
		return v.unknown("no record, and a tmux server is left: %v", err), false, nil
	} else if how != "" {
		why += "; " + how
	}
	return v.notFound("no process carries the nonce of the seat, and no record is in %s (%s)", v.dir, why), false, nil
}

// paneLives reports whether the process that was started in the seat's pane may live.
func (v *view) paneLives(ctx context.Context) (bool, int) {
	if !v.place.known() {
		out, err := v.server().call(ctx, nil, "display-message", "-p", "#{pane_dead} #{pane_pid}")
		var dead, pid int
		if _, serr := fmt.Sscan(out, &dead, &pid); err != nil || serr != nil || dead == 1 {
			return false, 0
		}
		_, err = seat.IdentityOf(pid)
		return err == nil, pid
	}
	st, err := seat.ReadProc(v.place.PanePID)
	return err == nil && st.State != 'Z' && st.StartTicks >= v.place.Server.StartTicks && st.PPID == v.place.Server.PID, v.place.PanePID
}

func lastLine(screen string) string { return terminal.LastLine([]byte(screen), 160) }
