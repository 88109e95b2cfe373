//go:build linux

package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// What the mirror is held against.
const (
	mirrorCorePercent = 5  // of a core, for each seat that floods
	mirrorMB          = 8  // resident, for each seat
	firstPaintLimitMs = 50 // late viewer of a program of 50 by 200 cells
)

// mirrorWorker is the process in which the runtime plugin keeps the screens: its child that is no seat.
func mirrorWorker(b *testing.B, w *harness.World) int {
	b.Helper()
	plugin, pid := w.PluginPID("pty"), 0
	harness.Eventually(b, harness.DefaultWait, "the mirror runs", func() (bool, string) {
		var all []string
		for _, p := range w.Procs() {
			if p.PPID == plugin && !strings.Contains(p.Args, "cotal-seat") {
				pid = p.PID
			}
			all = append(all, p.String())
		}
		return pid != 0, strings.Join(all, "\n")
	})
	return pid
}

// cpu is the processor time a process has used, in seconds.
func cpu(b *testing.B, pid int) float64 {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100 // the kernel's USER_HZ, the same on every Linux
}

// BenchmarkMirrorFlood: seats print lines of 101 bytes as fast as they can for five seconds, nobody looks;
// what the mirror of each costs in processor time and memory.
func BenchmarkMirrorFlood(b *testing.B) {
	line := strings.Repeat("x", 100)
	for _, seats := range []int{1, 4} {
		b.Run(fmt.Sprint(seats), func(b *testing.B) {
			var percent, mb, plugin []float64
			for b.Loop() {
				w := harness.New(b)
				w.Start(harness.HostOptions{})
				w.SpawnFake("first", idle)
				worker := mirrorWorker(b, w)
				before := rssMB(b, worker)
				for i := range seats {
					w.Spawn(fmt.Sprintf("flood%d", i), "yes", line)
				}
				for i := range seats { // the flood fills whatever grows with it
					harness.Eventually(b, harness.DefaultWait, "16 MB of output", func() (bool, string) {
						row := w.Inspect(fmt.Sprintf("flood%d", i))
						return row.Output > 16<<20, fmt.Sprint(row.Output)
					})
				}
				p, used, begun := w.PluginPID("pty"), cpu(b, worker), time.Now()
				usedPlugin := cpu(b, p)
				<-time.After(5 * time.Second) // the period that is measured
				took := time.Since(begun).Seconds()
				percent = append(percent, (cpu(b, worker)-used)/took*100/float64(seats))
				plugin = append(plugin, (cpu(b, p)-usedPlugin)/took*100)
				mb = append(mb, (rssMB(b, worker)-before)/float64(seats))
				if again := mirrorWorker(b, w); again != worker {
					b.Fatalf("the mirror was restarted: process %d, was %d", again, worker)
				}
				w.Host("stop", "--with-agents").OK()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(percent), "core-%/seat")
			b.ReportMetric(median(plugin), "plugin-core-%")
			b.ReportMetric(median(mb), "MB/seat")
			b.ReportMetric(mirrorCorePercent, "limit-core-%/seat")
			b.ReportMetric(mirrorMB, "limit-MB/seat")
		})
	}
}

// painter fills a screen of 50 by 200 on the alternate screen, then prints more than the ring of the seat
// holds into one corner, at a pace that a mirror can follow, so that what it painted first is nowhere but in
// the mirror, and waits.
const painter = `BEGIN {
	printf "\033[?1049h\033[2J"
	for (r = 1; r <= 50; r++) {
		printf "\033[%d;1H\033[3%dm", r, r % 8
		for (c = 0; c < 20; c++) printf "%02d/%02d wxyz", r, c
	}
	printf "\033[50;195Hcorner"
	for (i = 1; i < 80000; i++) {
		printf "\033[1;1Hclock %012d", i
		if (i % 400 == 0) system("sleep 0.01")
	}
	printf "\033[2;1Hpainted"
	system("")
	while (1) system("sleep 600")
}`

// BenchmarkFirstPaint: from the start of cotal attach to the last cell of a full-screen program that has
// painted it long ago.
func BenchmarkFirstPaint(b *testing.B) {
	w := harness.New(b)
	w.Start(harness.HostOptions{})
	rows, cols := uint16(50), uint16(200)
	c := w.Mesh()
	args := w.FakeArgs("painter", idle)
	args.LaunchOptions = map[string]any{"argv": []string{"awk", painter}}
	args.Rows, args.Cols = rows, cols
	if _, err := harness.Launch(b.Context(), c, args); err != nil {
		b.Fatal(err)
	}
	var row wire.AgentRow
	harness.Eventually(b, harness.DefaultWait, "the screen is painted", func() (bool, string) {
		row = w.Inspect("painter")
		return row.Output > 3<<19 && strings.Contains(w.CLI("logs", "painter", "--bytes", "64").OK().Stdout, "painted"), fmt.Sprint(row.Output)
	})
	var paint samples
	for b.Loop() {
		begun := time.Now()
		t := seatview.Start(b, w, rows, cols, "attach", "painter")
		t.See("corner")
		paint = append(paint, time.Since(begun))
		if !strings.Contains(t.Text(), "49/00") {
			b.Fatalf("the corner was painted without the rest: %q", t.Text())
		}
		t.Detach()
	}
	b.ReportMetric(0, "ns/op")
	paint.report(b, "first-paint")
	b.ReportMetric(firstPaintLimitMs, "limit-p50-ms")
}
