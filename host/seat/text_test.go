package seat

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

func TestTrimReturn(t *testing.T) {
	for in, want := range map[string]string{
		"hi": "hi", "hi\n": "hi", "hi\r\n": "hi", "hi\r": "hi", "hi\n\n": "hi\n", "\n": "", "a\nb": "a\nb", "": "",
	} {
		if got := string(trimReturn([]byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestCheckPaste(t *testing.T) {
	for name, c := range map[string]struct{ in, bad string }{
		"text of several lines":                   {"a\tb\r\nc äöü 漢 \U0001f600", ""},
		"the end marker":                          {"rm -rf /\x1b[201~\r", "byte 8 begins the sequence that ends a paste"},
		"the end marker in one character":         {"x\u009b201~y", "byte 1 begins the sequence that ends a paste"},
		"the start marker":                        {"\x1b[200~", "control character U+001B"},
		"a colour":                                {"\x1b[31mred", "control character U+001B"},
		"an escape at the very end":               {"x\x1b", "byte 1 begins the control character U+001B"},
		"an interrupt":                            {"x\x03", "U+0003"},
		"a delete":                                {"x\x7f", "U+007F"},
		"a control character of two bytes":        {"x\u0085", "U+0085"},
		"bytes that are no text":                  {"x\xff", "not UTF-8"},
		"the first character behind the controls": {"\u00a0", ""},
	} {
		err := checkPaste([]byte(c.in))
		if c.bad == "" && err != nil || c.bad != "" && (err == nil || !strings.Contains(err.Error(), c.bad)) {
			t.Errorf("%s: %v, want %q", name, err, c.bad)
		}
	}
}

// proves: INPUT-2
func TestSlices(t *testing.T) {
	for _, bracketed := range []bool{false, true} {
		for _, text := range []string{
			"", "x", strings.Repeat("x", 64<<10), strings.Repeat("漢", 20000), strings.Repeat("é", sliceMax), strings.Repeat("x", sliceMax-12), strings.Repeat("x", sliceMax-11),
		} {
			parts := slicesOf([]byte(text), bracketed, sliceMax)
			whole := string(bytes.Join(parts, nil))
			want := text
			if bracketed && text != "" {
				want = "\x1b[200~" + text + "\x1b[201~"
			}
			if whole != want {
				t.Errorf("%d bytes, bracketed %v: %d came out", len(text), bracketed, len(whole))
			}
			for i, p := range parts {
				if len(p) >= 4096 || len(p) == 0 || !utf8.Valid(p) {
					t.Errorf("slice %d has %d bytes, or ends in a character", i, len(p))
				}
			}
			if n := len(parts); bracketed && n > 0 && !(bytes.HasPrefix(parts[0], pasteStart) && bytes.HasSuffix(parts[n-1], pasteEnd)) {
				t.Error("a marker is cut")
			}
		}
	}
}

func TestCheckLines(t *testing.T) {
	line := strings.Repeat("x", seat.MaxLine)
	for name, c := range map[string]struct {
		text       string
		unfinished int
		bad        bool
	}{
		"short lines":                       {"a\nb\n", 0, false},
		"as long as the terminal keeps":     {line + "\n" + line, 0, false},
		"one byte more":                     {line + "x", 0, true},
		"one byte more, later":              {"a\n" + line + "x", 0, true},
		"with what stands there already":    {line, 1, true},
		"behind a line end that comes soon": {"\n" + line, 4000, false},
		"a Return ends a line too":          {line + "\r" + line, 0, false},
	} {
		if err := checkLines([]byte(c.text), c.unfinished); (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeyBytes(t *testing.T) {
	for name, want := range map[string]string{
		"enter": "\r", "esc": "\x1b", "tab": "\t", "ctrl-c": "\x03", "ctrl-[": "\x1b", "ctrl-@": "\x00", "up": "\x1b[A", "shift-tab": "\x1b[Z",
		"f5": "\x1b[15~", "y": "y", "é": "é", "space": " ",
	} {
		if got, err := keyBytes(name, 0); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	if got, _ := keyBytes("left", terminal.AppCursor); string(got) != "\x1bOD" {
		t.Errorf("an arrow for a program with application keys: %q", got)
	}
	for _, name := range []string{"", "hyper", "ctrl-", "ctrl-C", "ctrl-1", "ab", "\x1b", "\u009b", " ", "\xff"} {
		if got, err := keyBytes(name, 0); err == nil || !strings.Contains(err.Error(), "there are enter, esc") {
			t.Errorf("%q: %q %v", name, got, err)
		}
	}
}
