package mesh

import (
	"testing"
	"time"
)

// A viewer that came back seconds after its broker and its host was taken for lost. What is there again is found within
// two seconds, however long it was away: first the server, and then the host, which may be behind it.
func TestWhatIsBackIsNotWaitedForLong(t *testing.T) {
	var passed time.Duration
	for attempt := range 100 {
		if d := backoff(attempt + 1); d <= 0 || d > 2*time.Second {
			t.Errorf("attempt %d at the server comes after %s", attempt, d)
		}
		d := redialDelay(attempt)
		if most := 2 * time.Second; passed < time.Minute-time.Second && d > most || d <= 0 || d > 5*time.Second {
			t.Errorf("attempt %d at the host comes after %s, %s behind the first", attempt, d, passed)
		}
		passed += d
		if b := redialBudget(attempt); b < 2*time.Second || b > redialWait {
			t.Errorf("attempt %d may take %s", attempt, b)
		}
	}
	if d := redialDelay(0); d > 300*time.Millisecond {
		t.Errorf("the first attempt comes after %s", d)
	}
}
