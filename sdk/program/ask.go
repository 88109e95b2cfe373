package program

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// waitDelay bounds the wait for output pipes that a grandchild still holds.
const waitDelay = time.Second

// maxComplaint is how much is kept of what a program prints on standard error.
const maxComplaint = 64 << 10

// Question is a run of an agent program for what it prints, such as which models there are.
type Question struct {
	// Cmd is what is run; its standard output and error are the question's, and Run's rules hold.
	Cmd *exec.Cmd
	// Name is what a person would type, for messages: opencode models.
	Name string
	// Limit bounds the time, and Max the answer in bytes.
	Limit time.Duration
	Max   int
	// Both takes standard error for a part of the answer.
	Both bool
}

// Answer is what a program printed.
type Answer struct {
	Out []byte
	// Last is the last line on standard error that is not blank, for a message.
	Last string
}

// EndError: a program ended otherwise than well. What it printed may be a whole answer all the same.
type EndError struct {
	Name string // of the question
	Err  error  // how it ended
	Last string // what it said last
}

// Error is all of it.
func (e *EndError) Error() string { return fmt.Sprintf("`%s`: %v: %s", e.Name, e.Err, e.Last) }

// Unwrap is how it ended.
func (e *EndError) Unwrap() error { return e.Err }

// Ask runs the program with a deadline, in a process group of its own that is killed whatever happens. A grandchild
// that keeps a pipe open holds nothing up. Errors name the question; *EndError comes with the answer.
func (q Question) Ask(ctx context.Context) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Limit)
	defer cancel()
	out, complaints := &Output{Max: q.Max}, &Output{Max: maxComplaint}
	if q.Both {
		complaints = out
	}
	q.Cmd.Stdout, q.Cmd.Stderr, q.Cmd.WaitDelay = out, complaints, waitDelay
	err := Run(ctx, q.Cmd)
	a := Answer{Out: out.Bytes(), Last: complaints.LastLine()}
	switch {
	case err != nil && ctx.Err() != nil:
		return Answer{}, fmt.Errorf("`%s` gave no answer in time: %w", q.Name, ctx.Err())
	case out.Over():
		return Answer{}, fmt.Errorf("`%s` printed more than %d MiB", q.Name, q.Max>>20)
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return a, nil
	}
	return a, &EndError{Name: q.Name, Err: err, Last: a.Last}
}
