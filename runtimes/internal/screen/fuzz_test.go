package screen

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// seeds are streams that have been trouble to emulators, and pieces of what real programs print.
func seeds(t testing.TB) (all [][]byte) {
	for _, s := range troubles {
		all = append(all, []byte(s))
	}
	for _, s := range []string{
		"", "plain\r\n", "\x1b[2000000000b", "x\x1b[2000000000b\x1b[2000000000X\x1b[99999I\x1b[99999Z", "\x1b[1;1H漢\x1b[1;2Hx\x1b[1;1H\x1b[P",
		"\x1b[?1049h\x1b[2;4r\x1b[?6h\x1b[9;9H\x1b[L\x1b[M\x1b[T\x1b[S\x1bM\x1bD\x1b[?1049l", "\xff\xfe\xc3(\xe6\xbc\x1b[31", "\x1b]8;;http://x\x1b\\a\x1b]8;;\x07",
		"e\u0301\u0301\u0301\u0301 \u200d\u200d 👩‍👩‍👧‍👦 🇩🇪 \ufe0f", "\x1bP+q544e\x1b\\\x1b[6n\x1b[c\x1b[?u\x1b]11;?\x07", "\x1b[4habc\x1b[4l\x1b(0lqk\x1b(B\x0e\x0f",
		"\x1b[0;0r\x1b[99;1r\x1b[;r\x1b[-1;5H\x1b[38;2;1;2;3;4:3;58:5:1mx", "\x1b[?7l" + strings.Repeat("w", 300) + "\x1b[?7h\t\t\t\x1b[3g\x1bH\t", "\x1bc\x1b[!p\x1b7\x1b8\x1b[s\x1b[u",
		"\x9b31m\x1b\x1b\x1b[[[[;;;;\x18\x1a\x1b]\x1bP\x1b_\x1b^\x1bX\x1b\\", "\x1b[5 q\x1b[?25l\x1b[?25h\x1b[?2004;1006;1000h", "\x1b[1000;1000H漢\x1b[1000C\x1b[@漢漢\x1b[X",
	} {
		all = append(all, []byte(s))
	}
	files, _ := filepath.Glob("testdata/*.rec")
	for _, f := range files {
		p, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p[:min(len(p), 2000)], p[max(0, len(p)-2000):])
	}
	return all
}

// FuzzScreen feeds anything in any pieces at any sizes: nothing panics, hangs or grows, questions are
// answered in order, and a snapshot paints what is there.
func FuzzScreen(f *testing.F) {
	for i, s := range seeds(f) {
		f.Add(s, uint8(i), uint8(3*i+1), uint16(i*37))
	}
	f.Fuzz(func(t *testing.T, p []byte, cut, size uint8, resize uint16) {
		p = p[:min(len(p), 16<<10)]
		began := time.Now()
		b := newBench(t, int(size)%30+1, int(size)%90+2)
		step := int(cut)%64 + 1
		for i := 0; i < len(p); i += step {
			b.feed(string(p[i:min(len(p), i+step)]))
			if resize > 0 && i/step%17 == int(resize)%17 {
				b.Resize(int(resize)%40, int(resize>>4)%120)
			}
		}
		if d := time.Since(began); d > 20*time.Second {
			t.Fatalf("%d bytes took %s", len(p), d)
		}
		if len(b.clean.held) > heldMax || len(b.lex.held) > heldMax || len(b.queries) > 0 || len(b.buf) > 0 {
			t.Fatalf("held %d and %d bytes, %d questions, %d bytes", len(b.clean.held), len(b.lex.held), len(b.queries), len(b.buf))
		}
		if b.panics > 0 {
			return // survived; the emulator's picture is not to be trusted then
		}
		snap := b.Snapshot()
		if len(snap.Data) > SnapshotMax {
			t.Fatalf("snapshot of %d bytes", len(snap.Data))
		}
		fresh := newBench(t, snap.Rows, snap.Cols)
		fresh.feed(string(snap.Data))
		if err := same(b.Screen, fresh.Screen); err != nil && !odd(b.Screen) {
			t.Fatalf("%v\nsnapshot %.2000q", err, snap.Data)
		}
		if len(fresh.answers) > 0 {
			t.Fatalf("a snapshot asks: %q", fresh.answers)
		}
	})
}

// odd reports whether the library has drawn what no sequence draws: half a wide character, or one without
// width, left behind when cells were moved.
func odd(s *Screen) bool {
	row, _, _ := s.em.Cursor()
	if top, bottom := s.em.Margins(); s.shown.Modes()&terminal.OriginMode != 0 && (row < top || row > bottom) {
		return true // no movement leads out of the region
	}
	for n := range 2 {
		for row := range s.rows {
			for col := range s.cols {
				c := s.em.Cell(n, row, col)
				if n, w := firstCluster([]byte(c.text)); c.text != "" && (n != len(c.text) || w != c.width) {
					return true
				}
				if c.width == 2 && (col+1 >= s.cols || s.em.Cell(n, row, col+1).text != "") || c.width == 0 && (col == 0 || s.em.Cell(n, row, col-1).width != 2) {
					return true
				}
			}
		}
	}
	return false
}

// Memory of one screen, whatever it is fed: the emulator's own 4 MiB buffer and scrollback are gone.
func TestAScreenIsSmall(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const n = 4
	before := heap()
	var all []*bench
	line := bytes.Repeat([]byte("\x1b[31mx\x1b[32my"), 40)
	for range n {
		b := newBench(t, 50, 200)
		for range 300 {
			b.feed(string(line) + "\r\n")
		}
		b.feed("\x1b]0;" + strings.Repeat("x", 1<<20))
		all = append(all, b)
	}
	if each := (heap() - before) / n; each > 4<<20 {
		t.Errorf("%d KiB each", each>>10)
	} else {
		t.Logf("%d KiB each", each>>10)
	}
	runtime.KeepAlive(all)
}

func BenchmarkDraw(b *testing.B) {
	for _, c := range []struct{ name, text string }{
		{"2-byte-lines", "y\r\n"},
		{"101-byte-lines", strings.Repeat("y", 99) + "\r\n"},
		{"full-screen", "\x1b[12;40H\x1b[38;2;120;130;140m│\x1b[0m some text of a cell \x1b[1m\x1b[48;5;236mbold\x1b[0m\x1b[K"},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newBench(b, 50, 200)
			p := strings.Repeat(c.text, 16<<10/len(c.text))
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				s.clean.write([]byte(p))
			}
		})
		b.Run(c.name+"-lexed", func(b *testing.B) {
			s := newBench(b, 50, 200)
			p := []byte(strings.Repeat(c.text, 64<<10/len(c.text)))
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				s.lex.write(p)
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := newBench(b, 50, 200)
	for row := range 50 {
		s.feed("\x1b[" + string(rune('0'+row/10)) + string(rune('0'+row%10)) + ";1H")
		for col := range 50 {
			s.feed("\x1b[38;2;" + string(rune('0'+col%10)) + ";9;9;1mabcd")
		}
	}
	b.ReportMetric(float64(len(s.Snapshot().Data)), "bytes")
	for b.Loop() {
		s.Snapshot()
	}
}
