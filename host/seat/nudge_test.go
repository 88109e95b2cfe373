package seat

import (
	"testing"
	"time"
)

func TestWhoComesBeforeANudge(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name     string
		attached int
		known    bool
		typed    time.Duration
		active   time.Duration
		waits    bool
	}{
		{"nobody is attached", 0, true, 0, never, false},
		{"nobody is attached any more", 0, true, 3 * s, never, false},
		{"somebody looks and has never typed", 1, true, 0, never, false},
		{"somebody has typed just now", 1, true, 3 * s, 1 * s, true},
		{"somebody typed, and the agent worked since", 1, true, 40 * s, 20 * s, false},
		{"somebody typed, and the agent did nothing since: a draft may stand there", 1, true, 40 * s, 60 * s, true},
		{"somebody typed into an agent that tells nothing", 1, true, 40 * s, never, true},
		{"a draft that nobody went on with", 1, true, 6 * time.Minute, never, false},
		{"somebody is attached where keys cannot be seen", 1, false, 0, 1 * s, true},
		{"nobody is attached where keys cannot be seen", 0, false, 0, 1 * s, false},
	} {
		err := yields(terminalNow{attached: c.attached, typedKnown: c.known, typed: c.typed}, c.active)
		if (err != nil) != c.waits {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
