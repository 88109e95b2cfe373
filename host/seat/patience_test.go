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
		wait    time.Duration
		known   bool
	}{
		"a watched seat is told of, so nobody waits for long":          {Running, true, 0, inspectWait, true},
		"nor behind a question that was asked before":                  {Running, true, inspectWait / 5, inspectWait - inspectWait/5, true},
		"nor at all for an answer that is late already":                {Running, true, 900 * time.Millisecond, 0, true},
		"a runtime that does not answer may hang, and its watch too":   {Running, true, time.Second, adoptTimeout + inspectWait, false},
		"without a watch there is nothing but the answer":              {Running, false, 0, adoptTimeout + inspectWait, false},
		"a seat that is unknown is found by the question, not by news": {Unknown, true, 0, adoptTimeout + inspectWait, false},
	} {
		t.Run(name, func(t *testing.T) {
			if wait, known := patience(c.state, c.watched, c.asked); wait != c.wait || known != c.known {
				t.Errorf("it waits %s, and what is known stands: %v", wait, known)
			}
		})
	}
}
