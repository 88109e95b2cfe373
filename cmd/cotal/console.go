package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

const (
	// restoreWait bounds how long leaving waits for a terminal that takes no more output.
	restoreWait = time.Second
	// drainOutput bounds how long the last output of a seat that has ended may take to be shown.
	drainOutput = 5 * time.Second
	// queueMax is how much output may wait for a terminal that is slow for a moment, so that the seat
	// does not see a slow viewer at once. It is what still scrolls by after a key was pressed.
	queueMax = 1 << 20
	// inlineMax is how much is written without a detour through the queue: an echo, a repainted line.
	inlineMax = 4 << 10
	// recentMax is how much of what was written last is kept to see whether it asks the terminal something.
	recentMax = 4 << 10
	// answerWait bounds how long leaving waits for the terminal to have answered.
	answerWait = 250 * time.Millisecond
	// pieceMax is how much is written at once: between pieces the terminal can be given back.
	pieceMax = 32 << 10
)

// console is the user's terminal while a seat is attached to it. Whatever happens, leave puts it back
// into the state it was in before enter.
type console struct {
	in, out *os.File

	saved *term.State // terminal settings before enter
	start sync.Once   // of the writer

	mu      sync.Mutex // never held over a write
	change  *sync.Cond
	queue   []byte
	waiting int                  // bytes accepted and not yet written
	writing bool                 // somebody writes to out; only one may
	ahead   terminal.ModeScanner // of everything accepted
	seen    terminal.ModeScanner // of what was written
	recent  []byte               // the end of what was written
	midLine bool                 // what was written outside the alternate screen does not end a line
	err     error                // of the terminal
	left    bool
	leaving sync.Once
}

func newConsole(in, out *os.File) *console {
	c := &console{in: in, out: out}
	c.change = sync.NewCond(&c.mu)
	return c
}

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

// Write shows output of the agent and follows the modes it sets. It returns when the output is written
// or queued, and waits while the queue is full.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.waiting > queueMax && !c.left && c.err == nil {
		c.change.Wait()
	}
	return len(p), c.add(p)
}

// add writes or queues p. The caller holds mu.
func (c *console) add(p []byte) error {
	switch {
	case c.left:
		return errLeft
	case c.err != nil:
		return c.err
	}
	c.ahead.Write(p)
	c.waiting += len(p)
	if len(c.queue) > 0 || c.writing || len(p) > inlineMax {
		c.queue = append(c.queue, p...)
		c.start.Do(func() { go c.writer() })
		c.change.Broadcast()
		return nil
	}
	c.write(p)
	return c.err
}

// write writes p to the terminal, without mu, which the caller holds.
func (c *console) write(p []byte) {
	c.writing = true
	for len(p) > 0 && !c.left && c.err == nil {
		piece := p[:min(len(p), pieceMax)]
		c.recent = append(c.recent, piece[max(0, len(piece)-recentMax):]...)
		c.recent = c.recent[max(0, len(c.recent)-recentMax):]
		c.seen.Write(piece) // before: a write that is cut may have had its effect
		if c.seen.Modes()&terminal.AltScreen == 0 {
			c.midLine = piece[len(piece)-1] != '\n'
		}
		c.mu.Unlock()
		_, err := c.out.Write(piece)
		c.mu.Lock()
		c.err = err
		p = p[len(piece):]
		c.waiting -= len(piece)
		c.change.Broadcast() // piece by piece, so that the reader of the seat is never held up for long
	}
	c.writing = false
	c.change.Broadcast()
}

// writer writes what is queued until the terminal is given back.
func (c *console) writer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var spare []byte
	for {
		for (len(c.queue) == 0 || c.writing) && !c.left {
			c.change.Wait()
		}
		if c.left {
			return
		}
		full := c.queue
		c.queue = spare[:0]
		c.write(full)
		spare = full
	}
}

// drain waits until everything is shown, at most drainOutput.
func (c *console) drain() {
	limit := time.AfterFunc(drainOutput, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.queue = nil
		if c.writing && c.err == nil {
			c.err = os.ErrDeadlineExceeded
		}
		c.change.Broadcast()
	})
	defer limit.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for (len(c.queue) > 0 || c.writing) && c.err == nil {
		c.change.Wait()
	}
}

// notice shows a line of ours. A full-screen program has every line: the notice stands on the last one then,
// until the program draws there again.
func (c *console) notice(format string, args ...any) {
	rows, cols, err := c.size()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.ahead.Ground():
		return
	case c.ahead.Modes()&terminal.AltScreen != 0:
		if err == nil && rows > 1 && cols > 10 {
			_ = c.add(overlay(rows, cols, fmt.Sprintf("[cotal: "+format+"]", args...)))
		}
		return
	}
	_ = c.add(fmt.Appendf(nil, "\r\n[cotal: "+format+"]\r\n", args...)) // a terminal that is gone shows elsewhere
}

// overlay draws a text on the last lines of the screen, three at most, and leaves the cursor and its attributes
// as they are.
func overlay(rows, cols uint16, text string) []byte {
	var lines []string
	for rest := []rune(text); len(rest) > 0 && len(lines) < min(3, int(rows)-1); {
		n := min(len(rest), int(cols))
		lines, rest = append(lines, string(rest[:n])), rest[n:]
	}
	out := []byte("\x1b7\x1b[0;7m")
	for i, line := range lines {
		out = fmt.Appendf(out, "\x1b[%d;1H\x1b[2K%s", int(rows)-len(lines)+1+i, line)
	}
	return append(out, "\x1b[0m\x1b8"...)
}

// apply puts the terminal into further modes, unless it is in the middle of a sequence.
func (c *console) apply(missing func(have terminal.Modes) terminal.Modes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ahead.Ground() {
		return
	}
	if m := missing(c.ahead.Modes()); m != 0 {
		_ = c.add(terminal.Apply(m)) // a terminal that is gone shows elsewhere
	}
}

// reset takes the terminal out of all modes: what it is shown next begins anew.
func (c *console) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.add(c.ahead.Reset()) // a terminal that is gone shows elsewhere
}

// flushInput throws away what was typed and not yet read, and answers of the terminal to old queries.
func (c *console) flushInput() { flushTTY(int(c.in.Fd())) }

// leave gives the terminal back: queued output dropped, modes left, settings restored, late answers
// thrown away. It may be called from any goroutine and more than once; it returns when the terminal is
// restored, or after restoreWait when it takes no output.
func (c *console) leave() {
	c.leaving.Do(func() {
		if c.saved == nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.mu.Lock()
			c.left = true
			c.change.Broadcast()
			for c.writing {
				c.change.Wait()
			}
			reset := c.seen.Reset()
			if c.midLine { // what is said next has a line of its own
				reset = append(reset, "\r\n"...)
			}
			asked := asks(c.recent)
			c.mu.Unlock()
			_, err := c.out.Write(reset)
			if asked && err == nil {
				c.awaitAnswers()
			}
		}()
		select {
		case <-done:
		case <-time.After(restoreWait):
		}
		c.flushInput()
		_ = term.Restore(int(c.in.Fd()), c.saved)
	})
}

// within runs f, and waits for its end only so long.
func within(wait time.Duration, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(wait):
	}
}

// asks reports whether output holds a question to the terminal, whole or in part.
func asks(out []byte) bool {
	var f terminal.QueryFilter
	return len(f.Filter(nil, out)) < len(out)
}

// awaitAnswers asks the terminal for its status and reads until it says so: then it has answered whatever was
// asked before, and nothing comes later, into the user's shell. A goroutine that still reads keys may take the
// answer; nothing is lost by that but time.
func (c *console) awaitAnswers() {
	if _, err := c.out.WriteString("\x1b[5n"); err != nil {
		return
	}
	var got []byte
	buf := make([]byte, 4<<10)
	for until := time.Now().Add(answerWait); ; {
		left := time.Until(until)
		if left <= 0 || bytes.Contains(got, []byte("\x1b[0n")) {
			return
		}
		fds := []unix.PollFd{{Fd: int32(c.in.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		switch {
		case errors.Is(err, unix.EINTR), err == nil && n == 0:
			continue
		case err != nil || fds[0].Revents&unix.POLLIN == 0:
			return
		}
		if n, err = unix.Read(int(c.in.Fd()), buf); err != nil || n <= 0 {
			return
		}
		got = append(got[max(0, len(got)-8):], buf[:n]...)
	}
}

var _ io.Writer = (*console)(nil)
