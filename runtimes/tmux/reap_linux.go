package tmux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/runtimes/internal/seatdir"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// Reap ends a seat, proves its end, and (without req.Keep) removes its directory and sockets. The rungs:
// the polite signal, the grace, SIGKILL of the whole tree, the exit record, the end of the custody
// process, the end of the seat's tmux server, a last search for processes by nonce. Each leaves one
// sentence in ReapReport.Evidence. A seat that is already gone is success. A stop with sdk.StopNow hastens
// a graceful one under way. When ctx ends no further rung is climbed and no signal is sent.
//
// Errors: sdk.ErrUnproven (something may live; nothing was removed), sdk.ErrNotOurs, sdk.ErrStaleFence,
// sdk.ErrUnavailable with sdk.OutcomeExecuted (ended and proven, and something could not be removed).
func (r *Runtime) Reap(ctx context.Context, req sdk.StopRequest) (sdk.ReapReport, error) {
	s, err := r.settings()
	if err != nil {
		return sdk.ReapReport{}, err
	}
	if err := checkSeatID(req.SeatID); err != nil {
		return sdk.ReapReport{}, err
	}
	if req.GraceMs < 0 || req.GraceMs > int(maxGrace/time.Millisecond) {
		return sdk.ReapReport{}, sdk.Errorf(sdk.ErrInvalid, "graceMs %d is not in 0..%d", req.GraceMs, maxGrace/time.Millisecond)
	}
	s, release, err := s.at(req.Handle)
	if err != nil {
		return sdk.ReapReport{}, err
	}
	defer release()
	if err := proctree.Over(ctx); err != nil {
		return sdk.ReapReport{}, unproven("%v; nothing was sent", err)
	}
	// Checked before the lock: a caller without a say must not hasten somebody's stop.
	v, err := s.view(req.SeatID, req.Handle, req.Nonce)
	if err == nil {
		err = v.admit(req.InstanceID, req.Fence)
	}
	if err != nil {
		return sdk.ReapReport{}, err
	}
	l, unlock, err := r.locks.Lock(ctx, req.SeatID, req.Mode == sdk.StopNow)
	if err != nil {
		return sdk.ReapReport{}, unproven("another stop of the seat was still running: %v", err)
	}
	defer unlock()
	rp := &reaping{s: s, req: req, hurry: l.Hurry}
	if dir, err := seatdir.OpenOwnAt(int(s.root.Fd()), req.SeatID, filepath.Join(s.rootPath, req.SeatID)); err == nil {
		defer dir.Close()
		if err := seatdir.Lock(ctx, dir); err != nil {
			return sdk.ReapReport{}, unproven("%v", err)
		}
	}
	err = rp.run(ctx)
	return rp.report, err
}

// reaping is one Reap under way.
type reaping struct {
	s       *settings
	req     sdk.StopRequest
	hurry   <-chan struct{}
	v       *view
	custody seat.Identity // zero: nobody knows
	report  sdk.ReapReport
}

func (rp *reaping) evidence(format string, args ...any) {
	rp.report.Evidence = append(rp.report.Evidence, fmt.Sprintf(format, args...))
}

func (rp *reaping) look() (err error) {
	if rp.v, err = rp.s.view(rp.req.SeatID, rp.req.Handle, rp.req.Nonce); err != nil {
		return err
	}
	if id, known := rp.v.custody(); known {
		rp.custody = id
	}
	if err := rp.v.ownerless(); err != nil {
		return unproven("%v; nothing was removed", err)
	}
	return rp.v.admit(rp.req.InstanceID, rp.req.Fence)
}

func (rp *reaping) run(ctx context.Context) error {
	if err := fpReapBegin.Hit(); err != nil {
		return unproven("%v", err)
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
	if rp.req.Keep && rp.v.exists {
		rp.evidence("records kept in %s", rp.v.dir)
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
		return unproven("%v", err)
	}
	c, why, refusal := rp.v.dial(ctx, seat.RoleControl, rp.req.Fence)
	if c == nil && refusal == nil {
		if c, refusal = rp.wake(ctx); c == nil && refusal == nil {
			return rp.endSilent(ctx, why)
		}
	}
	switch {
	case errors.Is(refusal, seat.ErrStaleFence):
		return sdk.Errorf(sdk.ErrStaleFence, "seat %s: %v", rp.v.id, refusal)
	case refusal != nil:
		return unproven("seat %s: %v", rp.v.id, refusal)
	}
	return rp.endLive(ctx, c)
}

// wake gives a custody process that lives without answering another chance: it may have been stopped,
// or be at the very start or end of its life.
func (rp *reaping) wake(ctx context.Context) (c *seat.Conn, refusal error) {
	until := time.Now().Add(dialTimeout)
	for rp.custody.PID != 0 && missing(rp.v.exitErr) && proctree.Over(ctx) == nil && time.Now().Before(until) {
		if live, _ := seat.Check(rp.custody); live != seat.Alive {
			break
		}
		_ = seat.SignalExact(rp.custody, unix.SIGCONT)
		if c, _, refusal = rp.v.dial(ctx, seat.RoleControl, rp.req.Fence); c != nil || refusal != nil {
			return c, refusal
		}
		_ = proctree.Pause(ctx, pollEvery)
		if err := rp.v.read(); err != nil {
			return nil, err
		}
	}
	return nil, rp.v.read()
}

// endSilent ends a seat that cannot be talked to.
func (rp *reaping) endSilent(ctx context.Context, why string) error {
	v := rp.v
	if err := proctree.Over(ctx); err != nil {
		return unproven("%v; nothing was removed", err)
	}
	switch {
	case !missing(v.exitErr) && v.exitErr != nil:
		return unproven("%v; nothing was removed", v.exitErr)
	case v.exitErr == nil:
		v.testify(ctx, testifyWait)
		rp.report.Outcome = sdk.ReapExited
		rp.took(v.exit)
		rp.evidence("it had ended before: exit record of %s (%s)", v.exit.At.Format(time.RFC3339), v.exit.Evidence)
		return nil
	case !missing(v.recErr) && v.recErr != nil:
		return unproven("%v, and %s; nothing was removed", v.recErr, why)
	case rp.custody.PID == 0:
		return rp.endUnstarted(ctx, why)
	}
	switch live, proof := seat.Check(rp.custody); live {
	case seat.Unknown:
		return unproven("custody process %d: %s; nothing was removed", rp.custody.PID, proof)
	case seat.Alive:
		return rp.endHung(ctx, why)
	default:
		rp.evidence("custody process %d is dead: %s", rp.custody.PID, proof)
	}
	if v.recErr != nil {
		return rp.endUnstarted(ctx, why)
	}
	x, sw, err := v.lost(ctx, true)
	if err != nil {
		return unproven("%v; nothing was removed", err)
	}
	rp.report.Outcome = sdk.ReapExited
	if len(sw.Killed) > 0 {
		rp.report.Outcome = sdk.ReapStopped
	}
	rp.took(x)
	rp.evidence("%s", x.Detail)
	return nil
}

// endUnstarted ends a seat without a record: nothing but its nonce and its server lead to processes of it.
func (rp *reaping) endUnstarted(ctx context.Context, why string) error {
	v := rp.v
	rp.report.Outcome = sdk.ReapAbsent
	if v.exists {
		rp.evidence("%s holds no record of a started seat", v.dir)
	} else {
		rp.evidence("no directory %s", v.dir)
	}
	rp.evidence("nothing answers: %s", why)
	if v.agentErr != nil && !missing(v.agentErr) {
		return unproven("%v; nothing was removed", v.agentErr)
	}
	if v.nonce == "" {
		if v.exists && !missing(v.tokenErr) {
			return unproven("%s has a token and no record, and nobody knows the nonce to look for; nothing was removed", v.dir)
		}
		return nil
	}
	sw, err := rp.sweep(ctx)
	if len(sw.Killed) > 0 {
		rp.report.Outcome = sdk.ReapStopped
	}
	if err == nil {
		if err = gone(sw); err != nil {
			err = unproven("%v; nothing was removed", err)
		}
	}
	return err
}

// endHung ends a seat whose custody process lives and cannot be talked to even when it is woken.
func (rp *reaping) endHung(ctx context.Context, why string) error {
	if err := proctree.Over(ctx); err != nil {
		return unproven("%v; nothing was removed", err)
	}
	rp.evidence("custody process %d lives and does not answer (%s)", rp.custody.PID, why)
	sw, err := proctree.KillBelow(ctx, rp.custody)
	rp.report.Killed = append(rp.report.Killed, sw.Killed...)
	if err == nil {
		err = gone(sw)
	} else if live, _ := seat.Check(rp.custody); live == seat.Dead && proctree.Over(ctx) == nil {
		return rp.endedMeanwhile(ctx, sw)
	}
	if err != nil {
		return unproven("%v; nothing was removed", err)
	}
	rp.report.Outcome = sdk.ReapStopped
	// Custody that only cannot be reached still reaps the agent, and knows how it ended.
	for until := time.Now().Add(dialTimeout); missing(rp.v.exitErr) && rp.v.exists && time.Now().Before(until); {
		if proctree.Pause(ctx, pollEvery) != nil {
			return unproven("%v; nothing was removed", proctree.Over(ctx))
		}
		if err := rp.v.read(); err != nil {
			return err
		}
	}
	if rp.v.exists && rp.v.exitErr != nil {
		x := record.Exit{
			CustodyID: rp.v.id, Nonce: rp.v.nonce, At: time.Now().UTC(), Asked: true, Evidence: record.EvidenceCustodyLost,
			Detail: "custody did not answer and was killed with its whole tree",
		}
		for _, k := range sw.Killed {
			x.Reaped = append(x.Reaped, record.Killed(k))
		}
		if err := record.WriteExit(rp.v.dir, x); err != nil {
			return unproven("nothing below custody process %d lives, and %v; nothing was removed", rp.custody.PID, err)
		}
		if err := rp.v.read(); err != nil {
			return err
		}
	}
	if rp.v.exitErr == nil {
		rp.report.Exit = exitOf(rp.v.exit)
	}
	rp.evidence("killed %d processes below custody process %d until none was left", len(sw.Killed), rp.custody.PID)
	return nil
}

// endedMeanwhile judges a seat whose custody process ended while its tree was being killed: it reaped its
// agent and had nobody to wait for. Its record tells the rest, and without one the hunt does.
func (rp *reaping) endedMeanwhile(ctx context.Context, sw proctree.Sweep) error {
	rp.report.Outcome = sdk.ReapStopped
	rp.evidence("killed %d processes below custody process %d, which then ended", len(sw.Killed), rp.custody.PID)
	if err := rp.v.read(); err != nil {
		return err
	}
	switch {
	case rp.v.exitErr == nil:
		rp.report.Exit = exitOf(rp.v.exit)
		return nil
	case rp.v.recErr == nil && missing(rp.v.exitErr):
		x, _, err := rp.v.lost(ctx, true)
		if err != nil {
			return unproven("%v; nothing was removed", err)
		}
		rp.took(x)
		return nil
	}
	left, err := rp.sweep(ctx)
	if err == nil {
		if err = gone(left); err != nil {
			err = unproven("%v; nothing was removed", err)
		}
	}
	return err
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
		return sw, unproven("%v; nothing was removed", err)
	case len(sw.Left) > 0:
		return sw, unproven("processes of the seat resist: %s; nothing was removed", join(sw.Left))
	case len(sw.Killed) > 0:
		rp.evidence("killed %d processes that were the seat's; no process carries its nonce now", len(sw.Killed))
	default:
		rp.evidence("no process carries the seat's nonce")
	}
	return sw, nil
}

// prove waits for the end of the custody process, ends the tmux server, and looks for escapees. After it
// nothing of the seat lives, or an error says what may.
func (rp *reaping) prove(ctx context.Context) error {
	if err := proctree.Over(ctx); err != nil {
		return unproven("%v; nothing was removed", err)
	}
	if rp.custody.PID != 0 {
		if err := rp.custodyGone(ctx); err != nil {
			return err
		}
	}
	if err := fpReapGone.Hit(); err != nil {
		return unproven("%v", err)
	}
	how, err := rp.v.endServer(ctx)
	if err != nil {
		return unproven("%v; nothing was removed", err)
	}
	if how != "" {
		rp.evidence("%s", how)
	}
	if err := fpReapServer.Hit(); err != nil {
		return unproven("%v", err)
	}
	// The proof stands already, by the exit record or by the hunt that wrote it: here only what
	// contradicts it counts.
	if rp.v.nonce != "" && rp.report.Outcome != sdk.ReapAbsent {
		if _, err := rp.sweep(ctx); err != nil {
			return err
		}
	}
	if err := fpReapScanned.Hit(); err != nil {
		return unproven("%v", err)
	}
	return nil
}

func (rp *reaping) custodyGone(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, custodyEnd)
	err := proctree.AwaitDeath(wait, rp.custody)
	cancel()
	if err == nil {
		rp.evidence("custody process %d is gone", rp.custody.PID)
		return nil
	}
	if err := proctree.Over(ctx); err != nil {
		return unproven("%v; nothing was removed", err)
	}
	// The tree below it is proven gone by its exit record, so nothing is lost with it.
	kctx, cancel := context.WithTimeout(ctx, survivorWait)
	defer cancel()
	if err := proctree.EndProcess(kctx, rp.custody); err != nil {
		return unproven("%v; nothing was removed", err)
	}
	rp.evidence("custody process %d had nothing more to do and did not end within %s: killed", rp.custody.PID, custodyEnd)
	return nil
}

// remove takes the sockets and the directory away. The directory first gets a hidden name, so that a
// crash in the middle never leaves half a seat under a real one.
func (rp *reaping) remove() error {
	v := rp.v
	for _, path := range []string{v.socket(), v.server().socket, v.s.startPath(v.id)} {
		st, err := os.Lstat(path)
		if err != nil || st.Mode()&os.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(path); err != nil && !missing(err) {
			return err
		}
		rp.report.Removed = append(rp.report.Removed, path)
	}
	hidden := gonePrefix + v.id
	if v.exists {
		if err := rp.s.removeAll(hidden); err != nil {
			return err
		}
		if err := rp.s.rootFiles.Rename(v.id, hidden); err != nil {
			return err
		}
		if err := fpReapRenamed.Hit(); err != nil {
			return err
		}
	}
	if err := rp.s.removeAll(hidden); err != nil {
		return err
	}
	if err := rp.s.root.Sync(); err != nil {
		return err
	}
	if err := fpReapRemoved.Hit(); err != nil {
		return err
	}
	if v.exists {
		rp.report.Removed = append(rp.report.Removed, v.dir)
		rp.evidence("removed %s", v.dir)
	}
	return nil
}

// ignoresTerm reports whether a process has set SIGTERM to be ignored. A process that cannot be read is
// taken not to: it then simply has its grace.
func ignoresTerm(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && set&(1<<(unix.SIGTERM-1)) != 0
		}
	}
	return false
}
