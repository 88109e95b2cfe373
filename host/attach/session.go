package attach

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// session is one viewer of one seat. Lock order: wmu, then mu; mu is never held over I/O, wmu serialises the
// frames that are sent and nothing else.
type session struct {
	set     *Sessions
	rails   Rails
	id      string
	grant   wire.SessionGrant
	target  wire.Target
	row     wire.AgentRow
	writer  bool
	view    *view
	release func()
	// replaces is the session in whose stead this one was asked for.
	replaces string
	number   uint64 // of the sessions of this host, in the order they were opened; set before anybody else knows it
	lent     bool   // its place, to the session that its holder comes back with; guarded by the set's mu

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of the session is left
	stops  []func()      // set before anybody else knows the session

	mu    sync.Mutex
	phase phase
	flow  *outflow
	recv  *wire.Receiver
	timer []*time.Timer
	moved chan struct{}  // closed and made anew when a credit came
	typed chan []byte    // taken in order; never full, since the window bounds what is under way
	size  chan [2]uint16 // the last one that is wanted

	wmu  sync.Mutex
	wbuf []byte

	seen atomic.Int64 // when a holder that listens to beats last said something, epoch ms; 0: none does
}

func newSession(s *Sessions, rails Rails, g wire.SessionGrant, target wire.Target, row wire.AgentRow, v *view, release func()) *session {
	x := &session{
		set: s, rails: rails, id: g.SessionID, grant: g, target: target, row: row, writer: v.writer, view: v, release: release,
		done: make(chan struct{}), phase: offered, flow: newOutflow(g.Window), recv: wire.NewReceiver(g.Window),
		moved: make(chan struct{}), typed: make(chan []byte, g.Window), size: make(chan [2]uint16, 1),
	}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	v.session, v.out = x, x.send
	return x
}

func (x *session) timers(redeem, expiry time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.phase == ended {
		return
	}
	x.timer = []*time.Timer{
		time.AfterFunc(redeem, func() { x.happen(evUnredeemed) }),
		time.AfterFunc(expiry, func() { x.happen(evExpired) }),
	}
}

// waits says whether nobody has come to it yet.
func (x *session) waits() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.phase == offered
}

// happen carries out what follows from a happening that is no frame with a content.
func (x *session) happen(ev happening) {
	x.mu.Lock()
	do, reason := x.move(ev)
	x.mu.Unlock()
	x.carryOut(do, reason)
}

// move asks the table. The caller holds mu, and carries out the deed without it.
func (x *session) move(ev happening) (deed, string) {
	next, do, reason := step(x.phase, x.writer, ev)
	x.phase = next
	return do, reason
}

func (x *session) carryOut(do deed, reason string) {
	switch do {
	case doPaint:
		x.goSafe(x.run)
	case doEnd:
		x.finish(reason)
	}
}

// finish is the one place where a session ends. It runs once, after the table has said so.
func (x *session) finish(reason string) {
	x.cancel()
	if reason != "" {
		x.sendEnd(reason)
	}
	x.conn().Close() // with the keyboard, which the seat gives to the next
	for _, stop := range x.stops {
		stop()
	}
	x.mu.Lock()
	for _, t := range x.timer {
		t.Stop()
	}
	x.mu.Unlock()
	x.set.forget(x)
	close(x.done)
	go func() { // a server that does not answer holds nobody up
		defer x.set.beside.Done()
		x.rails.Close()
	}()
}

func (x *session) conn() *seat.Conn { return x.view.conn }

// goSafe runs f, unless the session has ended; its panic ends the session and not the host. Close waits for it.
func (x *session) goSafe(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.phase == ended {
		return
	}
	x.set.beside.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				x.set.cfg.Log.Error("attach session panicked", "seat", x.row.Name, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
				x.happen(evLost)
			}
		}()
		f()
	})
}

// onFrame takes what comes on the rail of the holder.
func (x *session) onFrame(f bus.RailFrame) {
	if f.Nobody {
		x.happen(evGone)
		return
	}
	if f.Heard > 0 {
		x.seen.Store(time.Now().UnixMilli())
	}
	frame, term, err := wire.DecodeTerminal(f.Data, nil)
	if err != nil {
		// A terminal frame that is garbled is dropped; a garbled frame of the rail breaks it.
		if frame, err = wire.DecodeFrame(f.Data); err != nil {
			x.happen(evBroken)
			return
		}
		term = &wire.TerminalFrame{}
	}
	switch frame.T {
	case wire.FrameClose:
		x.happen(evClose)
	case wire.FrameCredit:
		x.onAck(*frame.Ack, true)
	default:
		if frame.Ack != nil {
			x.onAck(*frame.Ack, false)
		}
		x.onData(frame.Seq, *term, f.Heard)
	}
}

func (x *session) onAck(total uint64, credit bool) {
	x.mu.Lock()
	err := x.flow.ack(total, credit)
	close(x.moved)
	x.moved = make(chan struct{})
	x.mu.Unlock()
	if err != nil {
		x.happen(evBroken)
	}
}

// onData takes one data frame of the holder.
func (x *session) onData(seq uint64, term wire.TerminalFrame, heard int64) {
	x.mu.Lock()
	switch x.recv.Arrive(seq) {
	case wire.FrameDuplicate:
		x.mu.Unlock()
		return
	case wire.FrameNext:
	default:
		x.mu.Unlock()
		x.happen(evBroken)
		return
	}
	ev := happeningOf(term)
	if ev == evInput && heard > 0 && time.Since(time.UnixMilli(heard)) > staleInput {
		ev = evBroken
	}
	do, reason := x.move(ev)
	x.mu.Unlock()
	switch do {
	case doType:
		x.typed <- term.Bytes
		return // counted when the terminal took it
	case doResize, doNote:
		x.want(term.Rows, term.Cols)
	}
	x.taken()
	x.carryOut(do, reason)
}

func happeningOf(t wire.TerminalFrame) happening {
	switch t.Kind {
	case wire.TerminalReady:
		return evReady
	case wire.TerminalData:
		return evInput
	case wire.TerminalResize:
		return evResize
	}
	return evForeign
}

// want keeps the last size that was asked for.
func (x *session) want(rows, cols int) {
	size := [2]uint16{uint16(min(rows, seat.MaxSize)), uint16(min(cols, seat.MaxSize))}
	select {
	case <-x.size:
	default:
	}
	select {
	case x.size <- size:
	default: // a later one came first
	}
}

// taken counts one frame of the holder as dealt with, and gives credit when it is due.
func (x *session) taken() {
	x.mu.Lock()
	due := x.recv.Taken()
	var total uint64
	if due {
		total = x.recv.Total()
	}
	x.mu.Unlock()
	if due && x.ctx.Err() == nil { // behind the end nothing is said
		_ = x.rails.Send(x.grant.Subjects.Out, wire.Frame{T: wire.FrameCredit, Ack: &total}.Append(nil)) // the next beat says it again
	}
}

// run serves a session that was redeemed.
func (x *session) run() {
	x.beat()
	x.goSafe(x.beats)
	if x.writer {
		x.goSafe(x.typist)
		x.goSafe(x.sizer)
	}
	err := x.view.begin()
	if err == nil {
		err = x.conn().Run(x.ctx, seat.Handler{
			Output: x.view.output, Gap: x.view.gap, Status: x.view.status, Idle: x.view.idle,
			Exit: func(_ seat.Status, e seat.ExitRecord) { x.view.exit = &e },
		})
	}
	switch {
	case err == nil && x.view.flush() == nil && x.view.exit.Asked:
		x.happen(evDespawn)
	case err == nil:
		x.happen(evExit)
	case x.ctx.Err() != nil:
	default:
		x.set.cfg.Log.Debug("attach session lost its seat", "seat", x.row.Name, "err", err)
		if _, gone := x.set.cfg.Seats.Standing(x.target); gone != nil { // custody that was killed has no last word
			x.happen(evDespawn)
		}
		x.happen(evLost) // the first end stands
	}
}

// beats says every second that the host is there, with the credit as it is, and learns when nobody listens.
func (x *session) beats() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if at := x.seen.Load(); at > 0 && time.Since(time.UnixMilli(at)) > holderSilent {
				x.happen(evBroken) // it is stopped or cut off: its place and the keyboard are for others
				return
			}
			x.beat()
		case <-x.ctx.Done():
			return
		}
	}
}

func (x *session) beat() {
	x.mu.Lock()
	total := x.recv.Total()
	x.mu.Unlock()
	_ = x.rails.Beat(x.grant.Subjects.Out, x.grant.Subjects.In, wire.Frame{T: wire.FrameCredit, Ack: &total}.Append(nil), time.Now().UnixMilli()) // the next one says the same
}

// typist types what comes, in order and once. A program that does not read is waited for: then no credit is
// given, and the holder stops sending.
func (x *session) typist() {
	for {
		select {
		case p := <-x.typed:
			if !x.enter(p) {
				return
			}
			x.taken()
		case <-x.ctx.Done():
			return
		}
	}
}

// enter types p, and reports false when that is not certain: then no credit is given for it, and the session ends.
func (x *session) enter(p []byte) bool {
	for wait := time.Millisecond; len(p) > 0; wait = min(2*wait, inputBusy) {
		n, err := x.conn().Input(x.ctx, p)
		p = p[min(n, len(p)):]
		switch {
		case errors.Is(err, seat.ErrBusy) && len(p) > 0:
			if !x.pause(wait) {
				return false
			}
		case errors.Is(err, seat.ErrLineTooLong):
			x.say(fmt.Sprintf("not typed: the program reads whole lines and takes at most %d bytes in one", seat.MaxLine))
			return true
		case errors.Is(err, seat.ErrClosed), errors.Is(err, seat.ErrNotRunning), errors.Is(err, seat.ErrForbidden):
			return false // the seat is gone, the agent has ended or the keyboard was taken: who reads the seat says so
		case err != nil:
			x.happen(evLost)
			return false
		}
	}
	return true
}

func (x *session) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.ctx.Done():
		return false
	}
}

// sizer gives the terminal the sizes that are wanted.
func (x *session) sizer() {
	for {
		select {
		case size := <-x.size:
			if size[0] > 0 && size[1] > 0 {
				_ = x.conn().Resize(x.ctx, size[0], size[1]) // a lost connection shows elsewhere
			}
		case <-x.ctx.Done():
			return
		}
	}
}

// say shows the holder a line of ours, beside the output.
func (x *session) say(text string) {
	x.goSafe(func() { _ = x.send([]byte("\r\n[cotal: " + text + "]\r\n")) })
}

// send sends terminal bytes, in as many frames as there is room for, and waits for credits.
func (x *session) send(p []byte) error {
	for len(p) > 0 {
		n, err := x.frame(len(p), func(seq uint64, ack *uint64, n int) []byte {
			return wire.AppendTerminalFrame(x.wbuf[:0], seq, ack, p[:n])
		})
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// sendDrop tells the holder how many bytes of output are missing here.
func (x *session) sendDrop(bytes uint64) error {
	data, err := wire.TerminalFrame{Kind: wire.TerminalDrop, Dropped: int64(min(bytes, wire.MaxInteger))}.MarshalJSON()
	if err == nil {
		_, err = x.frame(1, func(seq uint64, ack *uint64, _ int) []byte {
			return wire.Frame{T: wire.FrameData, Seq: seq, Data: data, Ack: ack}.Append(x.wbuf[:0])
		})
	}
	return err
}

// frame sends one frame when there is room for it, with at most size bytes of output, and returns how many.
func (x *session) frame(size int, build func(seq uint64, ack *uint64, n int) []byte) (int, error) {
	for {
		x.wmu.Lock()
		x.mu.Lock()
		over, moved, n := x.phase == ended, x.moved, min(x.flow.room(), size)
		var seq, ack uint64
		if n > 0 && !over {
			seq, _ = x.flow.take(n)
			ack = x.recv.Total()
		}
		x.mu.Unlock()
		if n > 0 && !over {
			x.wbuf = build(seq, &ack, n)
			err := x.rails.Send(x.grant.Subjects.Out, x.wbuf)
			x.wmu.Unlock()
			return n, err
		}
		x.wmu.Unlock()
		if over {
			return 0, context.Canceled
		}
		select {
		case <-moved:
		case <-x.ctx.Done():
			return 0, x.ctx.Err()
		}
	}
}

// sendEnd says why the session is over. There is always room for it.
func (x *session) sendEnd(reason string) {
	x.wmu.Lock()
	defer x.wmu.Unlock()
	x.mu.Lock()
	seq, ok := x.flow.take(0)
	x.mu.Unlock()
	if !ok {
		return
	}
	if p, err := endFrame(seq, reason); err == nil {
		_ = x.rails.Send(x.grant.Subjects.Out, p) // a holder that is not told finds nobody
	}
}

func endFrame(seq uint64, reason string) ([]byte, error) {
	p, err := wire.TerminalFrame{Kind: wire.TerminalEnd, Reason: reason}.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return wire.Frame{T: wire.FrameData, Seq: seq, Data: p}.Append(nil), nil
}
