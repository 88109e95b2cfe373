package wire

import (
	"fmt"
	"strconv"
	"time"
)

// HeaderDeadlineAt carries the moment at which a caller stops waiting, in epoch milliseconds. deadlineMs
// of the envelope is relative to an arrival that may be late: without this header a request that
// waited in a broken connection would be carried out for nobody. It is this project's own addition; a
// responder that does not know it ignores it.
const HeaderDeadlineAt = "Cotal-Deadline-At"

// FormatDeadlineAt is the value of HeaderDeadlineAt.
func FormatDeadlineAt(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// ParseDeadlineAt reads the value of HeaderDeadlineAt: a decimal integer from 1 to 2^53-1.
func ParseDeadlineAt(s string) (time.Time, error) {
	n, err := parseEpoch("", s)
	if err != nil || n == 0 {
		return time.Time{}, fmt.Errorf("parse %s %s", HeaderDeadlineAt, tokenProblem(s, "is not an integer from 1 to 2^53-1"))
	}
	return time.UnixMilli(int64(n)), nil
}

// Deadline is when a request that arrived at a moment with a budget has to be done. header is the value of
// HeaderDeadlineAt; the earlier of the two counts. One that is empty or cannot be read does not, nor
// does one that lies further ahead than the budget: the caller's clock may be fast, and then the
// budget from arrival is what it meant. A budget of 0 is none; without any the result is zero.
func Deadline(arrived time.Time, budget time.Duration, header string) time.Time {
	var d time.Time
	if budget > 0 {
		d = arrived.Add(budget)
	}
	if at, err := ParseDeadlineAt(header); err == nil && (d.IsZero() || at.Before(d)) {
		d = at
	}
	return d
}
