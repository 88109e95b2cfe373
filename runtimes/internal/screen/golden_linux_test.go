package screen

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// golden is a recorded stream and the size it was made for.
type golden struct {
	name       string
	rows, cols int
	data       []byte
}

var goldenName = regexp.MustCompile(`^(.+)-(\d+)x(\d+)\.rec$`)

func goldens(t testing.TB) (all []golden) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.rec")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, file := range files {
		m := goldenName.FindStringSubmatch(filepath.Base(file))
		if m == nil {
			t.Fatalf("%s is not NAME-ROWSxCOLS.rec", file)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		total += len(data)
		rows, _ := strconv.Atoi(m[2])
		cols, _ := strconv.Atoi(m[3])
		all = append(all, golden{m[1], rows, cols, data})
	}
	if len(all) < 5 || total > 300<<10 {
		t.Fatalf("%d recordings with %d bytes: want five programs and at most 300 KiB", len(all), total)
	}
	return all
}

// tmuxServer is a tmux of the test's own: private socket, no configuration but this.
type tmuxServer struct {
	t      *testing.T
	socket string
}

func newTmux(t *testing.T) *tmuxServer {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	s := &tmuxServer{t: t, socket: filepath.Join(dir, "s")}
	t.Cleanup(func() {
		_ = s.cmd("kill-server").Run()
		os.RemoveAll(dir)
	})
	s.run("new-session", "-d", "exec sleep 1000") // the server must not end with its last pane
	return s
}

func (s *tmuxServer) cmd(args ...string) *exec.Cmd {
	cmd := exec.Command("tmux", append([]string{"-S", s.socket, "-f", "/dev/null"}, args...)...)
	cmd.Env = []string{"TERM=xterm-256color", "LANG=C.UTF-8", "PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	return cmd
}

func (s *tmuxServer) run(args ...string) string {
	s.t.Helper()
	out, err := s.cmd(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// show replays bytes in a pane of its own, on a raw terminal, and returns its id.
func (s *tmuxServer) show(g golden, n int) string {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), fmt.Sprint("bytes-", n))
	if err := os.WriteFile(file, g.data[:n], 0o600); err != nil {
		s.t.Fatal(err)
	}
	script := "stty raw -echo; cat '" + file + "'; exec sleep 1000"
	id := strings.TrimSpace(s.run("new-session", "-d", "-P", "-F", "#{pane_id}", "-x", strconv.Itoa(g.cols), "-y", strconv.Itoa(g.rows),
		"sh", "-c", script, ";", "set", "-g", "status", "off", ";", "resize-window", "-x", strconv.Itoa(g.cols), "-y", strconv.Itoa(g.rows)))
	return id
}

// basic are colours that have a shorter name, which tmux uses.
var basic = regexp.MustCompile(`\b(3|4)8;5;(\d+)\b`)

func looks(p pen) string {
	s := basic.ReplaceAllStringFunc(p.sgr, func(m string) string {
		parts := basic.FindStringSubmatch(m)
		n, _ := strconv.Atoi(parts[2])
		first, _ := strconv.Atoi(parts[1])
		switch {
		case n < 8:
			return strconv.Itoa(first*10 + n)
		case n < 16:
			return strconv.Itoa(first*10 + 60 + n - 8)
		}
		return m
	})
	return s
}

// TestThePictureIsThatOfTmux replays real programs' streams, whole and cut short, into tmux and into the
// emulator, and compares every cell: text, colours, attributes; and the cursor.
func TestThePictureIsThatOfTmux(t *testing.T) {
	for _, g := range goldens(t) {
		t.Run(g.name, func(t *testing.T) {
			s := newTmux(t)
			for _, part := range []int{4, 2, 3} { // quarters of the stream, the whole one first
				n := len(g.data) * part / 4
				for n < len(g.data) && g.data[n] != esc {
					n++ // tmux shows what is complete, as we do; a cut is not what is tested here
				}
				b := newBench(t, g.rows, g.cols)
				b.feed(string(g.data[:n]))
				pane := s.show(g, n)
				var diff string
				for deadline := time.Now().Add(10 * time.Second); ; {
					if diff = differs(t, s, pane, b); diff == "" {
						break
					}
					if time.Now().After(deadline) {
						t.Errorf("%s after %d bytes: %s", g.name, n, diff)
						break
					}
					<-time.After(20 * time.Millisecond)
				}
				s.run("kill-pane", "-t", pane)
			}
		})
	}
}

// TestTroublesLookLikeInTmux shows streams that were drawn wrong once.
func TestTroublesLookLikeInTmux(t *testing.T) {
	s := newTmux(t)
	for name, text := range troubles {
		t.Run(name, func(t *testing.T) {
			g := golden{name, 32, 120, []byte(text)}
			b := newBench(t, g.rows, g.cols)
			b.feed(text)
			if b.panics > 0 || b.Dirty() != "" {
				t.Errorf("%d panics, dirty %q", b.panics, b.Dirty())
			}
			pane := s.show(g, len(text))
			diff := ""
			for deadline := time.Now().Add(10 * time.Second); ; {
				if diff = differs(t, s, pane, b); diff == "" || time.Now().After(deadline) {
					break
				}
				<-time.After(20 * time.Millisecond)
			}
			if diff != "" {
				t.Error(diff)
			}
			s.run("kill-pane", "-t", pane)
		})
	}
}

// differs says where the first cell is that tmux shows otherwise.
func differs(t *testing.T, s *tmuxServer, pane string, b *bench) string {
	t.Helper()
	out := s.run("capture-pane", "-p", "-e", "-N", "-t", pane)
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != b.rows {
		return fmt.Sprintf("tmux has %d lines, want %d", len(lines), b.rows)
	}
	theirs := newBench(t, b.rows, b.cols)
	ends := make([]int, b.rows) // behind them tmux keeps colours of erased cells to itself
	for i, line := range lines {
		line = strings.ReplaceAll(line, "5:3", "53") // as this tmux writes it
		// Plain lines with colours, which go on from one line to the next; shown by the same emulator.
		theirs.feed(fmt.Sprintf("\x1b[%d;1H%s", i+1, line))
		_, ends[i], _ = theirs.em.Cursor()
	}
	n := 0
	if b.em.Alternate() {
		n = 1
	}
	bad := 0
	first := ""
	for row := range b.rows {
		for col := range b.cols {
			x, y := b.em.Cell(n, row, col), theirs.em.Cell(0, row, col)
			if x.text != y.text || (x.text != " " || col < ends[row]) && looks(x.pen) != looks(y.pen) {
				if bad++; first == "" {
					first = fmt.Sprintf("row %d, column %d: %+v, tmux %+v", row, col, x, y)
				}
			}
		}
	}
	if bad > 0 {
		return fmt.Sprintf("%d cells, first %s", bad, first)
	}
	row, col, wraps := b.em.Cursor()
	if wraps { // tmux counts on
		col++
	}
	at := strings.TrimSpace(s.run("display-message", "-p", "-t", pane, "#{cursor_y};#{cursor_x}"))
	if want := fmt.Sprintf("%d;%d", row, col); at != want {
		return fmt.Sprintf("cursor %s, tmux %s", want, at)
	}
	return ""
}

// A snapshot of a real program's screen paints that screen, at any place of its stream.
func TestASnapshotOfARealProgramPaintsIt(t *testing.T) {
	for _, g := range goldens(t) {
		t.Run(g.name, func(t *testing.T) {
			b := newBench(t, g.rows, g.cols)
			for i := 0; i < len(g.data); i += 997 {
				b.feed(string(g.data[i:min(len(g.data), i+997)]))
				f, snap := repainted(t, b.Screen)
				if err := same(b.Screen, f.Screen); err != nil {
					t.Fatalf("after %d bytes: %v", i, err)
				}
				if len(snap.Data) > SnapshotMax {
					t.Fatalf("snapshot of %d bytes", len(snap.Data))
				}
			}
		})
	}
}
