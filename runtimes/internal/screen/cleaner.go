package screen

import (
	"bytes"
	"cmp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// cleaner stands before the emulator. It lets through what is known to draw, whole, with numbers no larger
// than the screen makes sense of, and holds what is cut in the middle. Strings are dropped but for links
// and default colours; questions are dropped, they are answered elsewhere.
type cleaner struct {
	em         emulator
	rows, cols int

	pos    uint64 // bytes read so far
	start  uint64 // where the sequence or character under way begins, counted like pos
	ran    bool   // a control was executed inside of it: read again, it would be once more
	cost   int    // of what was drawn, in cells that were touched; see workMax
	state  int
	kind   byte
	held   []byte // the sequence or character under way, from its first byte
	out    []byte
	inText bool // the last thing let through was a character: one that combines has something to join
	insert bool // IRM, which the emulator lacks

	top, bottom int // scroll region in force, from 1; 0 for none

	over bool   // the pen draws a line above, see overMark
	link string // the link in force: parameters; address

	// What happened since the last reset, to judge whether the screen is known again.
	lines, cells int
	cleared      bool
	entered      bool // the alternate screen, which is empty then
}

// reset forgets a sequence under way.
func (c *cleaner) reset() {
	c.state, c.held, c.inText = inText, c.held[:0], false
	c.lines, c.cells, c.cleared, c.entered, c.ran = 0, 0, false, false, false
	c.top, c.bottom = 0, 0
	c.over, c.link = false, ";"
}

// under is how many bytes ago the sequence or character under way began; 0 if there is none.
func (c *cleaner) under() uint64 {
	if c.state == inText && len(c.held) == 0 {
		return 0
	}
	return c.pos - c.start
}

// workMax is the work after which write returns, in cells that the emulator touches at the most. A cell
// takes it 5 to 20 ns.
const workMax = 1 << 20

// begin starts a sequence at the byte at pos.
func (c *cleaner) begin(pos uint64) {
	c.state, c.held, c.start, c.ran = inEsc, append(c.held[:0], esc), pos, false
}

// write draws p, or as much of its beginning as there is work for. pos says how much that was.
func (c *cleaner) write(p []byte) {
	base := c.pos
	for i := 0; i < len(p) && c.cost < workMax; {
		c.pos = base + uint64(i)
		switch c.state {
		case inText:
			i += c.text(p[i:])
		case inString:
			j := bytes.IndexAny(p[i:], "\x1b\x07\x18\x1a")
			if j < 0 {
				j = len(p) - i
			}
			c.hold(p[i : i+j]...)
			if i += j; i < len(p) {
				c.endString(p[i])
				i++
			}
		default:
			c.byte(p[i])
			i++
		}
		c.pos = base + uint64(i)
	}
	c.flush()
}

func (c *cleaner) hold(p ...byte) { c.held = append(c.held, p[:min(len(p), heldMax-len(c.held))]...) }

func (c *cleaner) flush() {
	if len(c.out) > 0 {
		out := c.out
		c.out = c.out[:0]
		c.em.Write(out)
	}
}

// put lets a sequence through.
func (c *cleaner) put(seq string) {
	c.inText = false
	c.out = append(c.out, seq...)
}

// text reads characters and controls up to an ESC and returns how many bytes it took.
func (c *cleaner) text(p []byte) int {
	if len(c.held) > 0 { // a character that was cut
		n := 0
		for n < len(p) && len(c.held) < utf8.UTFMax && !utf8.FullRune(c.held) && p[n]&0xc0 == 0x80 {
			c.held = append(c.held, p[n])
			n++
		}
		if n == len(p) && !utf8.FullRune(c.held) {
			return n
		}
		whole := append([]byte(nil), c.held...)
		c.held = c.held[:0]
		for len(whole) > 0 {
			whole = whole[c.char(whole):]
		}
		return n
	}
	i, base := 0, c.pos
	for i < len(p) && c.cost < workMax {
		b := p[i]
		c.pos = base + uint64(i)
		switch {
		case b >= 0x20 && b < 0x7f && !c.insert:
			j := i + 1
			for j < len(p) && p[j] >= 0x20 && p[j] < 0x7f {
				j++
			}
			c.out = append(c.out, p[i:j]...)
			c.cells += j - i
			c.cost += (j - i) * c.charCost()
			c.inText = true
			i = j
		case b == esc:
			c.begin(c.pos)
			return i + 1
		case b < 0x20 || b == 0x7f:
			c.control(b)
			i++
		case b >= 0x80 && !utf8.FullRune(p[i:]):
			c.held, c.start, c.ran = append(c.held[:0], p[i:]...), c.pos, false
			return len(p)
		default:
			i += c.char(p[i:])
		}
	}
	return i
}

// charCost is the most that one character costs: a line of them scrolls the screen once.
func (c *cleaner) charCost() int { return 8 + c.rows }

func (c *cleaner) control(b byte) {
	c.cost += 8
	c.ran = true
	switch b {
	case '\n', 0x0b, 0x0c:
		c.cost += c.rows * c.cols
		c.lines++
		fallthrough
	case '\b', '\t', '\r', 0x0e, 0x0f:
		c.out = append(c.out, b)
		c.inText = false
	}
}

// char draws the first character of p, with what combines with it, and returns its length.
func (c *cleaner) char(p []byte) int {
	r, size := utf8.DecodeRune(p)
	c.cost += 4 * c.charCost()
	if r == utf8.RuneError && size <= 1 {
		c.out = append(c.out, "\uFFFD"...)
		c.cells++
		c.inText = true
		return 1
	}
	if r >= 0x80 && r < 0xa0 { // controls that nobody sends as UTF-8 and means
		return size
	}
	n, width := size, 1
	if r >= 0x80 {
		n, width = firstCluster(p)
	}
	if n <= 0 || n > 64 { // a pile of accents is no character
		n, width = max(size, 1), min(width, 1)
	}
	for k := size; k < n; { // what follows must be whole too
		r, s := utf8.DecodeRune(p[k:n])
		if r == utf8.RuneError && s <= 1 {
			n = k
			break
		}
		k += s
	}
	switch {
	case width <= 0:
		if c.inText {
			c.out = append(c.out, p[:n]...)
		}
		return n
	case c.insert:
		c.put("\x1b[" + strconv.Itoa(width) + "@")
	}
	c.cells += width
	c.inText = true
	if width == 2 {
		c.flush()
		c.em.WriteWide(p[:n])
	} else {
		c.out = append(c.out, p[:n]...)
	}
	return n
}

// byte reads one byte of an escape or control sequence.
func (c *cleaner) byte(b byte) {
	switch {
	case b == esc:
		c.begin(c.pos)
		return
	case b == can || b == sub:
		c.end()
		return
	case b < 0x20: // executed at once, the sequence goes on
		c.control(b)
		return
	case b >= 0x80:
		c.end()
		c.text([]byte{b})
		return
	case b == 0x7f:
		return
	}
	c.hold(b)
	switch {
	case c.state == inCSI:
		if b >= 0x40 {
			whole := len(c.held) < heldMax
			q := readCSI(c.held[2:])
			c.end()
			c.cost += 64
			if whole {
				c.csi(&q)
			}
		}
	case b < 0x30:
		c.state = inEscInter
	case c.state == inEscInter:
		inter := c.held[1]
		whole := len(c.held) == 3
		c.end()
		if inter == '#' && b == '8' && whole {
			c.align()
		}
		if inter >= '(' && inter <= '+' {
			if b != '0' && b != 'A' {
				b = 'B'
			}
			c.put("\x1b" + string([]byte{inter, b}))
		}
	case b == '[':
		c.state = inCSI
	case b == ']' || b == 'P' || b == '_' || b == '^' || b == 'X':
		c.state, c.kind = inString, b
	default:
		c.end()
		c.cost += 64
		switch b {
		case 'D', 'E', 'M':
			c.cost += c.rows * c.cols
		case 'c':
			c.cost += 3 * c.rows * c.cols
		}
		switch b {
		case 'c':
			c.insert, c.cleared, c.top, c.bottom = false, true, 0, 0
			c.over, c.link = false, ";"
			c.put("\x1b[?1049l\x1b]110\x07\x1b]111\x07\x1b]112\x07\x1b]8;;\x07\x1bc")
		case 'E':
			c.lines++
			c.put("\r\x1bD")
		case 'D':
			c.lines++
			c.put("\x1bD")
		case '7', '8', 'H', 'M', 'n', 'o', '|', '}', '~':
			c.put("\x1b" + string(b))
			c.flush() // see Write
			if b == '8' {
				c.look()
			}
		}
	}
}

func (c *cleaner) end() { c.state, c.held = inText, c.held[:0] }

// endString handles the byte that ends a string, or may.
func (c *cleaner) endString(b byte) {
	if b == bel && c.kind != ']' {
		c.hold(b)
		return
	}
	p := string(c.held)
	c.end()
	if (b == esc || b == bel) && c.kind == ']' && len(p) < heldMax {
		c.osc(p[2:])
	}
	if b == esc {
		c.begin(c.pos)
	}
}

func (c *cleaner) osc(p string) {
	num, rest := p, ""
	for i := range p {
		if p[i] == ';' {
			num, rest = p[:i], p[i+1:]
			break
		}
	}
	switch num {
	case "8":
		if plain(rest) && strings.Count(rest, ";") == 1 {
			c.cost += heldMax
			c.link = rest
			c.putLink()
		}
		return
	case "10", "11", "12", "110", "111", "112":
		if rest == "?" || !plain(rest) {
			return
		}
	default:
		return
	}
	c.cost += heldMax
	c.put("\x1b]" + p + "\x07")
}

func plain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}

// csi lets a control sequence through that draws.
func (c *cleaner) csi(q *csiSeq) {
	most := 0 // largest number that makes a difference
	switch {
	case q.prefix == '?' && q.inter == 0 && (q.final == 'h' || q.final == 'l'):
		c.modes(q)
		return
	case q.prefix == 0 && q.inter == ' ' && q.final == 'q':
		if n := q.param(0, 0); n <= 6 {
			c.put("\x1b[" + strconv.Itoa(n) + " q")
		}
		return
	case q.prefix == 0 && q.inter == '!' && q.final == 'p':
		c.insert, c.top, c.bottom = false, 0, 0
		c.put("\x1b7\x1b[r\x1b8\x1b[?6l\x1b[?7h\x1b[?25h\x1b[m\x1b(B\x1b)B\x0f")
		c.setOver(false)
		return
	case q.prefix != 0 || q.inter != 0:
		return
	}
	switch q.final {
	case '@', 'P', 'X', 'C', 'D', 'a', 'I', 'Z':
		most = c.cols
	case 'L', 'M', 'S', 'A', 'B', 'E', 'F', 'e':
		most = c.rows
	case 'T':
		if q.n > 1 { // mouse tracking
			return
		}
		most = c.rows
	case 'b':
		c.repeat(q.param(0, 1))
		return
	case 'r':
		// The library takes any bottom, and indexes its lines with it when it scrolls.
		top, bottom, ok := margins(q, c.rows)
		if ok {
			c.top, c.bottom = top, bottom
			c.put("\x1b[" + strconv.Itoa(max(top, 1)) + ";" + strconv.Itoa(cmp.Or(bottom, c.rows)) + "r")
		}
		return
	case 'G', '`', 'd', 'H', 'f':
		most = max(c.rows, c.cols)
	case 'J':
		switch q.param(0, 0) {
		case 2:
			c.cleared = true
		case 3: // the scrollback alone
			return
		}
		most = 3
	case 'K', 'g':
		most = 3
	case 'h', 'l':
		for i := range q.n {
			switch q.params[i] {
			case 4:
				c.insert = q.final == 'h'
			case 20:
				c.put("\x1b[20" + string(q.final))
			}
		}
		return
	case 'm':
		c.style(q)
		return
	case 's':
		if q.n == 0 {
			c.put("\x1b7")
		}
		return
	case 'u':
		if q.n == 0 {
			c.put("\x1b8")
			c.flush()
			c.look()
		}
		return
	default:
		return
	}
	switch q.final {
	case 'L', 'M', 'S', 'T', 'J':
		c.cost += c.rows * c.cols
	case '@', 'P', 'X', 'K', 'I', 'Z':
		c.cost += c.cols
	}
	c.inText = false
	c.out = append(c.out, esc, '[')
	for i := range q.n {
		if i > 0 {
			sep := byte(';')
			if q.sub[i] {
				sep = ':'
			}
			c.out = append(c.out, sep)
		}
		if q.params[i] >= 0 {
			c.out = strconv.AppendInt(c.out, int64(min(q.params[i], most)), 10)
		}
	}
	c.out = append(c.out, q.final)
	switch q.final {
	case 'L', 'M', 'S', 'T', 'Z', 'g':
		c.flush()
	}
}

// align is DECALN: the screen full of E, in no colours, and no scroll region.
func (c *cleaner) align() {
	c.put("\x1b[r\x1b[H")
	c.flush()
	c.em.Fill("E")
	c.cleared, c.top, c.bottom = true, 0, 0
	c.cost += c.rows * c.cols
}

// repeat draws the last character again, to the end of the line at the most.
func (c *cleaner) repeat(n int) {
	c.flush()
	_, col, wraps := c.em.Cursor()
	if n = min(n, c.cols-col); wraps || n <= 0 {
		return
	}
	c.cells += n
	c.cost += n * c.charCost()
	if c.insert {
		c.put("\x1b[" + strconv.Itoa(n) + "@")
	}
	c.put("\x1b[" + strconv.Itoa(n) + "b")
}

// modes passes on the private modes that change what is drawn.
func (c *cleaner) modes(q *csiSeq) {
	for i := range q.n {
		n := q.params[i]
		switch n {
		case 47:
			n = 1047
		case 6, 7, 25, 1047, 1048, 1049:
		default:
			continue
		}
		if q.final == 'h' && n >= 1047 && n != 1048 {
			if c.flush(); !c.em.Alternate() {
				c.entered = true
				c.cost += c.rows * c.cols
			}
		}
		switch on := q.final == 'h'; {
		case n == 1047:
			c.flush()
			c.em.Switch(on)
		case n == 1049 && on:
			c.put("\x1b7")
			c.flush()
			c.em.Switch(on)
		default:
			c.put("\x1b[?" + strconv.Itoa(n) + string(q.final))
		}
		if n == 6 { // moves the cursor home, which the library forgets
			c.put("\x1b[H")
		}
		c.flush()
		if n >= 1047 {
			c.look()
		}
	}
}
