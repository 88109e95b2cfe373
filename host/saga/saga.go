// Package saga runs the steps of one operation so that a failure leaves nothing behind: record the
// intent, act, record the result, and on failure undo in reverse.
//
// A step's failpoints are declared by the code that owns the step, as package variables, so that a
// test can list every one of them:
//
//	var (
//		fpMkdirBefore = failpoint.New("host.spawn.mkdir.before")
//		fpMkdirAfter  = failpoint.New("host.spawn.mkdir.after")
//	)
//	...
//	saga.Step{Name: "mkdir", Do: mk, Undo: rm, Before: fpMkdirBefore, After: fpMkdirAfter}
package saga

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
)

// UndoTimeout bounds the context of each single Undo. An undo is detached from the caller: a client
// that went away must not leave half a seat behind.
const UndoTimeout = 10 * time.Second

// Step is one act and how to take it back.
type Step struct {
	Name string
	// Do acts. A panic in it is an error like any other.
	Do func(ctx context.Context) error
	// Undo takes the step back; nil when there is nothing to take back. It must be idempotent and
	// content when there is nothing there: it also runs for the step that failed, because a call
	// that failed may have acted (see Run), and again after a crash.
	Undo func(ctx context.Context) error
	// Before is hit when the intent is recorded and nothing has been done; After when Do has
	// returned and its result is not recorded. Both are optional.
	Before, After *failpoint.Point
}

// Recorder makes the progress of a saga durable. Both methods return only when the fact is on disk.
type Recorder interface {
	Intent(ctx context.Context, step string) error
	Done(ctx context.Context, step string) error
}

// UndoError is one step that could not be taken back.
type UndoError struct {
	Step string
	Err  error
}

// Error names the step.
func (e *UndoError) Error() string { return "undo " + e.Step + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UndoError) Unwrap() error { return e.Err }

// Error is the failure of a saga. Its text starts with the error that stopped it; what could not be
// taken back is added behind. errors.Is and errors.As look at the cause first, then at the undo
// errors.
type Error struct {
	Saga string
	Step string // the step that failed, or before which the context ended
	Err  error
	Undo []*UndoError // in the order they were tried; empty when nothing was left behind
}

// Error starts with the cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Err.Error())
	b.WriteString(" (step " + e.Step + " of " + e.Saga + ")")
	for i, u := range e.Undo {
		if i == 0 {
			b.WriteString("; not everything could be taken back: ")
		} else {
			b.WriteString("; ")
		}
		b.WriteString(u.Error())
	}
	return b.String()
}

// Unwrap returns the cause, then the undo errors.
func (e *Error) Unwrap() []error {
	errs := make([]error, 0, 1+len(e.Undo))
	errs = append(errs, e.Err)
	for _, u := range e.Undo {
		errs = append(errs, u)
	}
	return errs
}

// Run runs the steps in order: rec.Intent, Before, Do, After, rec.Done. It stops at the first error,
// which includes a failed record, a panic and a context that ended between two steps, then undoes in
// reverse every step whose intent was recorded and returns an *Error. rec may be nil.
//
// The step that failed is undone too, since an act that answered with an error may still have
// happened, unless its Do returned an error that says sdk.OutcomeNotExecuted.
//
// Run does not return before the last undo did.
func Run(ctx context.Context, name string, rec Recorder, steps []Step) error {
	for i := range steps {
		reached, err := forward(ctx, rec, &steps[i])
		if err == nil {
			continue
		}
		from := i
		if !reached {
			from--
		}
		return &Error{Saga: name, Step: steps[i].Name, Err: err, Undo: back(ctx, steps[:from+1])}
	}
	return nil
}

// forward runs one step. reached reports whether the step may have left something to undo.
func forward(ctx context.Context, rec Recorder, s *Step) (reached bool, err error) {
	if ctx.Err() != nil {
		return false, fmt.Errorf("stop before %s: %w", s.Name, context.Cause(ctx))
	}
	if rec != nil {
		if err := guard(func() error { return rec.Intent(ctx, s.Name) }); err != nil {
			// The intent may be on disk all the same; nothing was done under it.
			return false, fmt.Errorf("record intent of %s: %w", s.Name, err)
		}
	}
	if err := hit(s.Before); err != nil {
		return true, err
	}
	if s.Do != nil {
		if err := guard(func() error { return s.Do(ctx) }); err != nil {
			return sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted, err
		}
	}
	if err := hit(s.After); err != nil {
		return true, err
	}
	if rec != nil {
		if err := guard(func() error { return rec.Done(ctx, s.Name) }); err != nil {
			return true, fmt.Errorf("record result of %s: %w", s.Name, err)
		}
	}
	return true, nil
}

func back(ctx context.Context, steps []Step) []*UndoError {
	var failed []*UndoError
	for i := len(steps) - 1; i >= 0; i-- {
		s := &steps[i]
		if s.Undo == nil {
			continue
		}
		err := guard(func() error {
			uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), UndoTimeout)
			defer cancel()
			return s.Undo(uctx)
		})
		if err != nil {
			failed = append(failed, &UndoError{Step: s.Name, Err: err})
		}
	}
	return failed
}

func hit(p *failpoint.Point) error {
	if p == nil {
		return nil
	}
	return p.Hit()
}

// PanicError is a panic that was caught in a step.
type PanicError struct {
	Value any
	Stack []byte // for the log, never for a client
}

// Error gives the panic value.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return fn()
}
