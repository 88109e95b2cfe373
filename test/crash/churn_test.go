package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// slack is by how much a count may differ from its base: what runs or is open only now and then.
const slack = 3

// footing is what a host has when nothing runs in it.
type footing map[string]int

func footingOf(w *harness.World, h *harness.Host, plugin int) footing {
	f := footing{"processes": len(w.Procs())}
	entries := func(what, dir string) {
		list, _ := os.ReadDir(dir)
		f[what] = len(list)
	}
	entries("descriptors of the host", fmt.Sprintf("/proc/%d/fd", h.PID))
	entries("descriptors of the runtime", fmt.Sprintf("/proc/%d/fd", plugin))
	entries("seat directories", w.SeatRoot)
	entries("sockets", w.SocketDir())
	entries("temporary files", filepath.Join(w.Dir, "tmp"))
	entries("files of the host", w.Path(".cotal", "host"))
	return f
}

// differs names the counts of f that are not those of base.
func (f footing) differs(base footing) string {
	var d []string
	for what, n := range f {
		if n > base[what]+slack || what != "processes" && !strings.HasPrefix(what, "descriptors") && n != base[what] {
			d = append(d, fmt.Sprintf("%s: %d, were %d", what, n, base[what]))
		}
	}
	sort.Strings(d)
	return strings.Join(d, "; ")
}

// cycles spawns and stops seats, atOnce at a time, with random pauses of up to 50 ms while they run and
// between.
func cycles(t *testing.T, w *harness.World, c *mesh.Client, first, n, atOnce int, seed uint64) {
	t.Helper()
	var wg sync.WaitGroup
	next := make(chan int, n)
	for i := range n {
		next <- first + i
	}
	close(next)
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				pause := func() { <-time.After(time.Duration(rng.IntN(51)) * time.Millisecond) }
				script := `[{"hang": true}]`
				if rng.IntN(3) == 0 { // some are ending by themselves when the stop comes
					script = fmt.Sprintf(`[{"waitMs": %d}, {"exit": 3}]`, rng.IntN(51))
				}
				l, err := harness.Launch(context.Background(), c, w.FakeArgs(fmt.Sprintf("churn-%d", i), script))
				if err != nil {
					if strings.Contains(err.Error(), "exited on launch") {
						continue // it was quicker than its readiness
					}
					t.Errorf("cycle %d: spawn: %v", i, err)
					return
				}
				pause()
				if err := harness.Despawn(context.Background(), c, l.Acceptance); err != nil { // one that has ended by itself is stopped
					t.Errorf("cycle %d: stop: %v", i, err)
					return
				}
				pause()
			}
		})
	}
	wg.Wait()
}

// goroutines ends a host with SIGQUIT and counts what the dump lists.
func goroutines(t *testing.T, h *harness.Host) int {
	t.Helper()
	h.Signal(syscall.SIGQUIT)
	if _, ok := h.WaitExit(harness.DefaultWait); !ok {
		t.Fatal("the host does not end on SIGQUIT")
	}
	return strings.Count(h.Stderr(), "\ngoroutine ")
}

// TestFieldC10_ChurnLeavesNothing: hundreds of quick spawns and stops, ten at a time, leave the host and
// its runtime as they were: processes, descriptors, goroutines, memory, sockets, files.
func TestFieldC10_ChurnLeavesNothing(t *testing.T) {
	n, seed := 60, seedOfRun(t)
	if os.Getenv("COTAL_LONG") != "" {
		n = 300
	}
	t.Logf("%d cycles, COTAL_SEED=%d", n, seed)
	w := harness.New(t)
	if err := os.Mkdir(filepath.Join(w.Dir, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.Setenv("TMPDIR", filepath.Join(w.Dir, "tmp"))

	// The base is a host that has done everything once.
	calm := w.Start(harness.HostOptions{})
	warm(t, w, seed)
	base := goroutines(t, calm)

	h := w.Start(harness.HostOptions{})
	c := warm(t, w, seed)
	plugin := w.PluginPID("pty")
	before := footingOf(w, h, plugin)
	_, hostMem, err := harness.RSS(h.PID)
	if err != nil {
		t.Fatal(err)
	}
	_, pluginMem, err := harness.RSS(plugin)
	if err != nil {
		t.Fatal(err)
	}
	cycles(t, w, c, 100, n, 10, seed)
	harness.Eventually(t, harness.DefaultWait, "everything is as it was before the churn", func() (bool, string) {
		d := footingOf(w, h, plugin).differs(before)
		return d == "", d
	})
	if again := w.PluginPID("pty"); again != plugin {
		t.Errorf("the runtime was restarted: process %d, was %d", again, plugin)
	}
	_, hostAfter, _ := harness.RSS(h.PID)
	_, pluginAfter, _ := harness.RSS(plugin)
	t.Logf("anonymous memory: host %d KiB, was %d; runtime %d KiB, was %d", hostAfter, hostMem, pluginAfter, pluginMem)
	// A goroutine that stays costs at least 8 KiB with what it holds; the host keeps a row per seat.
	if most := pluginMem + 4096 + 8*n; pluginAfter > most {
		t.Errorf("anonymous memory of the runtime: %d KiB, was %d; at most %d are allowed", pluginAfter, pluginMem, most)
	}
	if most := hostMem + 16384 + 16*n; hostAfter > most {
		t.Errorf("anonymous memory of the host: %d KiB, was %d; at most %d are allowed", hostAfter, hostMem, most)
	}
	c.Close()
	if got := goroutines(t, h); got > base+slack {
		t.Errorf("%d goroutines in the host after %d cycles, %d after the warm-up; at most %d more are allowed", got, n, base, slack)
	}
}

// warm takes a host once through everything that churn does, and waits until it is idle.
func warm(t *testing.T, w *harness.World, seed uint64) *mesh.Client {
	t.Helper()
	c := w.Mesh()
	cycles(t, w, c, 0, 20, 10, seed)
	harness.Eventually(t, harness.DefaultWait, "the host is idle", func() (bool, string) {
		for _, r := range w.Ps() {
			if r.Status != "exited" {
				return false, r.Name + " is " + r.Status
			}
		}
		list, _ := os.ReadDir(w.SeatRoot)
		return len(list) == 0, fmt.Sprint(len(list), " seat directories")
	})
	return c
}

// TestFieldC9_BackgroundJobsOfAFinishedSeatAreReapedAndListed: twenty jobs under nohup end with the agent
// that started them, and the record of its end names each.
func TestFieldC9_BackgroundJobsOfAFinishedSeatAreReapedAndListed(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	file := filepath.Join(w.Dir, "jobs")
	w.CLI("spawn", "--agent", "command", "--name", "jobs", "--detach", "--", "/bin/sh", "-c",
		`for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do nohup sleep 600 >/dev/null 2>&1 & echo $! >>"$0"; done; sleep 0.5; exit 0`, file)
	row := w.AwaitStatus("jobs", "exited")
	if row.Exit == nil || row.Exit.Code == nil || *row.Exit.Code != 0 {
		t.Fatalf("exit %+v; want code 0", row.Exit)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[int]bool{}
	for _, r := range row.Exit.Reaped {
		listed[r.PID] = true
	}
	jobs := strings.Fields(string(text))
	if len(jobs) != 20 {
		t.Fatalf("%d jobs were started", len(jobs))
	}
	for _, job := range jobs {
		pid, err := strconv.Atoi(job)
		if err != nil {
			t.Fatal(err)
		}
		if w.Alive(pid) {
			t.Errorf("job %d still runs", pid)
		}
		if !listed[pid] {
			t.Errorf("job %d is not in the record of the end: %+v", pid, row.Exit.Reaped)
		}
	}
}
