//go:build linux

package pty

import (
	"context"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// quantile reports p50 and p99 of some durations in milliseconds.
func quantile(b *testing.B, name string, all []time.Duration) {
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	ms := func(q float64) float64 {
		return float64(all[min(int(q*float64(len(all))), len(all)-1)].Microseconds()) / 1000
	}
	b.ReportMetric(ms(0.5), name+"-p50-ms")
	b.ReportMetric(ms(0.99), name+"-p99-ms")
}

// BenchmarkSpawn measures one seat at a time: until prepared, until committed, and its stop.
func BenchmarkSpawn(b *testing.B) {
	r := newRig(b)
	ctx := context.Background()
	var prepared, committed, reaped []time.Duration
	for b.Loop() {
		q := r.spec(`[{"hang":true}]`)
		r.specs = r.specs[:0]
		t0 := time.Now()
		if _, err := r.rt.Spawn(ctx, q); err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		if st, err := r.rt.Adopt(ctx, adoptOf(q, true)); err != nil || st.State != sdk.SeatRunning {
			b.Fatal(st, err)
		}
		t2 := time.Now()
		if _, err := r.rt.Reap(ctx, stopOf(q, sdk.StopNow)); err != nil {
			b.Fatal(err)
		}
		prepared, committed, reaped = append(prepared, t1.Sub(t0)), append(committed, t2.Sub(t1)), append(reaped, time.Since(t2))
	}
	quantile(b, "prepared", prepared)
	quantile(b, "committed", committed)
	quantile(b, "stopped", reaped)
}

// BenchmarkSpawn20 measures twenty seats at once, from the first call until all run.
func BenchmarkSpawn20(b *testing.B) {
	r := newRig(b)
	ctx := context.Background()
	var all []time.Duration
	for b.Loop() {
		specs := make([]sdk.SpawnRequest, 20)
		for i := range specs {
			specs[i] = r.spec(`[{"hang":true}]`)
		}
		r.specs = r.specs[:0]
		each := func(do func(q sdk.SpawnRequest) error) {
			var wg sync.WaitGroup
			for _, q := range specs {
				wg.Go(func() {
					if err := do(q); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
		}
		began := time.Now()
		each(func(q sdk.SpawnRequest) error {
			if _, err := r.rt.Spawn(ctx, q); err != nil {
				return err
			}
			_, err := r.rt.Adopt(ctx, adoptOf(q, true))
			return err
		})
		all = append(all, time.Since(began))
		each(func(q sdk.SpawnRequest) error {
			_, err := r.rt.Reap(ctx, stopOf(q, sdk.StopNow))
			return err
		})
	}
	quantile(b, "twenty", all)
}
