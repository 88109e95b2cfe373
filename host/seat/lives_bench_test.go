package seat_test

import (
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// launched is one launch as its caller saw it.
type launched struct{ accept, launch time.Duration }

// measure launches a seat and waits until its process runs.
func (w *world) measure(name string) (launched, wire.Acceptance) {
	w.t.Helper()
	begun, id := time.Now(), wire.NewID()
	acc, err := w.spawn(id, w.args(name, `[{"hang": true}]`))
	if err != nil {
		w.t.Fatal(err)
	}
	accepted := time.Now()
	for w.result(id).Result == nil { // the goal of a seat that is ready at its commit ends with that
		time.Sleep(200 * time.Microsecond) // a look at what another goroutine does
	}
	if r := w.terminal(id); r.State != wire.GoalSucceeded {
		w.t.Fatalf("%s %+v", r.State, r.Error)
	}
	return launched{accepted.Sub(begun), time.Since(accepted)}, acc
}

// busyFor is how much processor time this process has used: host and broker.
func busyFor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// What a launch costs with a life on the mesh, and without.
func BenchmarkALaunch(b *testing.B) {
	for _, name := range []string{"open", "authenticated"} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			if name == "authenticated" {
				w.authenticate()
			}
			var accepts, launches []time.Duration
			var cpu, stop time.Duration
			for b.Loop() {
				before := busyFor()
				l, acc := w.measure("worker")
				cpu += busyFor() - before
				accepts, launches = append(accepts, l.accept), append(launches, l.launch)
				begun := time.Now()
				if _, err := w.stop(acc, false); err != nil {
					b.Fatal(err)
				}
				stop += time.Since(begun)
			}
			b.ReportMetric(ms(median(accepts)), "p50-accept-ms")
			b.ReportMetric(ms(median(launches)), "p50-launch-ms")
			b.ReportMetric(ms(cpu)/float64(len(accepts)), "cpu-ms/spawn")
			b.ReportMetric(ms(stop)/float64(len(accepts)), "stop-ms")
		})
	}
}

// Twenty at once.
func BenchmarkTwentyLaunches(b *testing.B) {
	for _, name := range []string{"open", "authenticated"} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			w.crash()
			w.max = 64
			w.boot()
			if name == "authenticated" {
				w.authenticate()
			}
			var all, stops []time.Duration
			for b.Loop() {
				accs := make([]wire.Acceptance, 20)
				begun := time.Now()
				var wg sync.WaitGroup
				for i := range accs {
					wg.Go(func() { _, accs[i] = w.measure("worker_" + string(rune('a'+i))) })
				}
				wg.Wait()
				all = append(all, time.Since(begun))
				begun = time.Now()
				for _, acc := range accs {
					wg.Go(func() {
						if _, err := w.stop(acc, false); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
				stops = append(stops, time.Since(begun))
			}
			b.ReportMetric(ms(median(all)), "p50-all-ms")
			b.ReportMetric(ms(median(stops)), "p50-stops-ms")
		})
	}
}
