package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The heap of a host is a few MiB of its own and the blocks of the streams that its broker is writing, which hold no
// pointers and cost a collection nothing. A collection at twice the heap would let those blocks double the memory of
// the host; what keeps collections rare is room in bytes.
const (
	heapRoom  = 10 << 20 // bytes between two collections, about
	heapEvery = 5 * time.Second
	heapStep  = 5 // percent points below which nothing is changed: a change stops the world
)

// heapPercent is how far the heap may grow above what was live after a collection, in percent of that.
func heapPercent(live uint64) int {
	if live == 0 {
		return 100
	}
	return int(min(100, max(25, heapRoom*100/live)))
}

// boundHeap keeps that room while ctx lasts. Whoever sets GOGC or GOMEMLIMIT has decided otherwise.
func boundHeap(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	tick := time.NewTicker(heapEvery)
	defer tick.Stop()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := 100
	for {
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindUint64 {
			return
		}
		if want := heapPercent(sample[0].Value.Uint64()); want > now+heapStep || want < now-heapStep {
			debug.SetGCPercent(want)
			now = want
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
