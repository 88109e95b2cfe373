//go:build linux

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// idle is an agent that costs nothing: it prints one line and waits.
const idle = `[{"print": "up\n"}, {"hang": true}]`

// samples are durations of one kind.
type samples []time.Duration

func (s samples) at(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := min(int(q*float64(len(sorted))), len(sorted)-1)
	return float64(sorted[i]) / 1e6
}

// report gives the median and the 99th percentile (with fewer than 100 samples: the maximum).
func (s samples) report(b *testing.B, what string) {
	b.ReportMetric(s.at(0.5), what+"-p50-ms")
	b.ReportMetric(s.at(0.99), what+"-p99-ms")
}

// BenchmarkBoot: process start to "ready" with the embedded broker, in a new workspace and in one
// that has been served before.
func BenchmarkBoot(b *testing.B) {
	var first, again samples
	for b.Loop() {
		w := harness.New(b)
		h := w.Start(harness.HostOptions{})
		first = append(first, h.Boot)
		h.Stop()
		h = w.Start(harness.HostOptions{})
		again = append(again, h.Boot)
		h.Stop()
	}
	b.ReportMetric(0, "ns/op") // an iteration holds two boots and two ends: it says nothing
	first.report(b, "first")
	again.report(b, "again")
}

// warm waits until the connector has started: it does so behind "ready", and the first spawn waits.
func warm(b *testing.B, w *harness.World, c *mesh.Client) {
	b.Helper()
	l, err := harness.Launch(b.Context(), c, w.FakeArgs("warm", idle))
	if err == nil {
		err = harness.Despawn(b.Context(), c, l.Acceptance)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSpawn: one spawn after the other with everything durable, and beside each the bare
// minimum: the same program started on a new terminal, with as many fsyncs.
func BenchmarkSpawn(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	warm(b, w, c)
	var accepted, running, total, bare samples
	for i := 0; b.Loop(); i++ {
		l, err := harness.Launch(b.Context(), c, w.FakeArgs(fmt.Sprintf("s%d", i), idle))
		if err != nil {
			b.Fatal(err)
		}
		accepted = append(accepted, l.Accepted)
		running = append(running, l.Running-l.Accepted)
		total = append(total, l.Running)
		if err := harness.Despawn(b.Context(), c, l.Acceptance); err != nil {
			b.Fatal(err)
		}
		bare = append(bare, bareStart(b, w))
	}
	b.ReportMetric(0, "ns/op")
	accepted.report(b, "accept")
	running.report(b, "running")
	total.report(b, "request-to-running")
	bare.report(b, "bare")
}

// bareStart is what the kernel and the disk ask for: six small durable writes, a terminal, one exec,
// the first line of output.
func bareStart(b *testing.B, w *harness.World) time.Duration {
	b.Helper()
	argv := w.FakeAgent(idle)
	dir := filepath.Join(w.Dir, "bare")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	for i := range 6 {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(i)), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.Write(make([]byte, 512)); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = w.Environ()
	f, err := pty.Start(cmd)
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(begun)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	f.Close()
	return took
}

// BenchmarkSpawn20: twenty spawns at once; the time until the last one runs.
func BenchmarkSpawn20(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	warm(b, w, c)
	var wall samples
	for i := 0; b.Loop(); i++ {
		names := make([]string, 20)
		for j := range names {
			names[j] = fmt.Sprintf("p%d-%d", i, j)
		}
		begun := time.Now()
		launched := launchAll(b, w, c, names)
		last := time.Duration(0)
		for _, l := range launched {
			last = max(last, l.sent.Add(l.Running).Sub(begun))
		}
		wall = append(wall, last)
		despawnAll(b, c, launched)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(wall.at(0.5), "all-running-p50-ms")
	b.ReportMetric(wall.at(1), "all-running-max-ms")
}

type launched struct {
	harness.Launched
	sent time.Time
}

func launchAll(b *testing.B, w *harness.World, c *mesh.Client, names []string) []launched {
	b.Helper()
	out := make([]launched, len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			out[i].sent = time.Now()
			out[i].Launched, errs[i] = harness.Launch(b.Context(), c, w.FakeArgs(name, idle))
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
	return out
}

func despawnAll(b *testing.B, c *mesh.Client, ls []launched) {
	b.Helper()
	errs := make([]error, len(ls))
	var wg sync.WaitGroup
	for i := range ls {
		wg.Go(func() { errs[i] = harness.Despawn(b.Context(), c, ls[i].Acceptance) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkThirtyTwoSeats: memory of the host idle and with 32 seats, of one seat fresh and with a full
// ring, and the time a killed host needs to be back with a verdict for every seat.
func BenchmarkThirtyTwoSeats(b *testing.B) {
	const seats = 32
	var restart samples
	var idleMB, fullMB, seatMB, ringMB []float64
	for b.Loop() {
		w := harness.New(b)
		h := w.Start(harness.HostOptions{})
		for _, plugin := range []string{"pty", "command", "opencode"} {
			w.PluginPID(plugin) // idle is what it is once everything has started
		}
		idleMB = append(idleMB, rssMB(b, h.PID))
		c := w.Mesh()
		for i := range seats {
			if _, err := harness.Launch(b.Context(), c, w.FakeArgs(fmt.Sprintf("m%d", i), idle)); err != nil {
				b.Fatal(err)
			}
		}
		fullMB = append(fullMB, rssMB(b, h.PID))
		before := map[string]wire.AgentRow{}
		for _, row := range w.Ps() {
			before[row.Name] = row
			seatMB = append(seatMB, rssMB(b, row.SeatPID))
		}
		c.Close()
		h.Kill()
		h = w.Start(harness.HostOptions{})
		restart = append(restart, h.Boot)
		after := w.Ps()
		if len(after) != seats {
			b.Fatalf("%d seats after the restart, want %d", len(after), seats)
		}
		for _, row := range after {
			if row.Status != "running" || row.PID != before[row.Name].PID {
				b.Fatalf("seat %s is %s with pid %d after the restart, was running with pid %d",
					row.Name, row.Status, row.PID, before[row.Name].PID)
			}
		}
		row := w.SpawnFake("flood", `[{"flood": {"mb": 20}}, {"print": "done\n"}, {"hang": true}]`)
		harness.Eventually(b, harness.DefaultWait, "20 MB of output", func() (bool, string) {
			row = w.Inspect("flood")
			return row.Output >= 20<<20, fmt.Sprint(row.Output)
		})
		ringMB = append(ringMB, rssMB(b, row.SeatPID))
		w.Host("stop", "--with-agents").OK()
		if _, ok := h.WaitExit(harness.DefaultWait); !ok {
			b.Fatal("the host still runs")
		}
		w.AssertNothingLeft()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(idleMB), "host-idle-MB")
	b.ReportMetric(median(fullMB), "host-32-seats-MB")
	b.ReportMetric(median(seatMB), "seat-fresh-MB")
	b.ReportMetric(median(ringMB), "seat-ring-full-MB")
	b.ReportMetric(restart.at(0.5), "restart-32-p50-ms")
	b.ReportMetric(restart.at(1), "restart-32-max-ms")
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(v))[len(v)/2]
}

func rssMB(b *testing.B, pid int) float64 {
	b.Helper()
	rss, _, err := harness.RSS(pid)
	if err != nil {
		b.Fatal(err)
	}
	return float64(rss) / 1024
}

// BenchmarkCommandLine: whole processes, and beside each the start of a Go program that does nothing.
func BenchmarkCommandLine(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	for i := range 3 {
		w.SpawnFake(fmt.Sprintf("c%d", i), idle)
	}
	for _, bench := range []struct {
		name string
		args []string
	}{
		{"help", []string{"--help"}},
		{"ps", []string{"ps"}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var took, bare samples
			for b.Loop() {
				took = append(took, w.CLI(bench.args...).OK().Took)
				bare = append(bare, w.Run(context.Background(), w.FakeAgent("[]")[0], "[]").OK().Took)
			}
			took.report(b, bench.name)
			bare.report(b, "bare")
		})
	}
}

// BenchmarkPsCall: one ps over an open connection, with 32 seats.
func BenchmarkPsCall(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	c := w.Mesh()
	names := make([]string, 32)
	for i := range names {
		names[i] = fmt.Sprintf("q%d", i)
	}
	launchAll(b, w, c, names)
	var took samples
	for b.Loop() {
		begun := time.Now()
		var rows []wire.AgentRow
		if _, err := c.Call(b.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs}, &rows); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begun))
		if len(rows) != len(names) {
			b.Fatalf("ps lists %d seats, want %d", len(rows), len(names))
		}
	}
	took.report(b, "ps")
}
