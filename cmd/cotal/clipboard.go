package main

import "bytes"

// clipboardStrings are the beginnings of operating system commands that read or write the clipboard of the
// terminal they are shown on: OSC 52, kitty's 5522, iTerm2's copy.
var clipboardStrings = []string{"52;", "5522;", "1337;Copy", "1337;EndCopy"}

// clipboardFilter takes out of a stream of terminal output what acts on the user's clipboard, and passes
// everything else on as it comes. A stream may be cut anywhere; the beginning of an operating system
// command is held back until it is known which one it is. The zero value is ready.
type clipboardFilter struct {
	state clipState
	held  []byte // of a command that is not decided yet, from its introducer on
	body  int    // where in held the text of the command begins
	c2    bool   // a byte is held back that may begin a control character in UTF-8
}

type clipState uint8

const (
	clipGround clipState = iota
	clipEscape           // after ESC
	clipHeld             // within a command that is held back
	clipPass             // within a string that is passed
	clipDrop             // within a string that is dropped
)

// tmuxPass begins the string by which tmux passes anything on to the terminal that it runs in itself.
const tmuxPass = "tmux;"

// Filter appends to dst what of p is shown and returns the extended slice.
func (f *clipboardFilter) Filter(dst, p []byte) []byte {
	for len(p) > 0 {
		if f.state == clipGround && !f.c2 {
			n := bytes.IndexByte(p, 0x1b)
			if n < 0 {
				n = len(p)
			}
			if m := bytes.IndexByte(p[:n], 0xc2); m >= 0 {
				n = m
			}
			dst = append(dst, p[:n]...)
			if p = p[n:]; len(p) == 0 {
				break
			}
		}
		c := p[0]
		p = p[1:]
		switch second := f.c2; {
		case second && c&0xc0 == 0x80: // one character of two bytes
			f.c2 = false
			dst = f.unit(dst, 0xc2, c)
			continue
		case second: // a stray byte
			f.c2 = false
			dst = f.unit(dst, 0xc2)
		}
		if c == 0xc2 {
			f.c2 = true
			continue
		}
		dst = f.unit(dst, c)
	}
	return dst
}

// unit takes one byte, or the two of a character that begins with 0xc2: a control character may have that
// form too.
func (f *clipboardFilter) unit(dst []byte, u ...byte) []byte {
	c := u[0]
	if len(u) == 2 && u[1] < 0xa0 {
		c = u[1]
	}
	opens := c == 0x9d || c == 0x90 || f.state == clipEscape && (c == ']' || c == 'P')
	ends := c == 0x07 || c == 0x18 || c == 0x1a || c == 0x9c
	if len(u) == 1 && c >= 0x80 { // half a character, in a stream that is no UTF-8
		opens, ends = false, false
	}
	switch {
	case opens:
		if f.state == clipHeld { // undecided, and over
			dst = append(dst, f.held...)
		}
		if f.state != clipEscape {
			f.held = f.held[:0]
		}
		f.state, f.held = clipHeld, append(f.held, u...)
		f.body = len(f.held)
		return dst
	case c == 0x1b:
		if f.state == clipHeld || f.state == clipEscape {
			dst = append(dst, f.held...)
		}
		f.state, f.held = clipEscape, append(f.held[:0], c)
		return dst
	}
	switch f.state {
	case clipEscape:
		f.state = clipGround
		return append(append(dst, f.held...), u...)
	case clipHeld:
		f.held = append(f.held, u...)
		if ends {
			f.state = clipGround
			return append(dst, f.held...)
		}
		if f.state = f.verdict(); f.state == clipPass {
			return append(dst, f.held...)
		}
		return dst
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

// verdict says what becomes of the string that is held: clipHeld while that is open.
func (f *clipboardFilter) verdict() clipState {
	text := f.held[f.body:]
	if k := f.held[f.body-1]; k == 'P' || k == 0x90 {
		return prefixVerdict(text, tmuxPass)
	}
	for len(text) > 1 && text[0] == '0' { // a terminal reads a number
		text = text[1:]
	}
	if string(text) == "0" && len(f.held) < 64 {
		return clipHeld
	}
	open := false
	for _, s := range clipboardStrings {
		switch prefixVerdict(text, s) {
		case clipDrop:
			return clipDrop
		case clipHeld:
			open = true
		}
	}
	if open && len(f.held) < 64 {
		return clipHeld
	}
	return clipPass
}

func prefixVerdict(text []byte, s string) clipState {
	n := min(len(text), len(s))
	switch {
	case string(text[:n]) != s[:n]:
		return clipPass
	case n == len(s):
		return clipDrop
	}
	return clipHeld
}
