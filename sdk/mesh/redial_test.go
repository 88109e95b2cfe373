package mesh

import (
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
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

// A viewer that was told once that its seat is only starting, and then found no host for a while, gave up at the next such
// answer: the time without a host counted as one in which the seat did not start.
func TestATimeWithoutAHostIsNoTimeInWhichASeatDoesNotStart(t *testing.T) {
	starting, away := wire.Refuse(wire.CodeFailedPrecondition, "is starting"), wire.Refuse(wire.CodeUnavailable, "is away")
	type answer struct {
		at      time.Duration
		refused *wire.Error // nil: there was none
		over    bool
	}
	for name, answers := range map[string][]answer{
		"a seat that does not start": {{0, starting, false}, {startingWait, starting, false}, {startingWait + 1, starting, true}},
		"no answer in between":       {{0, starting, false}, {time.Second, nil, false}, {time.Minute, starting, false}},
		"another answer in between":  {{0, starting, false}, {time.Second, away, false}, {time.Minute, starting, false}},
		"a seat that does not start, of a host that was away": {
			{0, nil, false}, {time.Minute, starting, false}, {time.Minute + startingWait + 1, starting, true},
		},
	} {
		var u unready
		now := time.Now()
		for i, a := range answers {
			if over := u.tooLong(a.refused, now.Add(a.at)); over != a.over {
				t.Errorf("%s: the answer at %d ends the session: %v", name, i, over)
			}
		}
	}
}
