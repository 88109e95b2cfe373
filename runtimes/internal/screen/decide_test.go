package screen

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

func TestDecide(t *testing.T) {
	ms := time.Millisecond
	for name, c := range map[string]struct {
		in   load
		want step
		wait time.Duration
	}{
		"nothing came":                                         {load{credit: credit}, rest, 0},
		"a keystroke's echo is drawn at once":                  {load{backlog: 1, credit: credit}, drawSome, 0},
		"a whole ring is drawn while there is credit":          {load{backlog: backlogMax, age: 200 * ms, credit: ms}, drawSome, 0},
		"behind 300 ms with much to come is a flood":           {load{backlog: tailFar + 1, age: 301 * ms, sinceDrawn: 250 * ms, credit: credit}, drawTail, 0},
		"late with little to come is a busy machine":           {load{backlog: tailFar, age: time.Second, credit: credit}, drawSome, 0},
		"without credit it waits out the quarter second":       {load{backlog: tailFar, sinceDrawn: 100 * ms}, pause, 150 * ms},
		"without credit and with little it is drawn then":      {load{backlog: tailBytes, sinceDrawn: 250 * ms}, drawSome, 0},
		"without credit and with much only the tail":           {load{backlog: tailBytes + 1, sinceDrawn: 250 * ms}, drawTail, 0},
		"in a flood the tail is drawn every 250 ms":            {load{backlog: floodKeep, lost: true, flood: true, sinceDrawn: 250 * ms, credit: credit}, drawTail, 0},
		"and not earlier":                                      {load{backlog: floodKeep, lost: true, flood: true, sinceDrawn: 249 * ms, credit: credit}, pause, ms},
		"a dear tail is followed by a longer pause":            {load{backlog: floodKeep, lost: true, flood: true, sinceDrawn: 600 * ms, tailCost: 100 * ms}, pause, 400 * ms},
		"but not by one without end":                           {load{backlog: floodKeep, lost: true, flood: true, sinceDrawn: 2 * time.Second, tailCost: time.Second}, drawTail, 0},
		"what was lost is never drawn over":                    {load{backlog: 1, lost: true, sinceDrawn: 250 * ms, credit: credit}, drawTail, 0},
		"a flood that has become a trickle ends":               {load{backlog: 100, flood: true, sinceDrawn: 250 * ms, credit: credit}, drawSome, 0},
		"one that stopped counts as over a moment later":       {load{flood: true, sinceDrawn: 40 * ms, credit: credit}, pause, 60 * ms},
		"and is over then":                                     {load{flood: true, sinceDrawn: 100 * ms, credit: credit}, rest, 0},
		"a flood that goes on is not ended by credit it won":   {load{backlog: tailBytes + 1, flood: true, sinceDrawn: 250 * ms, credit: credit}, drawTail, 0},
		"debt does not stop what came after a quiet moment":    {load{backlog: 10, sinceDrawn: time.Minute, credit: -ms}, drawSome, 0},
		"a flood in which nothing came since waits for news":   {load{flood: true, sinceDrawn: time.Minute, credit: -ms}, rest, 0},
		"the first byte after a long silence is drawn at once": {load{backlog: 1, sinceDrawn: time.Hour, credit: credit}, drawSome, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got, wait := decide(c.in); got != c.want || wait != c.wait {
				t.Errorf("%d after %s, want %d after %s", got, wait, c.want, c.wait)
			}
		})
	}
}

// flood feeds lines faster than they are drawn for a while, moving the clock along, and returns what was
// drawn of it in bytes.
func (b *bench) flood(chunk string, rate int, d time.Duration) {
	for step := 5 * time.Millisecond; d > 0; d -= step {
		for n := 0; n < rate/200; n += len(chunk) {
			b.Feed(b.lex.pos, []byte(chunk))
		}
		b.work()
		b.clock.t = b.clock.t.Add(step)
	}
}

// calm lets time pass without output.
func (b *bench) calm(d time.Duration) {
	for step := 10 * time.Millisecond; d > 0; d -= step {
		b.clock.t = b.clock.t.Add(step)
		b.work()
	}
}

// dearCPU makes drawing cost as much as it does with the slowest streams.
func dearCPU(c *Config) {
	var spent time.Duration
	c.CPU = func() time.Duration { spent += 2 * time.Millisecond; return spent }
}

func TestAFloodIsSkippedAndCleanAfterIt(t *testing.T) {
	for _, lines := range []int{1, 40, 6000} { // in pieces of this size
		t.Run(strconv.Itoa(lines), func(t *testing.T) { skipped(t, lines) })
	}
}

func skipped(t *testing.T, lines int) {
	line := strings.Repeat("y", 99) + "\r\n"
	b := newBench(t, 24, 80, dearCPU)
	b.feed("start\r\n")
	b.flood(strings.Repeat(line, lines), 50<<20, 600*time.Millisecond)
	if !b.flooding() || b.Dirty() == "" {
		t.Fatalf("50 MB/s: flood %v, dirty %q", b.flooding(), b.Dirty())
	}
	if d := b.lex.pos - b.drawn; len(b.buf) > floodKeep+tailFar {
		t.Errorf("%d bytes behind, %d kept", d, len(b.buf))
	}
	b.Feed(b.lex.pos, []byte("the end"))
	for n := 0; b.Dirty() != ""; n++ {
		b.calm(10 * time.Millisecond)
		if n > 100 {
			t.Fatalf("still dirty a second after the end: %s", b.Dirty())
		}
	}
	whole := newBench(t, 24, 80)
	whole.feed(strings.Repeat(line, 40) + "the end")
	if got, want := b.text(), whole.text(); got != want {
		t.Errorf("the screen after the flood\n%s\nwant\n%s", got, want)
	}
	if b.jiggles != 0 {
		t.Error("a screen that is known was made to repaint")
	}
}

func (s *Screen) flooding() bool { return s.flood }

func TestAFloodOfAFullScreenProgramIsRepainted(t *testing.T) {
	b := newBench(t, 24, 80, dearCPU)
	b.feed("\x1b[?1049h\x1b[?25l\x1b[?1006h\x1b[3;20r")
	frame := "\x1b[5;5H\x1b[31mframe\x1b[m\x1b[6;5Hmore of it " + strings.Repeat("z", 60)
	b.flood(strings.Repeat(frame, 40), 20<<20, time.Second)
	if b.Dirty() == "" {
		t.Error("clean in a flood")
	}
	b.calm(990 * time.Millisecond)
	if b.jiggles != 1 {
		t.Errorf("repainted %d times, want once", b.jiggles)
	}
	if d := b.Dirty(); d != "" {
		t.Errorf("dirty after it repainted: %s", d)
	}
	if !b.em.Alternate() {
		t.Error("the alternate screen is lost")
	}
	if top, bottom := b.em.Margins(); top != 2 || bottom != 19 {
		t.Errorf("the scroll region is rows %d to %d", top, bottom)
	}
	if m := b.shown.Modes(); m&terminal.CursorHidden == 0 || m&terminal.MouseSGR == 0 {
		t.Errorf("modes %#x", m)
	}
}

func TestAFloodWithSomebodyAttachedStaysDirtyUntilItClears(t *testing.T) {
	b := newBench(t, 24, 80, dearCPU, func(c *Config) { c.Jiggle = func() bool { return false } })
	b.feed("\x1b[?1049h")
	b.flood(strings.Repeat("\x1b[5;5Hframe", 200), 20<<20, time.Second)
	b.calm(5 * time.Second)
	if b.Dirty() == "" {
		t.Error("clean, though nobody repainted")
	}
	b.feed("\x1b[H\x1b[2Jnew")
	if d := b.Dirty(); d != "" || b.text() != "new" {
		t.Errorf("after a repaint: dirty %q, text %q", d, b.text())
	}
}

// A skip never lands inside a sequence or a character.
func TestASkipStartsBetweenSequences(t *testing.T) {
	for name, chunk := range map[string]string{
		"long sequences":      "\x1b]8;;http://example.com/" + strings.Repeat("x", 200) + "\x1b\\漢\x1b]8;;\x1b\\\x1b[38;2;100;100;100m",
		"titles":              "\x1b]0;" + strings.Repeat("junk ", 80) + "\x07",
		"wide characters":     strings.Repeat("漢字🙂", 50),
		"a picture":           "\x1bPq" + strings.Repeat("#0~~junk", 100) + "\x1b\\",
		"no newline anywhere": strings.Repeat("\x1b[1;1H\x1b[31m漢\x1b[m", 20),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 24, 80, dearCPU)
			for i := 0; i < 120; i++ { // pieces of odd sizes
				p := strings.Repeat(chunk, 1+20000/len(chunk))
				cut := 1 + i*37%len(p)
				b.Feed(b.lex.pos, []byte(p[:cut]))
				b.Feed(b.lex.pos, []byte(p[cut:]))
				b.clock.t = b.clock.t.Add(7 * time.Millisecond)
				b.work()
				if text := b.text(); strings.Contains(text, "junk") || strings.ContainsAny(text, "\uFFFD;#[") || strings.Contains(text, "http") {
					t.Fatalf("junk on the screen: %q", text)
				}
			}
		})
	}
}

// Questions in a flood are answered within half a second, once, in order.
func TestQuestionsInAFloodAreAnswered(t *testing.T) {
	b := newBench(t, 24, 80, dearCPU)
	line := strings.Repeat(strings.Repeat("y", 99)+"\r\n", 40)
	b.flood(line, 50<<20, time.Second)
	for i := range 8 {
		b.Feed(b.lex.pos, []byte("\x1b[c"))
		for range 100 {
			if len(b.answers) > i {
				break
			}
			b.flood(line, 50<<20, 5*time.Millisecond)
		}
		if len(b.answers) != i+1 {
			t.Fatalf("%d questions, %d answers within half a second", i+1, len(b.answers))
		}
	}
	b.calm(time.Second)
	if len(b.answers) != 8 {
		t.Errorf("%d answers to 8 questions", len(b.answers))
	}
}

// A picture that begins in the middle of a stream is unsure until it is repainted, and knows its modes.
func TestEnteringAStreamInTheMiddle(t *testing.T) {
	b := newBench(t, 5, 20, func(c *Config) { c.From, c.Modes = 1000, terminal.AltScreen|terminal.CursorHidden })
	b.feed("31mjunk\r\nline\x1b[2;2Hhere")
	if b.Dirty() == "" {
		t.Error("clean")
	}
	if !b.em.Alternate() || strings.Contains(b.text(), "junk") || !strings.Contains(b.text(), "here") {
		t.Errorf("alternate %v, text %q", b.em.Alternate(), b.text())
	}
	b.calm(time.Second)
	if b.Dirty() != "" || b.jiggles != 1 {
		t.Errorf("dirty %q, repainted %d times", b.Dirty(), b.jiggles)
	}
}

func TestAGapIsDirty(t *testing.T) {
	b := newBench(t, 5, 20)
	b.feed("before")
	b.Gap(1 << 20)
	b.SetModes(terminal.AltScreen)
	if b.Dirty() == "" {
		t.Error("clean in a gap")
	}
	b.feed("after\r\nx\r\n")
	b.calm(2 * time.Second)
	if b.Dirty() != "" || !b.em.Alternate() {
		t.Errorf("dirty %q, alternate %v", b.Dirty(), b.em.Alternate())
	}
}

// failing is an emulator that panics on a byte.
type failing struct{ emulator }

func (f failing) Write(p []byte) {
	if strings.Contains(string(p), "!") {
		panic("index out of range")
	}
	f.emulator.Write(p)
}

func TestAPanicOfTheEmulatorIsSurvived(t *testing.T) {
	b := newBench(t, 5, 20)
	b.feed("\x1b[?1049h\x1b[?25lhello")
	b.clean.em = failing{b.em}
	b.feed("bang! and on")
	if b.Dirty() == "" || !b.em.Alternate() {
		t.Errorf("dirty %q, alternate %v", b.Dirty(), b.em.Alternate())
	}
	b.feed("\x1b[2J\x1b[Hall new\x1b[c")
	if b.Dirty() != "" || b.text() != "all new" || len(b.answers) != 1 {
		t.Errorf("dirty %q, text %q, answers %q", b.Dirty(), b.text(), b.answers)
	}
}

func TestALowerScreenKeepsItsLastLines(t *testing.T) {
	b := newBench(t, 6, 20)
	b.feed("1\r\n2\r\n3\r\n4\r\n5\r\n6")
	b.Resize(3, 20)
	if got := b.text(); got != "4\n5\n6" {
		t.Errorf("%q", got)
	}
	b.Resize(6, 30)
	b.feed("\r\n7")
	if got := b.text(); got != "4\n5\n6\n7" {
		t.Errorf("%q", got)
	}
}
