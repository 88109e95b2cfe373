//go:build linux

package custody_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
)

// flood makes an agent that waits for a line, prints n numbered lines of 100 bytes and waits again.
func flood(n int) func(*seat.Launch) {
	return script(fmt.Sprintf(`stty raw -echo; echo ready; head -c 1 >/dev/null; seq -f '%%099.0f' 1 %d; head -c 1 >/dev/null; exit 0`, n))
}

func (v *viewer) press(text string) {
	v.t.Helper()
	if n, err := v.conn.Input(testContext(v.t), []byte(text)); err != nil || n != len(text) {
		v.t.Fatalf("input: %d %v", n, err)
	}
}

func TestAStoppedViewerGetsAStatedGapAndTheOtherLosesNothing(t *testing.T) {
	const lines = 200_000 // 20 MB
	h := prepared(t, flood(lines))
	var mu sync.Mutex
	hash := sha256.New()
	healthy := h.view(seat.RoleInput)
	healthy.mu.Lock()
	healthy.sink = writerFunc(func(p []byte) (int, error) { return hash.Write(p) })
	healthy.mu.Unlock()
	stopped := h.dial(seat.RoleOutput)
	h.commit()
	h.eventually("ready", func() error {
		healthy.mu.Lock()
		defer healthy.mu.Unlock()
		if healthy.next < 6 {
			return errors.New("not yet")
		}
		return nil
	})
	healthy.press("x")
	end := uint64(len("ready\r\n")-1) + lines*100
	h.eventually("all output", func() error {
		healthy.mu.Lock()
		defer healthy.mu.Unlock()
		if healthy.next < end {
			return fmt.Errorf("%d of %d", healthy.next, end)
		}
		return nil
	})
	want := sha256.New()
	_, _ = io.WriteString(want, "ready\n")
	for i := 1; i <= lines; i++ {
		fmt.Fprintf(want, "%099d\n", i)
	}
	if healthy.next != end || len(healthy.gaps) != 0 || !bytes.Equal(hash.Sum(nil), want.Sum(nil)) {
		t.Errorf("healthy viewer: %d of %d bytes, gaps %v", healthy.next, end, healthy.gaps)
	}
	// Now the stopped one reads: what it has, one stated gap, and the newest output.
	late := &viewer{t: t, conn: stopped, done: make(chan struct{})}
	go late.run()
	h.eventually("late viewer", func() error {
		late.mu.Lock()
		defer late.mu.Unlock()
		if late.next != end {
			return fmt.Errorf("%d of %d", late.next, end)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if len(late.gaps) != 1 {
		t.Fatalf("gaps %v", late.gaps)
	}
	if missing := late.gaps[0][1] - late.gaps[0][0]; uint64(late.out.Len())+missing != end || missing < end-2<<20 {
		t.Errorf("got %d, missing %d of %d", late.out.Len(), missing, end)
	}
	healthy.press("x")
	healthy.awaitExit()
	late.awaitExit()
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestAViewerThatResumesGetsEveryByteFromRingAndSpill(t *testing.T) {
	const lines = 60_000 // 6 MB: over the ring of 1 MiB, under the spill of 8
	h := prepared(t, flood(lines))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	v.press("x")
	end := uint64(6 + lines*100)
	h.eventually("all output", func() error {
		if st := h.status(); st.Next != end {
			return fmt.Errorf("%d of %d", st.Next, end)
		}
		return nil
	})
	v.awaitText(fmt.Sprintf("%099d\n", lines))
	all := v.text()
	for _, c := range []struct {
		name string
		from uint64
	}{
		{"from the beginning, which only the spill has", 0},
		{"from the middle of the spill", 2_345_678},
		{"from the ring", end - 500_000},
		{"from the end", end},
		{"from beyond the end", end + 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := *h
			h.t = t
			r := h.view(0, func(d *seat.DialConfig) { d.From = c.from })
			if c.from > end { // nothing has come and nothing will
				r.mu.Lock()
				r.next = end
				r.mu.Unlock()
			}
			want := all[min(c.from, end):]
			h.eventually("resumed", func() error {
				if len(r.text()) != len(want) {
					return fmt.Errorf("%d of %d bytes", len(r.text()), len(want))
				}
				return nil
			})
			if r.text() != want || len(r.gaps) != 0 {
				t.Errorf("other bytes, gaps %v", r.gaps)
			}
		})
	}
	if st := h.status(); st.First != 0 {
		t.Errorf("first is %d although the spill has everything", st.First)
	}
	v.press("x")
	v.awaitExit()
}

func TestWhatIsOlderThanTheSpillIsAStatedGap(t *testing.T) {
	const lines = 60_000
	h := prepared(t, flood(lines), func(l *seat.Launch) { l.SpillBytes = 2 << 20 })
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	v.press("x")
	v.awaitText(fmt.Sprintf("%099d\n", lines))
	all := strings.Builder{}
	all.WriteString("ready\n")
	for i := range lines {
		fmt.Fprintf(&all, "%099d\n", i+1)
	}
	end := uint64(all.Len())
	r := h.view(0)
	h.eventually("resumed", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.next != end {
			return fmt.Errorf("%d of %d", r.next, end)
		}
		return nil
	})
	if len(r.gaps) != 1 || r.gaps[0][0] != 0 || end-r.gaps[0][1] < 1900<<10 {
		t.Fatalf("gaps %v of %d", r.gaps, end)
	}
	if want := all.String()[r.gaps[0][1]:]; r.text() != want {
		t.Errorf("other bytes after the gap: %d, want %d", len(r.text()), len(want))
	}
	st, err := os.Stat(filepath.Join(h.dir, record.RingFile))
	if err != nil || st.Size() > 2<<20+4096 {
		t.Errorf("spill file: %v %v", st.Size(), err)
	}
	v.press("x")
	v.awaitExit()
}

func TestAFullDiskSwitchesTheSpillOffAndNothingElse(t *testing.T) {
	small := t.TempDir()
	mounted := unix.Mount("tmpfs", small, "tmpfs", 0, "size=256k") == nil
	if !mounted {
		t.Skip("needs the right to mount a small file system")
	}
	defer func() { _ = unix.Unmount(small, unix.MNT_DETACH) }()
	const lines = 60_000
	h := prepared(t, flood(lines), func(l *seat.Launch) {
		l.Dir = filepath.Join(small, filepath.Base(l.Dir))
		if err := os.Mkdir(l.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	h.dir = h.launch.Dir
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	v.press("x")
	v.awaitText(fmt.Sprintf("%099d\n", lines))
	h.eventually("spill is off", func() error {
		if !strings.Contains(h.log(), "spill is off") {
			return errors.New("nothing in the log")
		}
		return nil
	})
	if n := strings.Count(h.log(), "spill is off"); n != 1 {
		t.Errorf("said %d times", n)
	}
	v.press("x")
	v.awaitExit()
	if x := h.awaitExit(); *x.Code != 0 {
		t.Errorf("%+v", x)
	}
}

func TestFieldL8_MultibyteOutputInSingleBytesArrivesUnchanged(t *testing.T) {
	var b strings.Builder
	r := rand.New(rand.NewPCG(1, 2))
	for b.Len() < 1<<20 {
		b.WriteString([]string{"a", "é", "漢", "🙂", "ß", "\n"}[r.IntN(6)])
	}
	h := prepared(t, func(l *seat.Launch) {
		file := filepath.Join(l.Cwd, "text")
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		script("stty raw; dd bs=1 if=text 2>/dev/null")(l)
	})
	v := h.view(0)
	h.commit()
	v.awaitExit()
	if got, want := sha256.Sum256([]byte(v.text())), sha256.Sum256([]byte(b.String())); got != want {
		t.Errorf("%d bytes of %d, or others", len(v.text()), b.Len())
	}
}

// proves: RT-10
func TestRawInputIsByteExact(t *testing.T) {
	h := prepared(t, script("stty raw -echo; echo ready; head -c 65536 > got; echo done; sleep 600"))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	p := make([]byte, 64<<10)
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	n, err := v.conn.Input(testContext(t), p)
	if n != len(p) || err != nil {
		t.Fatalf("%d %v", n, err)
	}
	v.awaitText("done")
	if got, _ := os.ReadFile(filepath.Join(h.launch.Cwd, "got")); !bytes.Equal(got, p) {
		t.Errorf("got %d bytes, or others", len(got))
	}
}

// A seat says when a person last typed, so that a host does not type into their line. What a terminal
// sends by itself and what a host types are nobody's typing.
func TestTheSeatTellsWhenAPersonLastTyped(t *testing.T) {
	h := prepared(t, script("echo ready; sleep 600"))
	v := h.view(seat.RoleInput | seat.RoleTerminal)
	h.commit()
	v.awaitText("ready")
	host := h.dial(seat.RoleInput | seat.RoleControl)
	for who, in := range map[*seat.Conn]string{host: "by a host", v.conn: "\x1b[12;40R"} {
		if _, err := who.Input(testContext(t), []byte(in)); err != nil {
			t.Fatal(err)
		}
	}
	if st := h.status(); st.Typed != 0 || st.Lines != seat.LinesOn {
		t.Errorf("before anybody typed: %+v", st)
	}
	if _, err := v.conn.Input(testContext(t), []byte("half a line")); err != nil {
		t.Fatal(err)
	}
	if st := h.status(); st.Typed == 0 || st.Typed > 60_000 || st.Line < 11 {
		t.Errorf("after a person typed: %+v", st)
	}
}

func TestInputToAProgramThatDoesNotReadIsBusyAndAcknowledgedWithTheTruth(t *testing.T) {
	h := prepared(t, script("stty raw -echo; echo ready; sleep 600"))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	block := bytes.Repeat([]byte("x"), 16<<10)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	done := make(chan error, 64)
	for range 16 { // 256 KiB: more than the terminal and the queue hold
		go func() {
			n, err := v.conn.Input(ctx, block)
			if err == nil && n != len(block) {
				err = fmt.Errorf("acknowledged %d of %d", n, len(block))
			}
			done <- err
		}()
	}
	var busy *seat.Error
	h.eventually("busy", func() error {
		select {
		case err := <-done:
			if errors.Is(err, seat.ErrBusy) && errors.As(err, &busy) && busy.Outcome == seat.OutcomeNotExecuted {
				return nil
			}
			if err != nil {
				t.Fatalf("input: %v", err)
			}
		default:
		}
		return errors.New("not yet")
	})
	if st := h.status(); st.InputPending == 0 || st.InputPending > seat.MaxInput {
		t.Errorf("pending %d", st.InputPending)
	}
	h.act(seat.ActionKill) // what waits is answered: the agent ended first
	v.awaitExit()
	waitFor := time.After(patience)
	for range 15 {
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, seat.ErrBusy) && !errors.Is(err, seat.ErrNotRunning) {
				t.Errorf("input: %v", err)
			}
		case <-waitFor:
			t.Fatal("input was never answered")
		}
	}
}

func TestOneInputFrameIsNeverMixedWithAnother(t *testing.T) {
	h := prepared(t, script("stty raw -echo; echo ready; sleep 0.2; head -c 320000 > got; echo done; sleep 600"))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	host := h.dial(seat.RoleInput | seat.RoleControl)
	var wg sync.WaitGroup
	for _, w := range []struct {
		c *seat.Conn
		b byte
	}{{v.conn, 'a'}, {host, 'b'}} {
		wg.Go(func() {
			p := append(bytes.Repeat([]byte{w.b}, 15_999), '.')
			for range 10 {
				for {
					_, err := w.c.Input(testContext(t), p)
					if err == nil {
						break
					}
					if !errors.Is(err, seat.ErrBusy) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	v.awaitText("done")
	got, _ := os.ReadFile(filepath.Join(h.launch.Cwd, "got"))
	frames := strings.SplitAfter(string(got), ".")
	for _, f := range frames[:len(frames)-1] {
		if len(f) != 16_000 || strings.Trim(f, "a") != "." && strings.Trim(f, "b") != "." {
			t.Fatalf("mixed frame of %d bytes", len(f))
		}
	}
	if len(frames) != 21 {
		t.Errorf("%d frames", len(frames)-1)
	}
}

// proves: RT-10
func TestALineThatTheTerminalWouldCutIsRefusedBeforeAByteIsWritten(t *testing.T) {
	h := prepared(t, script("stty -echo; echo ready; while read -r x; do printf '<%s>' ${#x}; done"))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	x := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	type try struct {
		p    []byte
		want error
	}
	for _, c := range []try{
		{append(x(4095), '\n'), nil},
		{append(x(4096), '\n'), seat.ErrLineTooLong},
		{append([]byte("short\n"), x(4096)...), seat.ErrLineTooLong},
		{x(4000), nil},
		{x(96), seat.ErrLineTooLong}, // pending line counts over frames
		{append(x(95), '\n'), nil},
		{append(append(x(4095), '\n'), append(x(4095), '\n')...), nil},
	} {
		n, err := v.conn.Input(testContext(t), c.p)
		if !errors.Is(err, c.want) || err == nil && n != len(c.p) || err != nil && n != 0 {
			t.Fatalf("%d bytes: %d %v, want %v", len(c.p), n, err, c.want)
		}
	}
	v.awaitText("<4095><4095><4095><4095>")
	if strings.Contains(v.text(), "<5>") {
		t.Error("a part of a refused frame was written")
	}
}

func TestOneTerminalWritesAndASecondHasToTakeOver(t *testing.T) {
	h := prepared(t, script("stty -echo; echo ready; while read -r x; do echo \"<$x>\"; done"))
	const writer = seat.RoleInput | seat.RoleTerminal
	a := h.view(writer)
	h.commit()
	a.awaitText("ready")
	if _, err := seat.Dial(testContext(t), h.config(writer|seat.RoleOutput)); !errors.Is(err, seat.ErrBusy) {
		t.Fatalf("second writer: %v", err)
	}
	reader := h.view(seat.RoleTerminal)
	if _, err := reader.conn.Input(testContext(t), []byte("no\n")); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("input of a reader: %v", err)
	}
	if err := reader.conn.Resize(testContext(t), 10, 10); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("resize of a reader: %v", err)
	}
	b := h.view(writer|seat.RoleTakeover, func(c *seat.DialConfig) { c.Rows, c.Cols = 40, 100 })
	if st := b.conn.Welcome(); !st.Role.Has(writer) || st.Rows != 40 || st.Cols != 100 || st.Attached != 3 || st.Answerer != seat.AnswererTerminal {
		t.Errorf("welcome %+v", st)
	}
	h.eventually("the former writer is told", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.news) == 0 || a.news[len(a.news)-1].Role.Has(seat.RoleInput) {
			return errors.New("not told")
		}
		return nil
	})
	if _, err := a.conn.Input(testContext(t), []byte("no\n")); !errors.Is(err, seat.ErrForbidden) {
		t.Errorf("input of the former writer: %v", err)
	}
	b.press("taken\n")
	// The host's own input needs no lease and no takeover.
	host := h.dial(seat.RoleControl | seat.RoleInput)
	if _, err := host.Input(testContext(t), []byte("injected\n")); err != nil {
		t.Error(err)
	}
	b.awaitText("<taken>\r\n<injected>")
	if strings.Contains(b.text(), "<no>") {
		t.Error("a reader typed")
	}
	_ = b.conn.Close()
	c := h.dial(writer) // free again, at once
	if st := c.Welcome(); !st.Role.Has(writer) || st.Attached != 3 && st.Attached != 4 {
		t.Errorf("welcome %+v", st)
	}
}

func TestFieldD6_InputOfAConnectionThatIsGoneIsNotTypedLater(t *testing.T) {
	h := prepared(t, script("stty raw -echo; echo ready; while [ ! -e go ]; do sleep 0.01; done; cat > got"))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	ctx, cancel := context.WithCancel(testContext(t))
	go func() { _, _ = v.conn.Input(ctx, bytes.Repeat([]byte("a"), 60<<10)) }() // begun
	var before uint32
	var since time.Time
	h.eventually("the terminal is full", func() error { // the kernel makes room more than once
		if now := h.status().InputPending; now != before || now == 0 {
			before, since = now, time.Now()
		}
		if time.Since(since) < 200*time.Millisecond {
			return fmt.Errorf("%d wait", before)
		}
		return nil
	})
	go func() { _, _ = v.conn.Input(ctx, []byte("XYZ")) }() // not begun
	// Only this text can make the queue longer; the kernel may take from it at any moment, so the growth
	// is looked for a while and not demanded.
	for last, until := before, time.Now().Add(2*time.Second); time.Now().Before(until); {
		now := h.status().InputPending
		if now > last {
			break
		}
		last = now
	}
	cancel()
	_ = v.conn.Close()
	if err := os.WriteFile(filepath.Join(h.launch.Cwd, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.eventually("queue is empty", func() error {
		if st := h.status(); st.InputPending != 0 {
			return fmt.Errorf("%d wait", st.InputPending)
		}
		return nil
	})
	w := h.dial(seat.RoleInput)
	if _, err := w.Input(testContext(t), []byte("END")); err != nil {
		t.Fatal(err)
	}
	h.eventually("typed", func() error {
		got, _ := os.ReadFile(filepath.Join(h.launch.Cwd, "got"))
		if !bytes.HasSuffix(got, []byte("END")) {
			return fmt.Errorf("%d bytes", len(got))
		}
		if want := append(bytes.Repeat([]byte("a"), 60<<10), "END"...); !bytes.Equal(got, want) {
			t.Errorf("typed %d bytes, or others: %q", len(got), got[max(len(got)-10, 0):])
		}
		return nil
	})
}

func TestTheSizeReachesTheProgram(t *testing.T) {
	h := prepared(t, script("trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done"))
	v := h.view(seat.RoleInput | seat.RoleTerminal)
	h.commit()
	v.awaitText("ready")
	if err := v.conn.Resize(testContext(t), 33, 77); err != nil {
		t.Fatal(err)
	}
	v.awaitText("33 77")
	host := h.dial(seat.RoleControl)
	if err := host.Resize(testContext(t), 34, 78); err != nil {
		t.Fatal(err)
	}
	v.awaitText("34 78")
	if st, err := host.Get(testContext(t)); err != nil || st.Rows != 34 || st.Cols != 78 {
		t.Errorf("%+v %v", st, err)
	}
}

// TestFieldD17_AbsurdSizesDoNotReachTheProgram: the last valid size counts, none of zero, and none that a
// program would allocate gigabytes for.
func TestFieldD17_AbsurdSizesDoNotReachTheProgram(t *testing.T) {
	h := prepared(t, script("trap 'echo size $(stty size)' WINCH; echo ready; while :; do sleep 0.02; done"))
	v := h.view(seat.RoleInput | seat.RoleTerminal)
	h.commit()
	v.awaitText("ready")
	for _, size := range []struct {
		rows, cols uint16
		want       string
	}{{0, 0, ""}, {1, 1, "size 1 1"}, {65535, 65535, "size 1000 1000"}, {0, 7, ""}, {200, 50, "size 200 50"}} {
		err := v.conn.Resize(testContext(t), size.rows, size.cols)
		if refused := size.want == ""; refused != (err != nil) {
			t.Errorf("%dx%d: %v", size.rows, size.cols, err)
		}
		v.awaitText(size.want)
	}
	if st := h.status(); st.Rows != 200 || st.Cols != 50 {
		t.Errorf("the seat is %dx%d", st.Rows, st.Cols)
	}
	h.dial(seat.RoleControl, func(c *seat.DialConfig) { c.Rows, c.Cols = 65535, 80 }).Close()
	if st := h.status(); st.Rows != seat.MaxSize || st.Cols != 80 {
		t.Errorf("after a greeting with a size the seat is %dx%d", st.Rows, st.Cols)
	}
}

// TestFieldD16_OutputThatLooksLikeAFrameIsOutput: nothing that an agent prints is taken for the protocol.
func TestFieldD16_OutputThatLooksLikeAFrameIsOutput(t *testing.T) {
	forged := seat.AppendExit(seat.AppendRequest(nil, seat.TypeResize, 1, seat.AppendSize(nil, 5, 5)), seat.Status{State: seat.StateExited}, seat.ExitRecord{Code: 7})
	forged = append(forged, seat.AppendRequest(nil, seat.TypeSignal, 2, []byte{byte(seat.ActionKill)})...)
	h := prepared(t, func(l *seat.Launch) {
		if err := os.WriteFile(filepath.Join(l.Cwd, "forged"), forged, 0o600); err != nil {
			t.Fatal(err)
		}
		script("stty raw -echo; echo before; cat forged; echo after; sleep 600")(l)
	})
	v := h.view(seat.RoleOutput)
	before := h.status()
	h.commit()
	v.awaitText("after")
	if want := "before\n" + string(forged) + "after\n"; v.text() != want {
		t.Errorf("shown %q, want %q", v.text(), want)
	}
	if st := h.status(); st.State != seat.StateRunning || st.Rows != before.Rows || st.Cols != before.Cols {
		t.Errorf("the seat is %+v", st)
	}
}

func TestInterruptReachesTheForegroundJobOnly(t *testing.T) {
	h := prepared(t, func(l *seat.Launch) {
		l.Path, l.Args = "/bin/bash", []string{"--norc", "-i"}
	})
	v := h.view(seat.RoleInput)
	h.commit()
	v.press("sleep 600\n")
	sleeps := func() (n int) {
		for _, p := range h.running() {
			if p.Comm == "sleep" {
				n++
			}
		}
		return n
	}
	h.eventually("the job runs", func() error {
		if sleeps() != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	if err := h.dial(seat.RoleControl).Signal(testContext(t), seat.ActionInterrupt); err != nil {
		t.Fatal(err)
	}
	h.eventually("the job ends", func() error {
		if sleeps() != 0 {
			return errors.New("not yet")
		}
		return nil
	})
	v.press("echo still $((40+2))\n")
	v.awaitText("still 42")
}

func TestTheStatusCarriesTheModesOfTheTerminal(t *testing.T) {
	h := prepared(t, script(`stty -echo; printf '\033[?2004h\033[?1049h\033[?25'; sleep 0.05; printf 'l'; echo ready; read x; printf '\033[?1049l\033[?25h'; echo less; read x`))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	modes := func() terminal.Modes { return terminal.Modes(h.status().Modes) }
	h.eventually("modes", func() error {
		if m := modes(); m != terminal.BracketedPaste|terminal.AltScreen|terminal.CursorHidden {
			return fmt.Errorf("%b", m)
		}
		return nil
	})
	v.press("\n")
	v.awaitText("less")
	h.eventually("modes", func() error {
		if m := modes(); m != terminal.BracketedPaste {
			return fmt.Errorf("%b", m)
		}
		return nil
	})
}

func TestTheMirrorAnswersWhileNoTerminalIsAttached(t *testing.T) {
	h := prepared(t)
	answerer := func() seat.Answerer { return h.status().Answerer }
	if got := answerer(); got != seat.AnswererNone {
		t.Errorf("nobody: %v", got)
	}
	_ = h.view(seat.RoleMirror | seat.RoleControl)
	if got := answerer(); got != seat.AnswererMirror {
		t.Errorf("mirror: %v", got)
	}
	v := h.view(seat.RoleTerminal | seat.RoleInput)
	if got := answerer(); got != seat.AnswererTerminal {
		t.Errorf("terminal: %v", got)
	}
	_ = v.conn.Close()
	h.eventually("mirror again", func() error {
		if got := answerer(); got != seat.AnswererMirror {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}
