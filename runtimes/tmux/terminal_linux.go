package tmux

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// Attach returns the argv of a tmux client on the seat's pane. Any number of them may look and type at
// once; the one that typed last sets the size; C-b d leaves, and leaving never ends the seat. A seat that
// has ended and was not reaped yet still shows its last screen.
// Errors: sdk.ErrGone, sdk.ErrNotOurs, sdk.ErrUnavailable (tmux does not answer).
func (r *Runtime) Attach(ctx context.Context, req sdk.AttachRequest) (sdk.AttachTarget, error) {
	var target sdk.AttachTarget
	err := r.on(req.SeatID, req.InstanceID, req.Handle, func(v *view) error {
		sv := v.server()
		if _, err := v.stands(ctx, sv); err != nil {
			return err
		}
		program := sv.program
		// The name of the program reads better than that of a process, as long as it is the same one.
		if same(v.place.Program, program) {
			program = v.place.Program
		}
		target.Argv = []string{program, "-u", "-S", sv.socket, "-f", "/dev/null", "attach-session", "-t", v.place.Pane}
		return nil
	})
	return target, err
}

// same reports whether two paths lead to the same file.
func same(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// on runs f on a seat the caller has a say over.
func (r *Runtime) on(id, instance string, h sdk.Handle, f func(*view) error) error {
	s, release, err := r.settingsAt(h)
	if err != nil {
		return err
	}
	defer release()
	v, err := s.view(id, h, "")
	if err != nil {
		return err
	}
	if err := v.Admit(instance, v.Fence()); err != nil {
		return err
	}
	if err := v.Ownerless(); err != nil {
		return custodied.Unavailable("%v", err)
	}
	return f(v)
}

// stands returns what tmux says of the seat's pane, or why there is none.
func (v *view) stands(ctx context.Context, sv server) (pane, error) {
	if !v.place.known() {
		return pane{}, sdk.Errorf(sdk.ErrGone, "seat %s has no place in tmux: %v", v.ID, v.placeErr)
	}
	p, err := sv.look(ctx, v.place.Pane)
	if err == nil {
		return p, nil
	}
	if live, proof := seat.Check(sv.id); live == seat.Dead {
		return p, sdk.Errorf(sdk.ErrGone, "seat %s: its tmux server is gone (%s)", v.ID, proof)
	}
	return p, custodied.Unavailable("seat %s: %v", v.ID, err)
}

// Write types through a paste buffer of the seat's own server, which is deleted with it: byte for byte,
// without key names, separators or formats. With req.Paste the data goes between paste markers where the
// program asked for them. What the terminal would not take whole is refused by name before anything is
// typed. It returns len(req.Data): tmux keeps what the program has not read yet.
// Errors: sdk.ErrGone (not running), sdk.ErrNotOurs, sdk.ErrStaleFence, sdk.ErrTooLarge, sdk.ErrInvalid,
// sdk.ErrUnavailable (tmux does not answer; executed or not is unknown).
func (r *Runtime) Write(ctx context.Context, req sdk.WriteRequest) (int, error) {
	if err := writable(req); err != nil {
		return 0, err
	}
	if len(req.Data) == 0 {
		return 0, nil
	}
	err := r.on(req.SeatID, req.InstanceID, req.Handle, func(v *view) error {
		if err := v.Admit(req.InstanceID, req.Fence); err != nil {
			return err
		}
		c, why, refusal := v.Dial(ctx, seat.RoleControl, req.Fence)
		switch {
		case errors.Is(refusal, seat.ErrStaleFence):
			return sdk.Errorf(sdk.ErrStaleFence, "seat %s: %v", v.ID, refusal)
		case refusal != nil:
			return custodied.Unavailable("seat %s: %v", v.ID, refusal)
		case c == nil && v.ExitErr == nil, c == nil && !v.Exists:
			return sdk.Errorf(sdk.ErrGone, "seat %s has ended", v.ID)
		case c == nil:
			return custodied.Unavailable("seat %s: %s", v.ID, why)
		}
		now := c.Welcome()
		c.Close()
		if now.State != seat.StateRunning {
			return sdk.Errorf(sdk.ErrGone, "seat %s is %s: no agent runs in it", v.ID, now.State)
		}
		if err := fitsLines(now.Lines, req.Data); err != nil {
			return err
		}
		return v.paste(ctx, req.Data, req.Paste)
	})
	if err != nil {
		return 0, err
	}
	return len(req.Data), nil
}

// pasteEnd is what ends a paste. Inside one it would let the rest count as typed.
const pasteEnd = "\x1b[201~"

// writable refuses what cannot be typed as it is.
func writable(req sdk.WriteRequest) error {
	switch {
	case len(req.Data) > sdk.MaxWrite:
		return sdk.Errorf(sdk.ErrTooLarge, "%d bytes; one write takes at most %d", len(req.Data), sdk.MaxWrite)
	case req.Paste && bytes.Contains(req.Data, []byte(pasteEnd)):
		return sdk.Errorf(sdk.ErrInvalid, "the text holds the end of a paste (ESC [ 201 ~): what follows it would count as typed; send it without paste, or without that sequence")
	}
	return nil
}

// fitsLines refuses a line that a terminal in line mode would cut.
func fitsLines(lines seat.Lines, data []byte) error {
	if lines != seat.LinesOn {
		return nil
	}
	for line := range bytes.FieldsFuncSeq(data, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if len(line) > seat.MaxLine {
			return sdk.Errorf(sdk.ErrTooLarge, "a line of %d bytes; the program reads whole lines, of which its terminal keeps %d", len(line), seat.MaxLine)
		}
	}
	return nil
}

// paste loads the data from standard input into a buffer and pastes it where the pane lives. All of it is
// one command line, so the server does nothing in between.
func (v *view) paste(ctx context.Context, data []byte, bracketed bool) error {
	if !v.place.known() {
		return custodied.Unavailable("seat %s has no place in tmux: %v", v.ID, v.placeErr)
	}
	if err := fpWriteBegin.Hit(); err != nil {
		return custodied.Unavailable("%v", err)
	}
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	buffer := "cotal-" + hex.EncodeToString(raw[:])
	flags := "-dr"
	if bracketed {
		flags += "p"
	}
	if v.place.Literal {
		flags += "S"
	}
	const dead = "the pane is dead"
	sv := v.server()
	out, err := sv.call(ctx, data, "load-buffer", "-b", buffer, "-", ";",
		"if-shell", "-F", "-t", v.place.Pane, "#{pane_dead}",
		"display-message -p '"+dead+"' ; delete-buffer -b "+buffer,
		"paste-buffer "+flags+" -b "+buffer+" -t "+v.place.Pane)
	switch {
	case err == nil && strings.Contains(out, dead):
		return sdk.Errorf(sdk.ErrGone, "seat %s: %s", v.ID, dead)
	case err == nil:
		return nil
	}
	if verdictOf(err) != hung {
		_, _ = sv.call(context.WithoutCancel(ctx), nil, "delete-buffer", "-b", buffer)
	}
	outcome := sdk.OutcomeUnknown
	if w := verdictOf(err); w == noServer || w == unavailable || w == skewed {
		outcome = sdk.OutcomeNotExecuted
	}
	return &sdk.Error{Code: sdk.ErrUnavailable, Outcome: outcome, Detail: fmt.Sprintf("type into seat %s: %v", v.ID, err)}
}

// Snapshot returns the pane's screen as tmux shows it. Its offset is 0: this runtime counts no output.
// Errors: sdk.ErrGone, sdk.ErrNotOurs, sdk.ErrUnavailable.
func (r *Runtime) Snapshot(ctx context.Context, req sdk.SnapshotRequest) (sdk.Snapshot, error) {
	var snap sdk.Snapshot
	err := r.on(req.SeatID, req.InstanceID, req.Handle, func(v *view) error {
		sv := v.server()
		if _, err := v.stands(ctx, sv); err != nil {
			return err
		}
		// One command line: the screen, its modes and its cursor are of one moment.
		out, err := sv.call(ctx, nil, "display-message", "-p", "-t", v.place.Pane, paneFormat, ";", "capture-pane", "-e", "-N", "-p", "-t", v.place.Pane)
		if err != nil {
			return custodied.Unavailable("seat %s: %v", v.ID, err)
		}
		head, screen := cutLine(out)
		p, err := parsePane(head)
		if err != nil {
			return custodied.Unavailable("seat %s: %v", v.ID, err)
		}
		snap = paint(p, screen)
		return nil
	})
	return snap, err
}

// paint turns a captured screen into what draws it on a cleared terminal of that size.
func paint(p pane, screen string) sdk.Snapshot {
	snap := sdk.Snapshot{Rows: p.rows, Cols: p.cols, Modes: uint32(p.modes)}
	if p.dead {
		p.modes = 0
	}
	var b bytes.Buffer
	// The alternate screen first, the other modes last: drawing must not be changed by them.
	b.Write(terminal.Apply(p.modes & terminal.AltScreen))
	b.WriteString("\x1b[H")
	lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
	if len(lines) > int(p.rows) {
		lines = lines[:p.rows]
	}
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if b.Len()+len(line) > maxSnapshot-1024 {
			snap.Dirty = fmt.Sprintf("the screen takes more than %d bytes; it is cut after row %d", maxSnapshot, i)
			break
		}
		b.WriteString(line)
	}
	b.WriteString("\x1b[m")
	b.Write(terminal.Apply(p.modes &^ (terminal.AltScreen | terminal.CursorHidden | terminal.OriginMode)))
	// After a full row tmux counts the cursor one column further than a terminal can be told.
	fmt.Fprintf(&b, "\x1b[%d;%dH", p.cursorY+1, min(p.cursorX+1, int(p.cols)))
	if p.modes&terminal.CursorHidden != 0 {
		b.WriteString("\x1b[?25l")
	}
	snap.Data = b.Bytes()
	if snap.Dirty == "" && !utf8.Valid(snap.Data) {
		snap.Dirty = "the screen holds text that is no UTF-8"
	}
	return snap
}
