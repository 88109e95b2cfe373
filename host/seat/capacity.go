package seat

import (
	"fmt"
	"time"
)

// MinLifetime is how long a seat counts against the ceiling from its start, even when it ends sooner
// by itself: it bounds the rate at which seats can be recycled.
const MinLifetime = 10 * time.Second

// capacity counts seats against the ceiling: live ones, launches in flight, and cooling slots. Each
// seat is counted exactly once. Not safe for concurrent use; the Set guards it.
type capacity struct {
	max     int
	pending int         // reserved, not yet live
	live    int         // committed
	cooling []time.Time // expiry of each slot freed too young
}

// errFull says that the ceiling is reached, with the counts.
type errFull struct{ max, live, pending, cooling int }

func (e errFull) Error() string {
	return fmt.Sprintf("all %d seats are taken: %d live, %d starting, %d cooling after a short life; stop a seat, wait %s, or raise --max-seats",
		e.max, e.live, e.pending, e.cooling, MinLifetime)
}

// reserve takes a place for a launch.
func (c *capacity) reserve(now time.Time) error {
	c.prune(now)
	if c.live+c.pending+len(c.cooling) >= c.max {
		return errFull{c.max, c.live, c.pending, len(c.cooling)}
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

// free frees a live seat. A seat that ended by itself before MinLifetime leaves a cooling slot.
func (c *capacity) free(started, now time.Time, asked bool) {
	c.live--
	if until := started.Add(MinLifetime); !asked && until.After(now) {
		c.cooling = append(c.cooling, until)
	}
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
