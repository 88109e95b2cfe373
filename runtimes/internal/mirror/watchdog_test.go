package mirror

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheWatchdogCountsTheWorkOfItsOwnThreadOnly(t *testing.T) {
	bites := make(chan string, 1)
	d := newWatchdog("seat x")
	d.bite = func(what string) {
		select {
		case bites <- what:
		default:
		}
	}
	// Others are busy for longer than a drawing may be.
	var stop atomic.Bool
	var busy sync.WaitGroup
	for range 2 {
		busy.Go(func() {
			for !stop.Load() {
			}
		})
	}
	d.guard(func() {
		select {
		case <-bites:
			t.Error("a drawing that waits for the CPU was taken for one that does not end")
		case <-time.After(stuckAfter + stuckCPU + 500*time.Millisecond):
		}
	})
	stop.Store(true)
	busy.Wait()
	if runtime.GOOS != "linux" {
		return
	}
	// Many pieces are not one.
	d.guard(func() {
		for range 4 {
			spin(d, stuckCPU/2, bites)
			d.again()
		}
	})
	if len(bites) > 0 {
		t.Error("several pieces were taken for one")
	}
	d.guard(func() { spin(d, time.Minute, bites) })
	if len(bites) != 1 {
		t.Error("a drawing that does not end was not noticed")
	}
	<-bites
	// And nothing is watched between two drawings.
	select {
	case <-bites:
		t.Error("the watchdog bites when nothing is drawn")
	case <-time.After(stuckAfter + 200*time.Millisecond):
	}
}

// spin works on this thread for so much CPU time, or until the watchdog bites.
func spin(d *watchdog, long time.Duration, bites chan string) {
	for began := d.clock.now(); d.clock.now()-began < long && len(bites) == 0; {
		runtime.Gosched()
	}
}

func TestAWorkerMayKeepForAWhileWhatItNeeded(t *testing.T) {
	now := time.Unix(1000, 0)
	var a allowance
	for _, c := range []struct {
		name        string
		after       time.Duration
		need, limit int
	}{
		{"the first seats", 0, 300, 300},
		{"more of them", time.Second, 400, 400},
		{"all but one stopped at once", time.Second, 76, 400},
		{"still within the grace", shrinkGrace - time.Second, 76, 400},
		{"and behind it", 2 * time.Second, 76, 76},
		{"one comes back", time.Second, 88, 88},
	} {
		now = now.Add(c.after)
		if got := a.limit(now, c.need); got != c.limit {
			t.Errorf("%s: %d KB, want %d", c.name, got, c.limit)
		}
	}
	if needKB(24, 80) != perSeatKB || needKB(400, 400) <= 400*400*448>>10 {
		t.Errorf("%d KB for a usual terminal, %d for the largest", needKB(24, 80), needKB(400, 400))
	}
}
