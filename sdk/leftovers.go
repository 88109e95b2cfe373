package sdk

import (
	"fmt"
	"os"

	"github.com/cotal-ai/cotal-host/sdk/private"
)

// Leftovers makes the report of a Reap: what was found, and what was removed.
type Leftovers struct {
	evidence, removed []string
}

// Say adds a sentence to the evidence.
func (l *Leftovers) Say(format string, args ...any) {
	l.evidence = append(l.evidence, fmt.Sprintf(format, args...))
}

// Removed adds what was removed elsewhere.
func (l *Leftovers) Removed(paths ...string) { l.removed = append(l.removed, paths...) }

// Remove removes files and directories of a launch, in this order. What is not there counts as removed before. Errors:
// ErrUnproven.
func (l *Leftovers) Remove(paths ...string) error {
	for _, path := range paths {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return Unfinished("remove leftover: %v", err)
		}
		l.Removed(path)
	}
	return nil
}

// RemoveSockets removes the sockets that private.PlaceSocket placed for a launch outside of its directory, which goes with
// the seat, and their records. Errors: ErrUnproven.
func (l *Leftovers) RemoveSockets(dir string) error {
	removed, err := private.RemoveSockets(dir)
	l.Removed(removed...)
	if err != nil {
		return Unfinished("%v", err)
	}
	return nil
}

// Report is the report so far: exited when something was removed, else absent.
func (l *Leftovers) Report() ReapReport {
	r := ReapReport{Outcome: ReapAbsent, Evidence: l.evidence, Removed: l.removed}
	if len(l.removed) > 0 {
		r.Outcome = ReapExited
	}
	return r
}

// StillThere is the error of a Reap that found its program alive, or could not learn that it is not, and did nothing:
// ErrUnproven, to be asked again.
func StillThere(format string, args ...any) error {
	return &Error{Code: ErrUnproven, Outcome: OutcomeNotExecuted, Retryable: true, Detail: fmt.Sprintf(format, args...)}
}

// Unfinished is the error of a Reap that failed on the way: ErrUnproven, to be asked again.
func Unfinished(format string, args ...any) error {
	return &Error{Code: ErrUnproven, Outcome: OutcomeUnknown, Retryable: true, Detail: fmt.Sprintf(format, args...)}
}
