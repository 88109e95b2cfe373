package seat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// typist types into one seat. There are two: over the seat's own socket, and through a runtime that
// announced CapWrite.
type typist interface {
	// look says how the terminal is now.
	look(ctx context.Context) (terminalNow, error)
	// paste types text as one message, between paste markers when bracketed. goOn is asked before every
	// write and its error ends it. typed counts the bytes that the terminal certainly took.
	paste(ctx context.Context, text []byte, bracketed bool, goOn func() error) (typed int, err error)
	// key presses one key.
	key(ctx context.Context, p []byte) (typed int, err error)
	close()
}

// terminalNow is what a typist knows of the terminal it types into.
type terminalNow struct {
	running    bool
	modes      terminal.Modes
	modesKnown bool
	pasteKnown bool          // modes say whether the program asked for bracketed paste; tmux before 3.5 does not
	typed      time.Duration // since a person last typed there; 0: nobody has, or it cannot be told
	typedKnown bool          // typed can be told
	attached   int           // terminals
	lines      seat.Lines
	line       int // bytes of the unfinished line
}

// newTypist returns the way to type into the seat. Errors: *wire.Error unimplemented, naming what the
// runtime lacks; unavailable; failed-precondition for a seat that has ended.
func (a *actor) newTypist(ctx context.Context) (typist, error) {
	row := a.snapshot().Row
	if at := a.socket.Load(); at != nil { // it was reached before: no plugin has to be asked
		if t, err := a.dialSocket(ctx, at); err == nil {
			return t, nil
		}
	}
	rt, info, err := a.set.cfg.Plugins.Runtime(ctx, row.Runtime)
	if err != nil {
		return nil, wire.Refuse(wire.CodeUnavailable, "runtime %s: %v; nothing was typed", row.Runtime, err)
	}
	at, _, err := byHandle(row.Handle, func(h sdk.Handle) (sdk.AttachTarget, error) {
		return rt.Attach(ctx, sdk.AttachRequest{SeatID: row.SeatID, InstanceID: a.set.cfg.InstanceID, Handle: h})
	})
	switch {
	case errors.Is(err, sdk.ErrGone):
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "%s does not run any more; nothing was typed", row.Alias)
	case err != nil && !errors.Is(err, sdk.ErrUnsupported):
		return nil, wire.Refuse(wire.CodeUnavailable, "reach %s: %v; nothing was typed", row.Alias, err)
	case at.Seat != nil:
		t, err := a.dialSocket(ctx, at.Seat)
		if err != nil {
			return nil, wire.Refuse(wire.CodeUnavailable, "dial %s: %v; nothing was typed", row.Alias, err)
		}
		a.socket.Store(at.Seat)
		return t, nil
	}
	w, ok := rt.(sdk.Writer)
	if !ok || !info.Has(sdk.CapWrite) {
		return nil, lacks(row.Runtime, "type into a seat", sdk.CapWrite)
	}
	return &writerTypist{a: a, row: row, w: w, screens: info.Has(sdk.CapSnapshot)}, nil
}

// dialSocket connects to the seat's own socket as its host.
func (a *actor) dialSocket(ctx context.Context, at *sdk.SeatEndpoint) (*socketTypist, error) {
	conn, err := seat.Dial(ctx, seat.DialConfig{
		Socket: at.Socket, Token: at.Token, Role: seat.RoleInput | seat.RoleControl, Fence: a.set.cfg.Epoch, From: seat.FromLive,
	})
	if err != nil {
		return nil, err
	}
	return &socketTypist{conn: conn}, nil
}

// lacks refuses what a runtime cannot do, by the name of the capability.
func lacks(runtime, what string, c sdk.Capability) *wire.Error {
	return wire.Refuse(wire.CodeUnimplemented, "runtime %s cannot %s: it lacks the capability %q", runtime, what, c)
}

// A program that reads takes what is typed at once, or, a long text, at this rate at least: the longest is judged
// before a caller without a deadline of its own gives up, after 15 s.
const (
	stallTime = 5 * time.Second
	slowRate  = 8 << 10 // bytes a second
)

// stallLimit is how long a program has to take n bytes.
func stallLimit(n int) time.Duration { return stallTime + time.Duration(n)*time.Second/slowRate }

// stalled types p, and after limit gives up with the reason: the program does not read. It does not wait for
// the caller's deadline, which would say nothing.
func stalled(ctx context.Context, limit time.Duration, p []byte, write func(context.Context, []byte) (int, error)) (int, error) {
	bound, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n, err := write(bound, p)
	if ctx.Err() == nil && bound.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("its program does not read: its terminal did not take %d bytes within %s", len(p), limit.Round(time.Second))
	}
	return n, err
}

// socketTypist types over the seat's socket: terminal bytes never cross a plugin.
type socketTypist struct {
	conn   *seat.Conn
	looked bool // the status that came with the connection was used
	lines  seat.Lines
}

func (t *socketTypist) look(ctx context.Context) (terminalNow, error) {
	st := t.conn.Welcome() // as of a moment ago
	if t.looked {
		var err error
		if st, err = t.conn.Get(ctx); err != nil {
			return terminalNow{}, err
		}
	}
	t.looked, t.lines = true, st.Lines
	return terminalNow{
		running: st.State == seat.StateRunning, modes: terminal.Modes(st.Modes), modesKnown: true, pasteKnown: true,
		typed: time.Duration(st.Typed) * time.Millisecond, typedKnown: true, attached: int(st.Attached), lines: st.Lines, line: int(st.Line),
	}, nil
}

// paste types at the pace of the terminal: the seat slices what it is sent, and drops the slices that have not
// begun with the connection. To an older seat a slice is sent when the one before it was acknowledged. A seat
// older still does not say whether its program reads whole lines; it takes a text with a long one, or refuses
// it, as a whole.
func (t *socketTypist) paste(ctx context.Context, text []byte, bracketed bool, goOn func() error) (typed int, err error) {
	most := sliceMax
	if t.conn.Version() >= seat.VersionSlices || t.lines == seat.LinesUnknown && checkLines(text, 0) != nil {
		most = seat.MaxInput
	}
	for _, p := range slicesOf(text, bracketed, most) {
		if err := goOn(); err != nil {
			return typed, err
		}
		n, err := stalled(ctx, stallLimit(len(p)), p, t.conn.Input)
		typed += n
		if err != nil {
			return typed, err
		}
	}
	return typed, nil
}

func (t *socketTypist) key(ctx context.Context, p []byte) (int, error) {
	return stalled(ctx, stallLimit(len(p)), p, t.conn.Input)
}

func (t *socketTypist) close() { t.conn.Close() }

// writerTypist types through the runtime, which knows how to make one paste of a text.
type writerTypist struct {
	a       *actor
	row     journal.SeatRow // of the process it types into
	w       sdk.Writer
	screens bool // the runtime has CapSnapshot
}

func (t *writerTypist) look(ctx context.Context) (terminalNow, error) {
	st, err := t.a.adopt(ctx, false)
	if err != nil {
		return terminalNow{}, err
	}
	now := terminalNow{running: st.State == sdk.SeatRunning, modes: terminal.Modes(st.Modes), attached: st.Attached}
	// A runtime that shows screens knows their modes, also when none is in force.
	now.modesKnown = st.Modes != 0 || t.screens
	now.pasteKnown = now.modes&terminal.BracketedPaste != 0
	return now, nil
}

func (t *writerTypist) write(ctx context.Context, p []byte, paste bool) (int, error) {
	row := t.row
	return stalled(ctx, stallLimit(len(p)), p, func(ctx context.Context, p []byte) (int, error) {
		return t.w.Write(ctx, sdk.WriteRequest{
			SeatID: row.SeatID, InstanceID: t.a.set.cfg.InstanceID, Handle: row.Handle, Fence: t.a.set.cfg.Epoch, Data: p, Paste: paste,
		})
	})
}

func (t *writerTypist) paste(ctx context.Context, text []byte, _ bool, goOn func() error) (int, error) {
	if err := goOn(); err != nil {
		return 0, err
	}
	return t.write(ctx, text, true)
}

func (t *writerTypist) key(ctx context.Context, p []byte) (int, error) { return t.write(ctx, p, false) }

func (t *writerTypist) close() {}
