//go:build linux

package chaos

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// keptOfALife bounds the memory for what a host knows, for an hour, of a life that is over, in KiB: 0.3 are kept of each of
// the last 20,000, and the collector is late with as much again.
const keptOfALife = 1

// TestSpawnsAndStopsLeaveTheHostAsItWas: a trivial agent is started and stopped, over the mesh, thousands of times.
// Memory and descriptors of the host stay what they are. The broker is a process of its own here: it keeps the block of
// each stream that is being written, 8 MiB at most, and two of those are written at each spawn, which would hide what
// the host keeps.
func TestSpawnsAndStopsLeaveTheHostAsItWas(t *testing.T) {
	t.Parallel()
	lives, every := 60, 3
	if os.Getenv("COTAL_LONG") != "" {
		lives, every = 5000, 25
	}
	w := harness.New(t)
	b := w.StartBroker()
	s := &storm{World: w, t: t}
	s.host = s.Start(harness.HostOptions{})
	for _, p := range s.Status().Plugins {
		s.PluginPID(p.Name)
	}
	s.spend(1, lives, every)
	if t.Failed() {
		return
	}
	_, anon, err := harness.RSS(b.PID)
	t.Logf("memory of the host in KiB: %v; of the broker in the end: %d %v", s.mem, anon, err)
	if lives > 1000 { // less says nothing: the host is still growing to its working size
		s.flat("anonymous memory, KiB", s.mem, memoryGrowth, memoryLate+lives/2*keptOfALife)
	}
	s.flat("descriptors", s.fds, 1, fdGrowth+8) // four seats are alive at any time, in one phase or another
	if entries, err := os.ReadDir(s.SeatRoot); err != nil || len(entries) != 0 {
		t.Errorf("%d seat directories are left, %v", len(entries), err)
	}
}

// spend starts and stops the seats from one number to another, four at a time.
func (s *storm) spend(from, to, every int) {
	s.t.Helper()
	c := s.Mesh()
	defer c.Close()
	n := atomic.Int64{}
	n.Store(int64(from) - 1)
	var failed atomic.Bool
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := n.Add(1); i <= int64(to) && !failed.Load(); i = n.Add(1) {
				l, err := harness.Launch(s.t.Context(), c, s.FakeArgs(fmt.Sprintf("t%d", i), `[{"hang": true}]`))
				if err == nil {
					err = harness.Despawn(s.t.Context(), c, l.Acceptance)
				}
				if err != nil {
					failed.Store(true)
					s.t.Errorf("life %d: %v", i, err)
					return
				}
				if i%int64(every) == 0 {
					mu.Lock()
					s.sample()
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
}
