package supervise

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// usage is what a host costs now.
type usage struct {
	goroutines, fds int
	heap, rss       uint64 // bytes
}

func measure(t *testing.T) usage {
	t.Helper()
	var u usage
	// A replaced process takes its time to end, and its goroutines with it: wait until there are no fewer.
	u.goroutines = runtime.NumGoroutine()
	for same := 0; same < 40; same++ {
		time.Sleep(25 * time.Millisecond)
		if n := runtime.NumGoroutine(); n < u.goroutines {
			u.goroutines, same = n, 0
		}
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.heap = m.HeapAlloc
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("looks at /proc")
	}
	u.fds = len(entries)
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(b, []byte("VmRSS:"))
	kb, err := strconv.ParseUint(string(bytes.Fields(rest)[0]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	u.rss = kb << 10
	return u
}

// Deaths cost the host nothing, and the other plugin does not notice.
func TestFieldA9_ManyDeathsLeaveTheHostAsItWas(t *testing.T) {
	rounds := 30
	if os.Getenv("COTAL_LONG") != "" {
		rounds = 500
	}
	f := newFixture(t)
	f.log.limit = 64 << 10 // the test's own memory is not what is measured
	other := f.start(f.entry())
	steady := f.ready(other)
	s := f.start(f.entry())
	f.ready(s)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rounds)*2*time.Second)
	defer cancel()
	round := func(i int) {
		live, err := s.Ready(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		} else {
			_, _ = do(live, ctx, map[string]any{"do": "exit"})
		}
		<-live.Gone()
		if _, err := s.Restart(ctx); err != nil { // instead of waiting for backoff and quarantine
			t.Fatal(err)
		}
		if _, err := do(steady, ctx, nil); err != nil {
			t.Fatalf("death %d: the other plugin: %v", i, err)
		}
	}
	for i := range 10 { // pools and buffers find their size
		round(i)
	}
	before := measure(t)
	for i := range rounds {
		round(i)
	}
	after := measure(t)
	t.Logf("%d deaths: %+v, then %+v", rounds, before, after)
	if after.goroutines > before.goroutines+3 || after.fds > before.fds+3 {
		t.Errorf("goroutines and descriptors: %+v, then %+v", before, after)
	}
	if after.heap > before.heap+before.heap/10+(1<<20) {
		t.Errorf("heap: %d, then %d", before.heap, after.heap)
	}
	if after.rss > before.rss+before.rss/10+(8<<20) {
		t.Errorf("resident memory: %d, then %d", before.rss, after.rss)
	}
	if st := other.Status(); st.PID != steady.PID || st.Restarts != 0 {
		t.Errorf("the other plugin: %+v", st)
	}
}

func TestFieldA10_StartsAndStopsLeakNothing(t *testing.T) {
	f := newFixture(t)
	cycle := func() {
		s := New(f.config(f.entry()))
		s.Start()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()       // straight to the end: the polite way is another test's
		defer func() { // one that did not become ready must not go on under the next test
			if err := s.Stop(ctx); err != nil {
				t.Error(err)
			}
		}()
		f.ready(s)
	}
	for range 5 {
		cycle()
	}
	before := measure(t)
	for range 50 {
		cycle()
	}
	after := measure(t)
	t.Logf("50 cycles: %+v, then %+v", before, after)
	if d := after.goroutines - before.goroutines; d > 3 {
		t.Errorf("%d goroutines more", d)
	}
	if d := after.fds - before.fds; d > 3 {
		t.Errorf("%d descriptors more", d)
	}
}

// percentiles reports the middle and the end of a list of times.
func percentiles(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)*95/100].Microseconds())/1000, "p95-ms")
}

func benchFixture(b *testing.B) Config {
	root, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(root) })
	f := &fixture{env: map[string]string{"FAKE_DIR": root}}
	return Config{
		Entry: f.entry(), BundleDir: filepath.Dir(fakeBinary), RunDir: root, CrashDir: filepath.Join(root, "log"),
		Env: func(name string) (string, bool) { v, ok := f.env[name]; return v, ok },
	}
}

// BenchmarkStart is from nothing to the first answer of a plugin: verified, sealed, started, TLS on both
// sides, described and configured. The limit is 100 ms.
func BenchmarkStart(b *testing.B) {
	cfg := benchFixture(b)
	ctx := context.Background()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		s := New(cfg)
		s.Start()
		live, err := s.Ready(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := do(live, ctx, nil); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(begin))
		b.StopTimer()
		if err := s.Stop(ended); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	percentiles(b, times)
}

// BenchmarkKillToReady is from SIGKILL of a plugin to the next answer, with the pause before its first
// restart (0 to 100 ms, drawn). The limit is 300 ms.
func BenchmarkKillToReady(b *testing.B) {
	s := New(benchFixture(b))
	defer s.Stop(context.Background())
	s.Start()
	ctx := context.Background()
	live, err := s.Ready(ctx)
	if err != nil {
		b.Fatal(err)
	}
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		if live, err = s.After(ctx, live.Attempt); err != nil {
			b.Fatal(err)
		}
		if _, err := do(live, ctx, nil); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(begin))
		b.StopTimer()
		s.mu.Lock() // as if it had been ready for long
		s.m.failures, s.m.deaths = 0, nil
		s.mu.Unlock()
		b.StartTimer()
	}
	percentiles(b, times)
}

// BenchmarkSwap is a restart by hand: until the new process has taken over.
func BenchmarkSwap(b *testing.B) {
	s := New(benchFixture(b))
	defer s.Stop(context.Background())
	s.Start()
	ctx := context.Background()
	if _, err := s.Ready(ctx); err != nil {
		b.Fatal(err)
	}
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		if _, err := s.Restart(ctx); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(begin))
	}
	percentiles(b, times)
}
