package supervise

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// age makes the latest start older, so that a quarantined plugin may be tried for who needs it.
func age(s *Supervisor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.startedAt = s.m.startedAt.Add(-quarantineDemand)
}

func refusedInQuarantine(t *testing.T, s *Supervisor, err error) {
	t.Helper()
	if !errors.Is(err, sdk.ErrUnavailable) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted {
		t.Fatalf("got %v, want ErrUnavailable, not executed", err)
	}
	for _, want := range []string{"is quarantined, tried again in ", "s, or in ", "s when a command needs it: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
	if st := s.Status(); st.State != StateQuarantined || !strings.HasPrefix(st.Reason, "tried again in ") {
		t.Errorf("status %+v", st)
	}
}

func TestAKilledPluginInQuarantineIsTriedWhenItIsNeeded(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	last := 0
	for range quarantineDeaths {
		live, err := s.After(f.ctx(), last)
		if err != nil {
			t.Fatal(err)
		}
		last = live.Attempt
		if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-live.Gone()
	}
	eventually(t, 5*time.Second, "it is quarantined", func() bool { return s.State() == StateQuarantined })
	begin := time.Now()
	_, err := s.Ready(f.ctx())
	refusedInQuarantine(t, s, err)
	if d := time.Since(begin); d > busy.Limit(time.Second) {
		t.Errorf("the refusal took %s", d)
	}

	age(s)
	const callers = 8
	var wg sync.WaitGroup
	lives, errs := make([]*Live, callers), make([]error, callers)
	for i := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			lives[i], errs[i] = s.After(f.ctx(), last)
		}()
	}
	wg.Wait()
	for i := range callers {
		if errs[i] != nil || lives[i] != lives[0] {
			t.Fatalf("caller %d: %+v, %v; want the one process for all", i, lives[i], errs[i])
		}
	}
	if n := len(f.records("starts")); n != quarantineDeaths+1 {
		t.Errorf("%d starts, want one more than the deaths", n)
	}
	if _, err := do(lives[0], f.ctx(), nil); err != nil {
		t.Error(err)
	}
}

func TestAFailedTryLeadsBackIntoQuarantine(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.bundle, "fakeplugin")
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	s := f.start(f.entry())
	eventually(t, 20*time.Second, "it is quarantined", func() bool { return s.State() == StateQuarantined })
	tries := starts(s)

	age(s)
	_, err := s.Ready(f.ctx())
	refusedInQuarantine(t, s, err)
	var se *StartError
	if !errors.As(err, &se) || se.Reason != ReasonNotFound {
		t.Errorf("got %v, want the reason of the try", err)
	}
	_, err = s.Ready(f.ctx())
	refusedInQuarantine(t, s, err)
	if n := starts(s); n != tries+1 {
		t.Errorf("%d tries for two that need it within a moment, want 1", n-tries)
	}

	// What only watches waits, and asks for nothing.
	age(s)
	short, cancel := context.WithTimeout(f.ctx(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Later(short, 0); !errors.Is(err, context.DeadlineExceeded) || starts(s) != tries+1 {
		t.Errorf("a watch: %v, %d tries", err, starts(s)-tries)
	}
	// Neither does one that no longer waits for the answer.
	if _, err := s.Ready(short); err == nil || starts(s) != tries+1 {
		t.Errorf("a caller that has gone: %v, %d tries", err, starts(s)-tries)
	}

	later := make(chan *Live, 1)
	go func() {
		live, err := s.Later(f.ctx(), 0)
		if err != nil {
			t.Error(err)
		}
		later <- live
	}()
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	live := f.ready(s)
	if got := <-later; got != live {
		t.Errorf("the watch got %+v, want the new process", got)
	}
}

func TestAMomentWithoutTheBinaryIsNoQuarantine(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.bundle, "fakeplugin")
	s := f.start(f.entry())
	live := f.ready(s)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Two failed starts within a moment; the third comes a second later at the earliest.
	eventually(t, 5*time.Second, "two starts have failed", func() bool { return starts(s) == 3 && s.State() == StateBackoff })
	second := time.Now()
	if d := second.Sub(begin); d > failedStartMin {
		t.Logf("slow machine: the first retry came after %s", d)
	}
	eventually(t, 5*time.Second, "the third start has failed", func() bool { return starts(s) == 4 && s.State() == StateBackoff })
	if d := time.Since(second); d < failedStartMin-50*time.Millisecond {
		t.Errorf("the third start came after %s", d)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.After(f.ctx(), live.Attempt); err != nil {
		t.Errorf("the binary is back: %v", err)
	}
}

// starts is how often a process was started, or tried to be.
func starts(s *Supervisor) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempt
}
