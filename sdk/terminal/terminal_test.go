package terminal

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

func scan(text string) Modes {
	var s ModeScanner
	s.Write([]byte(text))
	return s.Modes()
}

func TestModeScanner(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want Modes
	}{
		"plain text sets nothing":                   {"hello\r\nworld", 0},
		"the modes of a full-screen program":        {"\x1b[?1000h\x1b[?1002h\x1b[?1003h\x1b[?1006h\x1b[?2004h\x1b[?25l\x1b[?1049h", Mouse1000 | Mouse1002 | Mouse1003 | MouseSGR | BracketedPaste | CursorHidden | AltScreen},
		"several modes in one sequence":             {"\x1b[?1000;1006;25h", Mouse1000 | MouseSGR},
		"off undoes on":                             {"\x1b[?2004h\x1b[?2004l", 0},
		"25h shows the cursor again":                {"\x1b[?25l\x1b[?25h", 0},
		"7l is no autowrap":                         {"\x1b[?7l", NoAutowrap},
		"the old alternate screens count":           {"\x1b[?47h", AltScreen},
		"without the question mark it is not one":   {"\x1b[1049h\x1b[2004h", 0},
		"a reset clears everything":                 {"\x1b[?1049h\x1b[>1u\x1b=\x1bc", 0},
		"a soft reset leaves mouse and screen":      {"\x1b[?1049h\x1b[?25l\x1b[?1000h\x1b[!p", AltScreen | Mouse1000},
		"keypad":                                    {"\x1b=", AppKeypad},
		"keypad off":                                {"\x1b=\x1b>", 0},
		"a title that looks like a mode is no mode": {"\x1b]0;[?1049h\x07x", 0},
		"text after a DCS counts":                   {"\x1bPq#0\x1b\\\x1b[?25l", CursorHidden},
		"BEL does not end a DCS":                    {"\x1bPq\x07\x1b\\\x1b[?25l", CursorHidden},
		"ESC ends a string":                         {"\x1b]0;never ended \x1b[?25l", CursorHidden},
		"CAN ends a sequence":                       {"\x1b[?25\x18l", 0},
		"a control inside a sequence is executed":   {"\x1b[?2\n5l", CursorHidden},
		"a huge number is not another mode":         {"\x1b[?655360002004h\x1b[?4294969300h", 0},
		"leading zeros count":                       {"\x1b[?0002004h", BracketedPaste},
		"a cut-off sequence sets nothing yet":       {"\x1b[?2004", 0},
		"kitty push":                                {"\x1b[>5u", KittyKeys | 5<<kittyFlagShift | 1<<kittyDepthSh},
		"kitty push and pop":                        {"\x1b[>5u\x1b[<u", 0},
		"kitty set":                                 {"\x1b[=3;1u", KittyKeys | 3<<kittyFlagShift},
		"kitty pop of everything":                   {"\x1b[>5u\x1b[>7u\x1b[<9u", 0},
		"kitty stacks belong to a screen":           {"\x1b[>5u\x1b[?1049h", AltScreen},
		"kitty query changes nothing":               {"\x1b[?u", 0},
		"modifyOtherKeys":                           {"\x1b[>4;2m", ModifyOtherKeys},
		"modifyOtherKeys off":                       {"\x1b[>4;2m\x1b[>4m", 0},
		"colours are no modes":                      {"\x1b[4;2m\x1b[38;2;1;2;3m", 0},
		"scroll region":                             {"\x1b[2;10r", ScrollRegion},
		"scroll region off":                         {"\x1b[2;10r\x1b[r", 0},
		"cursor shape":                              {"\x1b[5 q", CursorShape},
		"cursor shape off":                          {"\x1b[5 q\x1b[0 q", 0},
		"insert mode":                               {"\x1b[4h", InsertMode},
		"a character set is not a sequence start":   {"\x1b(B\x1b[?25l", CursorHidden},
		"garbage is ignored":                        {"\xff\xfe\x00\x1b\x1b\x1b[;;;;?25l\x1b[\x7f", CursorHidden},
	} {
		t.Run(name, func(t *testing.T) {
			if got := scan(c.in); got != c.want {
				t.Errorf("modes %#x, want %#x", got, c.want)
			}
		})
	}
}

// Whatever Apply sets, a scanner sees; whatever Reset leaves, it sees too.
func TestApplyAndResetAgreeWithTheScanner(t *testing.T) {
	for bit := Modes(1); bit <= KittyKeys; bit <<= 1 {
		if bit == ScrollRegion || bit == CursorShape {
			continue // stated as not reproduced
		}
		m := bit
		if bit == KittyKeys {
			m |= 5<<kittyFlagShift | 2<<kittyDepthSh
		}
		var s ModeScanner
		s.Write(Apply(m))
		if got := s.Modes(); got != m {
			t.Errorf("Apply(%#x) gives %#x", m, got)
		}
		s.Write(Reset(s.Modes()))
		if got := s.Modes(); got != 0 {
			t.Errorf("Reset(%#x) leaves %#x", m, got)
		}
	}
	var s ModeScanner
	s.Write([]byte("\x1b[>3u\x1b[?1049h\x1b[>1u\x1b[>9u\x1b[=4u\x1b[?25l\x1b[2;3r"))
	s.Write(s.Reset())
	if s.Modes() != 0 || s.kitty[0].modes() != 0 {
		t.Errorf("both screens' keyboards must be left: %#x %#x", s.Modes(), s.kitty[0].modes())
	}
	if !bytes.HasSuffix(Reset(0), []byte("\x1b[?25h")) {
		t.Errorf("Reset(0) must show the cursor: %q", Reset(0))
	}
	if bytes.Contains(Reset(0), []byte("1049")) {
		t.Errorf("Reset(0) must not leave a screen nobody entered: %q", Reset(0))
	}
}

func filter(text string) string {
	var f QueryFilter
	return string(f.Filter(nil, []byte(text)))
}

func TestQueryFilter(t *testing.T) {
	for _, q := range []string{
		"\x05", "\x1bZ", "\x1b[c", "\x1b[0c", "\x1b[>c", "\x1b[>0c", "\x1b[=c", "\x1b[5n", "\x1b[6n", "\x1b[?6n", "\x1b[?996n",
		"\x1b[?2026$p", "\x1b[4$p", "\x1b[>q", "\x1b[>0q", "\x1b[?u", "\x1b[?4m", "\x1b[?2;1;0S", "\x1b[x",
		"\x1b[14t", "\x1b[16t", "\x1b[18t", "\x1b[21t", "\x1b[8;50;200t", "\x1b[1$w", "\x1b[&u", "\x1b[1;1;1;1;1;1*y",
		"\x1b]10;?\x07", "\x1b]11;?\x1b\\", "\x1b]4;1;?\x07", "\x1b]4;1;?;2;?\x1b\\", "\x1b]12;?\x07", "\x1b]010;?\x07",
		"\x1b]52;c;?\x07", "\x1b]52;c;aGk=\x07", "\x1b]777;notify;a;b\x07", "\x1b]1337;ReportCellSize\x07", "\x1b]21;foreground=?\x1b\\",
		"\x1bP$qm\x1b\\", "\x1bP+q544e\x1b\\", "\x1bPtmux;\x1b\x1b[6n\x1b\\", "\x1b_Ga=q,i=1;AAAA\x1b\\", "\x1b^x\x1b\\", "\x1bXx\x1b\\",
		"\x1b[" + strings.Repeat("0", 500) + "6n",
		"\x1b]0;" + strings.Repeat("x", 10000) + "\x07",
	} {
		if got := filter("a" + q + "b"); got != "ab" {
			t.Errorf("%.40q gives %.60q", q, got)
		}
	}
	for _, keep := range []string{
		"plain\r\n", "\x1b[31m", "\x1b[?25l", "\x1b[?2004h", "\x1b[2J", "\x1b[H", "\x1b[!p", "\x1b[5 q", "\x1b[\"q", "\x1b[>5u", "\x1b[<u", "\x1b[u",
		"\x1b[>4;2m", "\x1b[S", "\x1b]0;what? is it\x07", "\x1b]8;;http://x/?q=1\x1b\\", "\x1b]4;1;#ff0000\x07", "\x1b]10;#fff\x1b\\",
		"\x1bPq#0;2;0;0;0~\x1b\\", "\x1bP0;1;0q#0\x07\x1b\\", "\x1b(B", "\x1b7\x1b8", "\x1bM", "\xe6\xbc\xa2\xf0\x9f\x99\x82", "\x1b[>4n",
	} {
		if got := filter("a" + keep + "b"); got != "a"+keep+"b" {
			t.Errorf("%q gives %q", keep, got)
		}
	}
	var f QueryFilter
	if got := f.Filter(nil, []byte("x\x1b[6")); string(got) != "x" || f.Ground() {
		t.Errorf("half a query must be held back: %q ground=%v", got, f.Ground())
	}
	if got := f.Filter(nil, []byte("ny")); string(got) != "y" || !f.Ground() {
		t.Errorf("the other half: %q ground=%v", got, f.Ground())
	}
}

func TestAppendEscaped(t *testing.T) {
	for in, want := range map[string]string{
		"plain\tline\n":                      "plain\tline\n",
		"a\r\nb\r\r\nc":                      "a\nb\nc",
		"10%\r20%\r30%\n":                    "10%\n20%\n30%\n",
		"\x1b[31mred\x1b[0m":                 "red",
		"\x1b]0;title\x07x":                  "x",
		"\x1b]8;;http://x\x1b\\link":         "link",
		"\x1b]0;never ended\nvisible\n":      "\nvisible\n",
		"bell\x07 back\x08 nul\x00":          "bell\\x07 back\\x08 nul\\x00",
		"汉字 ─ 🙂":                             "汉字 ─ 🙂",
		"\xff\xc3(\xe6\xbc":                  "\\xff\\xc3(\\xe6\\xbc",
		"\xc2\x9b31m":                        "\\u009b31m",
		"abc\u202edef":                       "abc\\u202edef",
		"a\b\b\bc":                           "a\\x08\\x08\\x08c",
		"a" + strings.Repeat("\b", 12) + "c": "a\\x08*12c",
		"a\b\b\x1b[K\b\b":                    "a\\x08*4",
		"\b\b\b\b\n\b\r\b":                   "\\x08*4\n\\x08\n\\x08",
		"\b\b\b\b\xff":                       "\\x08*4\\xff",
		"tag\U000e0041":                      "tag\\U000e0041",
		"\x1b":                               "",
		"\x1b[3":                             "",
		"\xed\xa0\x80":                       "\\xed\\xa0\\x80",
	} {
		if got := string(AppendEscaped(nil, []byte(in))); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}

func TestLastLine(t *testing.T) {
	for _, c := range []struct {
		in   string
		max  int
		want string
	}{
		{"", 10, ""},
		{"one\ntwo\n", 10, "two"},
		{"one\ntwo\n \r\n\x1b[0m\n", 10, "two"},
		{"\x1b[31m  error: no model\x1b[0m \r\n", 160, "error: no model"},
		{"汉字汉字", 3, "汉字汉"},
		{"a\x07b\x00", 10, "ab"},
		{strings.Repeat("é", 20000), 5, "ééééé"},
	} {
		if got := LastLine([]byte(c.in), c.max); got != c.want {
			t.Errorf("LastLine(%.30q, %d) = %q, want %q", c.in, c.max, got, c.want)
		}
	}
}

func TestImportsStaySmall(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, dep := range strings.Fields(string(out)) {
		switch dep {
		case "fmt", "net", "os", "encoding/json", "reflect":
			t.Errorf("imports %s: the seat links this package", dep)
		}
	}
}

var corpus = []string{
	"plain", "\x1b[?1049h\x1b[?25l", "\x1b]0;t\x07\x1b]11;?\x1b\\", "\x1bPq#0\x07\x1b\\x", "\x1b_G\x1b\\", "\x1b[>5u\x1b[<2u\x1b[=1;2u",
	"\xe6\xbc\xa2\xf0\x9f\x99\x82\xff", "\r\n\r\r\na\rb", "\b\b\xe6\b\b\b\b\x1b[K\b", "\x1b[38;2;1;2;3m", "\x1b(0\x1b7\x05", "\x1b[?6\x18n\x1b[\x1b[6n", "\x1b[2;3r\x1b[!p\x1bc",
}

// FuzzChunkBorders: any split of the stream gives the same result as the whole.
func FuzzChunkBorders(f *testing.F) {
	for i, c := range corpus {
		f.Add([]byte(c), uint8(i), uint8(i*7+1))
	}
	f.Fuzz(func(t *testing.T, p []byte, a, b uint8) {
		cuts := func(write func([]byte)) {
			rest, sizes := p, [2]int{int(a), int(b)}
			for i := 0; len(rest) > 0; i++ {
				n := min(max(sizes[i&1], 1), len(rest))
				write(rest[:n])
				rest = rest[n:]
			}
		}
		var s1, s2 ModeScanner
		s1.Write(p)
		cuts(s2.Write)
		if s1 != s2 {
			t.Fatalf("scanner: %+v whole, %+v cut", s1, s2)
		}
		s1.Write(s1.Reset())
		if m := s1.Modes(); m != 0 || !s1.Ground() {
			t.Fatalf("reset leaves %#x", m)
		}

		var f1, f2 QueryFilter
		whole := f1.Filter(nil, p)
		var cut []byte
		cuts(func(c []byte) { cut = f2.Filter(cut, c) })
		if !bytes.Equal(whole, cut) || f1.Ground() != f2.Ground() {
			t.Fatalf("filter: %q whole, %q cut", whole, cut)
		}
		if len(f1.held) > filterOSCMax+2 {
			t.Fatalf("filter holds %d bytes", len(f1.held))
		}
		var again QueryFilter
		if twice := again.Filter(nil, whole); !bytes.Equal(twice, whole) && f1.Ground() {
			t.Fatalf("filtered output still holds a query: %q then %q", whole, twice)
		}

		var e1, e2 Escaper
		text := e1.Flush(e1.Append(nil, p))
		var piece, parts []byte
		cuts(func(c []byte) { piece = e2.Append(nil, c); parts = append(parts, piece...) })
		parts = append(parts, e2.Flush(nil)...)
		if !bytes.Equal(text, parts) {
			t.Fatalf("escaper: %q whole, %q cut", text, parts)
		}
		for _, c := range text {
			if c < 0x20 && c != '\n' && c != '\t' || c == 0x7f {
				t.Fatalf("escaped text holds %#x: %q", c, text)
			}
		}
		if got := string(AppendEscaped(nil, text)); got != string(text) {
			t.Fatalf("escaping is not stable: %q then %q", text, got)
		}
		LastLine(p, 160)
	})
}

func BenchmarkModeScanner(b *testing.B) {
	line := strings.Repeat("x", 99) + "\r\n"
	tui := "\x1b[12;40H\x1b[38;2;120;130;140m│\x1b[0m some text of a cell \x1b[1m\x1b[48;5;236mbold\x1b[0m\x1b[K\r\n"
	for name, text := range map[string]string{"plain": line, "tui": tui} {
		data := []byte(strings.Repeat(text, 65536/len(text)))
		b.Run(name, func(b *testing.B) {
			var s ModeScanner
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				s.Write(data)
			}
		})
		b.Run(name+"-filter", func(b *testing.B) {
			var f QueryFilter
			dst := make([]byte, 0, 2*len(data))
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				f.Filter(dst, data)
			}
		})
	}
}
