package seat

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// capacity counts seats against the ceiling: live ones, launches in flight, and cooling slots. Each
// seat is counted exactly once. Not safe for concurrent use; the Set guards it.
type capacity struct {
	max     int
	cool    time.Duration // how long a place stays taken from a seat's start, when the seat ended before
	pending int           // reserved, not yet live
	live    int           // committed
	cooling []time.Time   // expiry of each slot freed too young
}

// errFull says that the ceiling is reached, by what: the counts are those of the rows that ps shows, by
// their status, and of status for the cooling ones.
type errFull struct {
	max     int
	holders map[string]int // status of a row -> seats
	cooling int
	next    time.Duration // until the first cooling place is free; 0 without any
}

func (e errFull) Error() string {
	var parts []string
	for _, status := range []string{"running", "starting", "stopping", "unknown", "exited"} {
		if n := e.holders[status]; n > 0 || status == "running" {
			parts = append(parts, fmt.Sprintf("%d %s", n, status))
		}
	}
	text := fmt.Sprintf("all %d seats are taken: %s", e.max, strings.Join(parts, ", "))
	if e.cooling > 0 {
		text += fmt.Sprintf(", %d cooling after a short life (the first place is free in %s)", e.cooling, e.next.Round(100*time.Millisecond))
	}
	return text + "; stop a seat, or raise --max-seats (maxSeats in config.toml)"
}

// reserve takes a place for a launch. holders counts the seats by status, for the refusal.
func (c *capacity) reserve(now time.Time, holders func() map[string]int) error {
	c.prune(now)
	if c.live+c.pending+len(c.cooling) >= c.max {
		full := errFull{max: c.max, holders: holders(), cooling: len(c.cooling)}
		if len(c.cooling) > 0 {
			full.next = slices.MinFunc(c.cooling, time.Time.Compare).Sub(now)
		}
		return full
	}
	c.pending++
	return nil
}

// adopt counts a seat that was found alive; it is never refused.
func (c *capacity) adopt() { c.live++ }

// promote turns a reservation into a live seat.
func (c *capacity) promote() { c.pending--; c.live++ }

// release frees a reservation that never became a live seat. It leaves no cooling slot.
func (c *capacity) release() { c.pending-- }

// free frees a live seat. One whose cause cools leaves a slot that is taken until the seat would have lived
// long enough.
func (c *capacity) free(started, now time.Time, cause string) {
	c.live--
	if until := started.Add(c.cool); cools(cause) && until.After(now) {
		c.cooling = append(c.cooling, until)
	}
}

// cools says which ends count against recycling: those that an agent can bring about by itself, over and over.
// A stop by an operator, or with the host, does not; nor does a launch that failed, whose place was never live.
func cools(cause string) bool {
	switch cause {
	case causeRequested, causeShutdown, causeReap, causeStartFailed:
		return false
	}
	return true
}

func (c *capacity) prune(now time.Time) {
	kept := c.cooling[:0]
	for _, until := range c.cooling {
		if until.After(now) {
			kept = append(kept, until)
		}
	}
	c.cooling = kept
}

// holders counts the seats that take a place, by the status of their rows. The caller holds s.mu.
func (s *Set) holders() map[string]int {
	n, now := map[string]int{}, time.Now()
	for _, a := range s.byID {
		n[statusNow(a.snapshot(), now)]++
	}
	return n
}
