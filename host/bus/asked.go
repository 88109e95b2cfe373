package bus

import (
	"sync"
	"time"
)

// What is much asked: reads within so long. A person with one list that is watched stays below it, and so do those who
// start seats and ask for each what became of it.
const (
	askedWithin = 50 * time.Millisecond
	askedMuch   = 10
)

// Asked knows whether an endpoint is asked much: several wait for its answers at this moment. Safe for concurrent use; its
// zero value was asked nothing.
type Asked struct {
	mu     sync.Mutex
	begun  time.Time // of the span that is counted
	n      int       // reads in it
	before int       // reads in the span before
}

// note counts one read.
func (a *Asked) note() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.advance(time.Now())
	a.n++
}

// Much reports whether there were many reads lately.
func (a *Asked) Much() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.advance(time.Now())
	return max(a.n, a.before) >= askedMuch
}

func (a *Asked) advance(now time.Time) {
	switch d := now.Sub(a.begun); {
	case d >= 2*askedWithin:
		a.begun, a.n, a.before = now, 0, 0
	case d >= askedWithin:
		a.begun, a.n, a.before = a.begun.Add(askedWithin), 0, a.n
	}
}
