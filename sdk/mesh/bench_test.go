package mesh

import (
	"fmt"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func crowd(b *testing.B, n int) (*Roster, [][]byte) {
	b.Helper()
	r := newRoster()
	r.armed(false)
	r.populated()
	bodies := make([][]byte, n)
	for i := range bodies {
		p := someone(fmt.Sprintf("a%04d", i), wire.StatusWorking)
		p.Activity, p.StatusSince, p.ActivitySince = "reading the parser", 1, 1
		body, err := p.Encode()
		if err != nil {
			b.Fatal(err)
		}
		bodies[i] = body
		r.record(p.Card.ID, false, body, 0)
	}
	return r, bodies
}

// A view is asked for on every listing.
func BenchmarkRosterView(b *testing.B) {
	for _, n := range []int{32, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, _ := crowd(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if len(r.View().Rows) != n {
					b.Fatal("rows are missing")
				}
			}
		})
	}
}

// A view behind a heartbeat is made anew.
func BenchmarkRosterViewBehindAHeartbeat(b *testing.B) {
	r, bodies := crowd(b, 500)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.heard()
		r.record(fmt.Sprintf("local.a%04d", i%500), false, bodies[i%500], 0)
		r.View()
	}
}

// 500 participants send 250 heartbeats a second.
func BenchmarkRosterHeartbeat(b *testing.B) {
	r, bodies := crowd(b, 500)
	keys := make([]string, 500)
	for i := range keys {
		keys[i] = fmt.Sprintf("local.a%04d", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.heard()
		r.record(keys[i%500], false, bodies[i%500], 0)
	}
}
