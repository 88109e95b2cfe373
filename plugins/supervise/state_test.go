package supervise

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestMachine(t *testing.T) {
	type step struct {
		after time.Duration
		ev    event
		want  State
		wait  any // pause, or the longest one; 0: nothing follows by itself
	}
	// After the second failed start in a row a pause has a floor.
	const second = 2 * failedStartMin
	slow := pause{failedStartMin, second}
	retry := pause{quarantineRetry, quarantineRetry}
	dies := func(more ...step) []step { // five failed starts
		return append([]step{
			{0, evStart, StateStarting, 0},
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, slow},
			{0, evDied, StateBackoff, slow},
			{0, evDied, StateBackoff, slow},
			{0, evDied, StateQuarantined, retry},
		}, more...)
	}
	cases := []struct {
		name  string
		steps []step
	}{
		{"a start leads to ready", []step{
			{0, evStart, StateStarting, 0},
			{0, evReady, StateReady, 0},
		}},
		{"a death is followed by a short pause, then a start", []step{
			{0, evStart, StateStarting, 0},
			{0, evReady, StateReady, 0},
			{time.Second, evDied, StateBackoff, backoffMin},
			{0, evStart, StateStarting, 0},
		}},
		{"a failed start counts as a death", []step{
			{0, evStart, StateStarting, 0},
			{0, evDied, StateBackoff, backoffMin},
		}},
		{"pauses double", []step{
			{0, evReady, StateReady, 0},
			{0, evDied, StateBackoff, backoffMin},
			{0, evReady, StateReady, 0},
			{0, evDied, StateBackoff, 2 * backoffMin},
			{0, evReady, StateReady, 0},
			{0, evDied, StateBackoff, 4 * backoffMin},
			{0, evReady, StateReady, 0},
			{0, evDied, StateBackoff, 8 * backoffMin},
		}},
		{"a start that fails again is not tried at once", []step{
			{0, evReady, StateReady, 0},
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, 2 * backoffMin},
			{0, evDied, StateBackoff, slow},
			{0, evReady, StateReady, 0},
			{0, evDied, StateBackoff, 8 * backoffMin},
		}},
		{"many failed starts over a long time wait longer than the floor", []step{
			{0, evDied, StateBackoff, backoffMin},
			{quarantineWindow, evDied, StateBackoff, slow},
			{quarantineWindow, evDied, StateBackoff, slow},
			{quarantineWindow, evDied, StateBackoff, slow},
			{quarantineWindow, evDied, StateBackoff, slow},
			{quarantineWindow, evDied, StateBackoff, pause{failedStartMin, 32 * backoffMin}},
		}},
		{"a minute of work forgives the failures before it", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, slow},
			{0, evReady, StateReady, 0},
			{backoffReset, evDied, StateBackoff, backoffMin},
		}},
		{"less than a minute does not", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evReady, StateReady, 0},
			{backoffReset - 1, evDied, StateBackoff, 2 * backoffMin},
		}},
		{"five deaths in five minutes are a quarantine, and it is tried by itself", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, slow},
			{0, evDied, StateBackoff, slow},
			{0, evDied, StateBackoff, slow},
			{quarantineWindow - 1, evDied, StateQuarantined, retry},
			{quarantineRetry, evStart, StateStarting, 0},
			{0, evDied, StateQuarantined, retry},
			{quarantineRetry, evStart, StateStarting, 0},
			{0, evReady, StateReady, 0},
		}},
		{"five deaths over a longer time are not", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, slow},
			{0, evDied, StateBackoff, slow},
			{0, evDied, StateBackoff, slow},
			{quarantineWindow, evDied, StateBackoff, slow},
		}},
		{"a try that fails leads back, however long ago the deaths were", dies(
			step{2 * quarantineWindow, evStart, StateStarting, 0},
			step{0, evDied, StateQuarantined, retry},
		)},
		{"who needs it ends a quarantine when the last start is old enough", dies(
			step{quarantineDemand - 1, evNeeded, StateQuarantined, 0},
			step{1, evNeeded, StateStarting, 0},
			step{0, evNeeded, StateStarting, 0},
			step{0, evDied, StateQuarantined, retry},
			step{quarantineDemand - 1, evNeeded, StateQuarantined, 0},
			step{1, evNeeded, StateStarting, 0},
			step{0, evReady, StateReady, 0},
		)},
		{"a try by itself counts for who needs it", dies(
			step{quarantineRetry, evStart, StateStarting, 0},
			step{0, evDied, StateQuarantined, retry},
			step{1, evNeeded, StateQuarantined, 0},
			step{quarantineDemand, evNeeded, StateStarting, 0},
		)},
		{"a process out of a try that dies is the sixth death", dies(
			step{quarantineDemand, evNeeded, StateStarting, 0},
			step{0, evReady, StateReady, 0},
			step{backoffReset, evDied, StateQuarantined, retry},
			step{0, evNeeded, StateStarting, 0},
		)},
		{"a process out of a try that works is as good as any", dies(
			step{quarantineDemand, evNeeded, StateStarting, 0},
			step{0, evReady, StateReady, 0},
			step{quarantineWindow, evDied, StateBackoff, backoffMin},
			step{0, evDied, StateBackoff, 2 * backoffMin},
		)},
		{"being needed changes nothing outside a quarantine", []step{
			{quarantineWindow, evNeeded, StateStopped, 0},
			{0, evStart, StateStarting, 0},
			{quarantineWindow, evNeeded, StateStarting, 0},
			{0, evDied, StateBackoff, backoffMin},
			{quarantineWindow, evNeeded, StateBackoff, 0},
			{0, evStart, StateStarting, 0},
			{0, evReady, StateReady, 0},
			{quarantineWindow, evNeeded, StateReady, 0},
		}},
		{"a restart by hand ends a quarantine and forgives it", dies(
			step{0, evRestart, StateStarting, 0},
			step{0, evDied, StateBackoff, backoffMin},
		)},
		{"a restart by hand forgives everything", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, slow},
			{0, evRestart, StateStarting, 0},
			{0, evDied, StateBackoff, backoffMin},
		}},
		{"a stop is final and waits for nothing", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evStop, StateStopped, 0},
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m, now := machine{state: StateStopped}, time.Unix(1000, 0)
			for i, s := range c.steps {
				now = now.Add(s.after)
				want, ok := s.wait.(pause)
				if d, long := s.wait.(time.Duration); long {
					want = pause{max: d}
				} else if !ok && s.wait != 0 {
					t.Fatalf("step %d: a wait of %v", i+1, s.wait)
				}
				var got pause
				if m, got = m.on(s.ev, now); m.state != s.want || got != want {
					t.Fatalf("step %d: %s, pause %v; want %s, %v", i+1, m.state, got, s.want, want)
				}
				if len(m.deaths) > quarantineDeaths {
					t.Fatalf("step %d: %d deaths are kept", i+1, len(m.deaths))
				}
			}
		})
	}
}

func TestBackoffHasACeiling(t *testing.T) {
	for _, n := range []int{9, 10, 1000, 1 << 30} {
		want := backoffMax
		if n == 9 {
			want = 25600 * time.Millisecond
		}
		if got := backoff(n); got != want {
			t.Errorf("after %d failures: %s, want %s", n, got, want)
		}
	}
}

func TestFixSaysWhatAPersonCanDo(t *testing.T) {
	start := &StartError{Plugin: "x", Fix: "chmod +x it"}
	for _, c := range []struct {
		name  string
		state State
		err   error
		want  string
	}{
		{"a failed start with a fix of its own", StateQuarantined, fmt.Errorf("wrapped: %w", start), "chmod +x it; then: cotal ext reload"},
		{"a quarantine", StateQuarantined, errors.New("died"), "read its crash report, repair the cause, then: cotal ext restart x"},
		{"a backoff", StateBackoff, errors.New("died"), "nothing: it is started again by itself"},
		{"one that is being started", StateStarting, errors.New("died"), ""},
	} {
		if got := fix("x", c.state, c.err); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
