package pty

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/mirror"
	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Adopt says what a seat is, and with req.Commit starts its agent. It works from the handle or from
// the seat id alone. What counts as proof, in this order: the seat answers at its socket; its exit
// record; the death of its custody process (pid, start ticks and boot id), whose survivors are then
// hunted down and the end recorded as custody-lost. Whatever cannot be proven is sdk.SeatUnknown with a
// reason. One call takes at most 5 s.
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
		return sdk.SeatStatus{}, unavailable("%v", err)
	}
	a := &adoption{s: s, req: req, mirror: r.mirror, started: time.Now()}
	for {
		st, again, err := a.try(ctx)
		if err != nil || !again {
			if err == nil && (st.State == sdk.SeatExited || st.State == sdk.SeatNotFound) {
				r.mirror.Remove(req.SeatID)
			}
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
	mirror  *mirror.Mirror
	started time.Time
	looked  bool // for a file that may have appeared between two looks
}

// try looks once. With again the verdict may change by itself within the budget: st is then the answer
// if it does not.
func (a *adoption) try(ctx context.Context) (st sdk.SeatStatus, again bool, err error) {
	v, err := a.s.look(a.req.SeatID, a.req.Handle, a.req.Nonce)
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
		return v.exited(v.exit), false, nil
	case !missing(v.exitErr):
		return v.unknown("%v", v.exitErr), false, nil
	case v.recErr == nil:
		return a.silent(ctx, v, why)
	case !missing(v.recErr):
		return v.unknown("%v", v.recErr), false, nil
	}
	return a.unrecorded(v, why)
}

// welcomed handles a seat that answers.
func (a *adoption) welcomed(ctx context.Context, v *view, c *seat.Conn) (sdk.SeatStatus, bool, error) {
	if err := fpAdoptWelcomed.Hit(); err != nil {
		return sdk.SeatStatus{}, false, unavailable("%v", err)
	}
	now := c.Welcome()
	if a.req.Commit {
		if err := fpAdoptCommit.Hit(); err != nil {
			return sdk.SeatStatus{}, false, unavailable("%v", err)
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
	st, ok := v.live(now)
	if ok {
		a.mirror.Add(v.id, v.socket(), v.token)
		return st, false, nil
	}
	if err := v.read(); err != nil {
		return st, false, err
	}
	if v.exitErr != nil {
		return v.unknown("the seat says it has exited, and its record cannot be read: %v", v.exitErr), false, nil
	}
	x := v.exited(v.exit)
	x.First, x.Next, x.Agent, x.Attached = st.First, st.Next, st.Agent, st.Attached
	return x, false, nil
}

// remember writes down which process the agent is, unless that is known already. Where it cannot be
// written (a full disk) the seat runs all the same, and the next Adopt tries again.
func (v *view) remember(now seat.Status) {
	if now.State != seat.StateRunning || now.Agent.PID == 0 || now.Agent.StartTicks == 0 || !v.exists {
		return
	}
	if v.agentErr == nil && v.agent.Identity() == now.Agent {
		return
	}
	st, err := seat.ReadProc(now.Agent.PID)
	if err != nil || st.StartTicks != now.Agent.StartTicks {
		return // it has ended, and custody knows how
	}
	a := record.Agent{PID: now.Agent.PID, StartTicks: now.Agent.StartTicks, BootID: now.Agent.BootID, TTY: st.TTY}
	if err := record.WriteAgent(v.dir, a); err == nil {
		v.agent, v.agentErr = a, nil
	}
}

func refusalText(err error) string {
	var e *seat.Error
	if errors.As(err, &e) && e.Text != "" {
		return e.Text
	}
	return err.Error()
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

// lost ends what is left of a seat whose custody process is proven dead and left no exit record, and
// records that end, so that every later answer is the same. An error means that something may live.
func (v *view) lost(ctx context.Context, asked bool) (record.Exit, proctree.Sweep, error) {
	self, err := seat.SelfIdentity()
	if err != nil {
		return record.Exit{}, proctree.Sweep{}, err
	}
	x := record.Exit{CustodyID: v.id, Nonce: v.nonce, At: time.Now().UTC(), Asked: asked, Evidence: record.EvidenceCustodyLost}
	var sw proctree.Sweep
	if v.rec.BootID != self.BootID {
		x.Evidence, x.Detail = record.EvidenceRebooted, "the machine has booted since the seat was started"
	} else {
		if err := fpAdoptLost.Hit(); err != nil {
			return x, sw, err
		}
		// Who the agent is must be known, or be known never to have been written.
		if v.agentErr != nil && !missing(v.agentErr) {
			return x, sw, fmt.Errorf("custody process %d is dead, and what it left cannot be told: %w", v.rec.PID, v.agentErr)
		}
		if sw, err = proctree.Hunt(ctx, v.quarry()); err != nil {
			return x, sw, err
		}
		if len(sw.Left) > 0 {
			return x, sw, fmt.Errorf("custody process %d is dead and processes of the seat live: %s", v.rec.PID, strings.Join(sw.Left, "; "))
		}
		if len(sw.Doubts) > 0 {
			return x, sw, fmt.Errorf("custody process %d is dead and its seat is not proven gone: %s", v.rec.PID, doubtful(sw.Doubts))
		}
		x.Detail = fmt.Sprintf("custody process %d died without a record; processes left and killed: %d", v.rec.PID, len(sw.Killed))
		for _, k := range sw.Killed {
			x.Reaped = append(x.Reaped, record.Killed(k))
		}
		if err := fpAdoptSwept.Hit(); err != nil {
			return x, sw, err
		}
	}
	if err := record.WriteExit(v.dir, x); err != nil {
		return x, sw, err
	}
	if err := fpAdoptRecorded.Hit(); err != nil {
		return x, sw, err
	}
	// Another Adopt may have been first: its record is the one that counts.
	if first, err := record.ReadExit(v.dir); err == nil {
		x = first
	}
	return x, sw, nil
}

// doubtful says what to do about processes that nobody can place.
func doubtful(doubts []string) string {
	return "process " + strings.Join(doubts, "; process ") + "; look at what it is, end it if it is the seat's, and ask again"
}

// unrecorded judges a seat without a record: never started, just being started, or removed.
func (a *adoption) unrecorded(v *view, why string) (sdk.SeatStatus, bool, error) {
	if id, known := v.identity(); known {
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
		return v.unknown("no record, and processes of the seat live: %s", strings.Join(pids, ", ")), v.exists && time.Since(a.started) < startingWait, nil
	}
	if len(doubts) > 0 {
		return v.unknown("no record, and the seat is not proven gone: %s", doubtful(doubts)), false, nil
	}
	if !a.looked {
		a.looked = true // it may have written its record between our looks
		return v.unknown("%s", why), true, nil
	}
	if v.exists {
		return v.notFound("no seat was started in %s and no process carries its nonce (%s)", v.dir, why), false, nil
	}
	return v.notFound("no directory %s and no process carries its nonce (%s)", v.dir, why), false, nil
}

// Attach returns the seat's socket and token. A seat that has ended and was not reaped yet still shows
// its last output. Errors: sdk.ErrGone, sdk.ErrNotOurs, sdk.ErrUnavailable (its state is unknown).
func (r *Runtime) Attach(ctx context.Context, req sdk.AttachRequest) (sdk.AttachTarget, error) {
	s, err := r.settings()
	if err != nil {
		return sdk.AttachTarget{}, err
	}
	s, release, err := s.at(req.Handle)
	if err != nil {
		return sdk.AttachTarget{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, attachBudget)
	defer cancel()
	v, err := s.look(req.SeatID, req.Handle, "")
	if err != nil {
		return sdk.AttachTarget{}, err
	}
	if err := v.admit(req.InstanceID, v.fence()); err != nil {
		return sdk.AttachTarget{}, err
	}
	if err := v.ownerless(); err != nil {
		return sdk.AttachTarget{}, unavailable("%v", err)
	}
	c, why, refusal := v.dial(ctx, 0, 0)
	switch {
	case refusal != nil:
		return sdk.AttachTarget{}, unavailable("seat %s: %v", v.id, refusal)
	case c != nil:
		c.Close()
		return sdk.AttachTarget{Seat: &sdk.SeatEndpoint{Socket: v.socket(), Token: v.token}}, nil
	}
	if v.exitErr == nil {
		return sdk.AttachTarget{}, sdk.Errorf(sdk.ErrGone, "seat %s has ended", v.id)
	}
	if id, known := v.identity(); known {
		if live, proof := seat.Check(id); live != seat.Dead {
			return sdk.AttachTarget{}, unavailable("seat %s: %s; %s", v.id, why, proof)
		}
	} else if v.exists {
		return sdk.AttachTarget{}, unavailable("seat %s: %s", v.id, why)
	}
	return sdk.AttachTarget{}, sdk.Errorf(sdk.ErrGone, "seat %s is gone: %s", v.id, why)
}
