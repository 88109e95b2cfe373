package seat

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestAProbeIsOfThisMachineAlone(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:80": true, "127.9.9.9:1": true, "[::1]:80": true,
		"192.0.2.1:80": false, "0.0.0.0:80": false, "localhost:80": false, "example.com:80": false,
		"127.0.0.1": false, "127.0.0.1:0": false, "": false, "[fe80::1%lo]:80": false, "127.0.0.1:80@192.0.2.1:80": false,
	} {
		if got := loopback(addr); got != want {
			t.Errorf("%q: %v", addr, got)
		}
	}
}

func TestASeatThatComesAndGoesIsToldOfNowAndThen(t *testing.T) {
	var b brake
	now, told := time.Now(), 0
	for i := range 100_000 { // in 100 s
		ok, held := b.allow(now.Add(time.Duration(i) * time.Millisecond))
		if ok {
			told++
		}
		if i == 60_000 && (!ok || held != 60_000-brakeLines) {
			t.Errorf("after a minute: %v, %d held back", ok, held)
		}
	}
	if told != 2*brakeLines {
		t.Errorf("%d lines", told)
	}
}

func TestAHandleThatIsRefusedIsLeftOut(t *testing.T) {
	handle := sdk.Handle{Version: 1 << 31, Ref: "x"}
	cases := []struct {
		name     string
		handle   sdk.Handle
		first    error // of the call with the handle
		alone    error
		refused  bool
		want     error
		mentions string
	}{
		{"a good handle", handle, nil, errors.New("never called"), false, nil, ""},
		{"a refused one, and the id does", handle, sdk.ErrInvalid, nil, true, nil, ""},
		{"a refused one, and the id does not", handle, sdk.ErrInvalid, sdk.ErrUnproven, true, sdk.ErrUnproven, "handle was refused"},
		{"it was not the handle", handle, fmt.Errorf("id: %w", sdk.ErrInvalid), sdk.ErrInvalid, false, sdk.ErrInvalid, "id:"},
		{"another refusal stands", handle, sdk.ErrStaleFence, nil, false, sdk.ErrStaleFence, ""},
		{"there was no handle", sdk.Handle{}, nil, sdk.ErrInvalid, false, sdk.ErrInvalid, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, refused, err := byHandle(c.handle, func(h sdk.Handle) (int, error) {
				if h.Ref != "" {
					return 0, c.first
				}
				return 0, c.alone
			})
			if refused != c.refused || !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.mentions) {
				t.Errorf("%v, %v", refused, err)
			}
		})
	}
}

func TestAWriteIntoAProgramThatNeverReadsEndsWithTheReason(t *testing.T) {
	never := func(ctx context.Context, _ []byte) (int, error) { <-ctx.Done(); return 3, ctx.Err() }
	begin := time.Now()
	n, err := stalled(t.Context(), 20*time.Millisecond, []byte("text"), never)
	if n != 3 || err == nil || !strings.Contains(err.Error(), "does not read") || time.Since(begin) > 5*time.Second {
		t.Errorf("%d, %v", n, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := stalled(ended, time.Minute, []byte("text"), never); !errors.Is(err, context.Canceled) {
		t.Errorf("given up by the caller: %v", err)
	}
	if short, long := stallLimit(1), stallLimit(64<<10); short > 6*time.Second || long < 12*time.Second || long > 14*time.Second {
		t.Errorf("%s for a byte, %s for 64 KiB", short, long)
	}
}

// What a runtime refused before the first byte is no uncertainty.
func TestARefusedWriteTypedNothing(t *testing.T) {
	cases := []struct {
		name    string
		err     error
		outcome wire.Outcome
		code    string
	}{
		{"too large", sdk.Errorf(sdk.ErrTooLarge, "4096"), wire.OutcomeNotExecuted, wire.CodeFailedPrecondition},
		{"invalid", sdk.ErrInvalid, wire.OutcomeNotExecuted, wire.CodeBadRequest},
		{"it says itself that nothing happened", sdk.Errorf(sdk.ErrUnavailable, "no"), wire.OutcomeNotExecuted, wire.CodeUnavailable},
		{"it does not know", &sdk.Error{Code: sdk.ErrInvalid, Outcome: sdk.OutcomeUnknown}, wire.OutcomeUnknown, wire.CodeBadRequest},
		{"its plugin died", &sdk.Error{Code: sdk.ErrPluginDown, Outcome: sdk.OutcomeUnknown}, wire.OutcomeUnknown, wire.CodeUnavailable},
	}
	for _, c := range cases {
		if e := inputError("s", 0, c.err); e.Outcome != c.outcome || e.Code != c.code {
			t.Errorf("%s: %+v", c.name, e)
		}
	}
}

// The moment between an end and its record is no alarm; one that lasts is.
func TestAnEndThatIsBeingRecordedIsNotUnknown(t *testing.T) {
	w := newActorForTest(t)
	w.observe(sdk.SeatStatus{State: sdk.SeatRunning, Reason: "the agent has ended; its exit is being recorded"})
	first := w.snapshot().Ending
	if first.IsZero() {
		t.Fatal("its end was not seen")
	}
	w.observe(sdk.SeatStatus{State: sdk.SeatRunning, Reason: "the agent has ended; its exit record cannot be written"})
	if got := w.snapshot().Ending; !got.Equal(first) {
		t.Errorf("ending since %v, then %v", first, got)
	}
	w.observe(sdk.SeatStatus{State: sdk.SeatRunning, Agent: sdk.Identity{PID: 7}})
	if !w.snapshot().Ending.IsZero() {
		t.Error("one that runs is ending")
	}
	if now, late := endingStatus(0), endingStatus(endingTime); now != "stopping" || late != "unknown" {
		t.Errorf("%s, then %s", now, late)
	}
}

// What was meant for one process is not typed into the next one of the same life.
//
// proves: INPUT-3
func TestAnInputIsForOneProcess(t *testing.T) {
	a := newActorForTest(t)
	into := a.snapshot().Row.SeatID
	a.into.Store(&into)
	if err := a.accepts(); err != nil {
		t.Fatal(err)
	}
	a.show(func(s *Snapshot) { s.Row.SeatID = "y" })
	var refused *wire.Error
	if err := a.accepts(); !errors.As(err, &refused) || refused.Code != wire.CodeFailedPrecondition || !strings.Contains(err.Error(), "started again meanwhile") {
		t.Errorf("in the middle of an input: %v", err)
	}
	if err := a.snapshot().accepts(); err != nil {
		t.Errorf("the next input: %v", err)
	}
}

func newActorForTest(t *testing.T) *actor {
	t.Helper()
	s := New(Config{})
	t.Cleanup(s.Close)
	return s.newActor(journal.SeatRow{SeatID: "x", State: journal.RowState(Running)})
}

// A call that comes while its seat ends lies in the box behind the last one that is run: it returns, and so do
// an inspect and a recovery that wait for it. What did run by then is told as it went.
func TestACallOfASeatThatEndsMeanwhileReturns(t *testing.T) {
	answered := errors.New("what it returns")
	for range 50 { // the box and the end are both ready: which is taken is chance
		a := &actor{set: &Set{life: t.Context()}, box: make(chan func(), 1), done: make(chan struct{})}
		close(a.done)
		returned := make(chan error, 1)
		go func() { returned <- a.call(func() error { return answered }) }()
		select {
		case err := <-returned:
			if !errors.Is(err, errHostGone) {
				t.Fatalf("nobody ran it, and it says %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("it waits for somebody who has ended")
		}
	}
	a := &actor{set: &Set{life: t.Context()}, box: make(chan func(), 1), done: make(chan struct{})}
	go func() {
		(<-a.box)()
		close(a.done)
	}()
	if err := a.call(func() error { return answered }); !errors.Is(err, answered) {
		t.Errorf("it was run, and the call says %v", err)
	}
}
