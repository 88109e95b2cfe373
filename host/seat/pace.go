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

// paceRoom is how much later the next launch begins while others wait for answers of this host: the seat that was just
// prepared starts its program in it.
const paceRoom = 25 * time.Millisecond

// pace lets launches take turns, first come first served, from their beginning until their seat is prepared. What
// that costs is processor time, so many at once are done little sooner than one after the other, and everything else
// waits behind all of them: a read beside 20 launches took 28 to 51 ms (p99) on two processors, about 11 in turns, and
// less where the turns leave room (docs/performance.md). Safe for concurrent use.
type pace struct {
	turns chan struct{}
	busy  func() bool // whether others wait for answers of this host
}

// newPace lets half of the processors launch at a time, and one at least. busy may be nil: nobody else waits.
func newPace(busy func() bool) pace {
	if busy == nil {
		busy = func() bool { return false }
	}
	return pace{make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), busy}
}

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
	return sync.OnceFunc(func() {
		if late.Stop() && p.busy() {
			time.AfterFunc(paceRoom, free)
			return
		}
		free()
	}), nil
}
