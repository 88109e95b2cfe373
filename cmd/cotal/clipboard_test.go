package main

import (
	"strings"
	"testing"
)

func TestClipboardFilter(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"text passes":                            {"plain äöü text\r\n", "plain äöü text\r\n"},
		"a write is dropped":                     {"a\x1b]52;c;aGk=\x07b", "ab"},
		"with the other terminator":              {"a\x1b]52;c;aGk=\x1b\\b", "a\x1b\\b"},
		"a read is dropped":                      {"a\x1b]52;c;?\x07b", "ab"},
		"leading zeros are a number":             {"a\x1b]0052;c;aGk=\x07b", "ab"},
		"in its form of one character":           {"a\u009d52;c;aGk=\u009cb", "ab"},
		"kitty's own":                            {"a\x1b]5522;type=read;Lg==\x07b", "ab"},
		"iTerm2's own":                           {"a\x1b]1337;CopyToClipboard=\x07text\x1b]1337;EndCopy\x07b", "atextb"},
		"a passthrough of tmux":                  {"a\x1bPtmux;\x1b\x1b]52;c;aGk=\x07\x1b\\b", "a\x1b\x1b\\b"},
		"an aborted one":                         {"a\x1b]52;c;aGk\x18b", "ab"},
		"a sequence that interrupts it":          {"a\x1b]52;c;aGk\x1b[31mb", "a\x1b[31mb"},
		"a title passes":                         {"\x1b]0;title\x07x", "\x1b]0;title\x07x"},
		"a colour passes":                        {"\x1b]5;x\x07\x1b]10;?\x07", "\x1b]5;x\x07\x1b]10;?\x07"},
		"a hyperlink passes":                     {"\x1b]8;;http://x\x1b\\y\x1b]8;;\x1b\\", "\x1b]8;;http://x\x1b\\y\x1b]8;;\x1b\\"},
		"OSC 0 with nothing":                     {"\x1b]0\x07x", "\x1b]0\x07x"},
		"another of iTerm2's":                    {"\x1b]1337;File=x:aa\x07", "\x1b]1337;File=x:aa\x07"},
		"a sixel passes":                         {"\x1bPq#0~\x1b\\x", "\x1bPq#0~\x1b\\x"},
		"an 0xc2 before ASCII and before more":   {"\xc2\xa0\xc2x\xc2", "\xc2\xa0\xc2x"},
		"escapes in a row":                       {"\x1b\x1b]52;c;x\x07y", "\x1by"},
		"numbers that begin like it":             {"\x1b]520;c\x07\x1b]5;52;\x07", "\x1b]520;c\x07\x1b]5;52;\x07"},
		"a string in the terminator of a string": {"\x1b]0;a\x1b]52;c;x\x07y", "\x1b]0;ay"},
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

// Whatever comes, cut anywhere: the same goes through, and nothing that a terminal would take for the
// clipboard.
func FuzzClipboardFilter(f *testing.F) {
	f.Add("a\x1b]52;c;aGk=\x07b", 3)
	f.Add("\x1b]1337;Copy\x1b\\\u009d52;\u009c\x1bPtmux;", 9)
	f.Fuzz(func(t *testing.T, in string, at int) {
		var whole, cut clipboardFilter
		want := string(whole.Filter(nil, []byte(in)))
		at = min(max(at, 0), len(in))
		got := string(cut.Filter(cut.Filter(nil, []byte(in[:at])), []byte(in[at:])))
		if got != want {
			t.Fatalf("cut at %d: %q, want %q", at, got, want)
		}
		if strings.Contains(got, "\x1b]52;") || strings.Contains(got, "\u009d52;") {
			t.Fatalf("%q passed as %q", in, got)
		}
		if len(got) > len(in) {
			t.Fatalf("%q grew to %q", in, got)
		}
	})
}
