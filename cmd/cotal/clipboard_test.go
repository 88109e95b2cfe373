package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

func TestClipboardFilter(t *testing.T) {
	const end = stringEnd
	for name, c := range map[string]struct{ in, want string }{
		"text passes":                            {"plain äöü 漢字 text\r\n", "plain äöü 漢字 text\r\n"},
		"a write is dropped":                     {"a\x1b]52;c;aGk=\x07b", "a" + end + "b"},
		"with the other terminator":              {"a\x1b]52;c;aGk=\x1b\\b", "a" + end + end + "b"},
		"a read is dropped":                      {"a\x1b]52;c;?\x07b", "a" + end + "b"},
		"leading zeros are a number":             {"a\x1b]0052;c;aGk=\x07b", "a" + end + "b"},
		"in its form of one character":           {"a\u009d52;c;aGk=\u009cb", "a" + end + "b"},
		"in its form of one byte":                {"a\x9d52;c;aGk=\x07b", "a" + end + "b"},
		"kitty's own":                            {"a\x1b]5522;type=read;Lg==\x07b", "a" + end + "b"},
		"iTerm2's own":                           {"a\x1b]1337;CopyToClipboard=\x07text\x1b]1337;EndCopy\x07b", "a" + end + "text" + end + "b"},
		"iTerm2's own in small letters":          {"a\x1b]50;copy=:aGk=\x07b", "a" + end + "b"},
		"a passthrough of tmux":                  {"a\x1bPtmux;\x1b\x1b]52;c;aGk=\x07\x1b\\b", "a" + end + end + end + "b"},
		"a passthrough of tmux with a number":    {"a\x1bP1;2tmux;x\x1b\\b", "a" + end + end + "b"},
		"an aborted one":                         {"a\x1b]52;c;aGk\x18b", "a" + end + "b"},
		"a sequence that interrupts it":          {"a\x1b]52;c;aGk\x1b[31mb", "a" + end + "\x1b[31mb"},
		"a title passes":                         {"\x1b]0;title\x07x", "\x1b]0;title\x07x"},
		"a title in UTF-8 passes":                {"\x1b]0;tïtle 漢❤\x07x", "\x1b]0;tïtle 漢❤\x07x"},
		"a colour passes":                        {"\x1b]5;x\x07\x1b]10;?\x07", "\x1b]5;x\x07\x1b]10;?\x07"},
		"a reset of colours passes":              {"\x1b]104\x1b\\\x1b]110\x07", "\x1b]104\x1b\\\x1b]110\x07"},
		"a hyperlink passes":                     {"\x1b]8;;http://x\x1b\\y\x1b]8;;\x1b\\", "\x1b]8;;http://x\x1b\\y\x1b]8;;\x1b\\"},
		"OSC 0 with nothing":                     {"\x1b]0\x07x", "\x1b]0\x07x"},
		"another of iTerm2's":                    {"\x1b]1337;File=x:aa\x07", "\x1b]1337;File=x:aa\x07"},
		"a console's palette passes":             {"\x1b]P0112233x", "\x1b]P0112233x"},
		"a sixel passes":                         {"\x1bP0;1q#0~\x1b\\x", "\x1bP0;1q#0~\x1b\\x"},
		"an 0xc2 before ASCII and before more":   {"\xc2\xa0\xc2x\xc2", "\xc2\xa0\xc2x"},
		"half a character":                       {"a\xe2\x82b\xffc", "a\xe2\x82b\xffc"},
		"escapes in a row":                       {"\x1b\x1b]52;c;x\x07y", end + "y"},
		"numbers that begin like it":             {"\x1b]520;c\x07\x1b]5;52;\x07", "\x1b]520;c\x07\x1b]5;52;\x07"},
		"a string in the terminator of a string": {"\x1b]0;a\x1b]52;c;x\x07y", "\x1b]0;a" + end + "y"},
		"a control within a sequence":            {"\x1b\r[31m", "\r\x1b[31m"},

		"NUL within the number":                    {"a\x1b]5\x002;c;QUJD\x07b", "a" + end + "b"},
		"a newline within the number":              {"a\x1b]5\n2;c;QUJD\x07b", "a" + end + "b"},
		"DEL within the number":                    {"a\x1b]5\x7f2;c;QUJD\x07b", "a" + end + "b"},
		"a stray byte within the number":           {"a\x1b]5\xc32;c;QUJD\x07b", "a" + end + "b"},
		"NUL before the number":                    {"a\x1b]\x0052;c;QUJD\x07b", "a" + end + "b"},
		"a space before the number":                {"a\x1b] 52;c;QUJD\x07b", "a" + end + "b"},
		"a sign before the number":                 {"a\x1b]+52;c;QUJD\x07b", "a" + end + "b"},
		"NUL after the number":                     {"a\x1b]52\x00;c;QUJD\x07b", "a" + end + "b"},
		"no separator after the number":            {"a\x1b]52c;QUJD\x07b", "a" + end + "b"},
		"a hundred leading zeros":                  {"a\x1b]" + strings.Repeat("0", 100) + "52;c;QUJD\x07b", "a" + end + "b"},
		"modulo 2^32":                              {"a\x1b]4294967348;c;QUJD\x07b", "a" + end + "b"},
		"modulo 2^16":                              {"a\x1b]65588;c;QUJD\x07b", "a" + end + "b"},
		"NUL after ESC":                            {"a\x1b\x00]52;c;QUJD\x07b", "a\x00" + end + "b"},
		"a newline after ESC":                      {"a\x1b\n]52;c;QUJD\x07b", "a\n" + end + "b"},
		"BEL after ESC":                            {"a\x1b\x07]52;c;QUJD\x07b", "a\x07" + end + "b"},
		"DEL after ESC":                            {"a\x1b\x7f]52;c;QUJD\x07b", "a" + end + "b"},
		"a stray 0xc2 after ESC":                   {"a\x1b\xc2]52;c;QUJD\x07b", "a\xc2" + end + "b"},
		"a stray 0xc3 after ESC":                   {"a\x1b\xc3]52;c;QUJD\x07b", "a\xc3" + end + "b"},
		"a character after ESC":                    {"a\x1bé]52;c;QUJD\x07b", "aé" + end + "b"},
		"half of it before one that is dropped":    {"\x1b]\x1b]52;c;x\x0752;c;QUJD\x07b", end + end + "52;c;QUJD\x07b"},
		"an ESC before one that is dropped":        {"\x1b\x1b]52;x\x07]52;c;QUJD\x07b", end + "]52;c;QUJD\x07b"},
		"a digit of it before one that is dropped": {"\x1b]5\x1b]52;x\x072;c;QUJD\x07b", "\x1b]5" + end + "2;c;QUJD\x07b"},
		"another introducer after ESC":             {"\x1b\u009d]52;c;QUJD\x07b", end + end + "b"},
		"the other introducer in between":          {"\xc2\x1b]52;x\x07\x9d52;c;QUJD\x07b", "\xc2" + end + end + "b"},
	} {
		t.Run(name, func(t *testing.T) {
			var whole clipboardFilter
			if got := string(whole.Filter(nil, []byte(c.in))); got != c.want {
				t.Errorf("in one piece %q, want %q", got, c.want)
			}
			var cut clipboardFilter
			var got []byte
			for i := range len(c.in) {
				got = cut.Filter(got, []byte(c.in[i:i+1]))
			}
			if string(got) != c.want {
				t.Errorf("byte by byte %q, want %q", got, c.want)
			}
		})
	}
}

// commands returns the operating system commands that terminals see in a stream: one as strict as the standard,
// one as forgiving as tmux, and the terminal emulator of this project.
func commands(in string) []string {
	var seen []string
	for _, eightBit := range []bool{false, true} {
		seen = append(seen, forgiving(in, eightBit)...)
	}
	p := ansi.NewParser()
	p.SetDataSize(1 << 16)
	p.SetHandler(ansi.Handler{HandleOsc: func(_ int, data []byte) { seen = append(seen, string(data)) }})
	p.Parse([]byte(in))
	return seen
}

// forgiving takes controls, DEL and stray bytes anywhere in an introducer, and ends a command at whatever ends
// one. With eightBit the introducer may be one byte or character, too.
func forgiving(in string, eightBit bool) (seen []string) {
	const ground, escape, command = 0, 1, 2
	state, text := ground, ""
	leave := func(to int) {
		if state == command {
			seen = append(seen, text)
		}
		state, text = to, ""
	}
	for i := 0; i < len(in); {
		r, n := utf8.DecodeRuneInString(in[i:])
		c := in[i]
		if r == utf8.RuneError && n == 1 {
			r = rune(c)
		}
		if eightBit && r >= 0x80 {
			i += n
		} else {
			i, r = i+1, rune(c)
		}
		switch {
		case eightBit && r == 0x9d:
			leave(command)
		case r == 0x1b:
			leave(escape)
		case r == 0x18, r == 0x1a, r == 0x07 && state == command, eightBit && r == 0x9c:
			leave(ground)
		case state == escape && r == ']':
			leave(command)
		case state == escape && r >= 0x20 && r < 0x7f:
			leave(ground)
		case state == command && r >= 0x20 && r < 0x7f:
			text += string(r)
		}
	}
	leave(ground)
	return seen
}

// isClipboard says whether a command acts on the clipboard, however its number is read.
func isClipboard(text string) bool {
	text = strings.Map(func(r rune) rune {
		if r <= 0x20 || r >= 0x7f || r == '+' {
			return -1
		}
		return r
	}, text)
	var wide uint64
	var narrow uint32
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		wide, narrow = wide*10+uint64(text[digits]-'0'), narrow*10+uint32(text[digits]-'0')
		digits++
	}
	if digits == 0 {
		return false
	}
	rest := strings.ToLower(strings.TrimPrefix(text[digits:], ";"))
	for _, n := range []uint64{wide, uint64(narrow), uint64(uint16(narrow))} {
		if n == 52 || n == 5522 || (n == 1337 || n == 50) && (strings.HasPrefix(rest, "copy") || strings.HasPrefix(rest, "endcopy")) {
			return true
		}
	}
	return false
}

func TestNoTerminalSeesAClipboardCommandBehindTheFilter(t *testing.T) {
	parts := []string{"\x1b", "]", "5", "2", ";c;QUJD", "\x07", "\x1b\\", "\x00", "\xc2", "\x9d", "\u009d", "\u009c", "\x18", "52", "\x1b]", "\x1b]52;", "0", "é", "P"}
	check := func(in string) {
		var f clipboardFilter
		out := string(f.Filter(nil, []byte(in)))
		for _, s := range commands(out) {
			if isClipboard(s) {
				t.Fatalf("%q passed as %q: a terminal reads command %q", in, out, s)
			}
		}
	}
	var all func(prefix string, depth int)
	all = func(prefix string, depth int) {
		check(prefix + "52;c;QUJD\x07")
		if depth == 0 {
			return
		}
		for _, p := range parts {
			all(prefix+p, depth-1)
		}
	}
	all("", 4)
	if !isClipboard(commands("\x1b]52;c;QUJD\x07")[0]) {
		t.Fatal("the reference does not know what it looks for")
	}
}

// Whatever comes, cut anywhere: the same goes through, and nothing that a terminal would take for the
// clipboard.
func FuzzClipboardFilter(f *testing.F) {
	f.Add("a\x1b]52;c;aGk=\x07b", 3)
	f.Add("\x1b]5\x002;c;\x1b\x00]52;\x1b\x1b]52;x\x07]52;c;QUJD\x07", 5)
	f.Add("\xc2\x1b]0052;x\x07\x9d4294967348;c;QUJD\x1b]\x1b]52;c;x\x0752;", 7)
	f.Add("\x1b]1337;Copy\x1b\\\u009d52;\u009c\x1bPtmux;", 9)
	f.Fuzz(func(t *testing.T, in string, at int) {
		var whole, cut clipboardFilter
		want := string(whole.Filter(nil, []byte(in)))
		at = min(max(at, 0), len(in))
		got := string(cut.Filter(cut.Filter(nil, []byte(in[:at])), []byte(in[at:])))
		if got != want {
			t.Fatalf("cut at %d: %q, want %q", at, got, want)
		}
		for _, c := range commands(got) {
			if isClipboard(c) {
				t.Fatalf("%q passed as %q: a terminal reads command %q", in, got, c)
			}
		}
		if len(got) > 2*len(in) {
			t.Fatalf("%q grew to %q", in, got)
		}
	})
}
