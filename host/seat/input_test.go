package seat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// typed runs a program that logs what it reads, types text into it, and returns what it read as hex.
func (w *world) typed(setup, text string, enter *bool, want int) string {
	w.t.Helper()
	name := "in" + strings.ToLower(wire.NewID()[:8])
	name = strings.NewReplacer("-", "_").Replace(name)
	log := filepath.Join(w.dir, name)
	acc := w.run(name, fmt.Sprintf(`[{"raw": true}, %s{"print": "up"}, {"hexlog": {"file": %q}}]`, setup, log))
	w.eventually("the program reads", func() (bool, string) {
		r, err := w.set.Inspect(context.Background(), name)
		return err == nil && r.Output >= 2, ""
	})
	reply, err := w.set.Input(context.Background(), wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID},
		wire.InputArgs{Text: text, Enter: enter})
	if err != nil {
		w.t.Fatal(err)
	}
	said := len(text)
	if enter == nil || *enter {
		said++
	}
	if reply.Bytes != said {
		w.t.Errorf("said %d bytes, want %d", reply.Bytes, said)
	}
	var got string
	w.eventually("the program has read it", func() (bool, string) {
		p, _ := os.ReadFile(log)
		got = strings.TrimSpace(string(p))
		return len(got) >= want, got
	})
	if _, err := w.stop(acc, false); err != nil {
		w.t.Error(err)
	}
	return got
}

const (
	askPaste = `{"print": "\u001b[?2004h"}, ` // the program asks for marked pastes
	pasteOn  = "1b5b3230307e"
	pasteOff = "1b5b3230317e"
)

// TestFieldD1_TheReturnComesBehindThePaste and not within it.
func TestFieldD1_TheReturnComesBehindThePaste(t *testing.T) {
	w := newWorld(t)
	want := pasteOn + "68656c6c6f" + pasteOff + "0d"
	if got := w.typed(askPaste, "hello", nil, len(want)); got != want {
		t.Errorf("the program read %s, want %s", got, want)
	}
}

// TestFieldD2_ManyLinesAreOnePasteAndOneReturn: newlines stay as they are inside the paste.
func TestFieldD2_ManyLinesAreOnePasteAndOneReturn(t *testing.T) {
	w := newWorld(t)
	want := pasteOn + "610a620a63" + pasteOff + "0d"
	if got := w.typed(askPaste, "a\nb\nc", nil, len(want)); got != want {
		t.Errorf("the program read %s, want %s", got, want)
	}
}

// proves: INPUT-1, INPUT-3
func TestInput(t *testing.T) {
	w := newWorld(t)
	no := false
	for _, c := range []struct {
		name, text string
		enter      *bool
		want       string
	}{
		{"a plain program gets the text and a Return", "hello", nil, "68656c6c6f0d"},
		{"no Return is typed when it is not wanted", "y", &no, "79"},
		{"text that looks like an option or a command is text", "/quit --now", &no, "2f71756974202d2d6e6f77"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := w.typed("", c.text, c.enter, len(c.want)); got != c.want {
				t.Errorf("the program read %s, want %s", got, c.want)
			}
		})
	}
	acc := w.run("ended", `[{"hang": true}]`)
	if _, err := w.stop(acc, false); err != nil {
		t.Fatal(err)
	}
	_, err := w.set.Input(context.Background(), wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID}, wire.InputArgs{Text: "x"})
	if code(err) != wire.CodeExpired || outcome(err) != wire.OutcomeNotExecuted {
		t.Errorf("input into an ended seat: %v", err)
	}
}

// The largest text arrives byte for byte in a program that reads slowly.
//
// proves: INPUT-2
func TestTheLargestInputArrivesWhole(t *testing.T) {
	w := newWorld(t)
	text := strings.Repeat("0123456789abcdef", 4096) // 64 KiB
	want := fmt.Sprintf("%x", text) + "0d"
	if got := w.typed("", text, nil, len(want)); got != want {
		t.Errorf("%d hex digits arrived, want %d; equal: %v", len(got), len(want), got == want)
	}
}

// Text for a program that loses what is typed before its input field has the focus is held back; whoever does not wait
// that long is told, and it is not typed later.
//
// proves: E12
func TestInputWaitsForTheInputField(t *testing.T) {
	w := newWorld(t)
	info := w.plugins.facts["command"]
	info.Connector.Input.AwaitField = true
	w.plugins.facts["command"] = info
	log, gate := filepath.Join(w.dir, "log"), filepath.Join(w.dir, "gate")
	acc := w.run("tui", fmt.Sprintf(`[{"raw": true}, {"print": "\u001b[?2004h\u001b[?25l"}, {"waitFile": %q}, {"print": "\u001b[?25h"}, {"hexlog": {"file": %q}}]`, gate, log))
	target := wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := w.set.Input(ctx, target, wire.InputArgs{Text: "too early"}); code(err) != wire.CodeUnavailable || outcome(err) != wire.OutcomeNotExecuted {
		t.Fatalf("input without a field: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.set.Input(context.Background(), target, wire.InputArgs{Text: "hi"})
		done <- err
	}()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.eventually("the program has read it", func() (bool, string) {
		p, _ := os.ReadFile(log)
		return strings.TrimSpace(string(p)) == "1b5b3230307e68691b5b3230317e0d", string(p)
	})
}

// A line that the terminal would cut is refused before a byte of it is typed.
func TestALineTooLongForALineReaderIsRefusedWhole(t *testing.T) {
	w := newWorld(t)
	acc := w.run("lines", `[{"print": "up"}, {"lines": {"count": 0, "reply": "got {line}\n"}}]`)
	target := wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID}
	_, err := w.set.Input(context.Background(), target, wire.InputArgs{Text: strings.Repeat("x", 5000)})
	if code(err) != wire.CodeFailedPrecondition || outcome(err) != wire.OutcomeNotExecuted {
		t.Errorf("got %v", err)
	}
	if _, err := w.set.Input(context.Background(), target, wire.InputArgs{Text: "short"}); err != nil {
		t.Errorf("a short line after it: %v", err)
	}
}

// The last output of a seat that ended by itself is kept with its row, privately; of one that was
// stopped on request nothing is.
func TestTheLastOutputOfAnEndedSeatIsKept(t *testing.T) {
	w := newWorld(t)
	w.run("told", `[{"flood": {"mb": 1}}, {"print": "panic: the cause\n"}, {"exit": 3}]`)
	row := w.awaitStatus("told", "exited")
	path := filepath.Join(w.dir, "ended", row.SeatID+".log")
	w.eventually("its output is kept", func() (bool, string) { _, err := os.Stat(path); return err == nil, path })
	p, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(strings.TrimRight(string(p), "\r\n"), "panic: the cause") || len(p) > 256<<10 || len(p) < 200<<10 {
		t.Errorf("%d bytes, %v, ending %q", len(p), err, p[max(0, len(p)-40):])
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	acc := w.run("asked", `[{"print": "secret\n"}, {"hang": true}]`)
	if _, err := w.stop(acc, false); err != nil {
		t.Fatal(err)
	}
	w.crash()
	w.boot() // the next host keeps it too
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 || entries[0].Name() != filepath.Base(path) {
		t.Errorf("kept: %v", entries)
	}
}

func TestAProgramThatDoesNotReadHoldsUpFewInputs(t *testing.T) {
	w := newWorld(t)
	acc := w.run("deaf", `[{"raw": true}, {"hang": true}]`)
	target := wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	text, enter := strings.Repeat("x", 60000), false
	var all sync.WaitGroup
	answers := make(chan error, 40)
	for range 40 {
		all.Go(func() {
			_, err := w.set.Input(ctx, target, wire.InputArgs{Text: text, Enter: &enter})
			answers <- err
		})
	}
	taken := 0
	for range 40 - 8 { // at once, while the others wait for the program
		select {
		case err := <-answers:
			var werr *wire.Error
			switch {
			case err == nil:
				taken++ // into the terminal and the room that the seat has for a host
			case !errors.As(err, &werr) || werr.Code != wire.CodeUnavailable || werr.Outcome != wire.OutcomeNotExecuted || !strings.Contains(werr.Message, "wait already"):
				t.Fatalf("an input beside those that wait: %v", err)
			}
		case <-ctx.Done():
			t.Fatal("more than 8 inputs wait for a program that does not read")
		}
	}
	if taken > 2 {
		t.Errorf("a terminal that nobody reads took %d texts of 60 KB", taken)
	}
	cancel()
	all.Wait()
}
