package attach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// view is what one viewer is shown of one seat: first the screen, or for want of one the end of the output, then
// everything from there on. But for conn it belongs to the goroutine that runs the session.
type view struct {
	conn    *seat.Conn
	writer  bool
	cost    string // what others have lost by it, in words for a refusal that comes after; empty: nothing
	session *session
	welcome seat.Status

	screen     []byte // paints the terminal of the viewer; empty: the output is replayed
	rows, cols uint16 // of the viewer's terminal; 0: not said
	nudge      bool   // make the program repaint when the replay is over

	next   uint64 // output offset after the last byte that came
	own    uint64 // from here on, questions of the program are this terminal's; those before are not shown
	skipTo uint64 // output before this is on the screen that was painted already
	filter terminal.QueryFilter
	replay bool   // what comes is still from before the connection
	unread []byte // the replay, gathered until it is complete
	resync int    // bytes that may still be skipped to find a place where output can be picked up

	repainted time.Time     // the last time
	shown     atomic.Uint32 // modes of the program when the viewer was last brought up to them
	exit      *seat.ExitRecord

	// Output that waits for what comes with it. It is sent when nothing more is there, in a flood a moment later:
	// a frame costs the mesh as much as some KiB in it.
	bmu    sync.Mutex           // held while output is sent, so that nothing overtakes
	out    func(p []byte) error // sends it: the session's
	batch  []byte
	passed []byte      // what the filter let through of a piece of output, to be used again
	last   time.Time   // when output was last sent,
	much   int         // and how much
	late   *time.Timer // sends the batch of a flood; nil before the first
	armed  bool
}

// openTerminal dials the seat, as the writer if the viewer may be that. A keyboard that its holder has already, by one
// of the sessions earlier than this one, is given up for it, as late as can be; so is a place at a seat that has no other.
func (s *Sessions) openTerminal(ctx context.Context, row wire.AgentRow, args wire.AttachArgs, screen *wire.TerminalSnapshot, earlier []*session) (*view, error) {
	v := &view{writer: args.Role != wire.AttachObserver, rows: args.Rows, cols: args.Cols, replay: true}
	const over = "the session that it replaces is over"
	var until time.Time // while the seat may not have seen yet what was given up
	yield := func(has func(*session) bool) bool {
		if until.IsZero() && slices.ContainsFunc(earlier, has) {
			succeed(earlier)
			v.cost, until = over, time.Now().Add(leaseWait)
			return true
		}
		return time.Now().Before(until) && sleep(ctx, 5*time.Millisecond) == nil
	}
	var probe *seat.Conn
	for {
		var err error
		if probe, err = s.dialSeat(ctx, row.SeatID, seat.DialConfig{Role: seat.RoleOutput, From: seat.FromLive}); err == nil {
			break
		}
		if !errors.Is(err, seat.ErrLimit) || !yield(func(*session) bool { return true }) {
			return nil, v.refused(unreachable(row, err))
		}
	}
	before := probe.Welcome()
	probe.Close()
	own := 0 // terminals of them that are attached now
	for _, x := range earlier {
		if x.writer && x.ctx.Err() == nil {
			own++
		}
	}
	others := int(before.Attached) > own

	v.next = max(before.First, before.Next-min(before.Next, replayMax))
	if usable(screen, before, args.Rows, args.Cols) {
		v.screen, v.next = paint(screen, max(args.Rows, screen.Rows)), screen.Offset
	} else if v.next > 0 {
		v.resync = resyncMax
	}
	cfg := seat.DialConfig{Role: seat.RoleOutput, From: v.next}
	if v.writer {
		cfg.Role |= seat.RoleInput | seat.RoleTerminal
		cfg.Rows, cfg.Cols = args.Rows, args.Cols
		if args.Takeover {
			cfg.Role |= seat.RoleTakeover
		}
	}
	for {
		var err error
		if v.conn, err = s.dialSeat(ctx, row.SeatID, cfg); err == nil {
			break
		}
		switch {
		case errors.Is(err, seat.ErrLimit) && yield(func(*session) bool { return true }):
		case !errors.Is(err, seat.ErrBusy):
			return nil, v.refused(unreachable(row, err))
		case yield(func(x *session) bool { return x.writer }):
		case args.Role == wire.AttachWriter:
			return nil, v.refused(wire.Refuse(wire.CodeConflict, "another terminal has the keyboard of %s; attach as an observer, or take it over", row.Name))
		default:
			v.writer = false
			cfg.Role, cfg.Rows, cfg.Cols = seat.RoleOutput, 0, 0
		}
	}
	switch {
	case !v.writer || !args.Takeover:
	case others:
		v.cost = fmt.Sprintf("a terminal that had the keyboard of %s has lost it", row.Name)
	case own > 0:
		v.cost = over
	}
	v.welcome = v.conn.Welcome()
	v.own = ownFrom(v.welcome)
	v.shown.Store(v.welcome.Modes)
	// The program repaints by itself when the size changes; otherwise it is nudged, unless others watch.
	same := args.Rows == 0 || before.Rows == args.Rows && before.Cols == args.Cols
	v.nudge = v.writer && len(v.screen) == 0 && same && !others
	return v, nil
}

func unreachable(row wire.AgentRow, err error) *wire.Error {
	return wire.Refuse(wire.CodeUnavailable, "reach the terminal of %s: %v", row.Name, err)
}

// refused is the refusal of an attach that may have cost others something by now: they do not get it back.
func (v *view) refused(err error) error {
	if v.cost == "" {
		return err
	}
	code := codeOf(err)
	if code == "" {
		code = wire.CodeUnavailable
	}
	return wire.Fail(code, "%v; %s", err, v.cost)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usable says whether a screen can be painted on a terminal of that size (0: not said) and output of the seat
// follows it.
func usable(s *wire.TerminalSnapshot, st seat.Status, rows, cols uint16) bool {
	return s != nil && s.Dirty == "" && s.Rows > 0 && s.Offset >= st.First && s.Offset <= st.Next &&
		(rows == 0 || s.Rows <= rows) && (cols == 0 || s.Cols <= cols)
}

// ownFrom is the offset from which on a viewer is shown what makes a terminal answer. Every question is answered
// once: those before it came are the mirror's, or nobody's (Status.AskTo).
func ownFrom(welcome seat.Status) uint64 {
	if welcome.AskTo == seat.FromLive { // it watches, and so does no other terminal: what it says is dropped
		return welcome.Next
	}
	return max(welcome.AskTo, welcome.Next)
}

// paint is what shows a screen. What the viewer's own terminal showed goes up into its scrollback, if the program
// has not a screen of its own. Nothing in it makes a terminal answer.
func paint(s *wire.TerminalSnapshot, rows uint16) []byte {
	out := cleared(rows)
	if terminal.Modes(s.Modes)&terminal.AltScreen != 0 {
		out = terminal.Apply(terminal.AltScreen) // before anything moves the cursor: leaving puts it back
	}
	var f terminal.QueryFilter
	return f.Filter(out, s.Data)
}

// cleared makes a screen empty, with the cursor in its corner.
func cleared(rows uint16) []byte {
	out := append([]byte{'\r'}, bytes.Repeat([]byte{'\n'}, int(rows))...)
	return append(out, "\x1b[H\x1b[J"...)
}

// begin shows what there is before anything is read from the seat.
func (v *view) begin() error {
	if len(v.screen) > 0 {
		if err := v.session.send(v.screen); err != nil {
			return err
		}
		v.screen = nil
		v.replay = false
		return nil
	}
	if v.next >= v.welcome.Next {
		return v.endReplay()
	}
	return nil
}

// output takes output of the seat, which begins at offset seq.
func (v *view) output(seq uint64, p []byte) error {
	v.next = seq + uint64(len(p))
	if v.replay {
		cut := len(p)
		if v.next > v.welcome.Next {
			cut -= int(min(v.next-v.welcome.Next, uint64(len(p))))
		}
		v.unread = v.filter.Filter(v.unread, v.skip(p[:cut]))
		if v.next < v.welcome.Next {
			return nil
		}
		if err := v.endReplay(); err != nil {
			return err
		}
		p = p[cut:]
	}
	return v.show(p)
}

// show passes live output that ends at v.next, without what is on the screen already and the questions before
// v.own.
func (v *view) show(p []byte) error {
	if start := v.next - uint64(len(p)); start < v.skipTo {
		p = p[min(v.skipTo-start, uint64(len(p))):]
	}
	p = v.skip(p)
	v.bmu.Lock()
	defer v.bmu.Unlock()
	foreign := 0 // bytes at the front of p that are before v.own
	if start := v.next - uint64(len(p)); start < v.own {
		foreign = int(min(v.own-start, uint64(len(p))))
	}
	// A sequence that began there is still the filter's.
	for len(p) > 0 && (foreign > 0 || !v.filter.Ground()) {
		n := max(foreign, 1)
		v.passed = v.filter.Filter(v.passed[:0], p[:n])
		p, foreign = p[n:], 0
		if err := v.gather(v.passed); err != nil {
			return err
		}
	}
	return v.gather(p)
}

// gather adds to the batch and sends each one that is as large as a frame may be. The caller holds bmu.
func (v *view) gather(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), wire.MaxSessionData-len(v.batch))
		v.batch, p = append(v.batch, p[:n]...), p[n:]
		if len(v.batch) >= wire.MaxSessionData {
			if err := v.sendBatch(); err != nil {
				return err
			}
		}
	}
	return nil
}

// idle runs whenever nothing more is there to be read.
func (v *view) idle() error {
	v.bmu.Lock()
	defer v.bmu.Unlock()
	if len(v.batch) == 0 {
		return nil
	}
	if v.much < floodSize || time.Since(v.last) > gatherTime {
		return v.sendBatch()
	}
	switch {
	case v.armed:
	case v.late == nil:
		v.late = time.AfterFunc(gatherTime, v.sendLate)
		v.armed = true
	default:
		v.late.Reset(gatherTime)
		v.armed = true
	}
	return nil
}

// sendLate sends what a flood has brought together. An error shows to the reader of the seat, too.
func (v *view) sendLate() {
	v.bmu.Lock()
	defer v.bmu.Unlock()
	v.armed = false
	_ = v.sendBatch()
}

// sendBatch sends what was gathered. The caller holds bmu.
func (v *view) sendBatch() error {
	if len(v.batch) == 0 {
		return nil
	}
	v.much = len(v.batch)
	err := v.out(v.batch)
	v.batch, v.last = v.batch[:0], time.Now()
	return err
}

// flush sends what was gathered, now.
func (v *view) flush() error {
	v.bmu.Lock()
	defer v.bmu.Unlock()
	return v.sendBatch()
}

// skip drops output up to the first place it can be shown from.
func (v *view) skip(p []byte) []byte {
	if v.resync == 0 || len(p) == 0 {
		return p
	}
	window := p[:min(len(p), v.resync)]
	at := bytes.IndexAny(window, "\n\x1b")
	switch {
	case at < 0 && len(window) < v.resync:
		v.resync -= len(window)
		return nil
	case at < 0:
		at = len(window)
	case window[at] == '\n':
		at++
	}
	v.resync = 0
	return p[at:]
}

// endReplay shows what was gathered, in the modes that the seat says are in force.
func (v *view) endReplay() error {
	text := v.unread
	v.unread, v.replay = nil, false
	want := terminal.Modes(v.welcome.Modes)
	var after terminal.ModeScanner
	after.Write(text)
	// A full-screen program that entered its screen before the replay begins: nothing of it may land on the
	// viewer's own screen.
	if missing := want & terminal.AltScreen &^ after.Modes(); missing != 0 {
		text = append(terminal.Apply(missing), text...)
		after = terminal.ModeScanner{}
		after.Write(text)
	}
	if after.Ground() {
		text = append(text, terminal.Apply(terminal.Missing(want, after.Modes()))...)
	}
	if err := v.session.send(text); err != nil {
		return err
	}
	if v.nudge {
		v.session.goSafe(v.nudgeProgram)
	}
	return nil
}

// nudgeProgram makes a full-screen program repaint: the size changes and changes back.
func (v *view) nudgeProgram() {
	x := v.session
	st := v.welcome
	if st.Rows > 1 && st.Cols > 0 {
		_ = x.conn().Nudge(x.ctx, st.Rows, st.Cols) // a lost connection shows elsewhere
	}
}

// status sees who has the keyboard.
func (v *view) status(st seat.Status) {
	if v.writer && !st.Role.Has(seat.RoleInput) {
		v.session.happen(evTaken)
	}
}

// gap states that output is missing, and shows the screen anew. Without a screen, output goes on at the next
// place where it can be picked up, in the modes that are in force.
func (v *view) gap(from, to uint64) error {
	if err := v.flush(); err != nil {
		return err
	}
	v.next, v.filter = to, terminal.QueryFilter{}
	if v.replay {
		v.resync, v.unread = resyncMax, nil
		if err := v.session.sendDrop(to - from); err != nil {
			return err
		}
		if to >= v.welcome.Next {
			return v.endReplay()
		}
		return nil
	}
	screen := v.screenNow(to)
	if screen == nil {
		v.resync = resyncMax
		if err := v.session.sendDrop(to - from); err != nil {
			return err
		}
		v.session.goSafe(v.mend)
		return nil
	}
	v.skipTo = screen.Offset
	v.shown.Store(screen.Modes)
	if err := v.session.sendDrop(screen.Offset - from); err != nil {
		return err
	}
	out := append(terminal.Reset(^terminal.Modes(0)&(terminal.KittyKeys-1)), "\x1b[0m\x1b[H\x1b[2J"...)
	if terminal.Modes(screen.Modes)&terminal.AltScreen != 0 {
		out = append(out, terminal.Apply(terminal.AltScreen)...)
	}
	var f terminal.QueryFilter
	return v.session.send(f.Filter(out, screen.Data))
}

// screenNow asks for a screen that output from offset to on follows, not too often.
func (v *view) screenNow(to uint64) *wire.TerminalSnapshot {
	if time.Since(v.repainted) < repaintGap {
		return nil
	}
	v.repainted = time.Now()
	ctx, cancel := context.WithTimeout(v.session.ctx, screenWait)
	defer cancel()
	reply, err := v.session.set.cfg.Seats.Terminal(ctx, v.session.target, wire.TerminalArgs{Snapshot: true})
	s := reply.Snapshot
	if err != nil || s == nil || s.Dirty != "" || s.Rows == 0 || s.Offset < to {
		return nil
	}
	return s
}

// mend makes up for a screen that cannot be had: the modes in force, and a program that repaints.
func (v *view) mend() {
	x := v.session
	st, err := x.conn().Get(x.ctx)
	if err != nil {
		return // a lost connection shows elsewhere
	}
	want := terminal.Modes(st.Modes) & (terminal.KittyKeys - 1)
	if terminal.Modes(v.shown.Swap(st.Modes))&terminal.AltScreen != 0 {
		want &^= terminal.AltScreen // it is shown already
	}
	if err := x.send(terminal.Apply(want)); err != nil {
		return
	}
	if v.writer && st.Attached <= 1 && st.Rows > 1 {
		_ = x.conn().Nudge(x.ctx, st.Rows, st.Cols)
	}
}
