package harness

import (
	"io"
	"time"

	"github.com/cotal-ai/cotal-host/test/busy"
)

// PressUntil presses keys, at the pace of a person and again and again, until ended is closed or within has passed.
// tmux takes keys that come within a millisecond for a paste, and a paste is no key but text for the program. So a key
// is pressed when the one before it was read, where tty is the master of a terminal and can tell. Elsewhere a busy machine
// may read two at once however long they are apart: each further attempt begins with Ctrl-U, which takes back what the
// attempt before it typed into the line of the program.
func PressUntil(tty io.Writer, keys string, ended <-chan struct{}, within time.Duration) {
	const killLine = "\x15"
	again := 500 * time.Millisecond
	if _, tells := unread(tty); tells {
		again = busy.Limit(2 * time.Second) // what was pressed is under way
	}
	over := func(d time.Duration) bool {
		select {
		case <-ended:
			return true
		case <-time.After(d):
			return false
		}
	}
	attempt := keys
	for deadline := time.Now().Add(within); time.Now().Before(deadline); attempt = killLine + keys {
		for _, key := range attempt {
			_, _ = io.WriteString(tty, string(key)) // nobody may be there any more
			for waiting := 1; waiting > 0 && time.Now().Before(deadline); waiting, _ = unread(tty) {
				if over(50 * time.Millisecond) {
					return
				}
			}
		}
		if over(again) {
			return
		}
	}
}
