package harness

import (
	"testing"
	"time"
)

// DefaultWait bounds how long a helper waits for a fact. It is generous: it decides how long a broken
// test takes to fail, never whether a working one passes.
const DefaultWait = 30 * time.Second

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

// Eventually fails the test when check does not come true within d. The second result of check
// describes what it saw, for the failure message.
func Eventually(t testing.TB, d time.Duration, what string, check func() (bool, string)) {
	t.Helper()
	if ok, state := Poll(d, check); !ok {
		t.Fatalf("after %v still not: %s (%s)", d, what, state)
	}
}
