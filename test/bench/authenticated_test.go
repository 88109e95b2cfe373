//go:build linux

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// What credentials cost: each benchmark takes turns between a host that serves with them and one that serves open, since the
// machine itself changes its speed.

// mode is a host of one mode, with what was measured of it.
type mode struct {
	name string
	w    *harness.World
	h    *harness.Host
	c    *mesh.Client

	accepted, launched, ended, wall, attach samples
	cpu, rows                               []float64 // milliseconds; KiB
}

// modes starts a host of each mode, both warm.
func modes(b *testing.B) []*mode {
	b.Helper()
	ms := []*mode{{name: "open", w: harness.New(b)}, {name: "auth", w: harness.NewAuthenticated(b)}}
	for _, m := range ms {
		m.h = m.w.Start(harness.HostOptions{})
		m.c = m.w.Mesh()
		warm(b, m.w, m.c)
	}
	return ms
}

// BenchmarkAuthenticatedBoot: process start to "ready" with the embedded broker; from nothing, and with keys and store.
func BenchmarkAuthenticatedBoot(b *testing.B) {
	makers := []struct {
		name string
		make func(testing.TB) *harness.World
	}{{"open", harness.New}, {"auth", harness.NewAuthenticated}}
	first, again := map[string]*samples{}, map[string]*samples{}
	for _, m := range makers {
		first[m.name], again[m.name] = &samples{}, &samples{}
	}
	for b.Loop() {
		for _, m := range makers {
			w := m.make(b)
			h := w.Start(harness.HostOptions{})
			*first[m.name] = append(*first[m.name], h.Boot)
			h.Stop()
			h = w.Start(harness.HostOptions{})
			*again[m.name] = append(*again[m.name], h.Boot)
			h.Stop()
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, m := range makers {
		first[m.name].report(b, m.name+"-first")
		again[m.name].report(b, m.name+"-again")
	}
}

// BenchmarkAuthenticatedSpawn: one spawn after the other and its stop: from the request to the acceptance, to the agent's
// process, and to the proof of its end; and the processor time of the host for each of both.
func BenchmarkAuthenticatedSpawn(b *testing.B) {
	ms := modes(b)
	var spawnCPU, stopCPU [2][]float64
	for i := 0; b.Loop(); i++ {
		for k, m := range ms {
			before := cpuOf(b, m.h.PID)
			l, err := harness.Launch(b.Context(), m.c, m.w.FakeArgs(fmt.Sprintf("s%d", i), idle))
			if err != nil {
				b.Fatal(err)
			}
			between := cpuOf(b, m.h.PID)
			m.accepted = append(m.accepted, l.Accepted)
			m.launched = append(m.launched, l.Running)
			begun := time.Now()
			if err := harness.Despawn(b.Context(), m.c, l.Acceptance); err != nil {
				b.Fatal(err)
			}
			m.ended = append(m.ended, time.Since(begun))
			spawnCPU[k] = append(spawnCPU[k], between-before)
			stopCPU[k] = append(stopCPU[k], cpuOf(b, m.h.PID)-between)
		}
	}
	b.ReportMetric(0, "ns/op")
	for k, m := range ms {
		m.accepted.report(b, m.name+"-accept")
		m.launched.report(b, m.name+"-launched")
		m.ended.report(b, m.name+"-stop")
		b.ReportMetric(median(spawnCPU[k]), m.name+"-spawn-cpu-ms")
		b.ReportMetric(median(stopCPU[k]), m.name+"-stop-cpu-ms")
	}
}

// BenchmarkAuthenticatedSpawn20: twenty spawns at once, until the last one runs; and their twenty stops.
func BenchmarkAuthenticatedSpawn20(b *testing.B) {
	ms := modes(b)
	for i := 0; b.Loop(); i++ {
		for _, m := range ms {
			names := make([]string, 20)
			for j := range names {
				names[j] = fmt.Sprintf("p%d-%d", i, j)
			}
			cpu, begun := cpuOf(b, m.h.PID), time.Now()
			launched := launchAll(b, m.w, m.c, names)
			last := time.Duration(0)
			for _, l := range launched {
				last = max(last, l.sent.Add(l.Running).Sub(begun))
			}
			m.wall = append(m.wall, last)
			m.cpu = append(m.cpu, (cpuOf(b, m.h.PID)-cpu)/float64(len(names)))
			begun = time.Now()
			despawnAll(b, m.c, launched)
			m.ended = append(m.ended, time.Since(begun))
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, m := range ms {
		b.ReportMetric(m.wall.at(0.5), m.name+"-all-running-p50-ms")
		b.ReportMetric(m.wall.at(1), m.name+"-all-running-max-ms")
		b.ReportMetric(m.ended.at(0.5), m.name+"-all-ended-p50-ms")
		b.ReportMetric(median(m.cpu), m.name+"-cpu-each-ms")
	}
}

// BenchmarkAuthenticatedReads: BenchmarkReadsWhileSpawning in both modes.
func BenchmarkAuthenticatedReads(b *testing.B) {
	both := []*readers{newReaders(b, harness.New(b)), newReaders(b, harness.NewAuthenticated(b))}
	for i := 0; b.Loop(); i++ {
		for _, r := range both {
			r.burst(b, i)
		}
	}
	b.ReportMetric(0, "ns/op")
	both[0].report(b, "open-")
	both[1].report(b, "auth-")
}

// BenchmarkAuthenticatedAttach: from the request to attach over the mesh to the first of the screen, one session after the
// other; and what the host has grown by with eight open sessions.
func BenchmarkAuthenticatedAttach(b *testing.B) {
	const open = 8
	ms := modes(b)
	for _, m := range ms {
		m.w.SpawnFake("shown", idle)
	}
	for b.Loop() {
		for _, m := range ms {
			m.attach = append(m.attach, attachOnce(b, m, "shown"))
		}
	}
	for _, m := range ms {
		row, _ := m.w.Seat("shown")
		before := rssMB(b, m.h.PID)
		var sessions []*mesh.Session
		for range open {
			v := &counting{ready: make(chan struct{}, 1)}
			s, err := m.c.Attach(b.Context(), seatview.Call(b, row, wire.AttachObserver))
			if err != nil {
				b.Fatal(err)
			}
			go func() { _, _ = s.WriteTo(v) }() // until the end of the session
			<-v.ready
			sessions = append(sessions, s)
		}
		m.rows = append(m.rows, (rssMB(b, m.h.PID)-before)*1024/open)
		for _, s := range sessions {
			s.Close()
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, m := range ms {
		m.attach.report(b, m.name+"-attach")
		b.ReportMetric(median(m.rows), m.name+"-session-KiB")
	}
}

// attachOnce attaches to a seat, and takes the time until something of its screen is there.
func attachOnce(b *testing.B, m *mode, name string) time.Duration {
	b.Helper()
	row, ok := m.w.Seat(name)
	if !ok {
		b.Fatalf("%s is not listed", name)
	}
	v := &counting{ready: make(chan struct{}, 1)}
	begun := time.Now()
	s, err := m.c.Attach(b.Context(), seatview.Call(b, row, ""))
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _, _ = s.WriteTo(v) }()
	<-v.ready
	took := time.Since(begun)
	s.Close()
	<-done
	return took
}

// cpuOf is the processor time that the threads of a process have had, in milliseconds.
func cpuOf(b *testing.B, pid int) float64 {
	b.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		b.Fatalf("read the processor time of %d: %v", pid, err)
	}
	total := 0.0
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that is gone
		}
		ns, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		if err != nil {
			b.Fatal(err)
		}
		total += ns / 1e6
	}
	return total
}
