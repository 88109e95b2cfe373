package custodied

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Reap ends a seat, proves its end, and (without req.Keep) removes its directory and sockets. open reads
// the seat from the start; what it refuses is refused. The rungs: the polite signal, the grace, SIGKILL of
// the whole tree, the exit record, the end of the custody process, the end of what outlives it, a last search
// for processes by nonce. Each leaves one sentence in ReapReport.Evidence. A seat that is already gone is
// success. A stop with sdk.StopNow hastens a graceful one under way. When ctx ends no further rung is climbed
// and no signal is sent: a caller that died never asked for a kill.
//
// Errors: sdk.ErrUnproven (something may live; nothing was removed), sdk.ErrNotOurs, sdk.ErrStaleFence,
// sdk.ErrUnavailable with sdk.OutcomeExecuted (ended and proven, and something could not be removed), and
// those of open.
func (k *Kind) Reap(ctx context.Context, locks *seatdir.Locks, req sdk.StopRequest, open func() (*Seat, error)) (sdk.ReapReport, error) {
	if err := proctree.Over(ctx); err != nil {
		return sdk.ReapReport{}, Unproven("%v; nothing was sent", err)
	}
	// Checked before the lock: a caller without a say must not hasten somebody's stop.
	v, err := open()
	if err == nil {
		err = v.Admit(req.InstanceID, req.Fence)
	}
	if err != nil {
		return sdk.ReapReport{}, err
	}
	l, unlock, err := locks.Lock(ctx, req.SeatID, req.Mode == sdk.StopNow)
	if err != nil {
		return sdk.ReapReport{}, Unproven("another stop of the seat was still running: %v", err)
	}
	defer unlock()
	if dir, err := v.Root.Open(req.SeatID); err == nil {
		defer dir.Close()
		if err := seatdir.Lock(ctx, dir); err != nil {
			return sdk.ReapReport{}, Unproven("%v", err)
		}
	}
	rp := &reaping{k: k, open: open, req: req, hurry: l.Hurry}
	err = rp.run(ctx)
	return rp.report, err
}

// CheckStop refuses a stop that asks for the impossible. Errors: sdk.ErrInvalid.
func CheckStop(req sdk.StopRequest) error {
	if err := CheckID(req.SeatID); err != nil {
		return err
	}
	if req.GraceMs < 0 || req.GraceMs > int(maxGrace/time.Millisecond) {
		return sdk.Errorf(sdk.ErrInvalid, "graceMs %d is not in 0..%d", req.GraceMs, maxGrace/time.Millisecond)
	}
	return nil
}

// reaping is one Reap under way.
type reaping struct {
	k       *Kind
	open    func() (*Seat, error)
	req     sdk.StopRequest
	hurry   <-chan struct{}
	v       *Seat
	custody seat.Identity // zero: nobody knows
	report  sdk.ReapReport
}

func (rp *reaping) evidence(format string, args ...any) {
	rp.report.Evidence = append(rp.report.Evidence, fmt.Sprintf(format, args...))
}

func (rp *reaping) look() (err error) {
	if rp.v, err = rp.open(); err != nil {
		return err
	}
	if id, known := rp.v.Custody(); known {
		rp.custody = id
	}
	if err := rp.v.Ownerless(); err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	return rp.v.Admit(rp.req.InstanceID, rp.req.Fence)
}

func (rp *reaping) run(ctx context.Context) error {
	if err := hit(rp.k.ReapBegin); err != nil {
		return Unproven("%v", err)
	}
	if err := rp.look(); err != nil {
		return err
	}
	if err := rp.end(ctx); err != nil {
		return err
	}
	if err := rp.prove(ctx); err != nil {
		return err
	}
	if rp.req.Keep && rp.v.Exists {
		rp.evidence("records kept in %s", rp.v.Dir)
		return nil
	}
	if err := rp.remove(); err != nil {
		return &sdk.Error{Code: sdk.ErrUnavailable, Outcome: sdk.OutcomeExecuted, Retryable: true, Detail: "the seat has ended, and removing what it left failed: " + err.Error()}
	}
	return nil
}

// end makes the seat end, by the ladder when it answers and by its records when it does not.
func (rp *reaping) end(ctx context.Context) error {
	if err := proctree.Over(ctx); err != nil {
		return Unproven("%v", err)
	}
	c, why, refusal := rp.v.Dial(ctx, seat.RoleControl, rp.req.Fence)
	if c == nil && refusal == nil {
		if c, refusal = rp.wake(ctx); c == nil && refusal == nil {
			return rp.endSilent(ctx, why)
		}
	}
	switch {
	case errors.Is(refusal, seat.ErrStaleFence):
		return sdk.Errorf(sdk.ErrStaleFence, "seat %s: %v", rp.v.ID, refusal)
	case refusal != nil:
		return Unproven("seat %s: %v", rp.v.ID, refusal)
	}
	return rp.endLive(ctx, c)
}

// wake gives a custody process that lives without answering another chance: it may have been stopped,
// or be at the very start or end of its life.
func (rp *reaping) wake(ctx context.Context) (c *seat.Conn, refusal error) {
	if rp.custody.PID == 0 || !Missing(rp.v.ExitErr) {
		return nil, nil
	}
	until := time.Now().Add(dialTimeout)
	for {
		if live, _ := seat.Check(rp.custody); live != seat.Alive {
			return nil, rp.v.Read()
		}
		if proctree.Over(ctx) != nil {
			return nil, nil
		}
		_ = seat.SignalExact(rp.custody, unix.SIGCONT)
		if c, _, refusal = rp.v.Dial(ctx, seat.RoleControl, rp.req.Fence); c != nil || refusal != nil {
			return c, refusal
		}
		if time.Now().After(until) || proctree.Pause(ctx, PollEvery) != nil {
			return nil, rp.v.Read()
		}
		if err := rp.v.Read(); err != nil || rp.v.ExitErr == nil {
			return nil, err
		}
	}
}

// endSilent ends a seat that cannot be talked to.
func (rp *reaping) endSilent(ctx context.Context, why string) error {
	v := rp.v
	if err := proctree.Over(ctx); err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	switch {
	case !Missing(v.ExitErr) && v.ExitErr != nil:
		return Unproven("%v; nothing was removed", v.ExitErr)
	case v.ExitErr == nil:
		rp.testify(ctx)
		rp.report.Outcome = sdk.ReapExited
		rp.took(v.Exit)
		rp.evidence("it had ended before: exit record of %s (%s)", v.Exit.At.Format(time.RFC3339), v.Exit.Evidence)
		return nil
	case !Missing(v.RecErr) && v.RecErr != nil:
		return Unproven("%v, and %s; nothing was removed", v.RecErr, why)
	case rp.custody.PID == 0:
		return rp.endUnstarted(ctx, why)
	}
	switch live, proof := seat.Check(rp.custody); live {
	case seat.Unknown:
		return Unproven("custody process %d: %s; nothing was removed", rp.custody.PID, proof)
	case seat.Alive:
		return rp.endHung(ctx, why)
	default:
		rp.evidence("custody process %d is dead: %s", rp.custody.PID, proof)
	}
	if v.RecErr != nil {
		return rp.endUnstarted(ctx, why)
	}
	x, sw, err := v.lost(ctx, true)
	if err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	rp.report.Outcome = sdk.ReapExited
	if len(sw.Killed) > 0 {
		rp.report.Outcome = sdk.ReapStopped
	}
	rp.took(x)
	rp.evidence("%s", x.Detail)
	return nil
}

// endUnstarted ends a seat without a record: nothing but its nonce leads to processes of it.
func (rp *reaping) endUnstarted(ctx context.Context, why string) error {
	v := rp.v
	rp.report.Outcome = sdk.ReapAbsent
	if v.Exists {
		rp.evidence("%s holds no record of a started seat", v.Dir)
	} else {
		rp.evidence("no directory %s", v.Dir)
	}
	rp.evidence("nothing answers: %s", why)
	if v.Nonce == "" {
		if v.Exists && !Missing(v.TokenErr) {
			return Unproven("%s has a token and no record, and nobody knows the nonce to look for; nothing was removed", v.Dir)
		}
		return nil
	}
	if v.AgentErr != nil && !Missing(v.AgentErr) {
		return Unproven("%v; nothing was removed", v.AgentErr)
	}
	sw, err := rp.sweep(ctx)
	if len(sw.Killed) > 0 {
		rp.report.Outcome = sdk.ReapStopped
	}
	if err == nil && len(sw.Doubts) > 0 {
		err = Unproven("the seat is not proven gone: %s; nothing was removed", doubtful(sw.Doubts))
	}
	return err
}

// endHung ends a seat whose custody process lives and cannot be talked to even when it is woken.
func (rp *reaping) endHung(ctx context.Context, why string) error {
	if err := proctree.Over(ctx); err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	rp.evidence("custody process %d lives and does not answer (%s)", rp.custody.PID, why)
	sw, alone, err := rp.killTree(ctx)
	if err != nil {
		return err
	}
	rp.report.Outcome = sdk.ReapStopped
	if alone {
		return rp.endedMeanwhile(ctx, sw)
	}
	if rp.v.Exists {
		// Custody that only cannot be reached still reaps the agent, and knows how it ended.
		known, err := rp.awaitRecord(ctx)
		if err != nil {
			return err
		}
		if known {
			rp.took(rp.v.Exit)
		} else {
			x := record.Exit{Asked: true, Evidence: record.EvidenceCustodyLost, Detail: "custody did not answer and was killed with its whole tree"}
			if err := rp.write(x, sw); err != nil {
				return Unproven("nothing below custody process %d lives, and %v", rp.custody.PID, err)
			}
		}
	}
	if err := rp.endCustody(ctx); err != nil {
		return err
	}
	rp.evidence("killed %d processes below custody process %d until none was left, then custody itself", len(sw.Killed), rp.custody.PID)
	return nil
}

// endUnwritten ends a seat whose agent is dead and whose custody process answers and has not told the
// exit for a while: most likely it cannot be written. Custody holds the only copy of it, so it is left
// alone until there is another. told means that custody has written it after all.
func (rp *reaping) endUnwritten(ctx context.Context, now seat.Status, asked bool) (told bool, err error) {
	sw, alone, err := rp.killTree(ctx)
	if err != nil {
		return false, err
	}
	if alone {
		if err := rp.v.Read(); err != nil || rp.v.ExitErr == nil {
			return err == nil, err
		}
		return false, rp.endedMeanwhile(ctx, sw)
	}
	if told, err = rp.awaitRecord(ctx); told || err != nil {
		return told, err
	}
	x := record.Exit{Asked: asked, Evidence: seat.EvidenceReaped, Detail: "recorded by the runtime: custody could not write it"}
	if now.CodeKnown {
		code := int(now.Code)
		x.Code = &code
		if now.Signal != 0 {
			x.Signal = unix.SignalName(unix.Signal(now.Signal))
		}
	}
	if err := rp.write(x, sw); err != nil {
		return false, Unproven("the agent has ended (%s), and %v", describe(x), err)
	}
	rp.evidence("exit record of %s: %s", rp.v.Exit.At.Format(time.RFC3339), describe(rp.v.Exit))
	return false, rp.endCustody(ctx)
}

// killTree ends what lives below custody. alone means that custody itself ended meanwhile.
func (rp *reaping) killTree(ctx context.Context) (sw proctree.Sweep, alone bool, err error) {
	sw, err = proctree.KillBelow(ctx, rp.custody)
	rp.report.Killed = append(rp.report.Killed, sw.Killed...)
	if err != nil {
		if live, _ := seat.Check(rp.custody); live == seat.Dead && proctree.Over(ctx) == nil {
			return sw, true, nil
		}
		return sw, false, Unproven("%v; nothing was removed", err)
	}
	if len(sw.Left) > 0 {
		return sw, false, Unproven("processes of the seat resist: %s; nothing was removed", strings.Join(sw.Left, "; "))
	}
	return sw, false, nil
}

// endedMeanwhile judges a seat whose custody process ended while its tree was being killed: it reaped its
// agent and had nobody to wait for. Its record tells the rest, and without one the hunt does.
func (rp *reaping) endedMeanwhile(ctx context.Context, sw proctree.Sweep) error {
	rp.evidence("killed %d processes below custody process %d, which then ended", len(sw.Killed), rp.custody.PID)
	if err := rp.v.Read(); err != nil {
		return err
	}
	switch {
	case rp.v.ExitErr == nil:
		rp.report.Exit = exitOf(rp.v.Exit)
		return nil
	case rp.v.RecErr == nil && Missing(rp.v.ExitErr):
		x, _, err := rp.v.lost(ctx, true)
		if err != nil {
			return Unproven("%v; nothing was removed", err)
		}
		rp.took(x)
		return nil
	}
	left, err := rp.sweep(ctx)
	if err == nil && len(left.Doubts) > 0 {
		err = Unproven("the seat is not proven gone: %s; nothing was removed", doubtful(left.Doubts))
	}
	return err
}

// testify lets the terminal complete the exit record.
func (rp *reaping) testify(ctx context.Context) {
	bound, cancel := context.WithTimeout(ctx, testifyWait)
	defer cancel()
	rp.v.Term.Ended(bound, &rp.v.Exit)
}

// awaitRecord waits for the exit record that custody writes.
func (rp *reaping) awaitRecord(ctx context.Context) (known bool, err error) {
	for until := time.Now().Add(recordWait); ; {
		if err := rp.v.Read(); err != nil {
			return false, err
		}
		switch {
		case rp.v.ExitErr == nil:
			return true, nil
		case !Missing(rp.v.ExitErr):
			return false, Unproven("%v; nothing was removed", rp.v.ExitErr)
		case !rp.v.Exists || time.Now().After(until):
			return false, nil
		}
		if live, _ := seat.Check(rp.custody); live != seat.Alive {
			return false, nil
		}
		if proctree.Pause(ctx, PollEvery) != nil {
			return false, Unproven("%v; nothing was removed", proctree.Over(ctx))
		}
	}
}

// write records an end that custody did not, and takes it into the report, also when it cannot be
// written. The error names the directory and what helps.
func (rp *reaping) write(x record.Exit, sw proctree.Sweep) error {
	x.CustodyID, x.Nonce, x.At = rp.v.ID, rp.v.Nonce, time.Now().UTC()
	for _, k := range sw.Killed {
		x.Reaped = append(x.Reaped, record.Killed(k))
	}
	rp.report.Exit, rp.v.Exit = exitOf(x), x
	if !rp.v.Exists {
		return nil
	}
	if err := record.WriteExit(rp.v.Dir, x); err != nil {
		return fmt.Errorf("its exit record cannot be written: %s (%w); %s and stop it again: until then custody process %d holds what is known of its end; nothing was removed",
			reasonOf(err), err, fixOf(err, rp.v.Dir), rp.custody.PID)
	}
	// Custody may have been first: its record knows more.
	if first, err := record.ReadExit(rp.v.Dir); err == nil {
		rp.report.Exit, rp.v.Exit = exitOf(first), first
	}
	return nil
}

// endCustody kills a custody process that has nothing below it and nothing to tell any more.
func (rp *reaping) endCustody(ctx context.Context) error {
	if err := proctree.Over(ctx); err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	bound, cancel := context.WithTimeout(ctx, SurvivorWait)
	defer cancel()
	if err := proctree.EndProcess(bound, rp.custody); err != nil {
		return Unproven("processes of the seat resist: %v; nothing was removed", err)
	}
	return nil
}

// took takes an exit record into the report.
func (rp *reaping) took(x record.Exit) {
	rp.report.Exit = exitOf(x)
	for _, k := range x.Reaped {
		rp.report.Killed = append(rp.report.Killed, sdk.Killed(k))
	}
}

// sweep kills what is provably the seat's and turns survivors into ErrUnproven. Doubts are the caller's.
func (rp *reaping) sweep(ctx context.Context) (proctree.Sweep, error) {
	sw, err := proctree.Hunt(ctx, rp.v.quarry())
	rp.report.Killed = append(rp.report.Killed, sw.Killed...)
	switch {
	case err != nil:
		return sw, Unproven("%v; nothing was removed", err)
	case len(sw.Left) > 0:
		return sw, Unproven("processes of the seat resist: %s; nothing was removed", strings.Join(sw.Left, "; "))
	case len(sw.Killed) > 0:
		rp.evidence("killed %d processes that were the seat's; no process carries its nonce now", len(sw.Killed))
	default:
		rp.evidence("no process carries the seat's nonce")
	}
	return sw, nil
}

// prove waits for the end of the custody process, ends what outlives it, and looks for escapees. After it
// nothing of the seat lives, or an error says what may.
func (rp *reaping) prove(ctx context.Context) error {
	if err := proctree.Over(ctx); err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	if rp.custody.PID != 0 {
		if err := rp.custodyGone(ctx); err != nil {
			return err
		}
	}
	if err := hit(rp.k.ReapGone); err != nil {
		return Unproven("%v", err)
	}
	how, err := rp.v.Term.End(ctx)
	if err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	if how != "" {
		rp.evidence("%s", how)
	}
	if err := hit(rp.k.ReapServer); err != nil {
		return Unproven("%v", err)
	}
	// The proof stands already, by the exit record or by the hunt that wrote it: here only what
	// contradicts it counts.
	if rp.v.Nonce != "" && rp.report.Outcome != sdk.ReapAbsent {
		if _, err := rp.sweep(ctx); err != nil {
			return err
		}
	}
	if err := hit(rp.k.ReapScanned); err != nil {
		return Unproven("%v", err)
	}
	return nil
}

func (rp *reaping) custodyGone(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, CustodyEnd)
	err := proctree.AwaitDeath(wait, rp.custody)
	cancel()
	if err == nil {
		rp.evidence("custody process %d is gone", rp.custody.PID)
		return nil
	}
	if err := proctree.Over(ctx); err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	// The tree below it is proven gone by its exit record, so nothing is lost with it.
	kctx, cancel := context.WithTimeout(ctx, SurvivorWait)
	defer cancel()
	if err := proctree.EndProcess(kctx, rp.custody); err != nil {
		return Unproven("%v; nothing was removed", err)
	}
	rp.evidence("custody process %d had recorded the exit and did not end within %s: killed", rp.custody.PID, CustodyEnd)
	return nil
}

// remove takes the sockets and the directory away. The directory first gets a hidden name, so that a
// crash in the middle never leaves half a seat under a real one.
func (rp *reaping) remove() error {
	v := rp.v
	for i, path := range append([]string{v.Socket()}, v.Term.Sockets()...) {
		if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
			if err := os.Remove(path); err != nil && !Missing(err) {
				return err
			}
		} else if i > 0 || rp.report.Outcome != sdk.ReapStopped || !v.Exists { // else custody removed it itself
			continue
		}
		rp.report.Removed = append(rp.report.Removed, path)
	}
	if err := hit(rp.k.ReapSocket); err != nil {
		return err
	}
	if v.Exists {
		if err := v.Root.Hide(v.ID); err != nil {
			return err
		}
		if err := hit(rp.k.ReapRenamed); err != nil {
			return err
		}
	}
	if err := v.Root.Sweep(v.ID); err != nil {
		return err
	}
	if v.Exists {
		rp.report.Removed = append(rp.report.Removed, v.Dir)
	}
	if err := v.Root.Sync(); err != nil {
		return err
	}
	if err := hit(rp.k.ReapRemoved); err != nil {
		return err
	}
	if v.Exists {
		rp.evidence("removed %s", v.Dir)
	}
	return nil
}
