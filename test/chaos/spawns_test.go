//go:build linux

package chaos

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestSpawnsAndStopsLeaveTheHostAsItWas: a trivial agent is started and stopped, over the mesh, thousands of times.
// Memory and descriptors of the host, whose broker is inside it, are in the end what they were.
func TestSpawnsAndStopsLeaveTheHostAsItWas(t *testing.T) {
	t.Parallel()
	lives, samples := 60, 20
	if os.Getenv("COTAL_LONG") != "" {
		lives, samples = 5000, 200
	}
	s := &storm{World: harness.New(t), t: t}
	s.host = s.Start(harness.HostOptions{})
	for _, p := range s.Status().Plugins {
		s.PluginPID(p.Name)
	}
	c := s.Mesh()
	var n atomic.Int64
	var failed atomic.Bool
	var mu sync.Mutex
	begun := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !failed.Load() {
				i := n.Add(1)
				if i > int64(lives) {
					return
				}
				l, err := harness.Launch(t.Context(), c, s.FakeArgs(fmt.Sprintf("t%d", i), `[{"hang": true}]`))
				if err == nil {
					err = harness.Despawn(t.Context(), c, l.Acceptance)
				}
				if err != nil {
					failed.Store(true)
					t.Errorf("life %d: %v", i, err)
					return
				}
				if i%int64(lives/samples) == 0 {
					mu.Lock()
					s.sample()
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d lives in %v; memory in KiB: %v", lives, time.Since(begun).Round(time.Second), s.mem)
	if lives > 1000 { // less says nothing: the host is still growing to its working size
		s.flat("anonymous memory, KiB", s.mem, memoryGrowth, memoryLate)
	}
	s.flat("descriptors", s.fds, 1, fdGrowth+8) // four seats are alive at any time, in one phase or another
	if entries, err := os.ReadDir(s.SeatRoot); err != nil || len(entries) != 0 {
		t.Errorf("%d seat directories are left, %v", len(entries), err)
	}
}
