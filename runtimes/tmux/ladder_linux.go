package tmux

import (
	"context"
	"errors"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

var (
	errSeatLost = errors.New("the seat's connection ended")
	errHurry    = errors.New("a second stop asked for no grace")
	errStill    = errors.New("still running")
)

// endLive climbs the ladder on a seat that answers.
func (rp *reaping) endLive(ctx context.Context, c *seat.Conn) error {
	now := c.Welcome()
	rp.custody = now.Seat
	rung := &rungs{c: c, ended: make(chan struct{}), running: make(chan struct{})}
	go func() {
		defer close(rung.running)
		_ = c.Run(ctx, seat.Handler{Exit: func(seat.Status, seat.ExitRecord) { close(rung.ended) }})
	}()
	defer func() {
		c.Close()
		<-rung.running
	}()
	agent := ""
	if st, err := seat.ReadProc(now.Agent.PID); now.Agent.PID != 0 && err == nil && st.StartTicks == now.Agent.StartTicks {
		agent = st.Comm
	}
	rp.report.Outcome = sdk.ReapStopped
	polite := false
	var err error
	switch now.State {
	case seat.StateExited:
		rp.report.Outcome = sdk.ReapExited
	case seat.StatePrepared:
		rp.evidence("it was only prepared: nothing of the agent had executed")
		err = rung.signal(ctx, seat.ActionTerm, killWait)
	case seat.StateDraining:
		rp.evidence("the agent had ended by itself")
		if err = rung.wait(ctx, killWait, nil); errors.Is(err, errStill) {
			rp.evidence("the rest of its tree still lived after %s: sent SIGKILL to it", killWait)
			err = rung.signal(ctx, seat.ActionKill, killWait)
		}
	default:
		polite, err = rp.climb(ctx, rung, now, agent)
	}
	switch {
	case errors.Is(err, sdk.ErrUnproven):
		return err
	case err != nil && ctx.Err() != nil:
		return unproven("%v", proctree.Over(ctx))
	case errors.Is(err, errSeatLost):
		// It ended, or somebody killed custody under us: what is left is judged by the records.
		if rerr := rp.v.read(); rerr != nil {
			return rerr
		}
		if rp.v.exitErr != nil {
			return rp.endSilent(ctx, err.Error())
		}
	case err != nil:
		if below, berr := proctree.Below(rp.custody); berr == nil && len(below) == 0 {
			return unproven("the agent has ended and its end is not recorded (%v); free space on the file system of %s, or make it writable, and stop it again: until then custody process %d holds what is known of its end; nothing was removed", err, rp.v.dir, rp.custody.PID)
		}
		return rp.endHung(ctx, err.Error())
	}
	c.Close() // custody waits, for a moment, until whoever it told has hung up
	return rp.recorded(ctx, now, agent, polite)
}

// climb sends the polite signal, waits out the grace, and kills the tree. polite reports whether the
// grace was enough.
func (rp *reaping) climb(ctx context.Context, rung *rungs, now seat.Status, agent string) (polite bool, err error) {
	if rp.req.Mode != sdk.StopNow {
		grace := rp.grace(ctx)
		began := time.Now()
		rp.evidence("sent SIGTERM to agent %d (%s) and the foreground group", now.Agent.PID, agent)
		err = rung.signal(ctx, seat.ActionTerm, 0)
		if err == nil && ignoresTerm(now.Agent.PID) {
			// Interactive shells do; what ends them politely is the loss of their terminal.
			rp.evidence("it ignores SIGTERM, as interactive shells do: sent SIGHUP too")
			err = rung.signal(ctx, seat.ActionHangup, 0)
		}
		if err == nil {
			if err = fpReapTerm.Hit(); err != nil {
				return false, unproven("%v", err)
			}
			err = rung.wait(ctx, grace, rp.hurry)
		}
		switch {
		case err == nil:
			rp.evidence("the whole tree ended within %s of it", since(began))
			return true, nil
		case errors.Is(err, errSeatLost):
			return true, err
		case ctx.Err() != nil:
			return false, err
		case errors.Is(err, errHurry):
			rp.evidence("a second stop asked for no grace")
		case errors.Is(err, errStill):
			rp.evidence("it still lived after the grace of %s", grace)
		default:
			rp.evidence("asking custody for the polite signal failed: %v", err)
		}
	}
	if err := fpReapKill.Hit(); err != nil {
		return false, unproven("%v", err)
	}
	if err := proctree.Over(ctx); err != nil {
		return false, unproven("%v", err)
	}
	_ = seat.SignalExact(rp.custody, unix.SIGCONT) // somebody may have stopped it meanwhile
	rp.evidence("sent SIGKILL to the whole tree")
	return false, rung.signal(ctx, seat.ActionKill, killWait)
}

// rungs is a connection to custody on which a ladder is climbed.
type rungs struct {
	c              *seat.Conn
	ended, running chan struct{} // closed: the exit was told; the connection has ended
}

// signal asks custody for an action and, with a bound, waits for the exit.
func (r *rungs) signal(ctx context.Context, a seat.Action, bound time.Duration) error {
	if err := ctx.Err(); err != nil { // the connection writes before it looks at its context
		return err
	}
	sctx, cancel := context.WithTimeout(ctx, dialTimeout)
	err := r.c.Signal(sctx, a)
	cancel()
	// A refusal because there is nothing to signal means that the end is on its way.
	if err != nil && !errors.Is(err, seat.ErrNotRunning) && !errors.Is(err, seat.ErrClosed) {
		return err
	}
	if bound == 0 {
		return nil
	}
	return r.wait(ctx, bound, nil)
}

// wait waits for the exit. Errors: errSeatLost, errHurry, errStill after the bound, or ctx's. Of two
// things that happened at once the end of the call counts.
func (r *rungs) wait(ctx context.Context, bound time.Duration, hurry <-chan struct{}) error {
	t := time.NewTimer(bound)
	defer t.Stop()
	err := errStill
	select {
	case <-r.ended:
		return nil
	case <-r.running:
		select {
		case <-r.ended: // Run returns after it told the exit
			return nil
		default:
		}
		err = errSeatLost
	case <-ctx.Done():
	case <-hurry:
		err = errHurry
	case <-t.C:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// grace returns how long the polite signal may take: what the request says, else what the seat was
// spawned with, else the default; shortened when the caller's deadline leaves less.
func (rp *reaping) grace(ctx context.Context) time.Duration {
	ms := rp.req.GraceMs
	if ms == 0 && rp.v.recErr == nil {
		ms = rp.v.rec.Record.StopGraceMs
	}
	if ms == 0 {
		ms = rp.v.state.GraceMs
	}
	if ms == 0 {
		ms = sdk.DefaultStopGraceMs
	}
	grace := time.Duration(ms) * time.Millisecond
	if at, ok := ctx.Deadline(); ok {
		if left := time.Until(at) - stopReserve; left < grace {
			grace = max(left, 0)
			rp.evidence("the caller's deadline leaves a grace of %s", grace.Round(time.Millisecond))
		}
	}
	return grace
}

// recorded takes the exit record of a seat that ended just now.
func (rp *reaping) recorded(ctx context.Context, now seat.Status, agent string, polite bool) error {
	// The seat tells an exit only once the record is durable, so this is there at the first look; a
	// record that cannot be read keeps the seat.
	if err := rp.v.read(); err != nil {
		return err
	}
	if rp.v.exitErr != nil {
		return unproven("the seat says it has exited, and its record cannot be read: %v; nothing was removed", rp.v.exitErr)
	}
	wait, cancel := context.WithTimeout(ctx, testifyWait)
	_ = proctree.AwaitDeath(wait, rp.custody) // then the pane is dead, and can be asked
	cancel()
	rp.v.testify(ctx, testifyWait)
	x := rp.v.exit
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
	if err := fpReapExited.Hit(); err != nil {
		return unproven("%v", err)
	}
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
