package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// verdictWait bounds how long the end of a seat is asked for after its session said that there is one: the host
// records it first.
const verdictWait = 5 * time.Second

// overMesh is one `cotal attach` over the mesh: one terminal, one session, which is attached anew as long as the
// seat lives.
type overMesh struct {
	*attachment
	name     string
	on       atomic.Bool // what is typed is sent
	attached atomic.Bool // it was, once
	say      string      // said once the screen is painted; the reading goroutine's
}

// attachMesh attaches to the terminal of a seat wherever its host is.
func (a *app) attachMesh(ctx context.Context, con *console, ref string, opt attachOptions) error {
	key, err := detachKeyFromEnv()
	if err != nil {
		return cli.Fail(cli.Usage, "%w", err)
	}
	c, err := a.target.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	row, err := named(ctx, c, ref)
	if err != nil {
		return err
	}
	if row.Exit != nil {
		return a.sayEnded(row)
	}
	target, err := cli.TargetOf(row)
	if err != nil {
		return err
	}
	call := mesh.AttachCall{Target: *target, Instance: row.InstanceID, Takeover: opt.TakeOver, Deadline: a.target.Timeout}
	if opt.ReadOnly {
		call.Role = wire.AttachObserver
	}
	if opt.TakeOver {
		call.Role = wire.AttachWriter
	}
	o := &overMesh{name: row.Name, attachment: &attachment{
		con: con, opt: opt, key: key, typed: make(chan typed, 256), events: make(chan event, 8),
	}}
	reason, sig, err := o.run(ctx, c.Client, call)
	switch {
	case sig != nil:
		return cli.Fail(cli.Interrupted, "detached by signal (%s); %s goes on running", sig, row.Name)
	case err != nil && (!o.attached.Load() || codeOfRefusal(err) != wire.CodeExpired && codeOfRefusal(err) != wire.CodeFailedPrecondition):
		return o.explain(err)
	case err == nil && reason == "":
		fmt.Fprintf(a.errw, "detached from %s; it goes on running. Attach again: cotal attach %s   end it: cotal stop %s\n", row.Name, row.Name, row.Name)
		return nil
	}
	ended, err := a.awaitEnd(ctx, row.LifecycleUID, row.SeatID)
	if ctx.Err() != nil {
		return cli.Fail(cli.Interrupted, "interrupted; the session on %s ended (%s), and the host has not said how it is with the seat", row.Name, reason)
	}
	if err == nil && ended.Exit == nil {
		return cli.Fail(cli.Refused, "%s ended and was started again; attach again: cotal attach %s", row.Name, row.Name)
	}
	if err != nil {
		return cli.Fail(cli.Unreachable, "the session on %s ended (%s), and the host does not say how it is with the seat: %w", row.Name, reason, err)
	}
	return a.sayEnded(ended)
}

// explain puts the refusal of an attach into the words of the command line.
func (o *overMesh) explain(err error) error {
	var refused *wire.Error
	switch {
	case errors.Is(err, context.Canceled):
		return cli.Fail(cli.Interrupted, "interrupted; %s is not shown, and goes on as it was", o.name)
	case errors.As(err, &refused) && refused.Code == wire.CodeConflict:
		return cli.Fail(cli.Refused, "%s (--observe, --take-over)", refused.Message)
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, mesh.ErrNoResponder), errors.Is(err, mesh.ErrNoReply):
		return cli.Fail(cli.Unreachable, "the host of %s does not answer: %w", o.name, err)
	}
	return err
}

// codeOfRefusal is the code of a refusal, or empty.
func codeOfRefusal(err error) string {
	var refused *wire.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// awaitEnd asks for the row of a life until it has its end, or another process than seatID.
func (a *app) awaitEnd(ctx context.Context, uid, seatID string) (row wire.AgentRow, err error) {
	for until := time.Now().Add(verdictWait); ; {
		if row, err = inspect(ctx, a, uid); err == nil && (row.Exit != nil || row.SeatID != seatID && row.Status == "running") {
			return row, nil
		}
		if time.Now().After(until) {
			if err == nil {
				err = fmt.Errorf("it is %s", row.Status)
			}
			return row, err
		}
		t := time.NewTimer(50 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			return row, ctx.Err()
		}
	}
}

func (a *app) sayEnded(row wire.AgentRow) error {
	fmt.Fprintf(a.errw, "%s ended %s\n", row.Name, cli.HowEnded(row.Exit))
	if !cli.EndedWell(row.Exit) {
		return cli.Silent(cli.Refused)
	}
	return nil
}

// run holds the session until the user detaches (no reason), a signal comes, or the seat has ended. ctx ends the wait
// for the session alone: with it run takes signals itself, having a terminal to give back.
func (o *overMesh) run(ctx context.Context, c *mesh.Client, call mesh.AttachCall) (reason string, sig os.Signal, err error) {
	call.OnNews = o.news
	if call.Rows, call.Cols, err = o.con.size(); err != nil {
		return "", nil, err
	}
	session, err := c.Attach(ctx, call)
	if err != nil {
		return "", nil, err
	}
	defer func() { session.Close() }()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(signals)
	defer o.con.leave()
	if err := o.con.enter(); err != nil {
		return "", nil, err
	}
	if ctx.Err() != nil { // from before the signals were taken
		return "", nil, ctx.Err()
	}
	ctx = context.WithoutCancel(ctx)
	keys := make(chan []byte, 256)
	o.over = func(p []byte) { o.takeOver(keys, p) }
	o.attached.Store(true)
	o.setRole(session.Role(), false)
	o.goLiveOver()
	o.goSafe(o.readKeys)
	for {
		reason, sig, err = o.hold(ctx, session, keys, signals)
		if reason != wire.EndReplaced || err != nil || sig != nil {
			return reason, sig, err
		}
		// Another terminal has the keyboard: this one goes on watching.
		o.on.Store(false)
		call.Role, call.Takeover = wire.AttachObserver, false
		call.Rows, call.Cols, _ = o.con.size() // without it, the screen is painted as the seat has it
		next, err := c.Attach(ctx, call)
		if err != nil {
			return "", nil, err
		}
		session = next
		o.con.reset()
		o.setRole(wire.AttachObserver, true)
		o.goLiveOver()
	}
}

// hold serves one session, however often it is attached anew.
func (o *overMesh) hold(ctx context.Context, s *mesh.Session, keys chan []byte, signals <-chan os.Signal) (string, os.Signal, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shown := make(chan error, 1)
	o.goSafe(func() {
		_, err := s.WriteTo(o)
		shown <- err
	})
	o.goSafe(func() { o.sendOver(ctx, s, keys) })
	for {
		select {
		case err := <-shown:
			o.con.drain()
			return s.Reason(), nil, err
		case e := <-o.events:
			if e.detach {
				o.drainKeys()
				return "", nil, nil
			}
			return "", nil, e.err
		case sig := <-signals:
			switch sig {
			case syscall.SIGWINCH:
				if rows, cols, err := o.con.size(); err == nil && !o.readOnly.Load() {
					o.goSafe(func() { _ = s.Resize(rows, cols) }) // a session that is over shows elsewhere
				}
			case syscall.SIGCONT: // stopped from outside and continued: the shell has changed the settings
				if err := o.con.enter(); err != nil {
					return "", nil, err
				}
			default:
				return "", sig, nil
			}
		}
	}
}

// Write shows output of the seat.
func (o *overMesh) Write(p []byte) (int, error) {
	if _, err := o.con.Write(o.unclipped(o.shown[:0], p)); err != nil {
		return 0, err
	}
	if text := o.say; text != "" {
		o.say = ""
		o.con.notice("%s", text)
	}
	return len(p), nil
}

// news tells what happened to the session. It runs between the output before and after it.
func (o *overMesh) news(n mesh.SessionNews) {
	switch n.Kind {
	case mesh.SessionLost:
		o.on.Store(false)
		o.dropped.Add(int64(n.Unsure))
		switch n.Reason {
		case wire.EndExpired:
		case wire.EndManagerRestart:
			o.con.notice("the host restarts, attaching again; what you type now is dropped")
		default:
			o.con.notice("connection to the seat lost (%s), attaching again; what you type now is dropped", n.Reason)
		}
	case mesh.SessionBack:
		o.con.reset()
		o.clip = clipboardFilter{}
		o.say = "attached again" + o.sayDropped()
		o.setRole(n.Role, n.Role == wire.AttachObserver && !o.readOnly.Load())
		o.goLiveOver()
	case mesh.SessionDrop:
		o.con.notice("%d bytes of output were skipped: this terminal was too slow", n.Dropped)
	}
}

// setRole notes who may type; lost: it was this terminal until now.
func (o *overMesh) setRole(role string, lost bool) {
	watch := role == wire.AttachObserver
	o.readOnly.Store(watch)
	if watch && !o.opt.ReadOnly {
		has := "has"
		if lost {
			has = "took"
		}
		o.say = fmt.Sprintf("another terminal %s the keyboard: you only watch; to take it: cotal attach --take-over %s", has, cli.OneLine(o.name))
	}
}

// goLiveOver lets what is typed through from now on. What was typed before was meant for another screen.
func (o *overMesh) goLiveOver() {
	o.con.flushInput()
	o.on.Store(true)
}

// takeOver queues typed bytes for the session, or drops them and says so.
func (o *overMesh) takeOver(keys chan<- []byte, p []byte) {
	first := func() bool { return o.dropped.Add(int64(len(p))) == int64(len(p)) }
	switch {
	case o.readOnly.Load():
		if !terminal.IsReport(p) && first() { // nobody types a report: the terminal answers what is another's to answer
			o.con.notice("%s", watchText(o.opt.ReadOnly, o.key.String(), o.name))
		}
	case !o.on.Load():
		o.dropped.Add(int64(len(p)))
	case o.pending.Load() > pendingMax:
		if first() {
			o.con.notice("the program does not read: what you type is dropped")
		}
	default:
		o.pending.Add(int64(len(p)))
		keys <- bytes.Clone(p)
	}
}

// sendOver sends what is typed, in order and once.
func (o *overMesh) sendOver(ctx context.Context, s *mesh.Session, keys <-chan []byte) {
	for {
		select {
		case p := <-keys:
			n, err := s.Write(p)
			if err != nil && o.dropped.Add(int64(len(p)-n)) == int64(len(p)-n) {
				o.con.notice("the host is not heard: what you type now is dropped")
			}
			o.pending.Add(-int64(len(p)))
		case <-ctx.Done():
			return
		}
	}
}

// drainKeys gives what was typed before the detach key a moment to be sent.
func (o *overMesh) drainKeys() {
	deadline := time.After(drainWait)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for o.pending.Load() > 0 && o.on.Load() {
		select {
		case <-tick.C:
		case <-deadline:
			return
		}
	}
}
