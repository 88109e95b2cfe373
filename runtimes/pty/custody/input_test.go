//go:build linux

package custody_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

func (v *viewer) press(text string) {
	v.t.Helper()
	if n, err := v.conn.Input(testContext(v.t), []byte(text)); err != nil || n != len(text) {
		v.t.Fatalf("input: %d %v", n, err)
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

// What a host types goes in slices, each whole or not at all: a program that reads slowly gets every byte; when
// the host gives up, it is told how much was typed, and what has not begun is dropped with its connection.
//
// proves: RT-10
func TestAHostsInputIsByteExactForASlowReader(t *testing.T) {
	h := prepared(t, script("stty raw -echo; echo ready; for i in 1 2 3 4 5 6 7 8; do head -c 8192 >> got; sleep 0.02; done; echo done; sleep 600"))
	v := h.view(0)
	h.commit()
	v.awaitText("ready")
	text := []byte(strings.Repeat("0123456789abcde\n", seat.MaxInput/16))
	if n, err := h.dial(seat.RoleInput|seat.RoleControl).Input(testContext(t), text); err != nil || n != len(text) {
		t.Fatalf("%d %v", n, err)
	}
	v.awaitText("done")
	if got, _ := os.ReadFile(filepath.Join(h.launch.Cwd, "got")); !bytes.Equal(got, text) {
		t.Errorf("%d bytes arrived, or others", len(got))
	}
}

// The largest text of a host waits for its program, and what a person types meanwhile waits behind it.
func TestALongTextOfAHostDoesNotShutOutAPerson(t *testing.T) {
	h := prepared(t, script("stty raw -echo; echo ready; while [ ! -e go ]; do sleep 0.01; done; head -c 98304 > got; echo done; sleep 600"))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("ready")
	text, persons := bytes.Repeat([]byte("h"), seat.MaxInput), bytes.Repeat([]byte("p"), seat.MaxInput/2)
	typed := make(chan error, 2)
	types := func(c *seat.Conn, p []byte, wait int) {
		go func() { _, err := c.Input(testContext(t), p); typed <- err }()
		h.eventually("it waits", func() error {
			if n := int(h.status().InputPending); n < wait {
				return fmt.Errorf("%d wait", n)
			}
			return nil
		})
	}
	// The terminal takes 4 to 24 KiB of it: what waits in the end is more than there is room for one of them.
	types(h.dial(seat.RoleInput|seat.RoleControl), text, len(text)-24<<10)
	types(v.conn, persons, len(text)-24<<10+len(persons))
	if err := os.WriteFile(filepath.Join(h.launch.Cwd, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-typed; err != nil {
			t.Error(err)
		}
	}
	v.awaitText("done")
	if got, _ := os.ReadFile(filepath.Join(h.launch.Cwd, "got")); !bytes.Equal(got, append(text, persons...)) {
		t.Errorf("%d bytes arrived, or others", len(got))
	}
}

// proves: RT-10
func TestAHostThatGivesUpStopsBetweenSlices(t *testing.T) {
	h := prepared(t, script("stty raw -echo; echo ready; while [ ! -e go ]; do sleep 0.01; done; cat > got"))
	v := h.view(0)
	h.commit()
	v.awaitText("ready")
	host := h.dial(seat.RoleInput | seat.RoleControl | seat.RoleTerminal) // counted as attached until it has gone
	text := []byte(strings.Repeat("0123456789abcdef", 60<<10/16))
	ctx, cancel := context.WithCancel(testContext(t))
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		n, err := host.Input(ctx, text)
		done <- result{n, err}
	}()
	h.eventually("a part is typed, and a part waits", func() error {
		if p := int(h.status().InputPending); p == 0 || p == len(text) {
			return fmt.Errorf("%d wait", p)
		}
		return nil
	})
	cancel()
	r := <-done
	if !errors.Is(r.err, context.Canceled) || r.n == 0 || r.n >= len(text) {
		t.Fatalf("%d bytes known to be typed, %v", r.n, r.err)
	}
	_ = host.Close()
	h.eventually("the seat has noticed", func() error {
		if n := h.status().Attached; n != 0 {
			return fmt.Errorf("%d attached", n)
		}
		return nil
	})
	if err := os.WriteFile(filepath.Join(h.launch.Cwd, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.dial(seat.RoleInput|seat.RoleControl).Input(testContext(t), []byte("END")); err != nil {
		t.Fatal(err)
	}
	ends := map[int]bool{}
	at := 0
	for _, s := range seat.Slices(text, true) {
		at += len(s)
		ends[at] = true
	}
	h.eventually("typed", func() error {
		got, _ := os.ReadFile(filepath.Join(h.launch.Cwd, "got"))
		typed, ok := bytes.CutSuffix(got, []byte("END"))
		if !ok {
			return fmt.Errorf("%d bytes", len(got))
		}
		if !bytes.HasPrefix(text, typed) || len(typed) < r.n || !ends[len(typed)] || len(typed) == len(text) {
			t.Errorf("%d bytes were typed, %d known; a beginning: %v, whole slices: %v", len(typed), r.n, bytes.HasPrefix(text, typed), ends[len(typed)])
		}
		return nil
	})
}

// proves: RT-10
func TestAHostsInputThatTheAgentDidNotTakeIsCounted(t *testing.T) {
	h := prepared(t, script("stty raw -echo; echo ready; sleep 600"))
	v := h.view(0)
	h.commit()
	v.awaitText("ready")
	host := h.dial(seat.RoleInput | seat.RoleControl)
	done := make(chan error, 1)
	var typed int
	go func() {
		var err error
		typed, err = host.Input(testContext(t), make([]byte, 60<<10))
		done <- err
	}()
	h.eventually("a part is typed, and a part waits", func() error {
		if p := h.status().InputPending; p == 0 || p == 60<<10 {
			return fmt.Errorf("%d wait", p)
		}
		return nil
	})
	if _, err := h.dial(seat.RoleInput|seat.RoleControl).Input(testContext(t), make([]byte, 60<<10)); !errors.Is(err, seat.ErrBusy) {
		t.Errorf("a second one: %v", err)
	}
	h.act(seat.ActionKill)
	if err := <-done; !errors.Is(err, seat.ErrNotRunning) || typed == 0 || typed >= 60<<10 {
		t.Errorf("%d bytes typed, %v", typed, err)
	}
}
