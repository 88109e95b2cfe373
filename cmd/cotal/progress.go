package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// progress shows how far a spawn is: one line a phase, or on a terminal one line that moves and is
// gone at the end.
type progress struct {
	w   io.Writer
	tty bool

	mu      sync.Mutex
	name    string
	text    string
	shown   string // the last phase shown as a line
	stop    chan struct{}
	stopped sync.WaitGroup
	closed  bool
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, stop: make(chan struct{})}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.tty = true
		p.stopped.Go(p.spin)
	}
	return p
}

func (p *progress) spin() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		if p.text != "" {
			fmt.Fprintf(p.w, "\r%c %s\x1b[K", `|/-\`[i%4], p.text)
		}
		p.mu.Unlock()
	}
}

func (p *progress) accepted(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = cli.OneLine(name)
	p.set("accepted")
}

var phaseText = map[string]string{
	wire.PhaseHandoff:  "launching",
	wire.PhaseLaunched: "running, waiting until it is ready",
	wire.PhasePresence: "joined the mesh",
}

func (p *progress) phase(phase string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := phaseText[phase]; text != "" {
		p.set(text)
	}
}

func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(text)
}

// note shows a line that stays.
func (p *progress) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintf(p.w, "note: %s\n", cli.OneLine(text))
}

// set shows a phase, once. The caller holds mu.
func (p *progress) set(text string) {
	if p.closed || text == p.shown {
		return
	}
	p.shown = text
	p.text = text
	if p.name != "" {
		p.text = p.name + ": " + text
	}
	if !p.tty {
		fmt.Fprintln(p.w, p.text)
	}
}

// close ends the moving line and leaves nothing of it behind.
func (p *progress) close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.mu.Unlock()
	close(p.stop)
	p.stopped.Wait()
	if p.tty {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
