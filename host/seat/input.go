package seat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// MaxInput is the largest text of one input, in bytes.
const MaxInput = 64 << 10

// inputChunk is the largest single write to a seat; the seat takes each one whole or not at all. It
// leaves room for the paste markers below the seat's own limit of 64 KiB.
const inputChunk = 60 << 10

// defaultSubmitDelay is the pause between a paste and the Return that submits it, for programs whose
// connector names none: a Return that arrives with the paste is taken as part of it.
const defaultSubmitDelay = 150 * time.Millisecond

var (
	pasteStart = []byte("\x1b[200~")
	pasteEnd   = []byte("\x1b[201~")
)

// encodeInput turns text into the writes to make: the text, as one bracketed paste where the program
// asked for that, and then a Return of its own.
func encodeInput(text []byte, bracketed, enter bool) (writes [][]byte) {
	body := text
	if bracketed {
		body = make([]byte, 0, len(text)+len(pasteStart)+len(pasteEnd))
		body = append(append(append(body, pasteStart...), text...), pasteEnd...)
	}
	for len(body) > 0 {
		n := min(len(body), inputChunk)
		writes = append(writes, body[:n])
		body = body[n:]
	}
	if enter {
		writes = append(writes, []byte{'\r'})
	}
	return writes
}

// Input types text into one seat, verbatim, and then a Return unless args.Enter is false.
// Errors: bad-request (empty, too long, or holding a paste end marker), expired (no live seat with that
// life), failed-precondition (not running, or a line too long for a program that reads whole lines;
// nothing was typed), unavailable (the program does not take input now; outcome says whether a part was
// typed).
func (s *Set) Input(ctx context.Context, target wire.Target, args wire.InputArgs) (wire.InputReply, error) {
	text := []byte(args.Text)
	switch {
	case len(text) == 0:
		return wire.InputReply{}, wire.Refuse(wire.CodeBadRequest, "text is empty")
	case len(text) > MaxInput:
		return wire.InputReply{}, wire.Refuse(wire.CodeBadRequest, "text has %d bytes, the limit is %d", len(text), MaxInput)
	}
	a, err := s.target(target)
	if err != nil {
		return wire.InputReply{}, err
	}
	snap := a.snapshot()
	if !snap.State.Accepts() {
		return wire.InputReply{}, wire.Refuse(wire.CodeFailedPrecondition, "%s is %s; nothing was typed", snap.Row.Alias, statusOf(snap.State))
	}
	a.typing.Lock()
	defer a.typing.Unlock()

	conn, stop, err := a.dial(ctx, seat.RoleInput|seat.RoleControl)
	if err != nil {
		return wire.InputReply{}, wire.Refuse(wire.CodeUnavailable, "dial %s: %v; nothing was typed", snap.Row.Alias, err)
	}
	defer stop()
	st := conn.Welcome()
	if st.State != seat.StateRunning {
		return wire.InputReply{}, wire.Refuse(wire.CodeFailedPrecondition, "%s does not run any more; nothing was typed", snap.Row.Alias)
	}
	facts := a.inputFacts(ctx)
	if facts.AwaitField {
		if st, err = awaitField(ctx, conn, st); err != nil {
			return wire.InputReply{}, wire.Refuse(wire.CodeUnavailable,
				"%s shows no input field (%v); it may still start, or ask something: look with cotal attach %s; nothing was typed",
				snap.Row.Alias, err, snap.Row.Alias)
		}
	}
	bracketed := terminal.Modes(st.Modes)&terminal.BracketedPaste != 0
	if bracketed && bytes.Contains(text, pasteEnd) {
		return wire.InputReply{}, wire.Refuse(wire.CodeBadRequest,
			"text holds the sequence that ends a paste (ESC [201~), which would end it early; remove it")
	}
	if !a.snapshot().State.Accepts() {
		return wire.InputReply{}, wire.Refuse(wire.CodeFailedPrecondition, "%s was stopped meanwhile; nothing was typed", snap.Row.Alias)
	}
	enter := args.Enter == nil || *args.Enter
	typed := 0
	writes := encodeInput(text, bracketed, enter)
	for i, w := range writes {
		if enter && i == len(writes)-1 {
			if err := sleep(ctx, submitDelay(facts, bracketed)); err != nil {
				return wire.InputReply{}, inputError(snap.Row.Alias, typed, err)
			}
		}
		n, err := conn.Input(ctx, w)
		typed += n
		if err != nil {
			return wire.InputReply{}, inputError(snap.Row.Alias, typed, err)
		}
	}
	n := len(text)
	if enter {
		n++
	}
	return wire.InputReply{Name: snap.Row.Alias, Bytes: n}, nil
}

// inputError says what became of the text.
func inputError(name string, typed int, err error) *wire.Error {
	code := wire.CodeUnavailable
	if errors.Is(err, seat.ErrLineTooLong) || errors.Is(err, seat.ErrNotRunning) {
		code = wire.CodeFailedPrecondition
	}
	switch {
	case typed > 0:
		return &wire.Error{Code: code, Outcome: wire.OutcomeExecuted, Message: fmt.Sprintf("only %d bytes were typed into %s: %v; do not type it again blindly", typed, name, err)}
	case notExecuted(err):
		return &wire.Error{Code: code, Outcome: wire.OutcomeNotExecuted, Message: fmt.Sprintf("nothing was typed into %s: %v", name, err)}
	default:
		return &wire.Error{Code: code, Outcome: wire.OutcomeUnknown, Message: fmt.Sprintf("it is not known what reached %s: %v", name, err)}
	}
}

func notExecuted(err error) bool {
	var e *seat.Error
	return errors.As(err, &e) && e.Outcome == seat.OutcomeNotExecuted
}

// inputFacts are the connector's facts on typing; zero when it cannot be asked now.
func (a *actor) inputFacts(ctx context.Context) sdk.InputFacts {
	_, info, err := a.set.cfg.Plugins.Connector(ctx, a.snapshot().Row.Agent)
	if err != nil {
		return sdk.InputFacts{}
	}
	return info.Connector.Input
}

// submitDelay is the pause before the Return.
func submitDelay(f sdk.InputFacts, bracketed bool) time.Duration {
	switch {
	case f.SubmitDelayMs > 0:
		return time.Duration(f.SubmitDelayMs) * time.Millisecond
	case bracketed:
		return defaultSubmitDelay
	default:
		return 0 // a program that takes plain text sees the same bytes as from a person
	}
}

// Waiting for an input field: a program that boots takes seconds; one that asks something may take for
// ever. The field must have stayed for a while, because programs draw it before they listen: text typed
// within 50 ms of OpenCode's first cursor was lost.
const (
	fieldWait   = 20 * time.Second
	fieldEvery  = 50 * time.Millisecond
	fieldSettle = 500 * time.Millisecond
)

// hasField reports whether the modes say that an input field has the focus.
func hasField(m terminal.Modes) bool {
	return m&(terminal.BracketedPaste|terminal.CursorHidden) == terminal.BracketedPaste
}

// awaitField waits until the seat's modes say that its program takes text.
func awaitField(ctx context.Context, conn *seat.Conn, st seat.Status) (seat.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, fieldWait)
	defer cancel()
	var since time.Time // the field is there since; zero while it is not
	for {
		switch {
		case !hasField(terminal.Modes(st.Modes)):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= fieldSettle:
			return st, nil
		}
		if err := sleep(ctx, fieldEvery); err != nil {
			return st, err
		}
		var err error
		if st, err = conn.Get(ctx); err != nil {
			return st, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dial connects to the seat's own socket; terminal bytes never cross a plugin. stop closes it.
func (a *actor) dial(ctx context.Context, role seat.Role) (conn *seat.Conn, stop func(), err error) {
	row := a.snapshot().Row
	rt, _, err := a.set.cfg.Plugins.Runtime(ctx, row.Runtime)
	if err != nil {
		return nil, nil, err
	}
	at, err := rt.Attach(ctx, sdk.AttachRequest{SeatID: row.SeatID, InstanceID: a.set.cfg.InstanceID, Handle: row.Handle})
	if err != nil {
		return nil, nil, err
	}
	if at.Seat == nil {
		return nil, nil, fmt.Errorf("runtime %s gives no seat socket to type into", row.Runtime)
	}
	conn, err = seat.Dial(ctx, seat.DialConfig{Socket: at.Seat.Socket, Token: at.Seat.Token, Role: role, Fence: a.set.cfg.Epoch, From: seat.FromLive})
	if err != nil {
		return nil, nil, err
	}
	return conn, func() { conn.Close() }, nil
}
