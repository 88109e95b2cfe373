package screen

import (
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// Limits of the size: what a snapshot of at most SnapshotMax bytes can hold.
const (
	MaxRows = 500
	MaxCols = 1000
	// MaxCells bounds rows by columns: a cell takes 224 bytes. Wider ones are cut at the right.
	MaxCells = 160_000
	// SnapshotMax is the largest snapshot in bytes.
	SnapshotMax = 512 << 10
)

// Config is what a Screen needs from outside. The functions are called on the goroutine that calls Step.
type Config struct {
	Rows, Cols int
	// From is the offset of the first byte that will be fed. When it is not 0, Modes are those in force.
	From  uint64
	Modes terminal.Modes

	// Answer is called once for every question in the stream, in order, with the offset of its first byte.
	// Nil: nobody is interested.
	Answer func(start uint64, reply []byte)
	// Jiggle is asked to make the program repaint by a change of the size and back. It reports whether it
	// will: not while somebody is attached.
	Jiggle func() bool

	Now func() time.Time     // time.Now if nil
	CPU func() time.Duration // CPU time of this thread, or any clock of work; Now if nil
	// Busy is told the stream offsets of what is about to be drawn; 0, 0 when that is done.
	Busy func(from, to uint64)
}

// Screen is the picture that a stream of terminal output draws. One goroutine uses it at a time.
type Screen struct {
	cfg        Config
	rows, cols int
	large      bool // the terminal is, larger than what is drawn
	em         emulator
	clean      cleaner
	lex        lexer                // has read all that was fed
	shown      terminal.ModeScanner // has read what was drawn
	probe      lexer                // looks for a place to enter

	buf     []byte // read and not drawn
	drawn   uint64 // offset of buf[0]
	lost    bool   // bytes before buf were dropped undrawn
	arrived []arrival
	queries []query

	flood    bool
	tailEnd  uint64        // a tail is being drawn up to here
	tailCost time.Duration // of the last tail, in CPU
	drawnAt  time.Time
	credit   time.Duration
	earnedAt time.Time
	unsure   string // why the picture may be wrong; empty when it is exact
	broken   bool   // it is unsure since the emulator failed: only what clears the screen makes it exact
	ignored  bool   // the program was to repaint and wrote nothing
	asked    uint64 // what was drawn when it was asked to
	skipAlt  bool   // what was skipped was on the alternate screen
	entered  bool   // false: the first entry takes all there is, and not the tail
	calmAt   time.Time
	jiggled  time.Time
	panics   int
}

// arrival says when the bytes before an offset were read.
type arrival struct {
	before uint64
	at     time.Time
}

const (
	arrivalStep = 10 * time.Millisecond
	arrivalMax  = 64
	marksMax    = 1024
	queriesMax  = 1024 // of a program that asks and asks, more are dropped
)

// New returns the picture of a stream that has not begun, or is entered in the middle.
// Errors: the emulator library has another shape than this package was written for.
func New(cfg Config) (*Screen, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.CPU == nil {
		start := cfg.Now()
		cfg.CPU = func() time.Duration { return cfg.Now().Sub(start) }
	}
	s := &Screen{cfg: cfg, credit: credit, drawn: cfg.From, drawnAt: cfg.Now(), earnedAt: cfg.Now()}
	s.rows, s.cols = clampSize(cfg.Rows, cfg.Cols)
	s.large = cfg.Rows > s.rows || cfg.Cols > s.cols
	s.lex.pos, s.lex.marks = cfg.From, make([]mark, marksMax)
	s.lex.ask = func(q query) {
		if len(s.queries) < queriesMax {
			s.queries = append(s.queries, q)
		}
	}
	if err := s.renew(); err != nil {
		return nil, err
	}
	if cfg.From > 0 {
		s.lex.modes.Write(terminal.Apply(cfg.Modes))
		s.lost = true
	}
	return s, nil
}

// Size is the size that is drawn for, of a terminal of any size.
func Size(rows, cols int) (drawnRows, drawnCols int) { return clampSize(rows, cols) }

func clampSize(rows, cols int) (int, int) {
	rows = min(max(rows, 1), MaxRows)
	return rows, min(max(cols, 2), MaxCols, MaxCells/rows)
}

// renew makes a fresh emulator.
func (s *Screen) renew() (err error) {
	if s.em != nil {
		s.em.Close()
	}
	if s.em, err = newVT(s.rows, s.cols); err != nil {
		return err
	}
	s.clean = cleaner{em: s.em, rows: s.rows, cols: s.cols, link: ";", pos: s.clean.pos, cost: s.clean.cost}
	s.lex.rows = s.rows
	return nil
}

// Close frees the emulator.
func (s *Screen) Close() { s.em.Close() }

// Feed takes output in order. It costs little: drawing is left to Step. A gap before at is taken as lost.
func (s *Screen) Feed(at uint64, p []byte) {
	if at > s.lex.pos {
		s.Gap(at)
	}
	if at < s.lex.pos {
		p = p[min(uint64(len(p)), s.lex.pos-at):]
	}
	if len(p) == 0 {
		return
	}
	s.lex.write(p)
	s.arrive()
	limit := backlogMax
	if s.flood {
		limit = floodKeep
	}
	if len(s.buf)+len(p) > limit {
		if !s.lost {
			s.lost = true
			s.flood = true
		}
		p = p[max(0, len(p)-tailFar):]
		keep := s.buf[len(s.buf)-min(len(s.buf), tailFar-len(p)):]
		if cap(s.buf) > 2*floodKeep { // of the time when all of it was kept
			s.buf = make([]byte, 0, floodKeep)
		}
		s.buf = append(s.buf[:0], keep...)
	}
	s.buf = append(s.buf, p...)
	s.drawn = s.lex.pos - uint64(len(s.buf))
}

// arrive notes when what ends at the lexer's position was read.
func (s *Screen) arrive() {
	now := s.cfg.Now()
	if n := len(s.arrived); n > 0 && (n >= arrivalMax || now.Sub(s.arrived[n-1].at) < arrivalStep) {
		s.arrived[n-1].before = s.lex.pos
		return
	}
	s.arrived = append(s.arrived, arrival{s.lex.pos, now})
}

// age is how long ago the oldest byte was read that is not drawn.
func (s *Screen) age(now time.Time) time.Duration {
	for len(s.arrived) > 0 && s.arrived[0].before <= s.drawn {
		s.arrived = s.arrived[1:]
	}
	if len(s.arrived) == 0 {
		s.arrived = nil
		return 0
	}
	return now.Sub(s.arrived[0].at)
}

// Gap says that output up to to will not come.
func (s *Screen) Gap(to uint64) {
	if to <= s.lex.pos {
		return
	}
	s.lex.state, s.lex.pos = inText, to
	s.buf, s.drawn, s.lost = s.buf[:0], to, true
	s.lex.nmarks = 0
}

// SetModes says which modes are in force at the end of what was fed, for who knows after a gap.
func (s *Screen) SetModes(m terminal.Modes) {
	s.lex.modes = terminal.ModeScanner{}
	s.lex.modes.Write(terminal.Apply(m))
}

// Resize follows the terminal's size.
func (s *Screen) Resize(rows, cols int) {
	wantRows, wantCols := rows, cols
	rows, cols = clampSize(rows, cols)
	s.large = wantRows > rows || wantCols > cols
	if rows == s.rows && cols == s.cols {
		return
	}
	s.guard(func() {
		if row, col, _ := s.em.Cursor(); rows < s.rows && row >= rows && !s.em.Alternate() && s.clean.state == inText {
			// A terminal that gets lower pushes lines out at the top, not those that were just written.
			top, bottom := s.em.Margins()
			if up := row - rows + 1; top == 0 && bottom == s.rows-1 && s.lex.modes.Modes()&terminal.OriginMode == 0 {
				s.em.Write(fmt.Appendf(nil, "\x1b[%dS\x1b[%d;%dH", up, row-up+1, col+1))
			}
		}
		s.em.Resize(rows, cols)
	})
	s.rows, s.cols = rows, cols
	s.clean.rows, s.clean.cols, s.clean.top, s.clean.bottom = rows, cols, 0, 0
	s.lex.rows, s.lex.top, s.lex.bottom = rows, 0, 0
}

// guard runs f and survives a panic of the emulator: it is rebuilt empty, and the picture unsure.
func (s *Screen) guard(f func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		s.panics++
		s.doubt(fmt.Sprintf("the emulator failed: %v", p), s.em.Alternate())
		s.broken = true
		m := mark{modes: s.shown.Modes(), top: s.clean.top, bottom: s.clean.bottom}
		s.clean.cost += workMax / 4
		if err := s.renew(); err == nil {
			s.seed(m)
		}
	}()
	f()
}

// doubt notes why the picture may be wrong from now on. alt: what it lacks was on the alternate screen.
func (s *Screen) doubt(why string, alt bool) {
	s.unsure, s.skipAlt, s.calmAt, s.jiggled, s.ignored = why, alt, s.cfg.Now(), time.Time{}, false
}

// seed puts the emulator into modes that are not the result of what it was written.
func (s *Screen) seed(m mark) {
	s.clean.reset()
	s.shown = terminal.ModeScanner{}
	s.shown.Write(terminal.Apply(m.modes))
	s.clean.insert = m.modes&terminal.InsertMode != 0
	onOff := func(bit terminal.Modes) byte {
		if m.modes&bit != 0 {
			return 'h'
		}
		return 'l'
	}
	seq := []byte("\x1b[m\x1b]8;;\x07\x1b(B\x1b)B\x0f")
	if s.em.Alternate() != (m.modes&terminal.AltScreen != 0) {
		seq = fmt.Appendf(seq, "\x1b[?1049%c", onOff(terminal.AltScreen))
	}
	wrap := byte('h')
	if m.modes&terminal.NoAutowrap != 0 {
		wrap = 'l'
	}
	seq = fmt.Appendf(seq, "\x1b7\x1b[r\x1b8\x1b[?6%c\x1b[?7%c", onOff(terminal.OriginMode), wrap)
	if 0 < m.top && m.top < m.bottom && m.bottom <= s.rows { // not so after the screen got lower
		seq = fmt.Appendf(seq, "\x1b[%d;%dr", m.top, m.bottom)
		s.clean.top, s.clean.bottom = m.top, m.bottom
	}
	switch {
	case m.full:
		seq = append(seq, "\x1b[H\x1b[2J"...)
		s.clean.cleared = true
	case m.line:
		seq = append(seq, '\r')
	}
	s.em.Write(seq)
}

func (s *Screen) load(now time.Time) load {
	return load{
		backlog: len(s.buf), lost: s.lost && len(s.buf) > 0, age: s.age(now), sinceDrawn: now.Sub(s.drawnAt),
		credit: s.credit, flood: s.flood, tailCost: s.tailCost,
	}
}

// Step does one piece of work. It returns how long to wait for the next: 0 for not at all, a negative
// duration for until more is fed.
func (s *Screen) Step() time.Duration {
	now := s.cfg.Now()
	s.credit = min(credit, s.credit+now.Sub(s.earnedAt)/creditShare)
	s.earnedAt = now
	if s.lost && !s.entered && len(s.buf) > 0 {
		s.enter(uint64(len(s.buf)), 0)
	}
	if s.drawn < s.tailEnd && !s.lost {
		s.draw(min(len(s.buf), chunkBytes))
		return 0
	}
	what, wait := decide(s.load(now))
	switch what {
	case drawSome:
		if s.flood {
			s.flood, s.calmAt, s.tailEnd, s.tailCost = false, now, 0, 0
			s.credit = max(s.credit, 2*behindMax/creditShare)
		}
		s.draw(min(len(s.buf), chunkBytes))
		return 0
	case drawTail:
		s.flood = true
		s.enter(tailBytes, tailFar)
		s.tailEnd, s.tailCost = s.lex.pos, 0
		return 0
	case pause:
		return wait
	}
	s.flood = false
	return s.settle(now)
}

// enter drops what cannot be drawn and starts at a place where the stream can be entered, most bytes back
// at the most, or far where lines are long.
func (s *Screen) enter(most, far uint64) {
	m, ok := s.lex.entry(s.drawn, most, far)
	if !ok {
		if s.lex.state != inText { // the rest of a sequence is no text
			s.buf, s.drawn, s.lost = s.buf[:0], s.lex.pos, true
			return
		}
		m = mark{at: s.lex.pos, modes: s.lex.modes.Modes(), top: s.lex.top, bottom: s.lex.bottom}
	}
	now := s.lex.modes.Modes() | m.modes
	if now&terminal.AltScreen == 0 && s.lex.top+s.lex.bottom+m.top+m.bottom == 0 && far > 0 {
		m = s.probe.lastLines(m, s.buf[min(uint64(len(s.buf)), m.at-s.drawn):], s.rows+1)
	}
	s.reply(m.at)
	s.buf = s.buf[min(uint64(len(s.buf)), m.at-s.drawn):]
	s.drawn, s.lost, s.entered = m.at, false, true
	if !s.broken {
		s.doubt("output was skipped", m.modes&terminal.AltScreen != 0)
	}
	s.guard(func() { s.seed(m) })
}

// reply answers the questions that begin before an offset.
func (s *Screen) reply(before uint64) {
	for len(s.queries) > 0 && s.queries[0].start < before {
		q := s.queries[0]
		s.queries = s.queries[1:]
		if s.cfg.Answer != nil {
			s.guard(func() { s.cfg.Answer(q.start, []byte(s.answer(q))) })
		}
	}
	if len(s.queries) == 0 {
		s.queries = nil
	}
}

// draw draws n bytes of the backlog, or as many as there is work for, answering questions where they stand.
func (s *Screen) draw(n int) {
	p := s.buf[:n]
	s.clean.cost = 0
	if s.cfg.Busy != nil {
		s.cfg.Busy(s.drawn, s.drawn+uint64(n))
		defer s.cfg.Busy(0, 0)
	}
	began := s.cfg.CPU()
	for len(p) > 0 && s.clean.cost < workMax {
		part := len(p)
		if len(s.queries) > 0 {
			if end := s.queries[0].end; end <= s.drawn {
				s.reply(s.queries[0].start + 1)
				continue
			} else if end < s.drawn+uint64(part) {
				part = int(end - s.drawn)
			}
		}
		at, failed := s.clean.pos, s.panics
		s.guard(func() { s.clean.write(p[:part]) })
		if s.panics > failed { // goes on behind the byte it failed at
			s.clean.pos = min(s.clean.pos+1, at+uint64(part))
		}
		part = int(s.clean.pos - at)
		s.shown.Write(p[:part])
		p = p[part:]
		s.drawn += uint64(part)
	}
	if len(s.queries) > 0 && s.queries[0].end <= s.drawn {
		s.reply(s.drawn)
	}
	s.buf = s.buf[n-len(p):]
	if len(s.buf) == 0 && cap(s.buf) > floodKeep {
		s.buf = nil
	}
	cost := s.cfg.CPU() - began
	s.credit -= cost
	if s.tailEnd > 0 {
		s.tailCost += cost
	}
	s.drawnAt = s.cfg.Now()
	s.judge()
}

// judge decides whether what was drawn since a skip covers all that was on the screen.
func (s *Screen) judge() {
	if s.unsure == "" {
		return
	}
	full := !s.skipAlt && !s.em.Alternate() && s.lex.top == 0 && s.lex.bottom == 0 &&
		s.clean.lines+s.clean.cells/s.cols > 2*s.rows
	if s.clean.cleared || full || s.clean.entered && !s.broken {
		s.unsure, s.broken, s.jiggled = "", false, time.Time{}
	}
}

// settle makes the picture sure again once the stream is quiet.
func (s *Screen) settle(now time.Time) time.Duration {
	if s.unsure == "" {
		return -1
	}
	calm := now.Sub(s.calmAt)
	switch {
	case s.ignored:
		return -1
	case !s.jiggled.IsZero():
		if left := repaintWait - now.Sub(s.jiggled); left > 0 {
			return left
		}
		if s.ignored = s.broken || s.drawn == s.asked; !s.ignored {
			s.unsure = "" // it has had the time to repaint
		}
		return -1
	case calm < calmAfter:
		return calmAfter - calm
	case s.cfg.Jiggle != nil && s.cfg.Jiggle():
		s.jiggled, s.asked = now, s.drawn
		return repaintWait
	}
	return -1
}

// Dirty says why the picture may not be what the terminal shows; empty when it is exact.
func (s *Screen) Dirty() string {
	switch now := s.cfg.Now(); {
	case s.large:
		return "the terminal is too large to be drawn"
	case s.lost:
		return "output comes faster than it can be drawn"
	case s.age(now) > behindMax:
		return fmt.Sprintf("the picture is %d bytes behind", len(s.buf))
	}
	return s.unsure
}

// ErrTooLarge says that the picture does not fit into a snapshot.
var ErrTooLarge = errors.New("screen does not fit into a snapshot")

// Offset is that of the first byte that was not drawn.
func (s *Screen) Offset() uint64 { return s.drawn }

// Flooded reports whether output comes faster than it is drawn.
func (s *Screen) Flooded() bool { return s.flood }
