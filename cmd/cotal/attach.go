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
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// replayMax is how much earlier output a late attach shows. It is far more than a screen; older
	// output is what `cotal logs` is for, and a slow terminal should not be busy with it for seconds.
	replayMax = 256 << 10
	// keyWait is how long an incomplete key sequence is held back.
	keyWait = 50 * time.Millisecond
	// pendingMax bounds typed bytes that the seat has not taken; more is dropped, and said.
	pendingMax = 1 << 20
	// drainWait is how long leaving waits for what was typed before the detach key.
	drainWait = 250 * time.Millisecond
)

// attachOptions say how to attach.
type attachOptions struct {
	ReadOnly bool
	TakeOver bool
	NoNudge  bool
	Fresh    bool // the seat was started by this command, for this terminal

	Clipboard bool                   // what acts on the terminal's clipboard is passed
	Screen    *wire.TerminalSnapshot // what the screen showed, or nil: the output is replayed then
}

// ending is how an attach ended.
type ending struct {
	Detached bool
	Signal   os.Signal      // this process was told to end
	Exit     *wire.SeatExit // the seat ended
	Shown    bool           // its output was shown
	Lost     string         // the seat is gone without an exit record: why we think so
}

// attachment is one `cotal attach`: one terminal, one seat, any number of connections to it.
type attachment struct {
	con  *console
	seat *local
	opt  attachOptions
	key  detachKey

	next   uint64 // output offset after the last byte shown; only the goroutine of run touches it
	unread []byte // replayed output, gathered until it is complete
	paint  bool   // unread begins with a whole screen
	// watching is what a terminal was told that did not get the keyboard
	watching string
	clip     clipboardFilter
	shown    []byte // buffer of what is shown; only the goroutine of run touches it

	over func(p []byte) // takes what is typed when the seat is reached over the mesh

	live     atomic.Pointer[link] // the connection that takes input now
	readOnly atomic.Bool
	typed    chan typed
	pending  atomic.Int64 // bytes in typed and in the call in flight
	dropped  atomic.Int64 // bytes typed while nothing could take them
	events   chan event
}

// link is one connection to the seat.
type link struct {
	*seat.Conn
	welcome seat.Status
	replay  bool
	own     uint64 // offset from which on questions of the program are this terminal's; those before are not shown
	filter  terminal.QueryFilter
	resync  int // bytes that may still be skipped to find a place where output can be picked up
	nudge   bool
}

type typed struct {
	to *link
	p  []byte
}

type event struct {
	detach bool
	err    error // a goroutine failed, or the terminal is gone
}

// attach connects the terminal to the seat until the user detaches, the seat ends or a signal comes.
// The terminal is given back on every way out: once it has it, it takes signals itself, and ctx ends nothing.
func attach(ctx context.Context, con *console, s *local, opt attachOptions) (end ending, err error) {
	key, err := detachKeyFromEnv()
	if err != nil {
		return ending{}, cli.Fail(cli.Usage, "%w", err)
	}
	a := &attachment{con: con, seat: s, opt: opt, key: key, typed: make(chan typed, 256), events: make(chan event, 8)}
	a.readOnly.Store(opt.ReadOnly)

	from, err := a.firstOffset(ctx)
	if ctx.Err() != nil {
		return ending{}, ctx.Err()
	}
	if err != nil || from == nil {
		return a.gone(err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(signals)
	defer con.leave()
	if err := con.enter(); err != nil {
		return ending{}, err
	}
	con.flushInput()
	if ctx.Err() != nil { // from before the signals were taken
		return ending{}, ctx.Err()
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	a.goSafe(a.readKeys)
	a.goSafe(func() { a.sendKeys(ctx) })
	return a.run(ctx, *from, signals)
}

// goSafe runs f in a goroutine whose panic ends the attach in order, so that the terminal is restored.
func (a *attachment) goSafe(f func()) {
	go func() {
		defer func() {
			if p := recover(); p != nil {
				a.send(event{err: fmt.Errorf("internal error: %v", p)})
			}
		}()
		f()
	}()
}

func (a *attachment) send(e event) {
	select {
	case a.events <- e:
	default: // one of the events before it ends the attach already
	}
}

// firstOffset asks the seat what there is and decides where to start. It returns nil when the seat
// has ended and its process is gone.
func (a *attachment) firstOffset(ctx context.Context) (*uint64, error) {
	st, err := a.seat.status(ctx)
	if err != nil {
		return nil, err
	}
	from := max(st.First, st.Next-min(st.Next, replayMax))
	// Everything there is was drawn for this terminal alone, and not by what another one was told it looks
	// like: it is shown as it came, beginning where the cursor is.
	a.opt.Fresh = a.opt.Fresh && from == 0 && st.Attached == 0 && st.AskFrom == 0
	if rows, cols, err := a.con.size(); err == nil && !a.opt.Fresh && usable(a.opt.Screen, st, rows, cols) {
		a.paint, from = true, a.opt.Screen.Offset
		a.unread = paintScreen(a.opt.Screen, rows)
	}
	return &from, nil
}

// run holds one connection after the other until something ends the attach.
func (a *attachment) run(ctx context.Context, from uint64, signals <-chan os.Signal) (ending, error) {
	a.next = from
	for first := true; ; first = false {
		l, err := a.connect(ctx, first)
		if err == nil {
			var end *ending
			if end, err = a.hold(ctx, l, signals); end != nil || err != nil && !lost(err) {
				if end == nil {
					end = &ending{}
				}
				return *end, err
			}
		} else if !lost(err) {
			return ending{}, err
		}
		// The connection broke. Only the seat's own record and process say whether it lives.
		if end, dead := a.verdict(); dead {
			end.Shown = a.next > from
			a.con.drain()
			return end, nil
		}
		a.con.notice("connection to the seat lost, reconnecting; what you type now is dropped")
		if end, err := a.awaitSeat(ctx, signals); end != nil || err != nil {
			if end == nil {
				end = &ending{}
			}
			return *end, err
		}
	}
}

// lost says whether an error is the loss of the connection rather than a refusal.
func lost(err error) bool {
	return errors.Is(err, seat.ErrClosed) || errors.Is(err, os.ErrNotExist) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// connect dials the seat, as writer if it may.
func (a *attachment) connect(ctx context.Context, first bool) (*link, error) {
	role := seat.RoleOutput
	var rows, cols uint16
	if !a.readOnly.Load() {
		role |= seat.RoleInput | seat.RoleTerminal
		if a.opt.TakeOver && first {
			role |= seat.RoleTakeover
		}
		var err error
		if rows, cols, err = a.con.size(); err != nil {
			return nil, err
		}
	}
	before, err := a.seat.status(ctx)
	if err != nil {
		return nil, err
	}
	c, err := a.seat.dial(ctx, role, a.next, rows, cols)
	if errors.Is(err, seat.ErrBusy) {
		a.readOnly.Store(true)
		a.watching = fmt.Sprintf("another terminal has the keyboard%s: you only watch; to take it: cotal attach --take-over %s",
			sizes(before, rows, cols), cli.OneLine(a.seat.Alias))
		defer a.con.notice("%s", a.watching)
		role, rows, cols = seat.RoleOutput, 0, 0
		c, err = a.seat.dial(ctx, role, a.next, rows, cols)
	}
	if err != nil {
		return nil, err
	}
	l := &link{Conn: c, welcome: c.Welcome(), replay: first}
	l.own = ownFrom(l.welcome)
	if first && a.next > 0 && !a.paint {
		l.resync = resyncMax
	}
	// The program repaints by itself when the size changes; otherwise it is nudged, unless others watch.
	sameSize := rows != 0 && before.Rows == rows && before.Cols == cols
	l.nudge = first && !a.paint && sameSize && !a.opt.NoNudge && !a.opt.Fresh && before.Attached == 0 && !a.readOnly.Load()
	return l, nil
}

// sizes names the size of the seat and that of this terminal, columns first, if they differ: the screen
// is drawn for the other one then.
func sizes(st seat.Status, rows, cols uint16) string {
	if rows == 0 || cols == 0 || st.Rows == 0 || st.Rows == rows && st.Cols == cols {
		return ""
	}
	return fmt.Sprintf(" (its size is %dx%d, yours %dx%d)", st.Cols, st.Rows, cols, rows)
}

// hold serves one connection. It returns an ending, or the error that ended the connection.
func (a *attachment) hold(ctx context.Context, l *link, signals <-chan os.Signal) (*ending, error) {
	defer l.Close()
	defer a.live.Store(nil)
	ran := make(chan error, 1)
	var exit *wire.SeatExit
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !l.replay {
		a.goLive(l)
		a.con.notice("reconnected%s", a.sayDropped())
	} else if a.next >= l.welcome.Next {
		if err := a.endReplay(ctx, l); err != nil {
			return nil, err
		}
	}
	a.goSafe(func() {
		ran <- l.Run(ctx, seat.Handler{
			Output: func(seq uint64, p []byte) error { return a.output(ctx, l, seq, p) },
			Gap:    func(from, to uint64) error { return a.gap(ctx, l, from, to) },
			Status: a.status,
			Exit:   func(_ seat.Status, x seat.ExitRecord) { exit = exitOfFrame(x) },
		})
	})
	stop := func() { // the goroutine of Run must be done before the next one touches a.next
		cancel()
		select {
		case <-ran:
		case <-time.After(restoreWait): // it is blocked in a terminal that takes no output
		}
	}
	for {
		select {
		case err := <-ran:
			if err == nil {
				if l.replay { // it ended within what was replayed
					_, _ = a.con.Write(a.unread)
				}
				a.con.drain()
				return &ending{Exit: exit, Shown: true}, nil
			}
			return nil, err
		case e := <-a.events:
			if e.detach {
				a.drain(l)
				stop()
				return &ending{Detached: true}, nil
			}
			stop()
			return nil, e.err
		case s := <-signals:
			switch s {
			case syscall.SIGWINCH:
				a.goSafe(func() { a.resize(ctx, l) })
			case syscall.SIGCONT: // stopped from outside and continued: the shell has changed the settings
				if err := a.con.enter(); err != nil {
					stop()
					return nil, err
				}
				a.goSafe(func() { a.doNudge(ctx, l) })
			default:
				stop()
				return &ending{Signal: s}, nil
			}
		case <-ctx.Done():
			stop()
			return nil, ctx.Err()
		}
	}
}

// drain gives what was typed before the detach key a moment to be taken.
func (a *attachment) drain(l *link) {
	deadline := time.After(drainWait)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for a.pending.Load() > 0 && a.live.Load() == l {
		select {
		case <-tick.C:
		case <-deadline:
			return
		}
	}
}

// awaitSeat waits until the seat takes connections again. It returns an ending when the user or a
// signal ends the wait, or when the seat turns out to be gone.
func (a *attachment) awaitSeat(ctx context.Context, signals <-chan os.Signal) (*ending, error) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case e := <-a.events:
			if e.detach {
				return &ending{Detached: true}, nil
			}
			return nil, e.err
		case s := <-signals:
			if s != syscall.SIGWINCH && s != syscall.SIGCONT {
				return &ending{Signal: s}, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if _, err := a.seat.status(ctx); err == nil {
			return nil, nil
		} else if !lost(err) {
			return nil, err
		}
		if end, dead := a.verdict(); dead {
			end.Shown = true
			a.con.drain()
			return &end, nil
		}
	}
}

// verdict says whether the seat has ended, from its exit record and the identity of its process.
func (a *attachment) verdict() (ending, bool) {
	x, why, dead := a.seat.ended()
	return ending{Exit: x, Lost: why}, dead
}

// gone turns the failure of the first dial into what it means.
func (a *attachment) gone(err error) (ending, error) {
	if err != nil && !lost(err) {
		return ending{}, err
	}
	if end, dead := a.verdict(); dead {
		return end, nil
	}
	return ending{}, cli.Fail(cli.Unreachable, "seat %s lives but does not answer at %s: %w", a.seat.Alias, a.seat.Socket, err)
}

// goLive lets input flow to l from now on. What was typed before is thrown away: it was meant for a screen
// that is no longer there. No answer is among it: the questions of this connection are shown after this.
func (a *attachment) goLive(l *link) {
	a.con.flushInput()
	a.live.Store(l)
}

func (a *attachment) sayDropped() string {
	if n := a.dropped.Swap(0); n > 0 && !a.readOnly.Load() {
		return fmt.Sprintf("; %d bytes typed meanwhile were dropped", n)
	}
	return ""
}

func (a *attachment) status(st seat.Status) {
	if !st.Role.Has(seat.RoleInput) && !a.readOnly.Load() && a.live.Load() != nil {
		a.readOnly.Store(true)
		var rows, cols uint16
		if r, c, err := a.con.size(); err == nil {
			rows, cols = r, c
		}
		a.con.notice("another terminal took the keyboard%s: you only watch now; to take it back: cotal attach --take-over %s",
			sizes(st, rows, cols), cli.OneLine(a.seat.Alias))
	}
}

func (a *attachment) resize(ctx context.Context, l *link) {
	if a.readOnly.Load() {
		return
	}
	if rows, cols, err := a.con.size(); err == nil && rows > 0 && cols > 0 {
		_ = l.Resize(ctx, rows, cols) // a lost connection shows elsewhere
	}
}

// doNudge makes a full-screen program repaint: the size changes and changes back.
func (a *attachment) doNudge(ctx context.Context, l *link) {
	rows, cols, err := a.con.size()
	if err != nil || rows < 2 || a.readOnly.Load() {
		return
	}
	_ = l.Nudge(ctx, rows, cols) // a lost connection shows elsewhere
	a.resize(ctx, l)             // to what the window has become meanwhile
}

// sendKeys hands typed bytes to the seat, in order. It waits for a program that does not read.
func (a *attachment) sendKeys(ctx context.Context) {
	for {
		var t typed
		select {
		case t = <-a.typed:
		case <-ctx.Done():
			return
		}
		size := int64(len(t.p))
		for wait := time.Millisecond; len(t.p) > 0 && a.live.Load() == t.to; wait = min(2*wait, 100*time.Millisecond) {
			n, err := t.to.Input(ctx, t.p)
			t.p = t.p[min(n, len(t.p)):]
			switch {
			case errors.Is(err, seat.ErrBusy) && len(t.p) > 0:
				pause := time.NewTimer(wait)
				select {
				case <-pause.C:
				case <-ctx.Done():
					pause.Stop()
					return
				}
			case errors.Is(err, seat.ErrLineTooLong):
				a.con.notice("not sent: the program reads whole lines and takes at most %d bytes in one", seat.MaxLine)
				t.p = nil
			case err != nil: // the connection is lost or the agent has ended: said there
				a.dropped.Add(int64(len(t.p)))
				t.p = nil
			}
		}
		a.pending.Add(-size)
	}
}

// readKeys reads the terminal until it is gone.
func (a *attachment) readKeys() {
	keys := keyScanner{key: a.key}
	reads := make(chan []byte)
	a.goSafe(func() {
		defer close(reads)
		buf := make([]byte, 32<<10)
		for {
			n, err := a.con.in.Read(buf)
			if n > 0 {
				reads <- bytes.Clone(buf[:n])
			}
			if err != nil {
				return
			}
		}
	})
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case p, ok := <-reads:
			if !ok {
				a.send(event{err: cli.Fail(cli.Interrupted, "the terminal is gone; the seat goes on running")})
				return
			}
			pass, detach := keys.Feed(p)
			a.take(pass)
			if detach {
				a.send(event{detach: true})
				return
			}
			if keys.Pending() {
				timer.Reset(keyWait)
			}
		case <-timer.C:
			a.take(keys.Flush())
		}
	}
}

// take queues typed bytes for the connection that is live now, or drops them and says so.
func (a *attachment) take(p []byte) {
	if len(p) == 0 {
		return
	}
	if a.over != nil {
		a.over(p)
		return
	}
	l := a.live.Load()
	switch {
	case a.readOnly.Load():
		if terminal.IsReport(p) { // nobody types that: the terminal answers what is another's to answer
			return
		}
		if a.dropped.Add(int64(len(p))) == int64(len(p)) { // the first ones only
			a.con.notice("%s", watchText(a.opt.ReadOnly, a.key.String(), a.seat.Alias))
		}
		return
	case l == nil:
		a.dropped.Add(int64(len(p)))
		return
	case a.pending.Load() > pendingMax:
		if a.dropped.Add(int64(len(p))) == int64(len(p)) {
			a.con.notice("the program does not read: what you type is dropped")
		}
		return
	}
	a.pending.Add(int64(len(p)))
	a.typed <- typed{to: l, p: p}
}

// watchText is what somebody is told who types and only watches: by choice, or for another terminal has the keyboard.
func watchText(chosen bool, key, name string) string {
	if chosen {
		return "you only watch: what you type is dropped; " + key + " detaches"
	}
	return fmt.Sprintf("another terminal has the keyboard: what you type is dropped; %s detaches, and this takes it: cotal attach --take-over %s", key, cli.OneLine(name))
}
