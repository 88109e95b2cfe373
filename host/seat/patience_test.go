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
		short   bool
	}{
		"a watched seat is told of, so nobody waits for long":          {Running, true, 0, true},
		"nor behind a question that is being answered":                 {Running, true, 900 * time.Millisecond, true},
		"a runtime that does not answer may hang, and its watch too":   {Running, true, time.Second, false},
		"without a watch there is nothing but the answer":              {Running, false, 0, false},
		"a seat that is unknown is found by the question, not by news": {Unknown, true, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := patience(c.state, c.watched, c.asked); (got == inspectWait) != c.short || got < inspectWait {
				t.Errorf("it waits %s", got)
			}
		})
	}
}
