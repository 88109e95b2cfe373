package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// defaultSubmitDelay is the pause between a paste and the Return that submits it, for programs whose
// connector names none: a Return that arrives with the paste is taken as part of it.
const defaultSubmitDelay = 150 * time.Millisecond

// escapePause keeps an Escape from being read as the first byte of the key that follows it.
const escapePause = 60 * time.Millisecond

// maxInputs is how many inputs into one seat may be under way. Each holds a place among the effects of the host:
// a program that does not read must not take all of them.
const maxInputs = 8

// A person at the terminal comes first: input is held back until nobody has typed for quietTime, and
// refused when that does not come within quietWait.
const (
	quietTime  = 2 * time.Second
	quietWait  = 2 * time.Second
	quietEvery = 50 * time.Millisecond
)

// Input types text into one seat, as one message, and then a Return unless args.Enter is false; or it
// presses the keys of args.Keys. One line end at the end of a text is taken for its Return. Inputs of one
// seat come one after the other, each as a whole.
//
// Errors: bad-request (empty, too long, a control character in a paste, a key nobody knows), expired (no
// live seat with that life), failed-precondition (not running, or a line too long for a program that reads
// whole lines), unimplemented (the runtime cannot type), unavailable (a person types, or the program does
// not take input now). The outcome says whether a part was typed.
func (s *Set) Input(ctx context.Context, target wire.Target, args wire.InputArgs) (wire.InputReply, error) {
	return s.typeInto(ctx, target, args, false)
}

// typeInto is Input, and with polite Nudge.
func (s *Set) typeInto(ctx context.Context, target wire.Target, args wire.InputArgs, polite bool) (wire.InputReply, error) {
	if err := args.Check(); err != nil {
		return wire.InputReply{}, wire.Refuse(wire.CodeBadRequest, "%v", err)
	}
	for _, k := range args.Keys {
		if _, err := keyBytes(k, 0); err != nil {
			return wire.InputReply{}, wire.Refuse(wire.CodeBadRequest, "keys: %v", err)
		}
	}
	a, err := s.target(target)
	if err != nil {
		return wire.InputReply{}, err
	}
	if err := a.snapshot().accepts(); err != nil {
		return wire.InputReply{}, err
	}
	defer a.inputs.Add(-1)
	if a.inputs.Add(1) > maxInputs {
		return wire.InputReply{}, wire.Refuse(wire.CodeUnavailable, "%d inputs into %s wait already, and its program may not be reading; nothing was typed", maxInputs, a.snapshot().Row.Alias)
	}
	if err := a.typing.lock(ctx); err != nil {
		return wire.InputReply{}, wire.Refuse(wire.CodeUnavailable, "another input into %s is still being typed; nothing was typed", a.snapshot().Row.Alias)
	}
	defer a.typing.unlock()
	into := a.snapshot().Row.SeatID
	a.into.Store(&into)
	defer a.into.Store(nil)
	if err := a.accepts(); err != nil {
		return wire.InputReply{}, err
	}
	t, err := a.newTypist(ctx)
	if err != nil {
		return wire.InputReply{}, err
	}
	defer t.close()
	return a.input(ctx, t, args, polite)
}

// accepts returns why nothing may be typed into the seat now, or nil. It is asked before every write. While an
// input is under way, its process must still be the seat's: what was meant for one is not typed into the next.
func (a *actor) accepts() error {
	snap := a.snapshot()
	if into := a.into.Load(); into != nil && *into != snap.Row.SeatID {
		return wire.Refuse(wire.CodeFailedPrecondition, "%s was started again meanwhile; nothing was typed into its new process", snap.Row.Alias)
	}
	return snap.accepts()
}

// accepts returns why nothing may be typed into a seat in this state, or nil.
func (snap *Snapshot) accepts() error {
	if snap.State.Accepts() {
		return nil
	}
	if (snap.State == Exited || snap.State == Ended) && snap.Row.Exit != nil {
		over := goneLife(snap.Row, lastWrote+snap.Row.Alias)
		over.Code = wire.CodeFailedPrecondition // it still has its name
		return over
	}
	if snap.State == Unknown {
		return wire.Refuse(wire.CodeFailedPrecondition, "it is not known how %s is (%s); nothing was typed", snap.Row.Alias,
			cmp.Or(snap.Row.Reason, "its runtime gives no answer"))
	}
	return wire.Refuse(wire.CodeFailedPrecondition, "%s is %s; nothing was typed", snap.Row.Alias, statusOf(snap.State))
}

// input does what Input says once the seat is found, reachable and nobody else's input is under way.
func (a *actor) input(ctx context.Context, t typist, args wire.InputArgs, polite bool) (wire.InputReply, error) {
	name := a.snapshot().Row.Alias
	// A stop ends the input that is under way, also one whose program has stopped reading.
	tctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.leaving, cancel)()
	now, err := a.ready(tctx, t, len(args.Keys) > 0, polite)
	if err != nil {
		return wire.InputReply{}, cmp.Or(a.accepts(), err)
	}
	typed, said := 0, 0
	if len(args.Keys) > 0 {
		typed, err = a.press(tctx, t, now, args.Keys)
		said = typed
	} else {
		enter := args.Enter == nil || *args.Enter
		text := []byte(args.Text)
		if enter {
			text = trimReturn(text)
			said++
		}
		said += len(text)
		typed, err = a.message(tctx, t, now, text, enter)
	}
	if err != nil {
		if errors.Is(err, context.Canceled) && a.leaving.Err() != nil {
			err = errors.New("it was stopped meanwhile")
		}
		return wire.InputReply{}, inputError(name, typed, err)
	}
	return wire.InputReply{Name: name, Bytes: said}, nil
}

// ready waits until the program takes text and nobody else types. Nothing has been typed when it fails. Keys also answer
// what a program asks, and a program that asks shows no field: once the seat is ready they do not wait for one.
func (a *actor) ready(ctx context.Context, t typist, keys, polite bool) (terminalNow, error) {
	snap := a.snapshot()
	name := snap.Row.Alias
	now, err := t.look(ctx)
	switch {
	case err != nil:
		return now, wire.Refuse(wire.CodeUnavailable, "look at %s: %v; nothing was typed", name, err)
	case !now.running:
		return now, wire.Refuse(wire.CodeFailedPrecondition, "%s does not run any more; nothing was typed", name)
	}
	if a.inputFacts(ctx).AwaitField && now.modesKnown && (!keys || snap.Row.Ready.IsZero()) {
		if now, err = awaitField(ctx, t, now); err != nil {
			return now, wire.Refuse(wire.CodeUnavailable,
				"%s shows no input field (%v); it may still start, or ask something: look with cotal attach %s; nothing was typed", name, err, name)
		}
	}
	if now, err = awaitQuiet(ctx, t, now); err != nil {
		return now, wire.Refuse(wire.CodeUnavailable, "%s: %v; nothing was typed", name, err)
	}
	if polite {
		if err := yields(now, a.sinceActive()); err != nil {
			return now, wire.Refuse(wire.CodeUnavailable, "%s: %v; nothing was typed", name, err)
		}
	}
	return now, nil
}

// message types text as one message and its Return.
func (a *actor) message(ctx context.Context, t typist, now terminalNow, text []byte, enter bool) (typed int, err error) {
	facts := a.inputFacts(ctx)
	bracketed := now.modes&terminal.BracketedPaste != 0 || !now.pasteKnown && facts.BracketedPaste
	// What cannot be typed as it is, is refused before the first byte.
	if bracketed || !now.pasteKnown {
		if err := checkPaste(text); err != nil {
			return 0, wire.Refuse(wire.CodeBadRequest, "text: %v", err)
		}
	}
	if now.lines == seat.LinesOn {
		if err := checkLines(text, now.line); err != nil {
			return 0, wire.Refuse(wire.CodeFailedPrecondition, "%v; nothing was typed", err)
		}
	}
	if typed, err = t.paste(ctx, text, bracketed, a.accepts); err != nil || !enter {
		return typed, err
	}
	if len(text) > 0 { // a Return right behind a paste is taken as a part of it
		if err := sleep(ctx, submitDelay(facts, bracketed)); err != nil {
			return typed, err
		}
	}
	if err := a.accepts(); err != nil {
		return typed, err
	}
	n, err := t.key(ctx, []byte{'\r'})
	return typed + n, err
}

// press presses keys one after the other.
func (a *actor) press(ctx context.Context, t typist, now terminalNow, keys []string) (typed int, err error) {
	for i, name := range keys {
		p, err := keyBytes(name, now.modes)
		if err != nil {
			return typed, err
		}
		if err := a.accepts(); err != nil {
			return typed, err
		}
		n, err := t.key(ctx, p)
		typed += n
		if err != nil {
			return typed, err
		}
		if string(p) == "\x1b" && i < len(keys)-1 {
			if err := sleep(ctx, escapePause); err != nil {
				return typed, err
			}
		}
	}
	return typed, nil
}

// inputError says what became of the text.
func inputError(name string, typed int, err error) *wire.Error {
	code := wire.CodeUnavailable
	var refused *wire.Error
	if errors.As(err, &refused) {
		code = refused.Code
		if typed == 0 {
			return refused
		}
	}
	if errors.Is(err, seat.ErrLineTooLong) || errors.Is(err, seat.ErrNotRunning) || errors.Is(err, sdk.ErrGone) ||
		typed == 0 && errors.Is(err, sdk.ErrTooLarge) {
		code = wire.CodeFailedPrecondition
	}
	if typed == 0 && errors.Is(err, sdk.ErrInvalid) {
		code = wire.CodeBadRequest
	}
	switch {
	case typed > 0:
		return &wire.Error{Code: code, Outcome: wire.OutcomeExecuted, Message: fmt.Sprintf("only %d bytes are known to be typed into %s: %v; do not type it again blindly", typed, name, err)}
	case notExecuted(err):
		return &wire.Error{Code: code, Outcome: wire.OutcomeNotExecuted, Message: fmt.Sprintf("nothing was typed into %s: %v", name, err)}
	default:
		return &wire.Error{Code: code, Outcome: wire.OutcomeUnknown, Message: fmt.Sprintf("it is not known what reached %s: %v", name, err)}
	}
}

func notExecuted(err error) bool {
	var e *seat.Error
	if errors.As(err, &e) && e.Outcome == seat.OutcomeNotExecuted {
		return true
	}
	for _, before := range []error{sdk.ErrGone, sdk.ErrNotOurs, sdk.ErrStaleFence} { // refused before the first byte, whatever else is said
		if errors.Is(err, before) {
			return true
		}
	}
	var said *sdk.Error
	if errors.As(err, &said) && said.Outcome != "" {
		return said.Outcome == sdk.OutcomeNotExecuted
	}
	return errors.Is(err, sdk.ErrTooLarge) || errors.Is(err, sdk.ErrInvalid) || errors.Is(err, sdk.ErrUnsupported)
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

// awaitQuiet waits until no person has typed for a while.
func awaitQuiet(ctx context.Context, t typist, now terminalNow) (terminalNow, error) {
	for deadline := time.Now().Add(quietWait); now.typed > 0 && now.typed < quietTime; {
		if time.Now().After(deadline) {
			return now, fmt.Errorf("a person is typing at its terminal (the last key %d ms ago); try again later", now.typed.Milliseconds())
		}
		if err := sleep(ctx, quietEvery); err != nil {
			return now, err
		}
		var err error
		if now, err = t.look(ctx); err != nil {
			return now, err
		}
	}
	return now, nil
}

// Waiting for an input field: a program that boots takes seconds; one that asks something may take for
// ever. The field must have stayed for a while, because programs draw it before they listen: text typed
// within 50 ms of OpenCode's first cursor was lost.
const (
	fieldWait   = 20 * time.Second
	fieldEvery  = 50 * time.Millisecond
	fieldSettle = 500 * time.Millisecond
)

// hasField reports whether the modes say that an input field has the focus. Where they do not tell of
// bracketed paste, a cursor on the alternate screen has to do.
func hasField(now terminalNow) bool {
	if !now.pasteKnown {
		return now.modes&(terminal.AltScreen|terminal.CursorHidden) == terminal.AltScreen
	}
	return now.modes&(terminal.BracketedPaste|terminal.CursorHidden) == terminal.BracketedPaste
}

// awaitField waits until the seat's modes say that its program takes text.
func awaitField(ctx context.Context, t typist, now terminalNow) (terminalNow, error) {
	ctx, cancel := context.WithTimeout(ctx, fieldWait)
	defer cancel()
	var since time.Time // the field is there since; zero while it is not
	for {
		switch {
		case !hasField(now):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= fieldSettle:
			return now, nil
		}
		if err := sleep(ctx, fieldEvery); err != nil {
			return now, err
		}
		var err error
		if now, err = t.look(ctx); err != nil {
			return now, err
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

// turn is a lock that can be waited for with a context: an input into a program that does not read may
// take until its deadline, and those behind it have deadlines of their own.
type turn chan struct{}

func (t turn) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) unlock() { <-t }
