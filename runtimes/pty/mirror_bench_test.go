//go:build linux

package pty

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// used is the CPU time of a process so far.
func used(b testing.TB, pid int) time.Duration {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// resident is the memory of a process in KiB.
func resident(b testing.TB, pid int) int {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

// BenchmarkMirrorFlood measures what the mirror costs a seat that floods: CPU of the worker in percent of
// a core (limit 5, of which what the system needs to hand over the bytes is a part), beside the same flood
// without a mirror to compare the seat's own speed with.
func BenchmarkMirrorFlood(b *testing.B) {
	for _, c := range []struct{ name, step string }{
		{"101-byte-lines", `{"flood":{"mb":1000000}}`},
		{"short-lines", `{"flood":{"mb":1000000,"line":16}}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			var cpu, speed []float64
			for b.Loop() {
				r := newRig(b)
				q, _ := r.run(`[` + c.step + `]`)
				pid := workerOf(b)
				next := r.adopt(q, false).Next
				before, began := used(b, pid), time.Now()
				<-time.After(4 * time.Second)
				took := time.Since(began)
				cpu = append(cpu, 100*float64(used(b, pid)-before)/float64(took))
				speed = append(speed, float64(r.adopt(q, false).Next-next)/took.Seconds()/1e6)
				r.reap(q, sdk.StopNow)
			}
			b.ReportMetric(cpu[len(cpu)/2], "%core")
			b.ReportMetric(speed[len(speed)/2], "MB/s-of-output")
		})
	}
}

// BenchmarkMirrorMemory measures what one more full-screen program of 50 x 200 costs the worker (limit
// 8 MB each), and what the worker does while nothing happens.
func BenchmarkMirrorMemory(b *testing.B) {
	r := newRig(b)
	ctx := context.Background()
	const n = 16
	for b.Loop() {
		var seats []sdk.SpawnRequest
		var first int
		for i := range n + 1 {
			q := r.spec(`[{"print":"\u001b[?1049h` + strings.Repeat(`\u001b[38;5;30mfull screen \u001b[m`, 700) + `"},{"hang":true}]`)
			q.Rows, q.Cols = 50, 200
			r.spawn(q)
			r.adopt(q, true)
			r.shot(r.rt, q, "its screen is there", func(s sdk.Snapshot) bool { return len(s.Data) > 1000 })
			seats = append(seats, q)
			if i == 0 {
				first = resident(b, workerOf(b))
			}
		}
		pid := workerOf(b)
		b.ReportMetric(float64(resident(b, pid)-first)/n/1024, "MB/seat")
		before := used(b, pid)
		<-time.After(5 * time.Second)
		b.ReportMetric(float64(used(b, pid)-before)/float64(5*time.Second)*100, "%core-idle")
		for _, q := range seats {
			if _, err := r.rt.Reap(ctx, stopOf(q, sdk.StopNow)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkFirstPaint measures a late viewer of a 50 x 200 full-screen program: the snapshot, and writing
// it to a pipe (limit 50 ms).
func BenchmarkFirstPaint(b *testing.B) {
	r := newRig(b)
	q := r.spec(`[{"print":"\u001b[?1049h` + strings.Repeat(`\u001b[38;5;30;1mfull\u001b[48;2;1;2;3m screen\u001b[m `, 800) + `"},{"hang":true}]`)
	q.Rows, q.Cols = 50, 200
	r.spawn(q)
	r.adopt(q, true)
	r.shot(r.rt, q, "its screen is there", func(s sdk.Snapshot) bool { return len(s.Data) > 1000 })
	pr, pw, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer pr.Close()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			if _, err := pr.Read(buf); err != nil {
				return
			}
		}
	}()
	defer pw.Close()
	var all []time.Duration
	size := 0
	for b.Loop() {
		began := time.Now()
		snap, err := r.rt.Snapshot(context.Background(), sdk.SnapshotRequest{SeatID: q.SeatID, InstanceID: q.Owner.InstanceID})
		if err != nil || snap.Dirty != "" {
			b.Fatal(fmt.Sprint(err, snap.Dirty))
		}
		if _, err := pw.Write(snap.Data); err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(began))
		size = len(snap.Data)
	}
	quantile(b, "paint", all)
	b.ReportMetric(float64(size), "bytes")
}
