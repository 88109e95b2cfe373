package supervise

import (
	"testing"
	"time"
)

func TestMachine(t *testing.T) {
	type step struct {
		after time.Duration
		ev    event
		want  State
		wait  time.Duration
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
			{0, evStart, StateStarting, 0},
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, 2 * backoffMin},
			{0, evDied, StateBackoff, 4 * backoffMin},
			{0, evDied, StateBackoff, 8 * backoffMin},
		}},
		{"a minute of work forgives the failures before it", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, 2 * backoffMin},
			{0, evReady, StateReady, 0},
			{backoffReset, evDied, StateBackoff, backoffMin},
		}},
		{"less than a minute does not", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evReady, StateReady, 0},
			{backoffReset - 1, evDied, StateBackoff, 2 * backoffMin},
		}},
		{"five deaths in five minutes are a quarantine, and a time in it", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, 2 * backoffMin},
			{0, evDied, StateBackoff, 4 * backoffMin},
			{0, evDied, StateBackoff, 8 * backoffMin},
			{quarantineWindow - 1, evDied, StateQuarantined, quarantineFor},
			{quarantineFor, evStart, StateStarting, 0},
			{0, evDied, StateBackoff, 32 * backoffMin},
		}},
		{"five deaths over a longer time are not", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, 2 * backoffMin},
			{0, evDied, StateBackoff, 4 * backoffMin},
			{0, evDied, StateBackoff, 8 * backoffMin},
			{quarantineWindow, evDied, StateBackoff, 16 * backoffMin},
		}},
		{"a restart by hand forgives everything", []step{
			{0, evDied, StateBackoff, backoffMin},
			{0, evDied, StateBackoff, 2 * backoffMin},
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
				var wait time.Duration
				if m, wait = m.on(s.ev, now); m.state != s.want || wait != s.wait {
					t.Fatalf("step %d: %s, wait %s; want %s, %s", i+1, m.state, wait, s.want, s.wait)
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
