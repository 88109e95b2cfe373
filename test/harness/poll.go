package harness

import (
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/busy"
)

// DefaultWait bounds how long a helper waits for a fact. It is generous: it decides how long a broken
// test takes to fail, never whether a working one passes.
const DefaultWait = 60 * time.Second

// Poll asks check every few milliseconds until it says true or the time is over, and returns the
// last state check described.
func Poll(d time.Duration, check func() (bool, string)) (bool, string) {
	deadline := time.Now().Add(d)
	for pause := time.Millisecond; ; pause = min(pause*2, 20*time.Millisecond) {
		ok, state := check()
		if ok || time.Now().After(deadline) {
			return ok, state
		}
		<-time.After(pause)
	}
}

// stretched is Poll that goes on for as long as d is on a busy machine.
func stretched(d time.Duration, check func() (bool, string)) (bool, string) {
	begin := time.Now()
	ok, state := Poll(d, check)
	for !ok && !busy.Over(begin, d) {
		ok, state = Poll(d/4, check)
	}
	return ok, state
}

// Eventually fails the test when check does not come true within d, or as long as d is on a busy machine. The second
// result of check describes what it saw, for the failure message.
func Eventually(t testing.TB, d time.Duration, what string, check func() (bool, string)) {
	t.Helper()
	begin := time.Now()
	if ok, state := stretched(d, check); !ok {
		t.Fatalf("after %v still not: %s (%s)", time.Since(begin).Round(time.Second), what, state)
	}
}
