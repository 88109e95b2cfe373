//go:build linux

package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// modeScript sets the modes of a full-screen program and then does nothing.
const modeScript = `printf '\033[?1000h\033[?1002h\033[?1003h\033[?1006h\033[?2004h\033[?25l\033[?1049hfull screen'; exec sleep 600`

// atRest fails unless the terminal is as it was before the attach: modes left, settings equal.
func atRest(t *testing.T, s *screen, shown string) {
	t.Helper()
	var m terminal.ModeScanner
	m.Write([]byte(shown))
	if m.Modes() != 0 || !m.Ground() {
		t.Errorf("the terminal is left in modes %#x: %q", m.Modes(), tail(shown))
	}
	if got := s.termios(); got != s.before {
		t.Errorf("settings of the terminal changed:\nbefore %+v\nafter  %+v", s.before, got)
	}
}

func TestFieldD7_ModesAreRestoredOnEveryWayOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leave func(*screen, *testSeat)
		code  int
		says  string
	}{
		"detach":              {func(s *screen, _ *testSeat) { s.send("\x1d") }, 0, "detached from full"},
		"detach, kitty form":  {func(s *screen, _ *testSeat) { s.send("\x1b[93;5u") }, 0, "detached from full"},
		"SIGTERM":             {func(s *screen, _ *testSeat) { s.cmd.Process.Signal(syscall.SIGTERM) }, 130, "goes on running"},
		"SIGHUP":              {func(s *screen, _ *testSeat) { s.cmd.Process.Signal(syscall.SIGHUP) }, 130, "goes on running"},
		"SIGINT":              {func(s *screen, _ *testSeat) { s.cmd.Process.Signal(syscall.SIGINT) }, 130, "goes on running"},
		"SIGQUIT":             {func(s *screen, _ *testSeat) { s.cmd.Process.Signal(syscall.SIGQUIT) }, 130, "goes on running"},
		"the agent is killed": {func(_ *screen, p *testSeat) { p.signal(seat.ActionKill) }, -1, "full ended by SIGKILL"},
		"the seat is killed":  {func(_ *screen, p *testSeat) { p.kill() }, 1, "full is lost"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			p := r.start("full", modeScript)
			s := r.run("attach", "full")
			s.see("full screen")
			s.see("\x1b[?1049h")
			eventually(t, "this terminal is attached", func() bool { return p.status().Attached == 1 })
			c.leave(s, p)
			code, shown := s.wait()
			if c.code >= 0 && code != c.code || !strings.Contains(shown, c.says) {
				t.Errorf("exit code %d, shown %q; want %d and %q", code, tail(shown), c.code, c.says)
			}
			atRest(t, s, shown)
			for _, off := range []string{"1000l", "1002l", "1003l", "1006l", "2004l", "1049l", "25h"} {
				if at := strings.LastIndex(shown, "\x1b[?"+off); at < strings.LastIndex(shown, "full screen") {
					t.Errorf("%s is not reset after the last output", off)
				}
			}
		})
	}
}

// breakable stands between viewers and a seat and can be broken.
type breakable struct {
	path, to string
	mu       sync.Mutex
	l        net.Listener
	conns    []net.Conn
}

func (b *breakable) restore(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", b.path)
	if err != nil {
		t.Fatal(err)
	}
	b.l = l
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", b.to)
			if err != nil {
				from.Close()
				continue
			}
			b.mu.Lock()
			b.conns = append(b.conns, from, to)
			b.mu.Unlock()
			go io.Copy(from, to)
			go io.Copy(to, from)
		}
	}()
}

func (b *breakable) cut() {
	b.l.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
	b.conns = nil
}

// through makes viewers of a seat go through a relay.
func through(t *testing.T, p *testSeat) *breakable {
	t.Helper()
	b := &breakable{path: p.sock + "r", to: p.sock}
	b.restore(t)
	t.Cleanup(b.cut)
	file := filepath.Join(p.dir, "seat.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), p.sock, b.path, 1)
	if changed == string(text) {
		t.Fatalf("no socket path in %s", text)
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFieldD6_KeysTypedWhileReconnectingAreDroppedAndSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := filepath.Join(r.root, "typed")
	p := r.start("echo", `stty raw -echo; echo begun; exec cat >`+log)
	b := through(t, p)
	s := r.run("attach", "echo")
	s.see("begun")
	s.send("before;")
	typed := func() string { text, _ := os.ReadFile(log); return string(text) }
	eventually(t, "the agent read the first keys", func() bool { return typed() == "before;" })
	b.cut()
	s.see("reconnecting; what you type now is dropped")
	s.send("XYZ")
	// The client has read them, and dropped them, when nothing is left to read.
	eventually(t, "the keys were taken from the terminal", func() bool { return unread(t, s) == 0 })
	b.restore(t)
	s.see("reconnected")
	s.see("bytes typed meanwhile were dropped")
	s.send("after;")
	eventually(t, "the agent read the last keys", func() bool { return strings.HasSuffix(typed(), "after;") })
	if got := typed(); got != "before;after;" {
		t.Errorf("the agent read %q", got)
	}
	s.send("\x1d")
	if code, shown := s.wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
}

func TestAttach_GoesOnFromTheLastByteAfterTheConnectionBroke(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("count", `i=0; while [ $i -lt 400 ]; do echo "line $i."; i=$((i+1)); sleep 0.005; done; echo done; exec sleep 600`)
	b := through(t, p)
	s := r.run("attach", "--no-nudge", "count")
	s.see("line 20.")
	b.cut()
	s.see("reconnecting")
	b.restore(t)
	s.see("done")
	s.send("\x1d")
	_, shown := s.wait()
	at := 0
	for i := range 400 {
		line := fmt.Sprintf("line %d.", i)
		if strings.Count(shown, line) != 1 {
			t.Fatalf("%q was shown %d times", line, strings.Count(shown, line))
		}
		if pos := strings.Index(shown, line); pos < at {
			t.Fatalf("%q is out of order", line)
		} else {
			at = pos
		}
	}
}

func TestFieldL8_BytesReachTheTerminalAsTheyAre(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	text := strings.Repeat("aé汉🙂\xff", (1<<20)/11)
	file := filepath.Join(r.root, "text")
	if err := os.WriteFile(file, []byte(text+"<end>"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Odd block sizes cut characters at every place.
	r.start("bytes", `stty raw -echo; echo begun; head -c1 >/dev/null; dd if=`+file+` bs=7 2>/dev/null; exec sleep 600`)
	s := r.run("attach", "--no-nudge", "bytes")
	s.see("begun")
	s.send("g")
	s.see("<end>")
	shown := s.text()
	shown = shown[strings.Index(shown, "aé"):strings.Index(shown, "<end>")]
	if got, want := sha256.Sum256([]byte(shown)), sha256.Sum256([]byte(text)); got != want {
		t.Errorf("%d bytes were shown, %d were printed, and they differ", len(shown), len(text))
	}
	code, out, stderr := r.pipe("", "logs", "--raw", "--bytes", "4194304", "bytes")
	if code != 0 || !strings.Contains(out, text+"<end>") {
		t.Errorf("logs --raw: exit code %d, %d bytes, %s", code, len(out), stderr)
	}
}

func TestAttach_ReplayHoldsNoQuestionsAndEntersTheScreenFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// The screen is entered before the replay begins: more than replayMax is printed after it.
	r.start("tui", `printf '\033[?1049h\033[?25l\033[?2004h'; head -c 400000 /dev/zero | tr '\0' x | fold -w 70
		printf '\033[c\033[6n\033]11;?\007\033[?u\033[>q'; printf 'painted'; exec sleep 600`)
	first := r.run("attach", "--read-only", "tui")
	first.see("painted")
	first.send("\x1d")
	first.wait()
	s := r.run("attach", "tui")
	s.see("painted")
	s.see("\x1b[?2004h")
	shown := s.text()
	for _, q := range []string{"\x1b[c", "\x1b[6n", "\x1b]11;?", "\x1b[?u", "\x1b[>q"} {
		if strings.Contains(shown, q) {
			t.Errorf("the question %q was shown again", q)
		}
	}
	if alt, text := strings.Index(shown, "\x1b[?1049h"), strings.Index(shown, "xxxx"); alt < 0 || alt > text {
		t.Errorf("the alternate screen is entered at %d, output begins at %d", alt, text)
	}
	if !strings.Contains(shown, "\x1b[?25l") {
		t.Error("the hidden cursor was not restored for a late viewer")
	}
	s.send("\x1d")
	_, shown = s.wait()
	atRest(t, s, shown)
}

func TestAttach_SizeFollowsTheWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("size", `trap 'stty size' WINCH; echo begun; while :; do sleep 0.02; done`)
	s := r.run("attach", "--no-nudge", "size")
	s.see("begun")
	s.see("30 100")
	if err := pty.Setsize(s.ptm, &pty.Winsize{Rows: 41, Cols: 111}); err != nil {
		t.Fatal(err)
	}
	s.see("41 111")
	if st := p.status(); st.Rows != 41 || st.Cols != 111 {
		t.Errorf("the seat has %dx%d", st.Rows, st.Cols)
	}
}

func TestAttach_NudgesAProgramOfTheSameSizeToRepaint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("nudge", `trap 'stty size' WINCH; echo begun; while :; do sleep 0.01; done`)
	first := r.run("attach", "nudge")
	first.see("30 100") // the size changed, so the program repaints by itself
	first.send("\x1d")
	if _, shown := first.wait(); strings.Contains(shown, "29 100") {
		t.Errorf("nudged although the size changed: %q", shown)
	}
	s := r.run("attach", "nudge")
	s.see("29 100\r\n30 100")
	other := r.run("attach", "--read-only", "nudge")
	other.see("begun")
	other.send("\x1d")
	if _, shown := other.wait(); strings.Count(s.text(), "29 100") != 1 {
		t.Errorf("a second viewer changed the size: %q", tail(shown))
	}
}

func TestAttach_ANudgeLastsUntilASlowProgramHasSeenIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// It takes a sixth of a second to come to the news, as on a busy machine.
	r.start("slow", `trap 'w=1' WINCH; echo begun; while :; do sleep 0.16; if [ -n "$w" ]; then w=; stty size; fi; done`)
	first := r.run("attach", "slow")
	first.see("30 100")
	first.send("\x1d")
	first.wait()
	s := r.run("attach", "slow")
	s.see("29 100\r\n30 100")
}

func TestAttach_OneTerminalHasTheKeyboardUntilAnotherTakesIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("keys", `stty raw -echo; echo begun; exec cat`)
	a := r.run("attach", "keys")
	a.see("begun")
	eventually(t, "the first is attached", func() bool { return p.status().Attached == 1 })
	b := r.run("attach", "keys")
	b.see("another terminal has the keyboard: you only watch; to take it: cotal attach --take-over keys")
	// What is typed before the terminal is live is flushed, and not answered: so it is typed until it is.
	eventually(t, "typing is answered", func() bool {
		b.send("n")
		return strings.Contains(b.text(), "what you type is dropped; Ctrl-] detaches, and this takes it: cotal attach --take-over keys")
	})
	a.send("from-a;")
	b.see("from-a;")
	c := r.run("attach", "--take-over", "keys")
	a.see("another terminal took the keyboard: you only watch now; to take it back: cotal attach --take-over keys")
	c.see("begun")
	c.send("from-c;")
	a.see("from-c;")
	a.send("lost;")
	a.see("what you type is dropped")
	c.send("end;")
	a.see("end;")
	if strings.Contains(a.text(), "lost;") || strings.Contains(b.text(), "no;") {
		t.Error("a watcher's keys reached the agent")
	}
	for _, s := range []*screen{a, b, c} {
		s.send("\x1d")
		if code, shown := s.wait(); code != 0 {
			t.Errorf("exit code %d: %q", code, tail(shown))
		}
	}
}

func TestAttach_AWatcherOfAnotherSizeIsToldBoth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("wide", `echo begun; exec sleep 600`)
	a := r.run("attach", "wide")
	a.see("begun")
	if err := pty.Setsize(a.ptm, &pty.Winsize{Rows: 50, Cols: 200}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the seat has the new size", func() bool { return p.status().Rows == 50 })
	b := r.run("attach", "wide")
	b.see("another terminal has the keyboard (its size is 200x50, yours 100x30): you only watch; to take it: cotal attach --take-over wide")
	c := r.run("attach", "--take-over", "wide")
	a.see("another terminal took the keyboard (its size is 100x30, yours 200x50): you only watch now; to take it back: cotal attach --take-over wide")
	for _, s := range []*screen{a, b, c} {
		s.send("\x1d")
		s.wait()
	}
}

// What is said after an attach has a line of its own, and no blank line before it.
func TestAttach_WhatIsSaidAfterItBeginsALine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, sees, end string }{
		"a prompt":              {`printf 'prompt> '; exec sleep 600`, "prompt> ", "prompt> \ndetached from line"},
		"a line":                {`echo whole; exec sleep 600`, "whole", "whole\ndetached from line"},
		"a full-screen program": {`echo before; printf '\033[?1049hdrawn'; exec sleep 600`, "drawn", "drawndetached from line"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.start("line", c.script)
			s := r.run("attach", "--no-nudge", "line")
			s.see(c.sees)
			s.send("\x1d")
			code, shown := s.wait()
			if code != 0 || !strings.Contains(plain(shown), c.end) {
				t.Errorf("exit code %d, %q", code, shown)
			}
		})
	}
}

// plain is text without the sequences in it.
func plain(text string) string {
	return strings.ReplaceAll(string(terminal.AppendEscaped(nil, []byte(text))), `\x0f`, "")
}

func TestAttach_KeysBeforeTheDetachKeyArriveAndAnotherKeyCanBeChosen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := filepath.Join(r.root, "typed")
	r.start("last", `stty raw -echo; echo begun; exec cat >`+log)
	s := r.runEnv([]string{"COTAL_DETACH_KEY=ctrl-q"}, "attach", "last")
	s.see("begun")
	s.send("word\x1d\x11never")
	if code, shown := s.wait(); code != 0 {
		t.Fatalf("exit code %d: %q", code, tail(shown))
	}
	eventually(t, "the agent read the keys", func() bool { text, _ := os.ReadFile(log); return string(text) == "word\x1d" })
}

func TestAttach_SaysHowTheSeatEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("ends", `echo begun; read x; echo bye; exit $x`)
	s := r.typed("7\r", "attach", "ends") // typed before it is attached, so it is dropped
	s.see("begun")
	s.send("3\r")
	code, shown := s.wait()
	if code != 1 || !strings.Contains(shown, "ends ended with code 3") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	again := r.run("attach", "ends")
	if code, shown := again.wait(); code != 1 || !strings.Contains(shown, "ends ended with code 3") {
		t.Errorf("a seat that has ended: exit code %d: %q", code, tail(shown))
	}
}

func TestFieldD13_AttachWithoutATerminalIsRefusedWithAHint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("quiet", `exec sleep 600`)
	code, out, stderr := r.pipe("\n", "attach", "quiet")
	if code != 2 || out != "" || !strings.Contains(stderr, "cotal input quiet") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, stderr)
	}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("talk", `printf 'one\n\033[31mtwo\033[0m\a\n\033]0;title\007three\n'; read x; echo four; exit 0`)
	eventually(t, "it has printed", func() bool { return p.status().Next > 30 })
	code, out, stderr := r.pipe("", "logs", "talk")
	if code != 0 || out != "one\ntwo\\x07\nthree\n" || !strings.Contains(stderr, "no host answers") {
		t.Errorf("exit code %d, %q, %q", code, out, stderr)
	}
	code, out, _ = r.pipe("", "logs", "--bytes", "9", p.id[:10])
	if code != 0 || !strings.HasSuffix(out, "three\n") || strings.Contains(out, "two") {
		t.Errorf("the last bytes: exit code %d, %q", code, out)
	}
	f := r.run("logs", "-f", "talk")
	f.see("three")
	w := r.run("attach", "talk")
	w.see("three")
	w.send("x\r")
	f.see("four")
	if code, shown := f.wait(); code != 0 || !strings.Contains(shown, "talk has ended, with code 0") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	if code, _, stderr := r.pipe("", "logs", "nobody"); code != 3 && code != 4 || !strings.Contains(stderr, `"nobody"`) {
		t.Errorf("unknown seat: exit code %d, %q", code, stderr)
	}
}

func TestLogs_OfAShellAndOfAFullScreenProgram(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.start("tui", `printf 'ab\b\b\b\b\b\bc\n\033[?1049h\033[Hdrawn\033[?1049l\n'; exec sleep 600`)
	eventually(t, "it has printed", func() bool { return p.status().Next > 30 })
	const note = "note: this is a full-screen program: look with cotal attach --read-only tui\n"
	code, out, stderr := r.pipe("", "logs", "tui")
	if code != 0 || out != "ab\\x08*6c\ndrawn\n" || strings.Count(stderr, note) != 1 {
		t.Errorf("exit code %d, %q, %q", code, out, stderr)
	}
	if code, out, stderr := r.pipe("", "logs", "--raw", "tui"); code != 0 || !strings.Contains(out, "\b\b\b\b\b\b") || strings.Contains(stderr, note) {
		t.Errorf("--raw: exit code %d, %q, %q", code, out, stderr)
	}
	f := r.run("logs", "-f", "tui")
	f.see("look with cotal attach --read-only tui")
}

// unread is how many bytes typed into the terminal nobody has read.
func unread(t *testing.T, s *screen) int {
	t.Helper()
	n, err := unixInq(int(s.pts.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
