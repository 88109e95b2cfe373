package seat

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// paceMost is the longest turn of a launch. One that takes longer waits for something and does not compute: a
// connector or runtime that hangs must not hold up the launches of the others.
const paceMost = 100 * time.Millisecond

// pace lets launches take turns, first come first served, from their beginning until their seat is prepared. What
// that costs is processor time, so many at once are done little sooner than one after the other, and everything else
// waits behind all of them: a read beside 20 launches took 28 to 51 ms (p99) on two processors, and takes about 10
// in turns (docs/performance.md). Safe for concurrent use.
type pace struct{ turns chan struct{} }

// newPace lets half of the processors launch at a time, and one at least.
func newPace() pace { return pace{make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))} }

// take waits for a turn, within ctx. The caller calls done when the seat is prepared, and in any case when the launch
// is over; only the first call counts.
//
// Errors: the context's.
func (p pace) take(ctx context.Context) (done func(), err error) {
	select {
	case p.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	free := sync.OnceFunc(func() { <-p.turns })
	late := time.AfterFunc(paceMost, free)
	return func() { late.Stop(); free() }, nil
}
