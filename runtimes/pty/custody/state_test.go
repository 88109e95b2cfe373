//go:build linux

package custody

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

func TestLineAfter(t *testing.T) {
	canonical := &unix.Termios{Lflag: unix.ICANON | unix.ISIG | unix.IEXTEN, Iflag: unix.ICRNL}
	canonical.Cc[unix.VEOF], canonical.Cc[unix.VINTR], canonical.Cc[unix.VERASE] = 4, 3, 127
	canonical.Cc[unix.VKILL], canonical.Cc[unix.VLNEXT] = 21, 22
	x := strings.Repeat("x", 4095)
	for _, c := range []struct {
		name string
		n    int
		p    string
		t    *unix.Termios
		want int
		ok   bool
	}{
		{"a raw terminal has no lines", 4000, x + x, &unix.Termios{}, 0, true},
		{"the longest line fits", 0, x + "\n", canonical, 0, true},
		{"one byte more does not", 0, x + "x", canonical, 4096, false},
		{"a pending line counts", 1, x, canonical, 4096, false},
		{"return ends a line when it is mapped to newline", 4095, "\rab", canonical, 2, true},
		{"end of file ends a line", 4095, "\x04a", canonical, 1, true},
		{"interrupt throws the line away", 4095, "\x03a", canonical, 1, true},
		{"kill throws the line away", 4095, "\x15a", canonical, 1, true},
		{"erase takes one byte back", 4095, "\x7fa", canonical, 4095, true},
		{"a quoted control character is a byte of the line", 4095, "\x16\x03", canonical, 4096, false},
		{"a zero control character is not special", 4095, "\x00", canonical, 4096, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if n, ok := lineAfter(c.n, []byte(c.p), c.t); n != c.want || ok != c.ok {
				t.Errorf("got %d %v, want %d %v", n, ok, c.want, c.ok)
			}
		})
	}
}

func TestTheRingKeepsTheNewestBytesOverItsEnd(t *testing.T) {
	r, err := newRing(128 << 10)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(r.buf) }()
	var all []byte
	for i := 0; len(all) < 1<<20; i++ {
		s := r.space()
		n := min(len(s), 1+i*977%60_000)
		for j := range n {
			s[j] = byte(len(all) + j*3)
		}
		all = append(all, s[:n]...)
		r.put(n)
		for _, back := range []uint64{1, 1000, r.next - r.first} {
			if back > r.next-r.first {
				continue
			}
			p := make([]byte, back)
			if n := r.copyOut(p, r.next-back); n != len(p) || !bytes.Equal(p, all[uint64(len(all))-back:]) {
				t.Fatalf("last %d bytes of %d differ", back, len(all))
			}
		}
	}
	if r.next-r.first < r.size() {
		t.Errorf("keeps %d of %d", r.next-r.first, r.size())
	}
}

func TestTheSpillServesWhatItHoldsAndNothingElse(t *testing.T) {
	r, err := newRing(128 << 10)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(r.buf) }()
	const held = 300_000
	path := filepath.Join(t.TempDir(), "ring")
	s := &server{ring: r, spill: &spill{path: path, cap: held}, log: &logFile{}}
	s.drained = sync.NewCond(&s.mu)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	write := func(to int) {
		for s.ring.next < uint64(to) {
			s.ring.put(copy(s.ring.space(), data[s.ring.next:to]))
		}
		s.ring.space()
	}
	check := func(first, next uint64) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.spill.first != first || s.spill.next != next {
			t.Fatalf("span %d..%d, want %d..%d", s.spill.first, s.spill.next, first, next)
		}
		for at := first; at < next; {
			p := make([]byte, 10_000)
			n := s.readSpill(p, at)
			if n == 0 || !bytes.Equal(p[:n], data[at:at+uint64(n)]) {
				t.Fatalf("read %d at %d", n, at)
			}
			at += uint64(n)
		}
		if n := s.readSpill(make([]byte, 10), next); n != 0 {
			t.Errorf("read %d at the end", n)
		}
		if first > 0 && s.readSpill(make([]byte, 10), first-1) != 0 {
			t.Error("read what was given up")
		}
	}
	write(40_000)
	s.spillOut()
	check(0, 40_000)
	for n := 100_000; n <= 400_000; n += 100_000 {
		write(n)
		s.spillOut()
	}
	check(400_000-held, 400_000)
	write(700_000) // more than the ring holds: what came between is lost
	s.spillOut()
	check(700_000-r.size(), 700_000)
	if st, err := os.Stat(path); err != nil || st.Size() > spillHeader+held {
		t.Errorf("the file has %d bytes, %v", st.Size(), err)
	}
}

func TestJSONOfTheSeatIsReadByItsReader(t *testing.T) {
	nasty := "a\"b\\c\x00\x1b\n\x7f\xff漢\u2028"
	id := strings.Repeat("0123456789abcdef", 2)
	x := seat.ExitRecord{
		Code: 137, CodeKnown: true, Signal: "SIGKILL", AtUnixNs: 1e18, Asked: true, Evidence: seat.EvidenceReaped,
		Detail: nasty, Last: nasty, Reaped: []seat.Killed{{PID: 7, Command: nasty, Signal: "SIGTERM"}, {PID: 8}},
	}
	text := seat.ExitJSON(id, nasty, &x)
	if !json.Valid(text) {
		t.Fatalf("not JSON: %s", text)
	}
	got, err := record.ParseExit(text)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ToValidUTF8(nasty, "\ufffd")
	if *got.Code != 137 || got.Detail != want || got.Last != want || got.Reaped[0].Command != want || got.Reaped[1].PID != 8 {
		t.Errorf("%+v", got)
	}
}

// The seat stays small because it links little: package net alone costs 2 MB of memory a seat.
func TestTheSeatLinksASmallPartOfTheStandardLibrary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/cotal-ai/cotal-host/cmd/cotal-seat").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		switch dep {
		case "net", "fmt", "encoding/json", "os/exec", "log", "log/slog", "flag", "crypto/tls", "net/http", "regexp":
			t.Errorf("cotal-seat links %s", dep)
		}
		if strings.Contains(dep, ".") && !strings.HasPrefix(dep, "golang.org/x/sys/") && !strings.HasPrefix(dep, "vendor/") {
			switch strings.TrimPrefix(dep, "github.com/cotal-ai/cotal-host/") {
			case "cmd/cotal-seat", "runtimes/pty/custody", "runtimes/internal/custodian", "sdk/seat", "sdk/terminal", "sdk/failpoint":
			default:
				t.Errorf("cotal-seat links %s", dep)
			}
		}
	}
}

// A seat lives for days and cannot be upgraded: what it does is small, or belongs elsewhere. Lines are
// counted without comments and blank ones, over the package, what it shares with other custody processes, and
// its program.
func TestTheSeatStaysSmall(t *testing.T) {
	const most = 1500
	files := []string{"../../../cmd/cotal-seat/main.go"}
	for _, pattern := range []string{"*.go", "../../internal/custodian/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	lines := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				lines++
			}
		}
	}
	if lines > most {
		t.Errorf("custody has grown to %d lines", lines)
	}
}

func TestTheLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	keep, err := unix.Dup(2) // the log becomes standard error
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Dup3(keep, 2, 0) }()
	l := &logFile{path: filepath.Join(dir, "seat.log")}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	for range 3 * maxLog / 1000 {
		l.say(strings.Repeat("x", 1000))
	}
	for _, name := range []string{"seat.log", "seat.log.1"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() > maxLog {
			t.Errorf("%s: %v", name, err)
		}
	}
}
