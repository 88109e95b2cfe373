package custodied

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Adopt says what a seat is, and with req.Commit starts its agent. open reads the seat from the start; what
// it refuses is refused. What counts as proof, in this order: custody answers at the seat's socket; its exit
// record; the death of its custody process (pid, start ticks and boot id), whose survivors are then hunted
// down and the end recorded as custody-lost. Whatever cannot be proven is sdk.SeatUnknown with a reason.
// One call takes at most AdoptBudget.
//
// Errors: those of open, sdk.ErrNotOurs, sdk.ErrStaleFence, sdk.ErrExecFailed.
func (k *Kind) Adopt(ctx context.Context, req sdk.AdoptRequest, open func() (*Seat, error)) (sdk.SeatStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, AdoptBudget)
	defer cancel()
	if err := hit(k.AdoptBegin); err != nil {
		return sdk.SeatStatus{}, Unavailable("%v", err)
	}
	a := &adoption{req: req, open: open, started: time.Now()}
	for {
		st, again, err := a.try(ctx)
		if err != nil || !again {
			return st, err
		}
		if proctree.Pause(ctx, PollEvery) != nil {
			return st, nil
		}
	}
}

// adoption is one Adopt under way.
type adoption struct {
	req     sdk.AdoptRequest
	open    func() (*Seat, error)
	started time.Time
	looked  bool // for a file that may have appeared between two looks
}

// try looks once. With again the verdict may change by itself within the budget: st is then the answer
// if it does not.
func (a *adoption) try(ctx context.Context) (st sdk.SeatStatus, again bool, err error) {
	v, err := a.open()
	if err != nil {
		return st, false, err
	}
	if err := v.Admit(a.req.InstanceID, a.req.Fence); err != nil {
		return st, false, err
	}
	if err := v.Ownerless(); err != nil {
		return v.unknown("%v", err), false, nil
	}
	c, why, refusal := v.Dial(ctx, seat.RoleControl, a.req.Fence)
	switch {
	case errors.Is(refusal, seat.ErrStaleFence):
		return st, false, sdk.Errorf(sdk.ErrStaleFence, "seat %s: %v", v.ID, refusal)
	case refusal != nil:
		return v.unknown("%v", refusal), false, nil
	case c != nil:
		defer c.Close()
		return a.welcomed(ctx, v, c)
	}
	switch {
	case v.ExitErr == nil:
		return v.ended(ctx), false, nil
	case !Missing(v.ExitErr):
		return v.unknown("%v", v.ExitErr), false, nil
	case v.RecErr == nil:
		return a.silent(ctx, v, why)
	case !Missing(v.RecErr):
		return v.unknown("%v", v.RecErr), false, nil
	}
	return a.unrecorded(ctx, v, why)
}

// welcomed handles a seat that answers.
func (a *adoption) welcomed(ctx context.Context, v *Seat, c *seat.Conn) (sdk.SeatStatus, bool, error) {
	if err := hit(v.Kind.AdoptWelcomed); err != nil {
		return sdk.SeatStatus{}, false, Unavailable("%v", err)
	}
	now := c.Welcome()
	if a.req.Commit {
		if err := hit(v.Kind.AdoptCommit); err != nil {
			return sdk.SeatStatus{}, false, Unavailable("%v", err)
		}
		if err := proctree.Over(ctx); err != nil {
			return v.unknown("%v", err), false, nil
		}
		s, err := c.Commit(ctx)
		switch {
		case errors.Is(err, seat.ErrExec):
			return sdk.SeatStatus{}, false, sdk.Errorf(sdk.ErrExecFailed, "%s", refusalText(err))
		case errors.Is(err, seat.ErrStaleFence):
			return sdk.SeatStatus{}, false, sdk.Errorf(sdk.ErrStaleFence, "seat %s: %v", v.ID, err)
		case err != nil:
			// The connection broke with the outcome unknown. Commit is idempotent: look again.
			return v.unknown("the seat did not answer the commit: %v", err), true, nil
		}
		now = s
		v.remember(now) // before anybody knows that it runs
		if err := hit(v.Kind.AdoptCommitted); err != nil {
			return sdk.SeatStatus{}, false, &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeUnknown, Retryable: true, Detail: err.Error()}
		}
	}
	v.remember(now)
	st, ok := v.live(now)
	if ok {
		bound, cancel := context.WithTimeout(ctx, glanceWait)
		defer cancel()
		v.Term.Running(bound, &st)
		return st, false, nil
	}
	if err := v.Read(); err != nil {
		return st, false, err
	}
	if v.ExitErr != nil {
		return v.unknown("the seat says it has exited, and its record cannot be read: %v", v.ExitErr), false, nil
	}
	x := v.ended(ctx)
	x.First, x.Next, x.Agent, x.Attached = st.First, st.Next, st.Agent, st.Attached
	return x, false, nil
}

// ended is the status of a seat with an exit record.
func (v *Seat) ended(ctx context.Context) sdk.SeatStatus {
	bound, cancel := context.WithTimeout(ctx, glanceWait)
	defer cancel()
	v.Term.Ended(bound, &v.Exit)
	return v.exited(v.Exit)
}

// silent judges a seat that has a record, no exit record, and does not answer.
func (a *adoption) silent(ctx context.Context, v *Seat, why string) (sdk.SeatStatus, bool, error) {
	switch live, proof := seat.Check(v.Rec.Identity()); live {
	case seat.Alive:
		return v.unknown("custody process %d lives and does not answer (%s)", v.Rec.PID, why), true, nil
	case seat.Unknown:
		return v.unknown("custody process %d: %s", v.Rec.PID, proof), false, nil
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
func (v *Seat) lost(ctx context.Context, asked bool) (record.Exit, proctree.Sweep, error) {
	self, err := seat.SelfIdentity()
	if err != nil {
		return record.Exit{}, proctree.Sweep{}, err
	}
	x := record.Exit{CustodyID: v.ID, Nonce: v.Nonce, At: time.Now().UTC(), Asked: asked, Evidence: record.EvidenceCustodyLost}
	var sw proctree.Sweep
	if v.Rec.BootID != self.BootID {
		x.Evidence, x.Detail = record.EvidenceRebooted, "the machine has booted since the seat was started"
	} else {
		if err := hit(v.Kind.AdoptLost); err != nil {
			return x, sw, err
		}
		// Who the agent is must be known, or be known never to have been written.
		if v.AgentErr != nil && !Missing(v.AgentErr) {
			return x, sw, fmt.Errorf("custody process %d is dead, and what it left cannot be told: %w", v.Rec.PID, v.AgentErr)
		}
		said := v.lastWord(ctx)
		if sw, err = proctree.Hunt(ctx, v.quarry()); err != nil {
			return x, sw, err
		}
		if len(sw.Left) > 0 {
			return x, sw, fmt.Errorf("custody process %d is dead and processes of the seat live: %s", v.Rec.PID, strings.Join(sw.Left, "; "))
		}
		if len(sw.Doubts) > 0 {
			return x, sw, fmt.Errorf("custody process %d is dead and its seat is not proven gone: %s", v.Rec.PID, doubtful(sw.Doubts))
		}
		x.Detail = fmt.Sprintf("custody process %d died without a record%s; processes left and killed: %d", v.Rec.PID, said, len(sw.Killed))
		for _, k := range sw.Killed {
			x.Reaped = append(x.Reaped, record.Killed(k))
		}
		if err := hit(v.Kind.AdoptSwept); err != nil {
			return x, sw, err
		}
	}
	if err := record.WriteExit(v.Dir, x); err != nil {
		return x, sw, err
	}
	if err := hit(v.Kind.AdoptRecorded); err != nil {
		return x, sw, err
	}
	// Another Adopt may have been first: its record is the one that counts.
	if first, err := record.ReadExit(v.Dir); err == nil {
		x = first
	}
	return x, sw, nil
}

func (v *Seat) lastWord(ctx context.Context) string {
	bound, cancel := context.WithTimeout(ctx, glanceWait)
	defer cancel()
	return v.Term.LastWord(bound)
}

// doubtful says what to do about processes that nobody can place.
func doubtful(doubts []string) string {
	return "process " + strings.Join(doubts, "; process ") + "; look at what it is, end it if it is the seat's, and ask again"
}

// unrecorded judges a seat without a record: never started, just being started, or removed. What is left
// of a start that was interrupted before anything could execute is ended.
func (a *adoption) unrecorded(ctx context.Context, v *Seat, why string) (sdk.SeatStatus, bool, error) {
	if id, known := v.Custody(); known {
		live, proof := seat.Check(id)
		if live != seat.Dead {
			return v.unknown("the record in %s is gone and custody process %d is %s (%s)", v.Dir, id.PID, live, proof), false, nil
		}
		why = proof + "; " + why
	}
	if v.IntentErr != nil && !Missing(v.IntentErr) {
		return v.unknown("%v", v.IntentErr), false, nil
	}
	if v.Nonce == "" {
		if !Missing(v.TokenErr) {
			return v.unknown("%s has a token and no record, and nobody knows the nonce to look for", v.Dir), false, nil
		}
		return v.notFound("no seat was started: %s", why), false, nil
	}
	if v.AgentErr != nil && !Missing(v.AgentErr) {
		return v.unknown("%v", v.AgentErr), false, nil
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
		return v.unknown("no record, and processes of the seat live: %s", strings.Join(pids, ", ")), v.Exists && time.Since(a.started) < startingWait, nil
	}
	if len(doubts) > 0 {
		return v.unknown("no record, and the seat is not proven gone: %s", doubtful(doubts)), false, nil
	}
	if !a.looked {
		a.looked = true // it may have written its record between our looks
		return v.unknown("%s", why), true, nil
	}
	if who := v.Term.Starting(ctx); who != "" {
		return v.unknown("no record, and %s", who), time.Since(a.started) < startingWait, nil
	}
	if how, err := v.Term.End(ctx); err != nil {
		return v.unknown("no record, and %v", err), false, nil
	} else if how != "" {
		why += "; " + how
	}
	if v.Exists {
		return v.notFound("no seat was started in %s and no process carries its nonce (%s)", v.Dir, why), false, nil
	}
	return v.notFound("no directory %s and no process carries its nonce (%s)", v.Dir, why), false, nil
}
