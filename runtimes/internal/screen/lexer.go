package screen

import (
	"bytes"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

const (
	esc = 0x1b
	bel = 0x07
	can = 0x18
	sub = 0x1a
)

// Places in a stream of terminal output, for lexer and cleaner.
const (
	inText = iota
	inEsc
	inEscInter
	inCSI
	inString
)

// heldMax is the longest sequence that is looked at; no query is longer, and no sequence that draws.
const heldMax = 512

// markEvery is the least distance of two places where a stream may be entered.
const markEvery = 1 << 10

// mark is a place between two sequences and two characters, where parsing may begin.
type mark struct {
	at          uint64
	line        bool // just behind a newline
	full        bool // what follows fills the screen, whatever was on it
	modes       terminal.Modes
	top, bottom int // scroll region as the program numbered it, 0 for none
}

// query is a question to the terminal.
type query struct {
	start, end uint64
	kind       queryKind
	n          int    // mode or colour asked for
	text       string // what else its answer needs
	modes      terminal.Modes
}

// lexer reads the whole stream, in a flood too, and keeps what nobody may miss: modes, scroll region,
// questions, and places where the stream can be entered. It costs a fraction of drawing.
type lexer struct {
	pos   uint64 // offset behind the last byte read
	state int
	start uint64 // offset of the ESC of the sequence under way
	kind  byte   // introducer of the string under way
	held  []byte // the sequence so far; heldMax bytes stand for too long a one

	modes       terminal.ModeScanner
	rows        int // of the terminal
	top, bottom int
	marks       []mark // a ring of the newest; none are kept if it has no room
	nmarks      int
	ask         func(query)
}

// write reads p, which follows what was written before.
func (l *lexer) write(p []byte) {
	base := l.pos
	for i := 0; i < len(p); {
		switch l.state {
		case inText:
			j := bytes.IndexByte(p[i:], esc)
			if j < 0 {
				j = len(p) - i
			}
			l.pos = base + uint64(i)
			l.text(p[i : i+j])
			if i += j; i < len(p) {
				l.begin(base + uint64(i))
				i++
			}
		case inString:
			j := bytes.IndexAny(p[i:], "\x1b\x07\x18\x1a")
			if j < 0 {
				j = len(p) - i
			}
			l.hold(p[i : i+j])
			if i += j; i < len(p) {
				l.pos = base + uint64(i) + 1
				l.endString(p[i], base+uint64(i))
				i++
			}
		default:
			l.pos = base + uint64(i) + 1
			l.byte(p[i])
			i++
		}
	}
	l.pos = base + uint64(len(p))
}

func (l *lexer) begin(at uint64) {
	l.state, l.start, l.held = inEsc, at, l.held[:0]
}

func (l *lexer) hold(p []byte) {
	l.held = append(l.held, p[:min(len(p), heldMax-len(l.held))]...)
}

// text looks for places to enter, in as much of p as a tail may be long. l.pos is the offset of p.
func (l *lexer) text(p []byte) {
	if len(l.marks) == 0 {
		return
	}
	for i := max(0, len(p)-tailFar-markEvery); i < len(p); i++ {
		if l.nmarks > 0 && l.pos+uint64(i) < l.last().at+markEvery {
			if i = int(l.last().at + markEvery - l.pos); i >= len(p) {
				return
			}
		}
		j := bytes.IndexByte(p[i:min(len(p), i+markEvery)], '\n')
		if i += j + 1; j < 0 { // i is where it was
			for n := 0; n < utf8.UTFMax && i < len(p) && !utf8.RuneStart(p[i]); n++ {
				i++
			}
			if i == len(p) {
				return
			}
		}
		l.marks[l.nmarks%len(l.marks)] = mark{at: l.pos + uint64(i), line: j >= 0, modes: l.modes.Modes(), top: l.top, bottom: l.bottom}
		l.nmarks++
	}
}

func (l *lexer) last() *mark { return &l.marks[(l.nmarks-1)%len(l.marks)] }

// entry finds where to enter the stream: the first newline that is at most most bytes back, or at most
// far bytes where lines are that long, else any place between two characters.
func (l *lexer) entry(first uint64, most, far uint64) (mark, bool) {
	floor := func(back uint64) uint64 { return max(first, l.pos-min(l.pos, back)) }
	var any *mark
	for _, limit := range [...]uint64{floor(most), floor(far)} {
		for i := max(0, l.nmarks-len(l.marks)); i < l.nmarks; i++ {
			m := &l.marks[i%len(l.marks)]
			if m.at < limit {
				continue
			}
			if m.line {
				return *m, true
			}
			if any == nil {
				any = m
			}
		}
	}
	if any != nil {
		return *any, true
	}
	return mark{}, false
}

// lastLines moves m forward to where the last n lines of p begin; m is where p begins. A flood of short
// lines scrolls the same screen away many times over, and scrolling is what is dear.
func (l *lexer) lastLines(m mark, p []byte, n int) mark {
	*l = lexer{pos: m.at, rows: n - 1, top: m.top, bottom: m.bottom, held: l.held[:0]}
	l.modes.Write(terminal.Apply(m.modes))
	ring, found := make([]mark, n), 0
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n') + 1
		if i == 0 {
			break
		}
		l.write(p[:i])
		p = p[i:]
		if l.state == inText {
			ring[found%n] = mark{at: l.pos, line: true, modes: l.modes.Modes(), top: l.top, bottom: l.bottom}
			found++
		}
	}
	if found < n {
		return m
	}
	m = ring[found%n]
	m.full = true
	return m
}

// byte reads one byte of an escape or control sequence.
func (l *lexer) byte(c byte) {
	switch {
	case c == esc:
		l.begin(l.pos - 1)
		return
	case c == can || c == sub || c >= 0x80:
		l.state = inText
		return
	case c < 0x20 || c == 0x7f:
		return
	}
	if len(l.held) < heldMax {
		l.held = append(l.held, c)
	}
	switch {
	case l.state == inCSI:
		if c >= 0x40 {
			l.state = inText
			l.csi()
		}
	case c < 0x30:
		l.state = inEscInter
	case l.state == inEscInter:
		l.state = inText
		if string(l.held) == "#8" {
			l.top, l.bottom = 0, 0
		}
	case c == '[':
		l.state = inCSI
	case c == ']' || c == 'P' || c == '_' || c == '^' || c == 'X':
		l.state, l.kind = inString, c
	default:
		l.state = inText
		switch c {
		case '=', '>', 'c':
			l.tell()
			if c == 'c' {
				l.top, l.bottom = 0, 0
			}
		case 'Z':
			l.found(query{kind: askDA1})
		}
	}
}

// tell lets the mode scanner see the sequence that is held.
func (l *lexer) tell() {
	l.modes.Write([]byte{esc})
	l.modes.Write(l.held)
}

func (l *lexer) csi() {
	final := l.held[len(l.held)-1]
	switch final {
	case 'm':
		if len(l.held) > 1 && l.held[1] != '>' {
			return
		}
	case 'h', 'l', 'r', 'q', 'n', 'p', 'u', 'c', 't':
	default:
		return
	}
	if len(l.held) >= heldMax {
		return
	}
	l.tell()
	q := readCSI(l.held[1:])
	switch {
	case final == 'r' && q.prefix == 0 && q.inter == 0:
		if top, bottom, ok := margins(&q, l.rows); ok {
			l.top, l.bottom = top, bottom
		}
	case final == 'p' && q.inter == '!':
		l.top, l.bottom = 0, 0
	default:
		if ask, ok := csiQuery(q); ok {
			l.found(ask)
		}
	}
}

// endString handles the byte that ends a string, or may.
func (l *lexer) endString(c byte, at uint64) {
	switch {
	case c == bel && l.kind != ']':
		l.hold([]byte{c})
		return
	case c == can || c == sub:
		l.state = inText
		return
	}
	l.state = inText
	if len(l.held) < heldMax {
		if ask, ok := stringQuery(l.kind, l.held[1:], c == bel); ok {
			l.found(ask)
		}
	}
	if c == esc {
		l.begin(at)
	}
}

func (l *lexer) found(q query) {
	q.start, q.end, q.modes = l.start, l.pos, l.modes.Modes()
	if l.ask != nil {
		l.ask(q)
	}
}

// csiSeq is a control sequence in parts.
type csiSeq struct {
	prefix, inter, final byte
	params               [32]int // -1 where nothing stood
	sub                  [32]bool
	n                    int
}

func (q *csiSeq) param(i, def int) int {
	if i < q.n && q.params[i] > 0 {
		return q.params[i]
	}
	return def
}

// margins reads DECSTBM on a terminal of so many rows: first and last row from 1, both 0 for all of them.
// ok is false for a region that no terminal takes.
func margins(q *csiSeq, rows int) (top, bottom int, ok bool) {
	top, bottom = q.param(0, 1), min(q.param(1, rows), rows)
	switch {
	case top == 1 && bottom == rows:
		return 0, 0, true
	case top >= bottom:
		return 0, 0, false
	}
	return top, bottom, true
}

const paramMax = 65535

// readCSI splits a control sequence, from behind the [ to its final byte. Numbers are cut to 65535 and
// parameters to 32.
func readCSI(p []byte) csiSeq {
	var q csiSeq
	q.params[0] = -1
	for _, c := range p {
		switch {
		case c >= '0' && c <= '9':
			if q.n < len(q.params) {
				q.params[q.n] = min(max(q.params[q.n], 0)*10+int(c-'0'), paramMax)
			}
		case c == ';' || c == ':':
			if q.n < len(q.params) {
				q.n++
			}
			if q.n < len(q.params) {
				q.params[q.n], q.sub[q.n] = -1, c == ':'
			}
		case c >= '<' && c <= '?':
			q.prefix = c
		case c < 0x30:
			q.inter = c
		default:
			q.final = c
		}
	}
	if q.n < len(q.params) && (q.n > 0 || q.params[0] >= 0) {
		q.n++
	}
	return q
}
