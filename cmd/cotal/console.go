package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// restoreWait bounds how long leaving waits for a terminal that takes no more output.
const restoreWait = time.Second

// console is the user's terminal while a seat is attached to it. Whatever happens, leave puts it back
// into the state it was in before enter.
type console struct {
	in, out *os.File

	saved *term.State // terminal settings before enter

	mu      sync.Mutex // held over writes to out, so that the restoring sequences come last
	seen    terminal.ModeScanner
	left    bool
	leaving sync.Once
}

func newConsole(in, out *os.File) *console { return &console{in: in, out: out} }

// isTerminal says whether both ends are a terminal.
func (c *console) isTerminal() bool {
	return term.IsTerminal(int(c.in.Fd())) && term.IsTerminal(int(c.out.Fd()))
}

// size returns rows and columns.
func (c *console) size() (rows, cols uint16, err error) {
	w, h, err := term.GetSize(int(c.out.Fd()))
	if err != nil {
		return 0, 0, fmt.Errorf("read terminal size: %w", err)
	}
	return uint16(min(max(h, 0), 65535)), uint16(min(max(w, 0), 65535)), nil
}

// enter puts the terminal into raw mode.
func (c *console) enter() error {
	st, err := term.MakeRaw(int(c.in.Fd()))
	if err != nil {
		return fmt.Errorf("put terminal into raw mode: %w", err)
	}
	if c.saved == nil {
		c.saved = st
	}
	return nil
}

var errLeft = errors.New("terminal was given back")

// Write shows output of the agent and follows the modes it sets.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return 0, errLeft
	}
	c.seen.Write(p) // before: a write that blocks or is cut may have had its effect
	return c.out.Write(p)
}

// notice shows a line of ours, if the screen is one that lines can be added to.
func (c *console) notice(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || c.seen.Modes()&terminal.AltScreen != 0 || !c.seen.Ground() {
		return
	}
	_, _ = fmt.Fprintf(c.out, "\r\n[cotal: "+format+"]\r\n", args...)
}

// apply puts the terminal into further modes, unless it is in the middle of a sequence.
func (c *console) apply(missing func(have terminal.Modes) terminal.Modes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || !c.seen.Ground() {
		return
	}
	if m := missing(c.seen.Modes()); m != 0 {
		text := terminal.Apply(m)
		c.seen.Write(text)
		_, _ = c.out.Write(text) // a terminal that is gone shows at the next output
	}
}

// flushInput throws away what was typed and not yet read, and answers of the terminal to old queries.
func (c *console) flushInput() { flushTTY(int(c.in.Fd())) }

// leave gives the terminal back: modes left, settings restored, late answers thrown away. It may be
// called from any goroutine and more than once; it returns when the terminal is restored, or after
// restoreWait when it takes no output.
func (c *console) leave() {
	c.leaving.Do(func() {
		if c.saved == nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.mu.Lock() // a write that is blocked holds it
			defer c.mu.Unlock()
			c.left = true
			_, _ = c.out.Write(c.seen.Reset())
		}()
		select {
		case <-done:
		case <-time.After(restoreWait):
		}
		c.flushInput()
		_ = term.Restore(int(c.in.Fd()), c.saved)
	})
}

var _ io.Writer = (*console)(nil)
