package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// progress shows how far a spawn is: one line a phase, or on a terminal one line that moves and is
// gone at the end.
type progress struct {
	w     io.Writer
	tty   bool
	begun time.Time

	mu      sync.Mutex
	name    string
	trail   []string // phases so far
	turn    int
	drawn   bool // the moving line is on the terminal
	stop    chan struct{}
	stopped sync.WaitGroup
	closed  bool
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, stop: make(chan struct{}), begun: time.Now()}
	if t, ok := w.(interface{ IsTerminal() bool }); ok && t.IsTerminal() {
		p.tty = true
		p.stopped.Go(p.spin)
	}
	return p
}

func (p *progress) spin() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		p.turn++
		p.draw()
		p.mu.Unlock()
	}
}

// draw shows the moving line. The caller holds mu.
func (p *progress) draw() {
	if !p.tty || p.closed || len(p.trail) == 0 {
		return
	}
	p.drawn = true
	fmt.Fprintf(p.w, "\r%c %s%s  %s\x1b[K", `|/-\`[p.turn%4], p.label(), strings.Join(p.trail, " > "), cli.Age(time.Since(p.begun)))
}

func (p *progress) label() string {
	if p.name == "" {
		return ""
	}
	return p.name + ": "
}

func (p *progress) accepted(name string) {
	p.mu.Lock()
	p.name = cli.OneLine(name)
	p.mu.Unlock()
	p.add("accepted")
}

// phaseWords are the phases of a spawn as people read them.
var phaseWords = map[string]string{
	wire.PhaseHandoff:  "provisioning",
	wire.PhaseLaunched: "launched",
	wire.PhasePresence: "joined",
}

func phaseWord(phase string) string {
	if word := phaseWords[phase]; word != "" {
		return word
	}
	return cli.OneLine(phase) // of a manager that knows more of them
}

func (p *progress) phase(phase string) { p.add(phaseWord(phase)) }

// settled shows the last word, unless it was shown.
func (p *progress) settled(word string) { p.add(word) }

// add shows a phase, once.
func (p *progress) add(word string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || word == "" || len(p.trail) > 0 && p.trail[len(p.trail)-1] == word {
		return
	}
	p.trail = append(p.trail, word)
	if !p.tty {
		fmt.Fprintln(p.w, p.label()+word)
		return
	}
	p.draw()
}

// note shows a line that stays.
func (p *progress) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintf(p.w, "note: %s\n", cli.OneLine(text))
	p.draw()
}

// clear takes the moving line away. The caller holds mu.
func (p *progress) clear() {
	if p.drawn {
		p.drawn = false
		fmt.Fprint(p.w, "\r\x1b[K")
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}
