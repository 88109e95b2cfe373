package terminal

import "unicode/utf8"

// escaperStrMax is how much of an unterminated OSC or DCS is swallowed before text is shown again,
// so that no program can hide its output from a log by opening a string and never closing it.
const escaperStrMax = 4096

// Escaper turns terminal output into text that is safe to print anywhere. Printable UTF-8, newline
// and tab stay; escape sequences are dropped; a carriage return starts a new line; every other
// control, every byte that is not UTF-8 and every character that reorders text is shown as \xNN or
// \uNNNN; more than three backspaces in a row, which is how a shell moves its cursor, are shown as
// \x08*N. The zero value is ready; chunks may be cut anywhere. Call Flush at the end.
type Escaper struct {
	strip bool // controls are dropped, not shown
	state uint8
	cr    bool // a carriage return whose effect is not decided
	mid   bool // something stands on the current line
	back  int  // backspaces not shown yet
	n     int  // length of the string being swallowed
	nrune uint8
	rune  [utf8.UTFMax]byte // an incomplete character
}

// AppendEscaped appends p to dst as text that is safe to print (see Escaper).
func AppendEscaped(dst, p []byte) []byte {
	var e Escaper
	return e.Flush(e.Append(dst, p))
}

// Append appends the safe form of p to dst.
func (e *Escaper) Append(dst, p []byte) []byte {
	for _, c := range p {
		dst = e.byte(dst, c)
	}
	return dst
}

// Flush appends what is still held: an incomplete character, an undecided carriage return.
func (e *Escaper) Flush(dst []byte) []byte {
	dst = e.badRune(e.backspaces(dst))
	e.state, e.cr = stGround, false
	return dst
}

func (e *Escaper) badRune(dst []byte) []byte {
	if !e.strip {
		for _, c := range e.rune[:e.nrune] {
			dst = appendHex(dst, c)
		}
	}
	e.nrune = 0
	return dst
}

// maxBack is how many backspaces in a row are shown one by one.
const maxBack = 3

// backspaces shows the run of backspaces that has ended.
func (e *Escaper) backspaces(dst []byte) []byte {
	n := e.back
	e.back = 0
	switch {
	case n == 0 || e.strip:
		return dst
	case n > maxBack:
		return appendInt(append(appendHex(dst, bs), '*'), n)
	}
	for range n {
		dst = appendHex(dst, bs)
	}
	return dst
}

func (e *Escaper) byte(dst []byte, c byte) []byte {
	switch e.state {
	case stGround:
		return e.ground(dst, c)
	case stStr:
		e.n++
		switch {
		case c == esc:
			e.state = stEsc
		case c == '\n': // no string spans lines here: what follows is shown
			e.state = stGround
			return e.ground(dst, c)
		case c == bel, c == can, c == sub, e.n > escaperStrMax:
			e.state = stGround
		}
		return dst
	}
	switch { // inside ESC or CSI
	case c == esc:
		e.state = stEsc
	case c == can, c == sub:
		e.state = stGround
	case c < 0x20:
		return e.ground(dst, c)
	case c >= 0x80:
		e.state = stGround
		return e.ground(dst, c)
	case e.state == stEsc && c == '[':
		e.state, e.n = stCSI, 0
	case e.state == stEsc && (c == ']' || c == 'P' || c == '_' || c == '^' || c == 'X'):
		e.state, e.n = stStr, 0
	case e.state != stCSI && c < 0x30:
		e.state = stEscInt
	case e.state != stCSI && c < 0x7f:
		e.state = stGround
	case e.state == stCSI:
		if e.n++; c >= 0x40 && c < 0x7f || e.n > escaperStrMax {
			e.state = stGround
		}
	}
	return dst
}

func (e *Escaper) ground(dst []byte, c byte) []byte {
	if e.nrune > 0 {
		if c&0xc0 == 0x80 {
			e.rune[e.nrune] = c
			e.nrune++
			if utf8.FullRune(e.rune[:e.nrune]) {
				dst = e.full(dst)
			}
			return dst
		}
		dst = e.badRune(dst)
	}
	if e.back > 0 && c != bs && c != esc {
		dst = e.backspaces(dst)
	}
	switch {
	case c == '\r':
		e.cr = true
		return dst
	case c == '\n':
		e.cr, e.mid = false, false
		return append(dst, '\n')
	case c == esc:
		e.state = stEsc
		return dst
	}
	if e.cr {
		e.cr = false
		if e.mid {
			dst = append(dst, '\n')
		}
	}
	e.mid = true
	switch {
	case c == bs:
		e.back++
		return dst
	case c == '\t' || c >= 0x20 && c < 0x7f:
		return append(dst, c)
	case c < 0x80:
		if e.strip {
			return dst
		}
		return appendHex(dst, c)
	}
	e.rune[0], e.nrune = c, 1
	if utf8.FullRune(e.rune[:1]) { // cannot start a character
		dst = e.badRune(dst)
	}
	return dst
}

// full ends the character held in e.rune, which is complete or proven not to be one.
func (e *Escaper) full(dst []byte) []byte {
	b := e.rune[:e.nrune]
	r, size := utf8.DecodeRune(b)
	if r == utf8.RuneError && size <= 1 {
		return e.badRune(dst)
	}
	e.nrune = 0
	if hidden(r) {
		if e.strip {
			return dst
		}
		return appendU(dst, r)
	}
	return append(dst, b...)
}

// hidden says whether a character is a C1 control, changes the order of the text around it, or is
// one of the invisible ones used to disguise text.
func hidden(r rune) bool {
	switch {
	case r >= 0x80 && r < 0xa0,
		r == 0x061c, r == 0x200e, r == 0x200f,
		r >= 0x202a && r <= 0x202e,
		r >= 0x2066 && r <= 0x206f,
		r == 0x2028, r == 0x2029, r == 0xfeff,
		r >= 0xfff9 && r <= 0xfffb,
		r >= 0xe0000 && r <= 0xe007f:
		return true
	}
	return false
}

const hexDigits = "0123456789abcdef"

func appendHex(dst []byte, c byte) []byte {
	return append(dst, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
}

func appendInt(dst []byte, n int) []byte {
	if n >= 10 {
		dst = appendInt(dst, n/10)
	}
	return append(dst, '0'+byte(n%10))
}

func appendU(dst []byte, r rune) []byte {
	if r > 0xffff {
		dst = append(dst, '\\', 'U', '0', '0', hexDigits[r>>20&15], hexDigits[r>>16&15])
	} else {
		dst = append(dst, '\\', 'u')
	}
	return append(dst, hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// lastLineWindow is how much of the end of the output LastLine looks at.
const lastLineWindow = 16 << 10

// LastLine returns the last line of p that is not blank, without sequences, controls and surrounding
// blanks, cut to max characters. It looks at the last 16 KiB only.
func LastLine(p []byte, max int) string {
	if len(p) > lastLineWindow {
		p = p[len(p)-lastLineWindow:]
		for len(p) > 0 && p[0]&0xc0 == 0x80 { // a character cut in the middle
			p = p[1:]
		}
	}
	e := Escaper{strip: true}
	text := e.Flush(e.Append(make([]byte, 0, len(p)), p))
	for end := len(text); end > 0; {
		start := end
		for start > 0 && text[start-1] != '\n' {
			start--
		}
		if line := trimBlank(text[start:end]); len(line) > 0 {
			return cutRunes(line, max)
		}
		end = start - 1
	}
	return ""
}

func trimBlank(p []byte) []byte {
	for len(p) > 0 && (p[0] == ' ' || p[0] == '\t') {
		p = p[1:]
	}
	for len(p) > 0 && (p[len(p)-1] == ' ' || p[len(p)-1] == '\t') {
		p = p[:len(p)-1]
	}
	return p
}

func cutRunes(p []byte, max int) string {
	n := 0
	for i := range string(p) {
		if n == max {
			return string(p[:i])
		}
		n++
	}
	return string(p)
}
