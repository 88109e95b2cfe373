package harness

import (
	"io"
	"time"
)

// PressUntil presses keys, at the pace of a person and again and again, until ended is closed or within has passed.
// tmux takes keys that come within a millisecond for a paste, and a paste is no key but text for the program; on a
// busy machine it reads two at once however long they are apart. So each further attempt begins with Ctrl-U, which
// takes back what the attempt before it typed into the line of the program.
func PressUntil(tty io.Writer, keys string, ended <-chan struct{}, within time.Duration) {
	const killLine = "\x15"
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
			if over(50 * time.Millisecond) {
				return
			}
		}
		if over(500 * time.Millisecond) {
			return
		}
	}
}
