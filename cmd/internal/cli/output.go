package cli

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// Output is where the results of a command go. It remembers that it could not be written, so that Main ends a command
// whose result is lost with an error, however the command prints.
type Output struct {
	w    io.Writer
	mu   sync.Mutex
	err  error
	done string
}

// NewOutput makes an output of a writer whose errors name it, as those of a file do.
func NewOutput(w io.Writer) *Output { return &Output{w: w} }

// Write passes on to the writer.
func (o *Output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// Err is why the output takes nothing, or nil: a command that goes on printing ends then.
func (o *Output) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Done says what the command has done before its result is printed: who loses the result is told that much.
func (o *Output) Done(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = fmt.Sprintf(format, args...)
}

// lost is the error of a command whose result could not be written, in place of the one that it ends with. An error of
// its own, which the loss has not made, stays.
func (o *Output) lost(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return err
	}
	text := "the output is lost"
	if o.done != "" {
		text = o.done + ", and only the output is lost"
	}
	switch {
	case err == nil, errors.Is(err, o.err):
		return Fail(Refused, "%s: %w", text, o.err)
	case errors.Is(err, errSaid): // in what is lost, perhaps
		return Fail(CodeOf(err), "%s: %w", text, o.err)
	}
	return Fail(CodeOf(err), "%s; and %s: %w", Text(err), text, o.err)
}
