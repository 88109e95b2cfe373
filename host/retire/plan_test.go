package retire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	own    = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	theirs = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func slotRow(alias, instance, phase string) Row {
	s := wire.Slot{
		Owner: wire.OwnerLocal, Alias: alias, Actor: "a_" + alias, LifecycleUID: "uuuuuuuuuuuuuuuuuuuuuuuuuu", Phase: phase,
		OwnerInstanceID: instance, ManagerInstance: "p1", Runtime: &wire.RuntimeRef{Kind: "pty", ID: "c"},
	}
	return Row{Key: s.Key(), Slot: s, Rev: 1}
}

// proves: RECON-3
func TestPlanSlot(t *testing.T) {
	lives := func(provision.Life) bool { return true }
	dead := func(provision.Life) bool { return false }
	for _, c := range []struct {
		what string
		row  Row
		live func(provision.Life) bool
		want Plan
	}{
		{"a sibling's slot is left alone", slotRow("r", theirs, wire.SlotActive), dead, PlanForeign},
		{"a sibling's is left alone in any phase", slotRow("r", theirs, wire.SlotTerminalizing), dead, PlanForeign},
		{"a seat of this process keeps its slot", slotRow("r", own, wire.SlotActive), lives, PlanAdopted},
		{"a spawn that is under way keeps its slot", slotRow("r", own, wire.SlotProvisioning), lives, PlanAdopted},
		{"what is over is over", slotRow("r", own, wire.SlotRetired), lives, PlanRetired},
		{"a seat that nobody has is brought to its end", slotRow("r", own, wire.SlotActive), dead, PlanRetire},
		{"so is an intent", slotRow("r", own, wire.SlotProvisioning), dead, PlanRetire},
		{"so is an end that was cut short", slotRow("r", own, wire.SlotTerminalizing), dead, PlanRetire},
		{"a slot that cannot be read is not absent", Row{Key: wire.SlotKey(wire.OwnerLocal, "r"), Err: bus.ErrCorrupt}, dead, PlanRefuse},
	} {
		if got := PlanSlot(c.row, own, c.live); got != c.want {
			t.Errorf("%s: %s", c.what, got)
		}
	}
}

// proves: RECON-7
func TestStateOfAllSweeps(t *testing.T) {
	for _, c := range []struct {
		what    string
		failed  bool
		running int
		items   []string
		want    string
	}{
		{"nothing was found", false, 0, nil, SweepIdle},
		{"a sweep that came to no plan is not one that found nothing", true, 0, nil, SweepFailed},
		{"an attempt that runs is told before one that waits", false, 0, []string{RetryScheduled, Retrying}, SweepRetrying},
		{"one that waits is told before one that is refused", false, 1, []string{Refused, RetryScheduled}, SweepRetryWait},
		{"one that is refused is a failure while others go on", false, 1, []string{RefusedForeign}, SweepFailed},
		{"one that ran out of attempts is a failure", false, 0, []string{RetryExhausted, Recovered}, SweepFailed},
		{"a sweep runs", false, 1, []string{"", Recovered}, SweepRunning},
		{"everything was brought to its end", false, 0, []string{Recovered}, SweepRecovered},
	} {
		if got := stateOf(c.failed, c.running, c.items); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

func TestDispose(t *testing.T) {
	weather := errors.New("weather")
	for _, c := range []struct {
		what     string
		err      error
		attempts int
		want     string
	}{
		{"the first failure is tried again", weather, 1, RetryScheduled},
		{"so is the third", weather, 3, RetryScheduled},
		{"the fourth was the last", weather, 4, RetryExhausted},
		{"another operation's life is not tried again", fmt.Errorf("x: %w", &BlockedError{What: "gate"}), 1, RefusedForeign},
		{"a slot that changed is not tried again", fmt.Errorf("x: %w", errChanged), 2, Refused},
	} {
		got, remedy := dispose(c.err, c.attempts)
		if got != c.want || (remedy == "") != (got == RetryScheduled) {
			t.Errorf("%s: %s, %q", c.what, got, remedy)
		}
	}
}

// stage is slots and a retirement that only exist here: time is what is tested.
type stage struct {
	mu    sync.Mutex
	rows  []Row
	err   error   // of reading
	fail  error   // of retiring
	may   []error // what each question whether it may go on is answered; then nil
	asked int
	tries []time.Time
}

func (s *stage) set(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

func (s *stage) sweeper() *Sweeper {
	return NewSweeper(SweeperConfig{
		Instance: own,
		Live:     func(provision.Life) bool { return false },
		May: func(context.Context) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.asked++; s.asked <= len(s.may) {
				return s.may[s.asked-1]
			}
			return nil
		},
		Rows: func(context.Context) ([]Row, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.rows, s.err
		},
		Row: func(_ context.Context, key wire.Key) (Row, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.err != nil {
				return Row{}, s.err
			}
			for _, r := range s.rows {
				if nameOf(r) == nameOf(Row{Key: key}) {
					return r, nil
				}
			}
			return Row{}, bus.ErrAbsent
		},
		Retire: func(context.Context, provision.Life) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.tries = append(s.tries, time.Now())
			return s.fail
		},
	})
}

// One failed attempt once left a name blocked until the host was started again.
//
// proves: RECON-5, RECON-6
func TestAFailedSlotIsTriedAfterOneFiveAndThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		st := &stage{rows: []Row{slotRow("r", own, wire.SlotActive)}, fail: errors.New("weather")}
		s := st.sweeper()
		defer s.Stop()
		if err := s.Sweep(t.Context(), SweepStartup); err != nil {
			t.Fatal(err)
		}
		if got := s.Status(); got.State != SweepRetryWait || got.LastSweep.Failed != 1 || got.Failures[0].Disposition != RetryScheduled ||
			got.Failures[0].NextRetryAt != begin.Add(time.Second).UnixMilli() {
			t.Errorf("behind the first attempt: %+v", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		var at []time.Duration
		for _, x := range st.tries {
			at = append(at, x.Sub(begin))
		}
		if want := []time.Duration{0, time.Second, 6 * time.Second, 36 * time.Second}; fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("tried at %v, want %v", at, want)
		}
		got := s.Status()
		if f := got.Failures[0]; got.State != SweepFailed || f.Disposition != RetryExhausted || f.Attempts != 4 || f.MaxAttempts != 4 || f.Remedy == "" || f.LastError == "" {
			t.Errorf("behind the last attempt: %+v", got)
		}
		// A later sweep has one more try at it.
		st.set(func() { st.fail = nil })
		if err := s.Sweep(t.Context(), SweepScheduled); err != nil {
			t.Fatal(err)
		}
		if got := s.Status(); got.State != SweepRecovered || got.Failures[0].RecoveredAt == 0 {
			t.Errorf("recovered: %+v", got)
		}
		st.set(func() { st.rows = []Row{slotRow("r", own, wire.SlotRetired)} })
		if err := s.Sweep(t.Context(), SweepScheduled); err != nil || len(s.Status().Failures) != 0 || s.Status().State != SweepIdle {
			t.Errorf("behind the next sweep: %+v, %v", s.Status(), err)
		}
	})
}

func TestARetryRefusesASlotThatIsNotWhatItWas(t *testing.T) {
	for what, c := range map[string]struct {
		row  []Row
		want string
	}{
		"it vanished":                   {nil, Refused},
		"it is another host's":          {[]Row{slotRow("r", theirs, wire.SlotActive)}, RefusedForeign},
		"it is of another life":         {[]Row{func() Row { r := slotRow("r", own, wire.SlotActive); r.Slot.LifecycleUID = theirs; return r }()}, Refused},
		"somebody else brought its end": {[]Row{slotRow("r", own, wire.SlotRetired)}, Recovered},
	} {
		synctest.Test(t, func(t *testing.T) {
			st := &stage{rows: []Row{slotRow("r", own, wire.SlotActive)}, fail: errors.New("weather")}
			s := st.sweeper()
			defer s.Stop()
			if err := s.Sweep(t.Context(), SweepStartup); err != nil {
				t.Fatal(err)
			}
			st.set(func() { st.rows = c.row })
			time.Sleep(time.Hour)
			synctest.Wait()
			if f := s.Status().Failures[0]; f.Disposition != c.want || len(st.tries) != 1 {
				t.Errorf("%s: %+v after %d tries", what, f, len(st.tries))
			}
		})
	}
}

// A host that was frozen past its lease once went on with a sweep that was due, and with each retry, and took the lives that its
// successor had begun for left-over ones.
func TestNothingIsSweptWithoutTheLease(t *testing.T) {
	gone := errors.New("the lease is over")
	for what, c := range map[string]struct {
		may   []error
		fails bool // the sweep comes to no plan
		tries int  // within the hour behind it
	}{
		"it is over before slots are read":       {[]error{gone}, true, 0},
		"it is over behind that":                 {[]error{nil, gone}, true, 0},
		"it is over before the attempt":          {[]error{nil, nil, gone, gone, gone, gone}, false, 0},
		"it is over before each retry":           {[]error{nil, nil, nil, gone, gone, gone}, false, 1},
		"it is renewed, and the attempts go on":  {[]error{nil, nil, gone}, false, 3},
		"it is never over: all attempts are had": {nil, false, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			st := &stage{rows: []Row{slotRow("r", own, wire.SlotActive)}, fail: errors.New("weather"), may: c.may}
			s := st.sweeper()
			defer s.Stop()
			if err := s.Sweep(t.Context(), SweepStartup); errors.Is(err, gone) != c.fails {
				t.Errorf("%s: the sweep: %v", what, err)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if len(st.tries) != c.tries {
				t.Errorf("%s: %d lives were ended, want %d", what, len(st.tries), c.tries)
			}
		})
	}
}

// A slot that could not be brought to its end was once told of until the host was started again, whatever became of it.
func TestAFailedSlotThatIsNoneOfOursAnyMoreIsForgotten(t *testing.T) {
	for what, rows := range map[string][]Row{
		"it vanished":          nil,
		"it is another host's": {slotRow("r", theirs, wire.SlotActive)},
		"its end came":         {slotRow("r", own, wire.SlotRetired)},
	} {
		st := &stage{rows: []Row{slotRow("r", own, wire.SlotActive)}, fail: fmt.Errorf("%w: held", ErrForeign)}
		s := st.sweeper()
		if err := s.Sweep(t.Context(), SweepStartup); err != nil || s.Status().State != SweepFailed {
			t.Fatalf("%s: %+v, %v", what, s.Status(), err)
		}
		st.set(func() { st.rows = rows })
		if err := s.Sweep(t.Context(), SweepScheduled); err != nil || s.Status().State != SweepIdle || len(s.Status().Failures) != 0 {
			t.Errorf("%s: %+v, %v", what, s.Status(), err)
		}
		s.Stop()
	}
}

// proves: RECON-2
func TestASweepThatCannotReadIsNotOneThatFoundNothing(t *testing.T) {
	st := &stage{err: bus.ErrUnavailable}
	s := st.sweeper()
	defer s.Stop()
	if err := s.Sweep(t.Context(), SweepStartup); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("the sweep: %v", err)
	}
	if got := s.Status(); got.State != SweepFailed || got.LastSweep.CompletedAt == 0 || got.LastSweep.Attempted != 0 || s.Last().Err == "" {
		t.Errorf("status: %+v", got)
	}
	st.set(func() { st.err = nil })
	if err := s.Sweep(t.Context(), SweepScheduled); err != nil {
		t.Fatal(err)
	}
	if got := s.Status(); got.State != SweepIdle || s.Last().Err != "" {
		t.Errorf("status behind an empty one: %+v", got)
	}
}

// proves: RECON-9
func TestStopLetsNoAttemptBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &stage{rows: []Row{slotRow("r", own, wire.SlotActive)}, fail: errors.New("weather")}
		s := st.sweeper()
		if err := s.Sweep(t.Context(), SweepStartup); err != nil {
			t.Fatal(err)
		}
		s.Stop()
		time.Sleep(time.Hour)
		if len(st.tries) != 1 {
			t.Errorf("%d tries behind the stop", len(st.tries)-1)
		}
		if err := s.Sweep(t.Context(), SweepScheduled); !errors.Is(err, ErrStopped) {
			t.Errorf("a sweep behind it: %v", err)
		}
	})
}
