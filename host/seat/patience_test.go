package seat

import (
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	for name, c := range map[string]struct {
		state   State
		watched bool
		asked   time.Duration
		silent  bool
		wait    time.Duration
		known   bool
	}{
		"a watched seat is told of, so nobody waits for long":          {Running, true, 0, false, inspectWait, true},
		"nor behind a question that was asked before":                  {Running, true, inspectWait / 5, false, inspectWait - inspectWait/5, true},
		"nor at all for an answer that is late already":                {Running, true, 900 * time.Millisecond, false, 0, true},
		"a runtime that does not answer may hang, and its watch too":   {Running, true, time.Second, false, inspectMost - time.Second, false},
		"without a watch there is nothing but the answer":              {Running, false, 0, false, inspectMost, false},
		"a seat that is unknown is found by the question, not by news": {Unknown, true, 0, false, inspectMost, false},
		"for an answer that is too late nobody waits":                  {Unknown, false, 3 * time.Second, false, 0, false},
		"nor once more for one that was silent before":                 {Running, false, 0, true, inspectWait, false},
		"and what its watch told may be old":                           {Running, true, time.Second, true, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if wait, known := patience(c.state, c.watched, c.asked, c.silent); wait != c.wait || known != c.known {
				t.Errorf("it waits %s, and what is known stands: %v", wait, known)
			}
		})
	}
}
