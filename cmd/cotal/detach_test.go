package main

import (
	"strings"
	"testing"
)

func TestParseDetachKey(t *testing.T) {
	for text, want := range map[string]string{"": "Ctrl-]", "ctrl-]": "Ctrl-]", "Ctrl-Q": "Ctrl-Q", "ctrl-\\": "Ctrl-\\", "ctrl-_": "Ctrl-_"} {
		k, err := parseDetachKey(text)
		if err != nil || k.String() != want {
			t.Errorf("%q = %v, %v; want %s", text, k, err, want)
		}
	}
	for _, text := range []string{"x", "ctrl-", "ctrl-ab", "alt-x", "ctrl-1", "ctrl-[", "ctrl-m", "^]"} {
		if k, err := parseDetachKey(text); err == nil || !strings.Contains(err.Error(), detachEnv) {
			t.Errorf("%q = %v, %v; want a refusal that names the variable", text, k, err)
		}
	}
}

func TestKeyScanner(t *testing.T) {
	for name, c := range map[string]struct {
		in, pass string
		detach   bool
	}{
		"plain typing passes":                    {"hello\r", "hello\r", false},
		"the control character detaches":         {"ab\x1dcd", "ab", true},
		"the kitty form detaches":                {"ab\x1b[93;5u", "ab", true},
		"with a press event":                     {"\x1b[93;5:1u", "", true},
		"with a base layout key":                 {"\x1b[43::93;5u", "", true},
		"with caps lock and num lock":            {"\x1b[93;197u", "", true},
		"a release does not":                     {"\x1b[93;5:3u", "\x1b[93;5:3u", false},
		"with another modifier it is not it":     {"\x1b[93;6u", "\x1b[93;6u", false},
		"another key is not it":                  {"\x1b[91;5u", "\x1b[91;5u", false},
		"the modifyOtherKeys form detaches":      {"\x1b[27;5;93~", "", true},
		"modifyOtherKeys of another key":         {"\x1b[27;5;92~", "\x1b[27;5;92~", false},
		"arrow keys pass":                        {"\x1b[A\x1b[1;5C", "\x1b[A\x1b[1;5C", false},
		"a lone escape passes at once":           {"\x1b", "\x1b", false},
		"inside a paste it is text":              {"\x1b[200~a\x1db\x1b[201~", "\x1b[200~a\x1db\x1b[201~", false},
		"after a paste it detaches again":        {"\x1b[200~a\x1b[201~\x1d", "\x1b[200~a\x1b[201~", true},
		"mouse reports pass":                     {"\x1b[<0;12;5M", "\x1b[<0;12;5M", false},
		"answers of the terminal pass":           {"\x1b[?62;1c\x1b[12;40R", "\x1b[?62;1c\x1b[12;40R", false},
		"a control character breaks a sequence":  {"\x1b[12\x0393", "\x1b[12\x0393", false},
		"UTF-8 passes":                           {"汉字🙂", "汉字🙂", false},
		"a huge sequence is not held for ever":   {"\x1b[" + strings.Repeat("1", 200), "\x1b[" + strings.Repeat("1", 200), false},
		"control-bracket codepoint in kitty too": {"\x1b[29;5u", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			key, _ := parseDetachKey("")
			whole := keyScanner{key: key}
			pass, detach := whole.Feed([]byte(c.in))
			got := string(pass)
			if !detach {
				got += string(whole.Flush())
			}
			if got != c.pass || detach != c.detach {
				t.Errorf("passes %q, detach %v; want %q, %v", got, detach, c.pass, c.detach)
			}
			if len(c.in) > 100 {
				return
			}
			cut := keyScanner{key: key}
			got, detach = "", false
			for i := 0; i < len(c.in) && !detach; i++ {
				var p []byte
				p, detach = cut.Feed([]byte{c.in[i]})
				got += string(p)
			}
			got += string(cut.Flush())
			// A lone ESC is never held, so a sequence that arrives byte by byte is passed on in part;
			// only the control character is certain then.
			if strings.Contains(c.in, "\x1b[") {
				return
			}
			if got != c.pass || detach != c.detach {
				t.Errorf("byte by byte: passes %q, detach %v; want %q, %v", got, detach, c.pass, c.detach)
			}
		})
	}
}

func TestKeyScanner_HoldsASequenceThatWasCut(t *testing.T) {
	key, _ := parseDetachKey("")
	s := keyScanner{key: key}
	pass, detach := s.Feed([]byte("x\x1b[93"))
	if string(pass) != "x" || detach || !s.Pending() {
		t.Fatalf("first half: %q %v pending %v", pass, detach, s.Pending())
	}
	if pass, detach = s.Feed([]byte(";5u")); len(pass) != 0 || !detach {
		t.Fatalf("second half: %q %v", pass, detach)
	}
}

func FuzzKeyScanner(f *testing.F) {
	f.Add([]byte("ab\x1b[93;5u"), uint8(3))
	f.Add([]byte("\x1b[200~\x1d\x1b[201~"), uint8(1))
	f.Fuzz(func(t *testing.T, p []byte, cut uint8) {
		key, _ := parseDetachKey("")
		s := keyScanner{key: key}
		out, rest := 0, p
		for len(rest) > 0 {
			n := min(int(cut)+1, len(rest))
			pass, detach := s.Feed(rest[:n])
			if out += len(pass); detach {
				return
			}
			rest = rest[n:]
		}
		if out += len(s.Flush()); out != len(p) {
			t.Fatalf("%d bytes in, %d out", len(p), out)
		}
	})
}
