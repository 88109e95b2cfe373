package screen

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// troubles are streams that were drawn wrong once, or broke the picture. The fuzzers begin with them, and
// tmux shows them beside the emulator.
var troubles = map[string]string{
	"a scroll region that ends below the screen": "IMPORTANT\r\nsecond\x1b[1;47r\x1b[S\x1b[r\x1b[5;1Hafter",
	"the same, scrolled down":                    "a\r\nb\x1b[2;34r\n\x1bM\x1b[3;1Hc",
	"a scroll region of no lines":                "a\r\nb\x1b[30;20rc\x1b[40;50rd\x1b[5;5re",
	"the alignment test":                         "\x1b[3;9r\x1b[31mabc\x1b#8x\x1b[20;1H\n\n",
	"the old alternate screen":                   "main\x1b[?47hZ",
	"the alternate screen without a cursor":      "main\x1b[?1047hZ",
	"and back, with the cursor where it was":     "main\x1b[?1047h\x1b[4;4Hxy\x1b[?1047lZ",
	"the newer alternate screen":                 "main\x1b[?1049hZ",
	"and back from it":                           "\x1b[32mmain\x1b[?1049h\x1b[31mZ\x1b[9;9H\x1b[?1049lY",
	"two underlines":                             "\x1b[21mdouble\x1b[24m \x1b[1;21;31mmore\x1b[4mone",
	"a line above":                               "\x1b[53mabove\x1b[55mnot\x1b[1;53;38;5;55mboth\x1b7\x1b[m no\x1b8yes\x1b[0mno \x1b[38;5;53mno\x1b[48;2;1;53;3mno",
	"a repeated character, to the end of a line": "\x1b[3;110Hx\x1b[500by\r\nz\x1b[3b!",
}

func TestAScrollRegionThatEndsBelowTheScreenIsCut(t *testing.T) {
	for name, c := range map[string]struct{ in, text string }{
		"scrolled up":   {"IMPORTANT\r\nsecond\x1b[1;47r\x1b[S\x1b[r\x1b[5;1Hafter", "second\n\n\n\nafter"},
		"scrolled down": {"IMPORTANT\r\nsecond\x1b[2;34r\x1b[2;1H\x1bMx", "IMPORTANT\nx\nsecond"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 32, 120)
			b.feed(c.in)
			if b.text() != c.text || b.panics != 0 || b.Dirty() != "" {
				t.Errorf("%d panics, dirty %q, text %q, want %q", b.panics, b.Dirty(), b.text(), c.text)
			}
		})
	}
}

// The numbers that the library indexes with, on a screen that changes its size under them.
func TestNoNumberLeadsOffTheScreen(t *testing.T) {
	sizes := [][2]int{{30, 100}, {3, 7}, {50, 17}, {1, 2}, {24, 80}}
	for _, final := range "@ABCDEFGHIJKLMPSTXZ`abdefgrsu78HMDE" {
		for _, n := range []int{0, 1, 2, 3, 7, 8, 17, 24, 31, 65535, 2000000000} {
			b := newBench(t, 24, 80)
			for _, size := range sizes {
				seq := fmt.Sprintf("\x1b[%d;%d%c", n, n+1, final)
				if strings.ContainsRune("78HMDE", final) {
					seq += "\x1b" + string(final)
				}
				b.feed("\x1b[999;999H\x1b7" + seq + "\x1bH\x1b[?1049h\x1b[999;999H" + seq)
				b.Resize(size[0], size[1])
				b.feed("\x1b8\x1bH\x1b[g" + seq + "\n\x1bM\x1b[L\x1b[M\x1b[S\x1b[T\x1b[?1049l\x1bH\x1b[g\x1b8\x1bH" + seq + "x\n\x1bM\x1b[@\x1b[P\x1b[X\x1b[J\x1b[1J\x1b[Z\x1b[I漢")
				if b.panics > 0 {
					t.Fatalf("CSI %d;%d %c at %dx%d: %s", n, n+1, final, size[0], size[1], b.Dirty())
				}
			}
		}
	}
}

func TestAPictureThatFailedStaysDirtyUntilItIsCleared(t *testing.T) {
	b := newBench(t, 5, 20)
	b.feed("IMPORTANT\r\n")
	b.clean.em = failing{b.em}
	b.feed("漢!")
	if b.panics != 1 {
		t.Fatalf("%d panics", b.panics)
	}
	b.calm(2 * time.Second)
	b.feed("\x1b[?1049h\x1b[?1049l more")
	b.calm(2 * time.Second)
	if b.Dirty() == "" {
		t.Error("exact, though a line is missing")
	}
	b.feed("\x1b[2J\x1b[Hnew")
	if b.Dirty() != "" || b.text() != "new" {
		t.Errorf("cleared: dirty %q, text %q", b.Dirty(), b.text())
	}
}

func TestAProgramThatIsAskedToRepaintAndDoesNotIsNotBelieved(t *testing.T) {
	b := newBench(t, 5, 20, func(c *Config) { c.From = 1000 })
	b.deaf = true
	b.feed("junk\r\nline")
	b.calm(2 * time.Second)
	if b.Dirty() == "" || b.jiggles != 1 {
		t.Errorf("dirty %q, asked %d times", b.Dirty(), b.jiggles)
	}
}

func TestWhatFollowsAFailureIsDrawn(t *testing.T) {
	b := newBench(t, 5, 40)
	b.clean.em = failing{b.em}
	b.feed("漢bang!\x1b[Sand this\r\nand that \x1b[5;5Hthere")
	if b.panics != 1 || !strings.Contains(b.text(), "and that") || !strings.Contains(b.text(), "there") {
		t.Errorf("%d panics, text %q", b.panics, b.text())
	}
}

func TestASnapshotInsideALongSequenceBeginsWithIt(t *testing.T) {
	for name, c := range map[string]struct {
		in    string
		at    int // where the stream goes on
		dirty bool
	}{
		"a title":                        {"hi\r\n\x1b]0;" + strings.Repeat("q", 2000), 4, false},
		"a picture":                      {"hi\r\n\x1bPq" + strings.Repeat("#0~~", 20000), 4, false},
		"an image":                       {"hi\r\n\x1b]1337;File=inline=1:" + strings.Repeat("QUJD", 10000), 4, false},
		"a long control sequence":        {"hi\r\n\x1b[" + strings.Repeat("0;", 1000), 4, false},
		"a picture that is too long":     {"hi\r\n\x1bPq" + strings.Repeat("#0~~", 100000), 400007, true},
		"a control inside of a sequence": {"hi\r\n\x1b[3\n1", 4, true},
		"a character":                    {"hi\r\n\xe6\xbc", 4, false},
		"nothing":                        {"hi\r\n\x1b[m", 7, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, piece := range []int{len(c.in), 1000} {
				b := newBench(t, 5, 20)
				for i := 0; i < len(c.in); i += piece {
					b.feed(c.in[i:min(len(c.in), i+piece)])
				}
				if snap := b.Snapshot(); int(snap.Offset) != c.at || (snap.Dirty != "") != c.dirty {
					t.Errorf("in pieces of %d: goes on at %d, want %d; dirty %q", piece, snap.Offset, c.at, snap.Dirty)
				}
			}
		})
	}
}

func TestATerminalThatIsTooLargeIsNotClaimedToBeExact(t *testing.T) {
	b := newBench(t, 500, 1000)
	b.feed("x")
	if b.Dirty() == "" || b.rows*b.cols > MaxCells {
		t.Errorf("%d x %d, dirty %q", b.rows, b.cols, b.Dirty())
	}
	b.Resize(50, 200)
	if b.Dirty() != "" {
		t.Errorf("dirty at a size that fits: %s", b.Dirty())
	}
	b.Resize(24, 1001)
	if b.Dirty() == "" {
		t.Error("exact, though the last column is missing")
	}
}

// dearest are sequences that cost the most for their length.
var dearest = map[string]string{
	"repeats":          "x\x1b[9999b\r",
	"clearing":         "\x1b[2J",
	"full resets":      "\x1bc",
	"newlines":         "\n",
	"reverse indices":  "\x1b[H\x1bM",
	"inserted lines":   "\x1b[L",
	"deleted lines":    "\x1b[H\x1b[M",
	"scrolling":        "\x1b[S\x1b[T",
	"both screens":     "\x1b[?1049h\x1b[?1049l",
	"many modes":       "\x1b[?" + strings.Repeat("1049;1047;", 15) + "47h",
	"inserted cells":   "\r\x1b[@\x1b[P",
	"tabs":             "\x1b[3g\r\x1b[999I\x1b[999Z",
	"alignment":        "\x1b#8",
	"combined letters": "e\u0301\u0302",
	"wide letters":     "漢字",
	"long lines":       strings.Repeat("w", 100),
}

// However dear a stream is, one piece of it costs little: the watchdog never sees one, and the piece is drawn.
func TestNoPieceOfWorkIsDear(t *testing.T) {
	for name, seq := range dearest {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 400, MaxCells/400)
			b.feed("\x1b[44m\x1b[999;1H")
			p := strings.Repeat(seq, chunkBytes/len(seq))
			b.Feed(b.lex.pos, []byte(p))
			steps, worst := 0, time.Duration(0)
			for limit := 5; b.drawn < b.lex.pos && steps < limit; steps++ {
				before, began := b.drawn, time.Now()
				b.Step()
				worst = max(worst, time.Since(began))
				if b.drawn == before {
					t.Fatal("a step has drawn nothing")
				}
				if b.clean.cost > 3*workMax {
					t.Fatalf("a step of %d units", b.clean.cost)
				}
			}
			t.Logf("%d of %d bytes in %d steps, the longest %s", b.drawn, len(p), steps, worst)
			if worst > 5*time.Second { // on the clock of a busy machine, with the race detector; a bomb took ten times this
				t.Errorf("one step took %s", worst)
			}
		})
	}
}
