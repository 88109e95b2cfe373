package seat

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// MaxInput is the largest text of one input, in bytes.
const MaxInput = 64 << 10

// sliceMax is the largest single write to a terminal.
const sliceMax = seat.MaxSlice

var (
	pasteStart = []byte("\x1b[200~")
	pasteEnd   = []byte("\x1b[201~")
)

// trimReturn takes off the one line end that a Return of its own stands for.
func trimReturn(text []byte) []byte {
	if t, ok := bytes.CutSuffix(text, []byte("\r\n")); ok {
		return t
	}
	if t, ok := bytes.CutSuffix(text, []byte("\n")); ok {
		return t
	}
	return bytes.TrimSuffix(text, []byte("\r"))
}

// checkPaste returns why text cannot be one paste, or nil. A paste is text until its end marker: a control
// character in it may end it early, whatever its form (ESC [201~, or CSI as U+009B), and turn the rest into
// keys. It is refused, not removed: what is typed is what was asked for, or nothing.
func checkPaste(text []byte) error {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			return fmt.Errorf("byte %d is not UTF-8", i)
		case r == '\t', r == '\n', r == '\r':
		case r < 0x20, r >= 0x7f && r < 0xa0:
			what := fmt.Sprintf("the control character U+%04X", r)
			if bytes.HasPrefix(text[i:], pasteEnd) || bytes.HasPrefix(text[i:], []byte("\u009b201~")) {
				what = "the sequence that ends a paste"
			}
			return fmt.Errorf("byte %d begins %s, which a paste cannot hold; remove it, or press keys with --keys", i, what)
		}
		i += n
	}
	return nil
}

// slicesOf cuts body into writes of at most most bytes, never within a character. With bracketed the
// markers of a paste stand around it, each whole in one slice.
func slicesOf(body []byte, bracketed bool, most int) (out [][]byte) {
	var head []byte
	if bracketed {
		head = pasteStart
		most -= len(pasteStart) + len(pasteEnd)
	}
	for len(body) > 0 {
		n := min(len(body), most)
		for n < len(body) && n > 1 && !utf8.RuneStart(body[n]) {
			n--
		}
		out = append(out, append(bytes.Clone(head), body[:n]...))
		head, body = nil, body[n:]
	}
	if bracketed && len(out) > 0 {
		out[len(out)-1] = append(out[len(out)-1], pasteEnd...)
	}
	return out
}

// checkLines returns an error when the terminal would cut a line of text: it hands whole lines on and keeps
// seat.MaxLine bytes of each. unfinished is what stands in its line already.
func checkLines(text []byte, unfinished int) error {
	n := unfinished
	for i, c := range text {
		if n++; c == '\n' || c == '\r' {
			n = 0
		}
		if n > seat.MaxLine {
			return fmt.Errorf("the program reads whole lines, and the terminal would cut the one at byte %d: it keeps %d bytes of a line", i, seat.MaxLine)
		}
	}
	return nil
}

// keyCodes are the keys that are no control characters: what they send, and what they send while the
// program has asked for application keys.
var keyCodes = map[string][2]string{
	"enter": {"\r"}, "return": {"\r"}, "esc": {"\x1b"}, "escape": {"\x1b"}, "tab": {"\t"}, "shift-tab": {"\x1b[Z"},
	"space": {" "}, "backspace": {"\x7f"}, "delete": {"\x1b[3~"}, "insert": {"\x1b[2~"},
	"up": {"\x1b[A", "\x1bOA"}, "down": {"\x1b[B", "\x1bOB"}, "right": {"\x1b[C", "\x1bOC"}, "left": {"\x1b[D", "\x1bOD"},
	"home": {"\x1b[H", "\x1bOH"}, "end": {"\x1b[F", "\x1bOF"}, "pageup": {"\x1b[5~"}, "pagedown": {"\x1b[6~"},
	"f1": {"\x1bOP"}, "f2": {"\x1bOQ"}, "f3": {"\x1bOR"}, "f4": {"\x1bOS"}, "f5": {"\x1b[15~"}, "f6": {"\x1b[17~"},
	"f7": {"\x1b[18~"}, "f8": {"\x1b[19~"}, "f9": {"\x1b[20~"}, "f10": {"\x1b[21~"}, "f11": {"\x1b[23~"}, "f12": {"\x1b[24~"},
}

// keyNames is for messages.
const keyNames = "enter, esc, tab, shift-tab, space, backspace, delete, insert, up, down, left, right, home, end, pageup, pagedown, " +
	"f1 to f12, ctrl-a to ctrl-z, or one printable character"

// keyBytes is what a terminal sends for a key, given the modes its program has switched on.
func keyBytes(name string, modes terminal.Modes) ([]byte, error) {
	if code, ok := keyCodes[name]; ok {
		if code[1] != "" && modes&terminal.AppCursor != 0 {
			return []byte(code[1]), nil
		}
		return []byte(code[0]), nil
	}
	if len(name) == len("ctrl-x") && name[:5] == "ctrl-" {
		switch c := name[5]; {
		case c >= 'a' && c <= 'z', c == '[', c == ']', c == '\\', c == '^', c == '_', c == '@':
			return []byte{c & 0x1f}, nil
		}
	}
	if r, n := utf8.DecodeRuneInString(name); n == len(name) && r > 0x20 && r != utf8.RuneError && (r < 0x7f || r >= 0xa0) {
		return []byte(name), nil
	}
	return nil, fmt.Errorf("%q is not a key; there are %s", name, keyNames)
}
