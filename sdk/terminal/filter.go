package terminal

import "bytes"

const (
	// filterCSIMax bounds a CSI that is held back until its final byte is known; a longer one is
	// no program's and is dropped.
	filterCSIMax = 256
	// filterOSCMax bounds a held OSC: hyperlinks run to 2 KB, titles are short.
	filterOSCMax = 4096
)

// QueryFilter removes from a stream of terminal output what must not be replayed: every sequence
// that makes a terminal answer (a real terminal would type its answer into the agent's input), and
// what acts on the moment rather than the screen (clipboard, notifications, window operations).
// The zero value is ready; chunks may be cut anywhere. Removed are:
//
//	ENQ, ESC Z, CSI ... c, CSI n, CSI ? n, DECRQM, XTVERSION, CSI ? u, CSI ? m, CSI ? S, CSI x,
//	CSI ... t, DECRQPSR, DECRQUPSS, DECRQCRA, DECRQLP, XTREPORTSGR, XTREPORTCOLORS;
//	OSC with a "?" field, OSC 9, 52, 99, 777 and 1337; DCS other than sixel; APC, PM, SOS.
type QueryFilter struct {
	state uint8
	drop  bool // the sequence being read is dropped already
	pass  bool // inside a string that is passed as it comes (sixel)
	kind  byte // introducer of the string: ] P _ ^ X
	held  []byte
}

// Ground reports whether nothing is held back: the stream is between sequences.
func (f *QueryFilter) Ground() bool { return f.state == stGround }

// Filter appends to dst what of p may be shown and returns the extended slice. Bytes of a sequence
// that is not complete are held back until it is.
func (f *QueryFilter) Filter(dst, p []byte) []byte {
	for i := 0; i < len(p); {
		if f.state == stGround {
			j := bytes.IndexByte(p[i:], esc)
			if j < 0 {
				return appendNoENQ(dst, p[i:])
			}
			dst = appendNoENQ(dst, p[i:i+j])
			i += j + 1
			f.begin()
			continue
		}
		dst = f.byte(dst, p[i])
		i++
	}
	return dst
}

func appendNoENQ(dst, p []byte) []byte {
	for {
		j := bytes.IndexByte(p, 5)
		if j < 0 {
			return append(dst, p...)
		}
		dst = append(dst, p[:j]...)
		p = p[j+1:]
	}
}

func (f *QueryFilter) begin() {
	f.state, f.drop, f.pass, f.kind = stEsc, false, false, 0
	f.held = append(f.held[:0], esc)
}

// emit ends a sequence: what is held goes out unless the sequence is dropped.
func (f *QueryFilter) emit(dst []byte) []byte {
	if !f.drop {
		dst = append(dst, f.held...)
	}
	f.state, f.drop, f.pass, f.held = stGround, false, false, f.held[:0]
	return dst
}

func (f *QueryFilter) hold(c byte, limit int) {
	if f.drop {
		return
	}
	if len(f.held) >= limit {
		f.drop = true
		return
	}
	f.held = append(f.held, c)
}

func (f *QueryFilter) byte(dst []byte, c byte) []byte {
	switch {
	case f.state == stStr:
		return f.strByte(dst, c)
	case c == esc: // the sequence before it was cut short and does nothing
		f.begin()
		return dst
	case c == can || c == sub:
		f.drop = true
		return f.emit(dst)
	case c < 0x20: // a control inside a sequence is executed at once
		if c != 5 {
			dst = append(dst, c)
		}
		return dst
	case c >= 0x80:
		f.drop = true
		dst = f.emit(dst)
		return append(dst, c)
	case c == 0x7f:
		return dst
	}
	f.hold(c, filterCSIMax)
	switch f.state {
	case stEsc:
		switch {
		case c == '[':
			f.state = stCSI
		case c == ']' || c == 'P' || c == '_' || c == '^' || c == 'X':
			f.state, f.kind = stStr, c
			f.drop = c == '_' || c == '^' || c == 'X'
		case c < 0x30:
			f.state = stEscInt
		default:
			f.drop = f.drop || c == 'Z' || c == '\\' // a lone ST does nothing
			return f.emit(dst)
		}
	case stEscInt:
		if c >= 0x30 {
			return f.emit(dst)
		}
	case stCSI:
		if c >= 0x40 {
			f.drop = f.drop || csiAsks(f.held)
			return f.emit(dst)
		}
	}
	return dst
}

func (f *QueryFilter) strByte(dst []byte, c byte) []byte {
	switch {
	case c == bel && f.kind == ']', c == esc:
		if f.kind == ']' {
			f.drop = f.drop || oscActs(f.held[2:])
		} else if !f.pass {
			f.drop = true
		}
		if f.pass {
			f.held = f.held[:0]
		}
		if c == bel {
			f.held = append(f.held, bel)
		} else { // of the ST that follows, the backslash is dropped as a sequence of its own
			f.held = append(f.held, esc, '\\')
		}
		dst = f.emit(dst)
		if c == esc {
			f.begin()
		}
		return dst
	case c == can || c == sub:
		if f.pass { // the start is out already, so the end must be
			dst = append(dst, c)
		}
		f.drop = true
		return f.emit(dst)
	case f.pass:
		return append(dst, c)
	case f.kind == ']':
		f.hold(c, filterOSCMax)
		return dst
	}
	f.hold(c, filterCSIMax)
	if f.kind == 'P' && !f.drop && c >= 0x40 { // header of a DCS complete
		if c == 'q' && dcsParams(f.held[2:len(f.held)-1]) {
			f.pass = true
			dst = append(dst, f.held...)
			f.held = f.held[:0]
		} else {
			f.drop = true
		}
	}
	return dst
}

func dcsParams(p []byte) bool {
	for _, c := range p {
		if c != ';' && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// csiAsks says whether a complete CSI (from ESC to its final byte) makes a terminal answer or acts
// on the user's window.
func csiAsks(seq []byte) bool {
	final := seq[len(seq)-1]
	body := seq[2 : len(seq)-1]
	var prefix, inter byte
	for _, c := range body {
		switch {
		case c >= '<' && c <= '?':
			prefix = c
		case c < 0x30:
			inter = c
		}
	}
	switch final {
	case 'c', 't', 'x':
		return final != 'x' || inter == 0
	case 'n':
		return prefix != '>'
	case 'p':
		return inter == '$'
	case 'q':
		return prefix == '>'
	case 'u':
		return prefix == '?' || inter == '&' || inter == '$'
	case 'm', 'S', 'g':
		return prefix == '?' || (final == 'S' && inter == '#')
	case 'w':
		return inter == '$'
	case 'y':
		return inter == '*'
	case '|':
		return inter == '\'' || inter == '#'
	case 'R':
		return inter == '#'
	}
	return false
}

// oscActs says whether the text of an OSC asks for an answer or acts on more than the screen.
func oscActs(text []byte) bool {
	num, rest := text, []byte(nil)
	if i := bytes.IndexByte(text, ';'); i >= 0 {
		num, rest = text[:i], text[i+1:]
	}
	for len(num) > 1 && num[0] == '0' {
		num = num[1:]
	}
	switch string(num) {
	case "0", "1", "2", "8": // titles and links may hold any text, and never ask
		return false
	case "9", "52", "99", "777", "1337":
		return true
	case "21", "22": // kitty colours and pointer shapes: key=?, ?name
		return bytes.IndexByte(rest, '?') >= 0
	}
	for len(rest) > 0 {
		field := rest
		if i := bytes.IndexByte(rest, ';'); i >= 0 {
			field, rest = rest[:i], rest[i+1:]
		} else {
			rest = nil
		}
		if string(field) == "?" {
			return true
		}
	}
	return false
}
