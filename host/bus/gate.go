package bus

import (
	"context"
	"sync/atomic"
)

// gate bounds how many requests of one sort run, and how many more may wait.
type gate struct {
	slots   chan struct{}
	present atomic.Int64 // running and waiting
	max     int64
}

func newGate(running, present int) *gate {
	return &gate{slots: make(chan struct{}, running), max: int64(max(running, present))}
}

// enter reserves a place among those running and waiting; leave gives it back.
func (g *gate) enter() bool {
	if g.present.Add(1) > g.max {
		g.present.Add(-1)
		return false
	}
	return true
}

func (g *gate) leave() { g.present.Add(-1) }

// acquire waits for a turn; false when ctx ended first.
func (g *gate) acquire(ctx context.Context) bool {
	select {
	case g.slots <- struct{}{}:
		return true
	default:
	}
	select {
	case g.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g *gate) release() { <-g.slots }
