package main

import (
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

// lastWords writes messages to a terminal that may take no output (it is suspended, or nobody reads it): a
// message that it does not take in time is dropped, and so are those after it. What is no terminal is written
// to as it is.
type lastWords struct {
	f    *os.File
	wait time.Duration
	dead atomic.Bool
}

// wordsWait is how long a message waits for its terminal: long enough for a machine that is busy with something else.
const wordsWait = 3 * restoreWait

func newLastWords(f *os.File) *lastWords { return &lastWords{f: f, wait: wordsWait} }

// IsTerminal says whether it writes to one.
func (w *lastWords) IsTerminal() bool { return term.IsTerminal(int(w.f.Fd())) }

func (w *lastWords) Write(p []byte) (int, error) {
	if !term.IsTerminal(int(w.f.Fd())) {
		return w.f.Write(p)
	}
	if w.dead.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	text := append([]byte(nil), p...) // it may be written after this returned
	go func() {
		n, err := w.f.Write(text)
		done <- result{n, err}
	}()
	t := time.NewTimer(w.wait)
	defer t.Stop()
	select {
	case r := <-done:
		return r.n, r.err
	case <-t.C:
		w.dead.Store(true)
		return 0, os.ErrDeadlineExceeded
	}
}
