package terminal

import "bytes"

// Parser states shared by the scanner, the filter and the escaper. ESC starts a new sequence in
// every one of them, as in a real terminal; CAN and SUB end a sequence.
const (
	stGround = iota
	stEsc    // after ESC
	stEscInt // after ESC and an intermediate byte
	stCSI
	stStr // inside OSC, DCS, APC, PM or SOS
)

const (
	esc = 0x1b
	bs  = 0x08
	bel = 0x07
	can = 0x18
	sub = 0x1a

	maxParam = 65535
)

// ModeScanner follows the modes that a stream of terminal output switches. The zero value is ready.
// Write may be called with chunks cut anywhere; the result depends on the concatenation alone. It
// holds no more than a few bytes of state, whatever it is fed, and never fails.
type ModeScanner struct {
	modes Modes // the single bits; kitty is kept apart

	state  uint8
	osc    bool // the string may also end with BEL
	prefix byte // private marker of a CSI: one of < = > ? or 0
	inter  byte // last intermediate byte
	np     uint8
	cur    uint32 // parameter being read
	p      [2]uint32
	mask   Modes // modes named by the parameters so far, for ? h and ? l

	kitty [2]kittyStack // main screen, alternate screen
}

// kittyStack is one screen's keyboard stack. The terminal's own limit is of this size too.
type kittyStack struct {
	cur, n uint8
	old    [7]uint8
}

// Modes returns the modes in force after everything written so far.
func (s *ModeScanner) Modes() Modes {
	return s.modes | s.kitty[s.screen()].modes()
}

func (k *kittyStack) modes() Modes {
	if k.cur == 0 && k.n == 0 {
		return 0
	}
	return KittyKeys | Modes(k.cur)<<kittyFlagShift | Modes(k.n)<<kittyDepthSh
}

func (s *ModeScanner) screen() int {
	if s.modes&AltScreen != 0 {
		return 1
	}
	return 0
}

// Ground reports whether the stream is between sequences.
func (s *ModeScanner) Ground() bool { return s.state == stGround }

// Write scans p.
func (s *ModeScanner) Write(p []byte) {
	for i := 0; i < len(p); {
		switch s.state {
		case stGround:
			j := bytes.IndexByte(p[i:], esc)
			if j < 0 {
				return
			}
			i += j + 1
			s.state = stEsc
		case stCSI:
			i += s.csi(p[i:])
		case stStr:
			i += s.str(p[i:])
		default:
			s.escape(p[i])
			i++
		}
	}
}

// csi reads parameters up to and including the final byte and returns how much it took.
func (s *ModeScanner) csi(p []byte) int {
	cur := s.cur
	for i, c := range p {
		switch {
		case c-'0' <= 9:
			if cur = cur*10 + uint32(c-'0'); cur > maxParam {
				cur = maxParam
			}
		case c == ';' || c == ':':
			s.cur = cur
			s.param()
			cur = 0
		case c >= 0x40 && c < 0x7f:
			s.cur = cur
			s.param()
			s.state = stGround
			if c != 'm' || s.prefix != 0 { // colours are most of what there is
				s.final(c)
			}
			return i + 1
		case c >= '<' && c <= '?':
			s.prefix = c
		case c >= 0x20 && c < 0x30:
			s.inter = c
		case c == esc:
			s.state, s.cur = stEsc, 0
			return i + 1
		case c == can, c == sub, c >= 0x80:
			s.state, s.cur = stGround, 0
			return i + 1
		}
	}
	s.cur = cur
	return len(p)
}

func (s *ModeScanner) param() {
	if s.np < 2 {
		s.p[s.np] = s.cur
		s.np++
	}
	if s.prefix == '?' {
		s.mask |= privateMode(s.cur)
	}
	s.cur = 0
}

func (s *ModeScanner) str(p []byte) int {
	for i, c := range p {
		switch c {
		case esc:
			s.state = stEsc
			return i + 1
		case can, sub:
			s.state = stGround
			return i + 1
		case bel:
			if s.osc {
				s.state = stGround
				return i + 1
			}
		}
	}
	return len(p)
}

func (s *ModeScanner) escape(c byte) {
	switch {
	case c == esc:
		s.state = stEsc
		return
	case c == can, c == sub, c >= 0x80:
		s.state = stGround
		return
	case c < 0x20, c == 0x7f: // a control inside a sequence is executed, the sequence goes on
		return
	case c < 0x30:
		s.state = stEscInt
		return
	case s.state == stEscInt: // a final byte after an intermediate: a character set and the like
		s.state = stGround
		return
	}
	s.state = stGround
	switch c {
	case '[':
		s.state = stCSI
		s.prefix, s.inter, s.np, s.cur, s.p, s.mask = 0, 0, 0, 0, [2]uint32{}, 0
	case ']', 'P', '_', '^', 'X':
		s.state = stStr
		s.osc = c == ']'
	case '=':
		s.modes |= AppKeypad
	case '>':
		s.modes &^= AppKeypad
	case 'c': // RIS
		s.modes = 0
		s.kitty = [2]kittyStack{}
	}
}

// privateMode maps the number of a DEC private mode to its bit. Bits that are stored inverted
// (a hidden cursor is "25 off") are handled by set.
func privateMode(n uint32) Modes {
	switch n {
	case 1:
		return AppCursor
	case 5:
		return ReverseVideo
	case 6:
		return OriginMode
	case 7:
		return NoAutowrap
	case 25:
		return CursorHidden
	case 66:
		return AppKeypad
	case 47, 1047, 1049:
		return AltScreen
	case 1000:
		return Mouse1000
	case 1002:
		return Mouse1002
	case 1003:
		return Mouse1003
	case 1004:
		return FocusEvents
	case 1005:
		return MouseUTF8
	case 1006:
		return MouseSGR
	case 1015:
		return MouseURXVT
	case 1016:
		return MousePixels
	case 2004:
		return BracketedPaste
	case 2026:
		return SyncOutput
	case 2031:
		return ColorReports
	case 2048:
		return ResizeReports
	}
	return 0
}

const inverted = CursorHidden | NoAutowrap

func (s *ModeScanner) set(mask Modes, on bool) {
	up, down := mask&^inverted, mask&inverted
	if !on {
		up, down = down, up
	}
	s.modes = s.modes&^down | up
}

func (s *ModeScanner) final(c byte) {
	switch c {
	case 'h', 'l':
		switch {
		case s.inter != 0:
		case s.prefix == '?':
			s.set(s.mask, c == 'h')
		case s.prefix == 0 && (s.p[0] == 4 || s.p[1] == 4):
			s.flag(InsertMode, c == 'h')
		}
	case 'r':
		if s.prefix == 0 && s.inter == 0 {
			s.flag(ScrollRegion, s.p[0] > 1 || s.p[1] > 0)
		}
	case 'q':
		if s.prefix == 0 && s.inter == ' ' {
			s.flag(CursorShape, s.p[0] > 0)
		}
	case 'm', 'n':
		if s.prefix == '>' && s.inter == 0 && (s.np == 0 || s.p[0] == 4 || s.p[0] == 0) {
			s.flag(ModifyOtherKeys, c == 'm' && s.p[0] == 4 && s.p[1] > 0)
		}
	case 'p':
		if s.prefix == 0 && s.inter == '!' { // DECSTR
			s.modes &^= CursorHidden | AppCursor | AppKeypad | NoAutowrap | OriginMode | InsertMode | ScrollRegion
		}
	case 'u':
		if s.inter == 0 {
			s.kitty[s.screen()].apply(s.prefix, s.p, s.np)
		}
	}
}

func (s *ModeScanner) flag(m Modes, on bool) {
	if on {
		s.modes |= m
	} else {
		s.modes &^= m
	}
}

func (k *kittyStack) apply(prefix byte, p [2]uint32, np uint8) {
	flags := uint8(p[0] & 31)
	switch prefix {
	case '>':
		if int(k.n) == len(k.old) { // full: the oldest entry is lost
			copy(k.old[:], k.old[1:])
			k.n--
		}
		k.old[k.n] = k.cur
		k.n++
		k.cur = flags
	case '<':
		n := p[0]
		if n == 0 {
			n = 1
		}
		for ; n > 0 && k.n > 0; n-- {
			k.n--
			k.cur = k.old[k.n]
		}
		if n > 0 {
			k.cur = 0
		}
	case '=':
		switch {
		case np < 2 || p[1] <= 1:
			k.cur = flags
		case p[1] == 2:
			k.cur |= flags
		case p[1] == 3:
			k.cur &^= flags
		}
	}
}
