//go:build linux

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// viewer dials a seat's own socket.
func viewer(b *testing.B, dir string) *seat.Conn {
	b.Helper()
	rec, err := record.ReadSeat(dir)
	if err != nil {
		b.Fatal(err)
	}
	token, err := record.ReadToken(dir)
	if err != nil {
		b.Fatal(err)
	}
	conn, err := seat.Dial(b.Context(), seat.DialConfig{Socket: rec.Socket, Token: token, Role: seat.RoleOutput})
	if err != nil {
		b.Fatal(err)
	}
	return conn
}

// flood lets a seat print 1 GB to one healthy viewer, with or without a second one that has stopped
// reading, and returns the speed of the healthy one and the growth of seat and host.
func flood(b *testing.B, stopped bool) (mbs, seatMB, hostMB float64) {
	b.Helper()
	const mb = 1000
	w := harness.New(b)
	h := w.Start(harness.HostOptions{})
	for _, plugin := range []string{"pty", "command", "opencode"} {
		w.PluginPID(plugin)
	}
	gate := filepath.Join(w.Dir, "go")
	row := w.SpawnFake("flood", fmt.Sprintf(`[{"waitFile": %q}, {"flood": {"mb": %d}}, {"hang": true}]`, gate, mb))
	dir := filepath.Join(w.SeatRoot, row.SeatID)
	healthy := viewer(b, dir)
	defer healthy.Close()
	if stopped {
		idle := viewer(b, dir) // connected, welcomed, and never read from again
		defer idle.Close()
	}
	seatBefore, hostBefore := rssMB(b, row.SeatPID), rssMB(b, h.PID)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	var got uint64
	var begun time.Time
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	err := healthy.Run(ctx, seat.Handler{
		Output: func(_ uint64, p []byte) error {
			if begun.IsZero() {
				begun = time.Now()
			}
			if got += uint64(len(p)); got >= mb<<20 {
				cancel()
			}
			return nil
		},
		Gap: func(from, to uint64) error { return fmt.Errorf("the healthy viewer lost bytes %d to %d", from, to) },
	})
	took := time.Since(begun)
	if got < mb<<20 {
		b.Fatalf("%d bytes arrived: %v", got, err)
	}
	return float64(got) / (1 << 20) / took.Seconds(), rssMB(b, row.SeatPID) - seatBefore, rssMB(b, h.PID) - hostBefore
}

// BenchmarkStoppedViewerOfAHost: what one viewer that has stopped reading costs the seat, the host and
// the other viewer while a seat prints 1 GB. Runs with and without it are interleaved.
func BenchmarkStoppedViewerOfAHost(b *testing.B) {
	var alone, beside, seatMB, hostMB, seatAlone []float64
	for b.Loop() {
		mbs, s, _ := flood(b, false)
		alone, seatAlone = append(alone, mbs), append(seatAlone, s)
		mbs, s, h := flood(b, true)
		beside, seatMB, hostMB = append(beside, mbs), append(seatMB, s), append(hostMB, h)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(alone), "alone-MB/s")
	b.ReportMetric(median(beside)/median(alone), "other-viewer-ratio")
	b.ReportMetric(median(seatMB)-median(seatAlone), "seat-growth-MB")
	b.ReportMetric(median(hostMB), "host-growth-MB")
}
