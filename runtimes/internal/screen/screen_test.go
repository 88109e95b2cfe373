package screen

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// clock is a clock that a test moves.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

// bench is a screen under test, with what it said.
type bench struct {
	*Screen
	clock   *clock
	answers []string
	jiggles int
	deaf    bool // the program does not repaint when its size changes
}

func newBench(t testing.TB, rows, cols int, change ...func(*Config)) *bench {
	t.Helper()
	b := &bench{clock: &clock{time.Unix(1000, 0)}}
	cfg := Config{
		Rows: rows, Cols: cols, Now: b.clock.now, CPU: func() time.Duration { return 0 },
		Answer: func(at uint64, p []byte) { b.answers = append(b.answers, fmt.Sprintf("%d:%s", at, p)) },
		Jiggle: func() bool {
			if b.jiggles++; !b.deaf {
				b.Feed(b.lex.pos, []byte("\x1b[m"))
			}
			return true
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Screen = s
	t.Cleanup(s.Close)
	return b
}

// feed feeds p behind what was fed before and does all the work there is.
func (b *bench) feed(p string) {
	b.Feed(b.lex.pos, []byte(p))
	b.work()
}

func (b *bench) work() {
	for b.Step() == 0 {
	}
}

// text is the screen as text, without blanks at the ends.
func (b *bench) text() string { return textOf(b.Screen) }

func textOf(s *Screen) string {
	n := 0
	if s.em.Alternate() {
		n = 1
	}
	var lines []string
	for row := range s.rows {
		var line strings.Builder
		for col := range s.cols {
			line.WriteString(s.em.Cell(n, row, col).text)
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// same compares two screens: cells of both buffers, cursor, pen, margins, modes.
func same(a, b *Screen) error {
	for n := range 2 {
		if n == 1 && !a.em.Alternate() {
			break
		}
		for row := range a.rows {
			for col := range a.cols {
				if x, y := a.em.Cell(n, row, col), b.em.Cell(n, row, col); x != y {
					return fmt.Errorf("screen %d, row %d, column %d: %+v and %+v", n, row, col, x, y)
				}
			}
		}
	}
	describe := func(s *Screen) string {
		row, col, wraps := s.em.Cursor()
		top, bottom := s.em.Margins()
		srow, scol, spen := s.em.Saved(0)
		g, gl := s.em.Charsets()
		return fmt.Sprintf("%d;%d wraps=%v margins %d-%d pen %+v alt %v shape %d saved %d;%d %+v charsets %s %d modes %#x insert %v",
			row, col, wraps, top, bottom, s.em.Pen(), s.em.Alternate(), s.em.Shape(), srow, scol, spen, g[:], gl,
			s.shown.Modes()&^(terminal.SyncOutput|terminal.ScrollRegion|terminal.CursorShape), s.clean.insert)
	}
	if x, y := describe(a), describe(b); x != y {
		return fmt.Errorf("%s\nand %s", x, y)
	}
	return nil
}

// repainted is a fresh screen that was shown a snapshot of s.
func repainted(t testing.TB, s *Screen) (*bench, Snapshot) {
	t.Helper()
	snap := s.Snapshot()
	f := newBench(t, snap.Rows, snap.Cols)
	f.feed(string(snap.Data))
	return f, snap
}

func TestASnapshotPaintsTheSamePicture(t *testing.T) {
	for name, in := range map[string]string{
		"an empty screen":                       "",
		"text and a newline":                    "hello\r\nworld",
		"colours, bold and underline":           "\x1b[1;31mred\x1b[0;4;38;5;200;48;2;1;2;3mx\x1b[4:3;58;5;9mcurly\x1b[m.",
		"a pen that is still on":                "a\x1b[7;35m",
		"a background to the end of the line":   "\x1b[44mab\x1b[K\r\nx",
		"wide characters":                       "漢字🙂x\r\n\x1b[3;9H漢",
		"a wide character in the last columns":  "\x1b[1;19H漢",
		"one that does not fit and wraps":       "\x1b[1;20H漢x",
		"a full line that wraps next":           strings.Repeat("x", 20),
		"a combined character":                  "e\u0301 a\u0308x",
		"the alternate screen over the main":    "main\r\n\x1b[?1049h\x1b[2;3Halt",
		"a pen and a cursor under it":           "\x1b[33mmain\x1b7\x1b[3;3H\x1b[?1049h\x1b[2;3Halt",
		"mouse, paste, keypad, hidden cursor":   "\x1b[?1000h\x1b[?1006h\x1b[?2004h\x1b=\x1b[?25l\x1b[?1h\x1b[>5u",
		"a scroll region":                       "a\r\nb\r\nc\x1b[2;4r\x1b[3;2H",
		"a scroll region and origin mode":       "\x1b[2;4r\x1b[?6h\x1b[2;2Hx",
		"a cursor shape":                        "\x1b[5 q",
		"line drawing":                          "\x1b(0lqk\x1b(Bx\x1b)0\x0eq",
		"a link":                                "\x1b]8;id=1;http://x/\x1b\\link\x1b]8;;\x1b\\ no",
		"a saved cursor":                        "ab\x1b7\x1b[3;3H",
		"insert mode":                           "abc\x1b[4h\rxy",
		"no wrap":                               "\x1b[?7l" + strings.Repeat("y", 30),
		"characters that are not UTF-8":         "a\xff\xc3(\xe6\xbc",
		"a sequence that is cut":                "abc\x1b[31",
		"reverse index and scrolling":           "1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n\x1b[H\x1bM0",
		"blanks between words":                  "a" + strings.Repeat(" ", 15) + "b",
		"a soft reset":                          "\x1b[2;4r\x1b[?25l\x1b[31m\x1b[!p",
		"two underlines, and a line above":      "\x1b[21mab\x1b[m\x1b[53mcd\x1b[31;4mef\x1b[55mgh\x1b[53m",
		"a line above a link":                   "\x1b[53m\x1b]8;id=1;http://x/\x1b\\a\x1b[55mb\x1b[53mc\x1b]8;;\x1b\\d\x1b7\x1b[m\x1b8e",
		"a wrap that is due, in origin mode":    "\x1b[2;4r\x1b[?6h\x1b[2;1H" + strings.Repeat("x", 20),
		"the alignment test":                    "\x1b[2;3r\x1b[31m\x1b#8x",
		"the alternate screen, no cursor saved": "main\x1b[?1047hZ",
		"a restored cursor, the short way":      "\x1b[2;2H\x1b[s\x1b[5;5H\x1b[ux",
		"the old alternate screen":              "m\x1b[?47hx",
		"a wide character half overwritten":     "漢\x1b[1;2Hx",
		"a full reset out of the alternate one": "\x1b[?1049hx\x1bcy",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 5, 20)
			b.feed(in)
			f, snap := repainted(t, b.Screen)
			if err := same(b.Screen, f.Screen); err != nil {
				t.Errorf("%v\nsnapshot %q", err, snap.Data)
			}
			if snap.Dirty != "" {
				t.Errorf("dirty: %s", snap.Dirty)
			}
			if held := uint64(len(b.clean.held)); snap.Offset != uint64(len(in))-held {
				t.Errorf("offset %d of %d, %d held", snap.Offset, len(in), held)
			}
			// What follows goes on alike.
			tail := in[snap.Offset:] + "\x1b[1mZ\r\n" + "漢y"
			b.feed(tail[len(in)-int(snap.Offset):])
			f.feed(tail)
			if err := same(b.Screen, f.Screen); err != nil {
				t.Errorf("after more output: %v\nsnapshot %q", err, snap.Data)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"device attributes":               {"\x1b[c", "\x1b[?62;22c"},
		"device attributes, old":          {"\x1bZ", "\x1b[?62;22c"},
		"secondary":                       {"\x1b[>c", "\x1b[>1;10;0c"},
		"status":                          {"\x1b[5n", "\x1b[0n"},
		"cursor":                          {"ab\r\nc\x1b[6n", "\x1b[2;2R"},
		"cursor, private":                 {"abc\x1b[?6n", "\x1b[?1;4;1R"},
		"cursor in a region":              {"\x1b[2;4r\x1b[?6h\x1b[2;3H\x1b[6n", "\x1b[2;3R"},
		"a mode that is on":               {"\x1b[?2004h\x1b[?2004$p", "\x1b[?2004;1$y"},
		"a mode that is off":              {"\x1b[?2026$p", "\x1b[?2026;2$y"},
		"the cursor's visibility":         {"\x1b[?25$p", "\x1b[?25;1$y"},
		"an unknown mode":                 {"\x1b[?9999$p", "\x1b[?9999;0$y"},
		"an ANSI mode":                    {"\x1b[4h\x1b[4$p", "\x1b[4;1$y"},
		"text colour":                     {"\x1b]10;?\x07", "\x1b]10;rgb:ffff/ffff/ffff\x07"},
		"background, as it was asked":     {"\x1b]11;?\x1b\\", "\x1b]11;rgb:0000/0000/0000\x1b\\"},
		"a background that was set":       {"\x1b]11;#102030\x07\x1b]11;?\x07", "\x1b]11;rgb:1010/2020/3030\x07"},
		"palette":                         {"\x1b]4;1;?\x07", "\x1b]4;1;rgb:8080/0000/0000\x07"},
		"size in characters":              {"\x1b[18t", "\x1b[8;5;20t"},
		"size in pixels":                  {"\x1b[14t", "\x1b[4;100;200t"},
		"size of a cell":                  {"\x1b[16t", "\x1b[6;20;10t"},
		"kitty keyboard":                  {"\x1b[>5u\x1b[?u", "\x1b[?5u"},
		"version":                         {"\x1b[>q", "\x1bP>|cotal(1)\x1b\\"},
		"termcap":                         {"\x1bP+q544e\x1b\\", "\x1bP1+r544e=787465726D2D323536636F6C6F72\x1b\\"},
		"termcap it lacks":                {"\x1bP+q6162\x1b\\", "\x1bP0+r6162\x1b\\"},
		"termcap that types commands":     {"\x1bP+q\x07rm\r\x1b\\", "\x1bP0+r\x1b\\"},
		"a setting":                       {"\x1bP$qm\x1b\\", "\x1bP0$r\x1b\\"},
		"light or dark":                   {"\x1b[?996n", "\x1b[?997;1n"},
		"a title is no question":          {"\x1b]0;?\x07\x1b]2;[6n\x07", ""},
		"nor is a colour that is set":     {"\x1b]4;1;#fff\x07", ""},
		"nor a sequence that was ended":   {"\x1b[6\x18n", ""},
		"nor one that is far too long":    {"\x1b[" + strings.Repeat("0", 2000) + "6n", ""},
		"nor a window operation":          {"\x1b[8;50;200t\x1b[22;0t", ""},
		"nor a repeat of what came first": {"\x1b[>4;1m\x1b[?4m", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{len(c.in), 1} {
				b := newBench(t, 5, 20)
				for p := range bytes.SplitSeq([]byte(c.in), nil) {
					if size > 1 {
						b.feed(c.in)
						break
					}
					b.feed(string(p))
				}
				want := ""
				if c.want != "" {
					at := strings.LastIndex(c.in, "\x1b")
					if strings.HasSuffix(c.in, "\x1b\\") {
						at = strings.LastIndex(c.in[:at], "\x1b")
					}
					want = fmt.Sprintf("%d:%s", at, c.want)
				}
				if got := strings.Join(b.answers, ""); got != want {
					t.Errorf("in pieces of %d: %q, want %q", size, got, want)
				}
			}
		})
	}
}

// A question is answered in the order of the output, with the cursor where it stood then.
func TestAnswersComeInOrderWithTheOutput(t *testing.T) {
	b := newBench(t, 5, 20)
	b.feed("a\x1b[6nb\x1b[c\r\n\x1b[6n")
	if got, want := fmt.Sprintf("%q", b.answers), fmt.Sprintf("%q", []string{"1:\x1b[1;2R", "6:\x1b[?62;22c", "11:\x1b[2;1R"}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNumbersThatHangAnEmulatorAreClamped(t *testing.T) {
	for _, final := range "@ABCDEFGHIJKLMPSTXZ`abdefghlmrsu" {
		b := newBench(t, 24, 80)
		began := time.Now()
		b.feed(fmt.Sprintf("x\x1b[2000000000;2000000000%c", final))
		if d := time.Since(began); d > busy.Limit(time.Second) {
			t.Errorf("CSI %c took %s", final, d)
		}
	}
	b := newBench(t, 24, 80)
	b.feed("\x1b]0;")
	for range 1 << 10 {
		b.feed(strings.Repeat("x", 8<<10))
	}
	b.feed("\x07\x1bP")
	for range 1 << 10 {
		b.feed(strings.Repeat("y", 8<<10))
	}
	b.feed("\x1b\\ok")
	if got := b.text(); got != "ok" {
		t.Errorf("after a giant title: %q", got)
	}
}
