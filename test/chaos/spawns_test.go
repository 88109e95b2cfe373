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

// restWait is how long a host that has nothing to do may take to give its memory back: the broker drops what it
// has read and written lately within ten seconds, a collection comes every two minutes by itself, and the pages go
// back behind it.
const restWait = 4 * time.Minute

// TestSpawnsAndStopsLeaveTheHostAsItWas: a trivial agent is started and stopped, over the mesh, thousands of times.
// Descriptors of the host, whose broker is inside it, stay what they are; so does its memory at rest, from the first
// quarter to the end. While it works it has more: the broker keeps the block of each stream that is being written,
// 8 MiB at most, and two of those are written at each spawn.
func TestSpawnsAndStopsLeaveTheHostAsItWas(t *testing.T) {
	t.Parallel()
	lives, every := 60, 3
	long := os.Getenv("COTAL_LONG") != ""
	if long {
		lives, every = 5000, 25
	}
	s := &storm{World: harness.New(t), t: t}
	s.host = s.Start(harness.HostOptions{})
	for _, p := range s.Status().Plugins {
		s.PluginPID(p.Name)
	}
	s.spend(1, lives/4, every)
	var first int
	if long {
		first = s.rest(0)
	}
	s.spend(lives/4+1, lives, every)
	if t.Failed() {
		return
	}
	t.Logf("memory in KiB: %v", s.mem)
	if long {
		most := int(float64(first)*memoryGrowth) + memoryLate
		last := s.rest(most)
		t.Logf("anonymous memory at rest, KiB: %d behind %d lives, %d behind %d", first, lives/4, last, lives)
		if last > most {
			t.Errorf("memory at rest grew from %d to %d KiB", first, last)
		}
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

// rest lets the host do nothing and returns the least anonymous memory it had, in KiB; it need not wait for less
// than enough.
func (s *storm) rest(enough int) int {
	s.t.Helper()
	least := 1 << 30
	_, _ = harness.Poll(restWait, func() (bool, string) {
		_, anon, err := harness.RSS(s.host.PID)
		if err != nil {
			s.t.Fatal(err)
		}
		least = min(least, anon)
		return least <= enough, ""
	})
	return least
}
