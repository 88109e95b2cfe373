package custodied

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// errSeatLost: the connection to the seat ended before its exit was told.
var errSeatLost = errors.New("the seat's connection ended")

// endLive climbs the ladder on a seat that answers.
func (rp *reaping) endLive(ctx context.Context, c *seat.Conn) error {
	now := c.Welcome()
	rp.custody = now.Seat
	ended := make(chan struct{})
	running := make(chan struct{})
	go func() {
		defer close(running)
		_ = c.Run(ctx, seat.Handler{Exit: func(seat.Status, seat.ExitRecord) { close(ended) }})
	}()
	defer func() {
		c.Close()
		<-running
	}()
	agent := ""
	if now.Agent.PID != 0 {
		if st, err := seat.ReadProc(now.Agent.PID); err == nil && st.StartTicks == now.Agent.StartTicks {
			agent = st.Comm
		}
	}
	rp.report.Outcome = sdk.ReapStopped
	polite := false
	var err error
	switch now.State {
	case seat.StateExited:
		rp.report.Outcome = sdk.ReapExited
	case seat.StatePrepared:
		rp.evidence("it was only prepared: nothing of the agent had executed")
		err = rp.signal(ctx, c, seat.ActionTerm, killWait, ended, running)
	case seat.StateDraining:
		rp.evidence("the agent had ended by itself")
		if !rp.treeLives() {
			err = errStill // only its exit is missing
		} else if err = rp.waitFor(ctx, killWait, ended, running, nil); errors.Is(err, errStill) && rp.treeLives() {
			rp.evidence("the rest of its tree still lived after %s: sent SIGKILL to it", killWait)
			err = rp.signal(ctx, c, seat.ActionKill, killWait, ended, running)
		}
	default:
		polite, err = rp.climb(ctx, c, now, agent, ended, running)
	}
	switch {
	case errors.Is(err, sdk.ErrUnproven):
		return err
	case err != nil && ctx.Err() != nil:
		return Unproven("%v", proctree.Over(ctx))
	case errors.Is(err, errSeatLost):
		// It ended, or somebody killed custody under us: what is left is judged by the records.
		if rerr := rp.v.Read(); rerr != nil {
			return rerr
		}
		if rp.v.ExitErr != nil {
			return rp.endSilent(ctx, err.Error())
		}
	case err != nil:
		s, ok := rp.ask(ctx, c)
		switch {
		case !ok || s.State < seat.StateDraining:
			return rp.endHung(ctx, err.Error())
		case s.State == seat.StateDraining:
			told, err := rp.endUnwritten(ctx, s, now.State == seat.StateRunning)
			if err != nil || !told {
				return err
			}
			_ = rp.waitFor(ctx, dialTimeout, ended, running, nil) // it is about to say so
		}
	}
	return rp.acknowledge(ctx, c, now, agent, polite)
}

// ask asks the seat how it is.
func (rp *reaping) ask(ctx context.Context, c *seat.Conn) (seat.Status, bool) {
	actx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	s, err := c.Get(actx)
	return s, err == nil
}

// treeLives reports whether something lives below custody, or may.
func (rp *reaping) treeLives() bool {
	below, err := proctree.Below(rp.custody)
	return err != nil || len(below) > 0
}

// climb sends the polite signal, waits out the grace, and kills the tree. polite reports whether the
// grace was enough.
func (rp *reaping) climb(ctx context.Context, c *seat.Conn, now seat.Status, agent string, ended, running <-chan struct{}) (polite bool, err error) {
	if rp.req.Mode != sdk.StopNow {
		grace := rp.grace(ctx)
		began := time.Now()
		rp.evidence("sent SIGTERM to agent %d (%s) and the foreground group", now.Agent.PID, agent)
		err = rp.signal(ctx, c, seat.ActionTerm, 0, ended, running)
		if err == nil && IgnoresTerm(now.Agent.PID) {
			// Interactive shells do; what ends them politely is the loss of their terminal.
			rp.evidence("it ignores SIGTERM, as interactive shells do: sent SIGHUP too")
			err = rp.signal(ctx, c, seat.ActionHangup, 0, ended, running)
		}
		if err == nil {
			if err = hit(rp.k.ReapTerm); err != nil {
				return false, Unproven("%v", err)
			}
			err = rp.waitFor(ctx, grace, ended, running, rp.hurry)
		}
		switch {
		case err == nil:
			rp.evidence("the whole tree ended within %d ms of it", time.Since(began).Milliseconds())
			return true, nil
		case errors.Is(err, errSeatLost):
			return true, err
		case ctx.Err() != nil:
			return false, err
		case errors.Is(err, errHurry):
			rp.evidence("a second stop asked for no grace")
		case errors.Is(err, errStill) && !rp.treeLives():
			rp.evidence("the whole tree has ended, and its exit is not told after the grace of %s", grace)
			return true, err
		case errors.Is(err, errStill):
			rp.evidence("it still lived after the grace of %s", grace)
		default:
			rp.evidence("asking custody for the polite signal failed: %v", err)
		}
	}
	if err := hit(rp.k.ReapKill); err != nil {
		return false, Unproven("%v", err)
	}
	if err := proctree.Over(ctx); err != nil {
		return false, Unproven("%v", err)
	}
	_ = seat.SignalExact(rp.custody, unix.SIGCONT) // somebody may have stopped it meanwhile
	rp.evidence("sent SIGKILL to the whole tree")
	return false, rp.signal(ctx, c, seat.ActionKill, killWait, ended, running)
}

// IgnoresTerm reports whether a process has set SIGTERM to be ignored. A process that cannot be read
// is taken not to: it then simply has its grace.
func IgnoresTerm(pid int) bool {
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

var (
	errHurry = errors.New("a second stop asked for no grace")
	errStill = errors.New("still running")
)

// signal asks the seat for an action and, with a bound, waits for the exit.
func (rp *reaping) signal(ctx context.Context, c *seat.Conn, a seat.Action, bound time.Duration, ended, running <-chan struct{}) error {
	if err := ctx.Err(); err != nil { // the connection writes before it looks at its context
		return err
	}
	sctx, cancel := context.WithTimeout(ctx, dialTimeout)
	err := c.Signal(sctx, a)
	cancel()
	// A refusal because there is nothing to signal means that the end is on its way.
	if err != nil && !errors.Is(err, seat.ErrNotRunning) && !errors.Is(err, seat.ErrClosed) {
		return err
	}
	if bound == 0 {
		return nil
	}
	return rp.waitFor(ctx, bound, ended, running, nil)
}

// waitFor waits for the exit. Errors: errSeatLost, errHurry, errStill after the bound, or ctx's.
func (rp *reaping) waitFor(ctx context.Context, bound time.Duration, ended, running, hurry <-chan struct{}) error {
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-ended:
		return nil
	case <-running:
		select {
		case <-ended: // Run returns after it told the exit
			return nil
		default:
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return errSeatLost
	case <-ctx.Done():
		return ctx.Err()
	case <-hurry:
		return orOver(ctx, errHurry)
	case <-t.C:
		return orOver(ctx, errStill)
	}
}

// orOver returns ctx's error if it has ended, else err: of two things that happened at once the end of
// the call counts.
func orOver(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	return err
}

// grace returns how long the polite signal may take: what the request says, else what the seat was
// spawned with, else the default; shortened when the caller's deadline leaves less.
func (rp *reaping) grace(ctx context.Context) time.Duration {
	ms := rp.req.GraceMs
	if ms == 0 && rp.v.RecErr == nil {
		ms = rp.v.Rec.Record.StopGraceMs
	}
	if ms == 0 {
		ms = rp.v.State.GraceMs
	}
	if ms == 0 {
		ms = sdk.DefaultStopGraceMs
	}
	grace := time.Duration(ms) * time.Millisecond
	if at, ok := ctx.Deadline(); ok {
		if left := time.Until(at) - StopReserve; left < grace {
			grace = max(left, 0)
			rp.evidence("the caller's deadline leaves a grace of %s", grace.Round(time.Millisecond))
		}
	}
	return grace
}

// acknowledge reads the exit record, lets custody go, and hears what the terminal adds to the record.
func (rp *reaping) acknowledge(ctx context.Context, c *seat.Conn, now seat.Status, agent string, polite bool) error {
	// The seat tells an exit only once the record is durable, so this is there at the first look; a
	// record that cannot be read keeps the seat.
	if err := rp.v.Read(); err != nil {
		return err
	}
	if rp.v.ExitErr != nil {
		if errors.Is(rp.v.ExitErr, fs.ErrNotExist) {
			return Unproven("the seat says it has exited and there is no %s in %s; nothing was removed", record.ExitFile, rp.v.Dir)
		}
		return Unproven("%v; nothing was removed", rp.v.ExitErr)
	}
	x := rp.v.Exit
	if now.State == seat.StateRunning && now.Agent.PID != 0 {
		sig := x.Signal
		if sig == "" && polite {
			sig = "SIGTERM" // it handled the signal and exited
		}
		if sig != "" {
			rp.report.Killed = append(rp.report.Killed, sdk.Killed{PID: now.Agent.PID, Command: agent, Signal: sig})
		}
	}
	rp.took(x)
	rp.evidence("exit record of %s: %s", x.At.Format(time.RFC3339), describe(x))
	if err := hit(rp.k.ReapExited); err != nil {
		return Unproven("%v", err)
	}
	if err := proctree.Over(ctx); err != nil {
		return Unproven("%v", err)
	}
	actx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := c.AckExit(actx); err != nil && !errors.Is(err, seat.ErrClosed) {
		rp.evidence("acknowledging the exit failed: %v", err)
	}
	if err := hit(rp.k.ReapAcked); err != nil {
		return Unproven("%v", err)
	}
	c.Close() // custody waits, for a moment, until whoever it told has hung up
	rp.testify(ctx)
	rp.report.Exit = exitOf(rp.v.Exit)
	return nil
}

// describe puts an exit record into words.
func describe(x record.Exit) string {
	text := x.Evidence
	switch {
	case x.Signal != "":
		text += ", ended by " + x.Signal
	case x.Code != nil:
		text += ", code " + strconv.Itoa(*x.Code)
	}
	if n := len(x.Reaped); n > 0 {
		text += ", " + strconv.Itoa(n) + " processes that outlived the agent were ended"
	}
	return text
}
