package mirror

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// Arg is the argument that makes a program of ours the worker.
const Arg = "mirror"

// workerEnv proves that a process was started to be the worker: an argument alone could be a mistake, and
// a program that did not ask would be started over and over.
const workerEnv = "COTAL_MIRROR_WORKER"

// stuckAfter is how long one piece of drawing may take, in time and in CPU of its own thread, before the
// worker ends itself. The screen bounds the work of a piece; the dearest sequences known take it 100 ms.
const (
	stuckAfter = time.Second
	stuckCPU   = 900 * time.Millisecond
)

// Exit codes of the worker.
const (
	exitDone  = 0
	exitInput = 3 // what came over standard input was not understood
	exitStuck = 4 // drawing did not end
)

// Main runs the worker if this process was started as one, and ends it. It is the first statement of the
// main of every program that calls New.
func Main() {
	if len(os.Args) != 2 || os.Args[1] != Arg || os.Getenv(workerEnv) == "" {
		able.Store(true)
		return
	}
	os.Exit(work(os.Stdin, os.Stdout))
}

// worker is the process that draws.
type worker struct {
	page page

	outMu sync.Mutex
	out   io.Writer

	// drawing is held by who draws. There is one CPU for all of it, so nothing is lost, and whatever the
	// worker dies of, the shared page names one seat: nobody is blamed for what another one drew.
	drawing sync.Mutex

	mu    sync.Mutex
	seats map[string]*watched
	free  *time.Timer // gives memory of seats that have gone back to the system
}

// freeAfter is how long the goroutines of a seat that was removed are given to let go of its memory.
const freeAfter = time.Second

func work(in io.Reader, out io.Writer) int {
	runtime.GOMAXPROCS(1)
	nameProcess()
	w := &worker{out: out, seats: map[string]*watched{}, free: time.AfterFunc(time.Hour, debug.FreeOSMemory)}
	w.page, _ = mapPage(pageFD) // without it, bytes that kill are not known
	if err := w.send(message{Op: "hello", Version: version}); err != nil {
		return exitDone
	}
	for r := bufio.NewReader(in); ; {
		m, err := readMessage(r)
		switch {
		case err == nil:
			w.handle(m)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return exitDone // the plugin has ended, and so do we, whatever is being drawn
		default:
			fmt.Fprintln(os.Stderr, "mirror worker:", err)
			return exitInput
		}
	}
}

// send writes one message. The plugin always reads; if it does not, it is stopped, and so is this.
func (w *worker) send(m message) error {
	w.outMu.Lock()
	defer w.outMu.Unlock()
	return writeMessage(w.out, m)
}

func (w *worker) handle(m message) {
	switch m.Op {
	case "ping":
		_ = w.send(message{Op: "pong", Req: m.Req})
	case "add":
		w.remove(m.Seat)
		ctx, cancel := context.WithCancel(context.Background())
		s := &watched{w: w, add: m, cancel: cancel, wake: make(chan struct{}, 1), asks: make(chan uint64, 16)}
		w.mu.Lock()
		w.seats[m.Seat] = s
		w.mu.Unlock()
		go s.run(ctx)
	case "remove":
		w.remove(m.Seat)
	case "snapshot":
		w.mu.Lock()
		s := w.seats[m.Seat]
		w.mu.Unlock()
		if s == nil {
			_ = w.send(message{Op: "snapshot", Req: m.Req, Problem: "the seat is not mirrored"})
			return
		}
		select {
		case s.asks <- m.Req:
		default:
			_ = w.send(message{Op: "snapshot", Req: m.Req, Problem: "too many ask at once"})
		}
	}
}

func (w *worker) remove(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.seats[id]; s != nil {
		s.cancel()
		delete(w.seats, id)
		w.free.Reset(freeAfter)
	}
}

// gone tells the plugin that a seat has ended or cannot be reached.
func (w *worker) gone(s *watched) {
	w.mu.Lock()
	mine := w.seats[s.add.Seat] == s
	if mine {
		delete(w.seats, s.add.Seat)
		w.free.Reset(freeAfter)
	}
	w.mu.Unlock()
	if mine {
		_ = w.send(message{Op: "gone", Seat: s.add.Seat})
	}
}

// watchdog ends the process when one piece of drawing takes too long. A hang of the emulator cannot be
// cancelled. What counts is the CPU time of the thread that draws: on a machine that is busy, or beside other
// seats, the piece has not had the CPU, and gets more time.
type watchdog struct {
	timer *time.Timer
	mu    sync.Mutex
	on    bool
	clock threadClock
	spent time.Duration
	what  string
	bite  func(what string) // ends the process
}

func newWatchdog(what string) *watchdog {
	d := &watchdog{what: what, bite: func(what string) {
		fmt.Fprintln(os.Stderr, "mirror worker: drawing does not end:", what)
		os.Exit(exitStuck)
	}}
	d.timer = time.AfterFunc(time.Hour, d.fire)
	d.timer.Stop()
	return d
}

// guard runs f, which draws one piece or, with again, several, on a thread of its own.
func (d *watchdog) guard(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d.mu.Lock()
	d.on, d.clock = true, thisThread()
	d.spent = d.clock.now()
	d.timer.Reset(stuckAfter)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.on = false
		d.timer.Stop()
	}()
	f()
}

// again says, within guard, that a new piece begins.
func (d *watchdog) again() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.on {
		d.spent = d.clock.now()
		d.timer.Reset(stuckAfter)
	}
}

func (d *watchdog) fire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.on {
		return
	}
	if d.clock.now()-d.spent < stuckCPU {
		d.timer.Reset(stuckAfter)
		return
	}
	d.bite(d.what)
}
