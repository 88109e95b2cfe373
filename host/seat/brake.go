package seat

import "time"

// Lines of a kind that may come without end: this many in each time, then none until the next one.
const (
	brakeLines = 10
	brakeEvery = time.Minute
)

// brake holds back log lines of one kind. The zero value is ready for use; not safe for concurrent use.
type brake struct {
	since time.Time
	told  int
	held  int
}

// allow reports whether one more line may be written, and how many were held back before it.
func (b *brake) allow(now time.Time) (ok bool, held int) {
	if now.Sub(b.since) >= brakeEvery {
		b.since, b.told = now, 0
	}
	if b.told++; b.told > brakeLines {
		b.held++
		return false, 0
	}
	held, b.held = b.held, 0
	return true, held
}
