package main

import (
	"bytes"
	"unicode/utf8"
)

// clipboardFilter takes out of a stream of terminal output what acts on the user's clipboard (OSC 52, kitty's
// 5522, iTerm2's copy, tmux's way round), and passes everything else on as it comes. Terminals differ in what
// they forgive within a sequence, so nothing malformed passes: a command has its number as a program writes it,
// or it is dropped, and the filter's own output is what every terminal reads alike. A dropped string leaves a
// string terminator in its place: what stood before it and what comes after never become one sequence. A stream
// may be cut anywhere; the beginning of a string is held back until it is known which one it is. The zero value
// is ready.
type clipboardFilter struct {
	state clipState
	held  []byte // of a string that is not decided yet, from its introducer on
	body  int    // where in held the text of the string begins
	part  []byte // of a character of several bytes
}

type clipState uint8

const (
	clipGround clipState = iota
	clipEscape           // after ESC, which is not passed yet
	clipHeld             // within a string that is held back
	clipPass             // within a string that is passed
	clipDrop             // within a string that is dropped
)

// stringEnd ends any string and does nothing elsewhere.
const stringEnd = "\x1b\\"

// heldMax bounds what is held back: longer than any beginning that is not decided.
const heldMax = 64

// Filter appends to dst what of p is shown and returns the extended slice.
func (f *clipboardFilter) Filter(dst, p []byte) []byte {
	for len(p) > 0 {
		if f.state == clipGround && len(f.part) == 0 {
			n := 0
			for n < len(p) && p[n] < utf8.RuneSelf && p[n] != 0x1b {
				n++
			}
			dst = append(dst, p[:n]...)
			if p = p[n:]; len(p) == 0 {
				break
			}
		}
		if len(f.part) == 0 && p[0] < utf8.RuneSelf {
			dst = f.unit(dst, p[:1])
			p = p[1:]
			continue
		}
		f.part, p = append(f.part, p[0]), p[1:]
		for len(f.part) > 0 && utf8.FullRune(f.part) {
			_, n := utf8.DecodeRune(f.part)
			var u [utf8.UTFMax]byte
			copy(u[:], f.part[:n])
			f.part = f.part[:copy(f.part, f.part[n:])]
			dst = f.unit(dst, u[:n])
		}
	}
	return dst
}

// unit takes one character, or a byte that is none.
func (f *clipboardFilter) unit(dst, u []byte) []byte {
	c := u[0]
	switch {
	case len(u) == 2 && c == 0xc2 && u[1] < 0xa0: // a control character of 8 bits in UTF-8
		c = u[1]
	case len(u) > 1:
		c = 0xff // no control
	}
	switch {
	case c == 0x9d || c == 0x90:
		esc := f.state == clipEscape
		dst = f.over(dst)
		if esc {
			dst = append(dst, stringEnd...)
		}
		return f.open(dst, u)
	case c == 0x1b:
		dst = f.over(dst)
		f.state = clipEscape
		return dst
	}
	ends := c == 0x07 || c == 0x18 || c == 0x1a || c == 0x9c
	switch f.state {
	case clipEscape:
		switch {
		case c == ']' || c == 'P':
			return f.open(dst, []byte{0x1b, c})
		case c == 0x18 || c == 0x1a || c >= 0x20 && c < 0x7f:
			f.state = clipGround
			dst = append(dst, 0x1b)
		case c == 0x7f:
			return dst
		}
		return append(dst, u...) // a control has its effect within a sequence, and does not end it
	case clipHeld:
		if ends {
			dst = f.over(dst)
			if f.state == clipDrop {
				f.state = clipGround
				return dst
			}
			f.state = clipGround
			if c == 0x9c { // not every terminal takes that for an end
				return append(dst, stringEnd...)
			}
			return append(dst, u...)
		}
		f.held = append(f.held, u...)
		return f.settle(dst, f.verdict(false))
	case clipDrop:
		if ends {
			f.state = clipGround
		}
		return dst
	case clipPass:
		if ends {
			f.state = clipGround
		}
	}
	return append(dst, u...)
}

// open begins a string, which is held back.
func (f *clipboardFilter) open(dst, introducer []byte) []byte {
	f.held = append(f.held[:0], introducer...)
	f.body, f.state = len(f.held), clipHeld
	return dst
}

// over decides about a string that is held back and has come to its end.
func (f *clipboardFilter) over(dst []byte) []byte {
	if f.state != clipHeld {
		return dst
	}
	return f.settle(dst, f.verdict(true))
}

func (f *clipboardFilter) settle(dst []byte, to clipState) []byte {
	if to == clipHeld && len(f.held) > heldMax {
		to = clipDrop
	}
	switch f.state = to; to {
	case clipPass:
		return append(dst, f.held...)
	case clipDrop:
		return append(dst, stringEnd...)
	}
	return dst
}

// verdict says what becomes of the string that is held: clipHeld while that is open, which it is not at its end.
func (f *clipboardFilter) verdict(end bool) clipState {
	text := f.held[f.body:]
	v := commandVerdict
	if k := f.held[f.body-1]; k == 'P' || k == 0x90 {
		v = deviceVerdict
	}
	return v(text, end)
}

// commandVerdict decides about the text of an operating system command.
func commandVerdict(text []byte, end bool) clipState {
	digits, number := 0, 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		number = number*10 + int(text[digits]-'0')
		if digits++; digits > 5 {
			return clipDrop
		}
	}
	if digits > 1 && text[0] == '0' {
		return clipDrop
	}
	switch {
	case digits == 0 && len(text) == 0:
		return openUnless(end)
	case digits == 0 && (text[0]|0x20 >= 'a' && text[0]|0x20 <= 'z'): // a console's own, without a number
		return clipPass
	case digits == 0:
		return clipDrop
	case digits == len(text) && !end:
		return clipHeld
	case number%65536 == 52 || number%65536 == 5522:
		return clipDrop
	case digits == len(text):
		return clipPass
	case text[digits] != ';':
		return clipDrop
	case number != 1337 && number != 50:
		return clipPass
	}
	key := text[digits+1:]
	for _, s := range []string{"copy", "endcopy"} {
		switch n := min(len(key), len(s)); {
		case !bytes.EqualFold(key[:n], []byte(s[:n])):
		case n == len(s):
			return clipDrop
		default:
			return openUnless(end)
		}
	}
	if c := key[len(key)-1]; c < 0x20 || c >= 0x7f {
		return clipDrop
	}
	return clipPass
}

// deviceVerdict decides about the text of a device control string: tmux passes one that begins with its name on
// to the terminal that it runs in itself.
func deviceVerdict(text []byte, end bool) clipState {
	const tmux = "tmux;"
	rest := bytes.TrimLeft(text, "0123456789;:")
	switch n := min(len(rest), len(tmux)); {
	case len(rest) > 0 && (rest[len(rest)-1] < 0x20 || rest[len(rest)-1] >= 0x7f):
		return clipDrop
	case string(rest[:n]) != tmux[:n], end:
		return clipPass
	case n == len(tmux):
		return clipDrop
	}
	return clipHeld
}

func openUnless(end bool) clipState {
	if end {
		return clipDrop
	}
	return clipHeld
}
