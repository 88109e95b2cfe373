package seat_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/pty"
	"github.com/cotal-ai/cotal-host/sdk"
	custody "github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func targetOf(acc wire.Acceptance) wire.Target {
	return wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID}
}

// dialSeat connects to a seat as a viewer does, without the host.
func (w *world) dialSeat(name string, role custody.Role) *custody.Conn {
	w.t.Helper()
	dir := filepath.Join(w.seatRoot, w.row(name).SeatID)
	rec, err := record.ReadSeat(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	token, err := record.ReadToken(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := custody.Dial(context.Background(), custody.DialConfig{Socket: rec.Socket, Token: token, Role: role, From: custody.FromLive, Rows: 24, Cols: 80})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// upAndLogging is a raw program that logs what it reads, once it is up.
func (w *world) upAndLogging(name, before string) (acc wire.Acceptance, log func() string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name+".hex")
	acc = w.run(name, fmt.Sprintf(`[{"raw": true}, %s{"print": "up"}, {"hexlog": {"file": %q}}]`, before, path))
	w.eventually("the program reads", func() (bool, string) {
		r, err := w.set.Inspect(context.Background(), name)
		return err == nil && r.Output >= 2, ""
	})
	return acc, func() string { p, _ := os.ReadFile(path); return strings.TrimSpace(string(p)) }
}

func (w *world) logged(log func() string, want string) {
	w.t.Helper()
	w.eventually("the program has read it", func() (bool, string) { return len(log()) >= len(want), log() })
	if got := log(); got != want {
		w.t.Errorf("the program read %.200s, want %.200s", got, want)
	}
}

// TestFieldD15_OneLineEndIsTheReturn whichever way the text ends.
func TestFieldD15_OneLineEndIsTheReturn(t *testing.T) {
	w := newWorld(t)
	for _, text := range []string{"hi", "hi\n", "hi\r\n"} {
		if got, want := w.typedText(askPaste, text, 3), pasteOn+"6869"+pasteOff+"0d"; got != want {
			t.Errorf("%q: the program read %s, want %s", text, got, want)
		}
	}
	if got := w.typedText("", "\n", 1); got != "0d" {
		t.Errorf("a line end alone: %s", got)
	}
}

// typedText types text with a Return and returns what the program read.
func (w *world) typedText(before, text string, said int) string {
	w.t.Helper()
	name := strings.NewReplacer("-", "_").Replace("in" + strings.ToLower(wire.NewID()[:8]))
	acc, log := w.upAndLogging(name, before)
	reply, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: text})
	if err != nil {
		w.t.Fatal(err)
	}
	if reply.Bytes != said {
		w.t.Errorf("said %d bytes, want %d", reply.Bytes, said)
	}
	w.eventually("the Return has come", func() (bool, string) { return strings.HasSuffix(log(), "0d"), log() })
	got := log()
	if _, err := w.stop(acc, false); err != nil {
		w.t.Error(err)
	}
	return got
}

// A paste that could end itself is refused before a byte; a program that takes plain keys gets any byte.
func TestAPasteCannotBreakOut(t *testing.T) {
	w := newWorld(t)
	acc, log := w.upAndLogging("paste", askPaste)
	for _, text := range []string{
		"echo harmless\x1b[201~\rrm -rf ~\r", "\u009b201~x", "colour \x1b[31m", "x\x03", strings.Repeat("a", 3990) + "\x1b[201~ over two slices",
	} {
		if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: text}); code(err) != wire.CodeBadRequest || outcome(err) != wire.OutcomeNotExecuted {
			t.Errorf("%.30q: %v", text, err)
		}
	}
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: "ok"}); err != nil {
		t.Fatal(err)
	}
	w.logged(log, pasteOn+"6f6b"+pasteOff+"0d")
	if got := w.typedText("", "a\x1b[201~\x03", 9); got != "611b5b3230317e030d" {
		t.Errorf("a plain program read %s", got)
	}
}

// Keys are named, and sent as the program has asked for them.
func TestKeysArePressedByName(t *testing.T) {
	w := newWorld(t)
	acc, log := w.upAndLogging("keys", `{"print": "\u001b[?1h"}, `)
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Keys: []string{"esc", "up", "ctrl-c", "y", "enter"}}); err != nil {
		t.Fatal(err)
	}
	w.logged(log, "1b"+"1b4f41"+"03"+"79"+"0d")
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Keys: []string{"y", "hyper"}}); code(err) != wire.CodeBadRequest || outcome(err) != wire.OutcomeNotExecuted {
		t.Errorf("a key nobody knows: %v", err)
	}
	if got := log(); !strings.HasSuffix(got, "0d") {
		t.Errorf("the keys before it were typed: %s", got)
	}
}

// Inputs come one after the other, each as a whole, whatever their size.
//
// proves: INPUT-2, INPUT-4
func TestInputsNeverMix(t *testing.T) {
	w := newWorld(t)
	acc, log := w.upAndLogging("many", "")
	var texts []string
	var wg sync.WaitGroup
	for i := range 8 {
		text := strings.Repeat(string(rune('a'+i)), 9000)
		texts = append(texts, text)
		wg.Go(func() {
			if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: text}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.eventually("all have come", func() (bool, string) { return len(log()) >= 2*8*9001, "" })
	got := log()
	for _, text := range texts {
		if !strings.Contains(got, fmt.Sprintf("%x0d", text)) {
			t.Errorf("%q... was mixed with another", text[:3])
		}
	}
}

// While a person types at the terminal, nothing else is typed: a pause is waited for, and not for long.
// What the terminal sends by itself is nobody's typing.
func TestAPersonWhoTypesComesFirst(t *testing.T) {
	w := newWorld(t)
	acc, log := w.upAndLogging("shared", "")
	person := w.dialSeat("shared", custody.RoleInput|custody.RoleTerminal)
	press := func(keys string) {
		t.Helper()
		if _, err := person.Input(context.Background(), []byte(keys)); err != nil {
			t.Fatal(err)
		}
	}
	press("\x1b[?62;4c")
	began := time.Now()
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: "at once"}); err != nil || time.Since(began) > busy.Limit(1500*time.Millisecond) {
		t.Fatalf("after an answer of the terminal: %v after %v", err, time.Since(began))
	}
	press("h")
	began = time.Now()
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: "later"}); err != nil {
		t.Fatalf("a person who has stopped: %v", err)
	}
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("it was typed %v after a key", took)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-tick.C:
				_, _ = person.Input(context.Background(), []byte("k"))
			case <-stop:
				return
			}
		}
	}()
	press("k")
	_, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: "never"})
	close(stop)
	<-done
	if code(err) != wire.CodeUnavailable || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), "a person is typing") {
		t.Errorf("while a person types: %v", err)
	}
	if got := log(); strings.Contains(got, fmt.Sprintf("%x", "never")) {
		t.Errorf("the program read %s", got)
	}
}

// A stop ends the input that is under way, also one whose program does not read; what was typed is said, and
// nothing more is.
//
// proves: INPUT-3
func TestAStopEndsTheInputThatIsUnderWay(t *testing.T) {
	w := newWorld(t)
	acc := w.run("deaf", `[{"raw": true}, {"print": "up"}, {"hang": true}]`)
	w.eventually("it is up", func() (bool, string) {
		r, err := w.set.Inspect(context.Background(), "deaf")
		return err == nil && r.Output >= 2, ""
	})
	done := make(chan error, 2)
	for range 2 { // the second waits for its turn
		go func() {
			_, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: strings.Repeat("x", 64<<10)})
			done <- err
		}()
	}
	w.eventually("the terminal takes no more", func() (bool, string) {
		c := w.dialSeat("deaf", 0)
		defer c.Close()
		return c.Welcome().InputPending > 0, ""
	})
	if _, err := w.stop(acc, false); err != nil {
		t.Fatal(err)
	}
	var executed, not int
	for range 2 {
		switch err := <-done; outcome(err) {
		case wire.OutcomeExecuted:
			executed++
			if !strings.Contains(err.Error(), "bytes are known to be typed into deaf") {
				t.Errorf("%v", err)
			}
		case wire.OutcomeNotExecuted:
			not++
		default:
			t.Errorf("outcome %q: %v", outcome(err), err)
		}
	}
	if executed != 1 || not != 1 {
		t.Errorf("%d inputs were begun and %d were not", executed, not)
	}
}

// screenless is a runtime without a seat socket: it announces nothing, or the capability to write.
type screenless struct {
	sdk.Runtime
	mu    sync.Mutex
	wrote []sdk.WriteRequest
}

func (s *screenless) Attach(context.Context, sdk.AttachRequest) (sdk.AttachTarget, error) {
	return sdk.AttachTarget{Argv: []string{"/usr/bin/mux", "attach", "-t", "$1"}}, nil
}

func (s *screenless) Write(_ context.Context, req sdk.WriteRequest) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrote = append(s.wrote, req)
	return len(req.Data), nil
}

func (s *screenless) Snapshot(context.Context, sdk.SnapshotRequest) (sdk.Snapshot, error) {
	return sdk.Snapshot{Rows: 24, Cols: 80, Data: []byte("screen")}, nil
}

// What a runtime cannot do is refused by the name of the capability; what it can is done by it.
func TestARuntimeIsAskedForWhatItAnnounced(t *testing.T) {
	w := newWorld(t)
	acc := w.run("mux", `[{"hang": true}]`)
	rt := &screenless{Runtime: w.plugins.runtime}
	announce := func(caps ...sdk.Capability) {
		info := pty.Info()
		info.Name, info.Capabilities = "mux", caps
		w.plugins.mu.Lock()
		w.plugins.runtime, w.plugins.info = rt, &info
		w.plugins.mu.Unlock()
	}
	defer func() {
		w.plugins.mu.Lock()
		w.plugins.runtime, w.plugins.info = rt.Runtime, nil
		w.plugins.mu.Unlock()
	}()
	announce()
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: "x"}); code(err) != wire.CodeUnimplemented ||
		!strings.Contains(err.Error(), `runtime pty cannot type into a seat: it lacks the capability "write"`) {
		t.Errorf("input: %v", err)
	}
	if reply, err := w.set.Terminal(context.Background(), targetOf(acc), wire.TerminalArgs{Snapshot: true}); err != nil || reply.Snapshot != nil ||
		!strings.Contains(reply.Reason, `lacks the capability "snapshot"`) || len(reply.Argv) != 4 {
		t.Errorf("terminal: %+v %v", reply, err)
	}
	announce(sdk.CapWrite, sdk.CapSnapshot)
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: "a\nb\n"}); err != nil {
		t.Errorf("input: %v", err)
	}
	if len(rt.wrote) != 2 || string(rt.wrote[0].Data) != "a\nb" || !rt.wrote[0].Paste || string(rt.wrote[1].Data) != "\r" || rt.wrote[1].Paste || rt.wrote[0].Fence != w.epoch {
		t.Errorf("wrote %+v", rt.wrote)
	}
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: "x\x1b[201~"}); code(err) != wire.CodeBadRequest || len(rt.wrote) != 2 {
		t.Errorf("a paste that ends itself: %v", err)
	}
	if reply, err := w.set.Terminal(context.Background(), targetOf(acc), wire.TerminalArgs{Snapshot: true}); err != nil || reply.Snapshot == nil || string(reply.Snapshot.Data) != "screen" || reply.Reason != "" {
		t.Errorf("terminal: %+v %v", reply, err)
	}
	if reply, err := w.set.Terminal(context.Background(), targetOf(acc), wire.TerminalArgs{}); err != nil || reply.Snapshot != nil || reply.Reason != "" {
		t.Errorf("terminal without a screen: %+v %v", reply, err)
	}
	if _, err := w.set.Terminal(context.Background(), wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: wire.NewUID()}, wire.TerminalArgs{}); code(err) != wire.CodeExpired {
		t.Errorf("another life: %v", err)
	}
}

// A line that a seat has typed for itself waits for whoever is at the terminal, as long as a draft of theirs may stand
// there, and for nobody who has left.
func TestANudgeWaitsForWhoeverIsAtTheTerminal(t *testing.T) {
	w := newWorld(t)
	acc, log := w.upAndLogging("nudged", "")
	nudge := func() error {
		_, err := w.set.Nudge(context.Background(), targetOf(acc), wire.InputArgs{Text: "look"})
		return err
	}
	person := w.dialSeat("nudged", custody.RoleInput|custody.RoleTerminal)
	if err := nudge(); err != nil {
		t.Fatalf("somebody only looks: %v", err)
	}
	if _, err := person.Input(context.Background(), []byte("h")); err != nil {
		t.Fatal(err)
	}
	if err := nudge(); code(err) != wire.CodeUnavailable || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), "somebody is at its terminal") {
		t.Errorf("somebody has typed: %v", err)
	}
	person.Close()
	w.eventually("they have left", func() (bool, string) {
		err := nudge()
		return err == nil, fmt.Sprint(err)
	})
	w.logged(log, fmt.Sprintf("%x0d68%x0d", "look", "look"))
}
