package journal

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

func benchRow(id string) SeatRow {
	r := fullRow(id)
	r.Reason = strings.Repeat("x", 400)
	return r
}

// BenchmarkCommit measures one durable update beside the physical limit: one write and fdatasync of
// the same disk, interleaved in the same loop because the disk itself moves. The figures are medians
// in microseconds.
func BenchmarkCommit(b *testing.B) {
	j := openTest(b)
	for n := range 64 { // a host that has been running for a while
		update(b, j, func(tx *Tx) error { return tx.PutSeat(benchRow(fmt.Sprintf("seed%02d", n))) })
	}
	f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		b.Fatal(err)
	}
	page := make([]byte, 4096)
	var commits, syncs []time.Duration
	for n := 0; b.Loop(); n++ {
		start := time.Now()
		page[0]++
		if _, err := f.WriteAt(page, int64(n%256)*4096); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
		mid := time.Now()
		update(b, j, func(tx *Tx) error { return tx.PutSeat(benchRow(fmt.Sprintf("s%02d", n%32))) })
		syncs, commits = append(syncs, mid.Sub(start)), append(commits, time.Since(mid))
	}
	b.ReportMetric(median(commits), "commit-us")
	b.ReportMetric(median(syncs), "fdatasync-us")
	b.ReportMetric(median(commits)/median(syncs), "commits/fdatasync")
}

// BenchmarkCommit20 measures 20 callers at once: the time from the first call to the last return,
// and how many commits they took together.
func BenchmarkCommit20(b *testing.B) {
	j := openTest(b)
	before := j.commits.Load()
	var rounds []time.Duration
	for n := 0; b.Loop(); n++ {
		start := time.Now()
		var wg sync.WaitGroup
		for c := range 20 {
			wg.Go(func() {
				err := j.Update(context.Background(), func(tx *Tx) error { return tx.PutSeat(benchRow(fmt.Sprintf("s%02d", c))) })
				if err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		rounds = append(rounds, time.Since(start))
	}
	b.ReportMetric(median(rounds), "20-callers-us")
	b.ReportMetric(float64(j.commits.Load()-before)/float64(len(rounds)), "commits/round")
}

// BenchmarkOptions compares the choices of options() with their alternatives, interleaved.
func BenchmarkOptions(b *testing.B) {
	variants := []struct {
		name string
		set  func(*bolt.Options)
	}{
		{"chosen", func(*bolt.Options) {}},
		{"nogrowsync", func(o *bolt.Options) { o.NoGrowSync = true }},
		{"nofreelistsync", func(o *bolt.Options) { o.NoFreelistSync = true }},
		{"hashmap", func(o *bolt.Options) { o.FreelistType = bolt.FreelistMapType }},
		{"page16k", func(o *bolt.Options) { o.PageSize = 16384 }},
		{"smallmap", func(o *bolt.Options) { o.InitialMmapSize = 0 }},
	}
	dbs := make([]*bolt.DB, len(variants))
	for i, v := range variants {
		o := options(time.Second)
		v.set(o)
		db, err := bolt.Open(filepath.Join(b.TempDir(), v.name), 0o600, o)
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		if err := db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucketIfNotExists(bucketSeats); return err }); err != nil {
			b.Fatal(err)
		}
		dbs[i] = db
	}
	times := make([][]time.Duration, len(variants))
	for n := 0; b.Loop(); n++ {
		id := fmt.Sprintf("s%03d", n%200)
		raw, err := encodeSeat(benchRow(id))
		if err != nil {
			b.Fatal(err)
		}
		for k := range dbs {
			i := (k + n) % len(dbs) // whoever comes first pays for what the disk did before
			db := dbs[i]
			start := time.Now()
			if err := db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketSeats).Put([]byte(id), raw) }); err != nil {
				b.Fatal(err)
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	for i, v := range variants {
		b.ReportMetric(median(times[i]), v.name+"-us")
	}
}

// BenchmarkOpen measures a boot with the rows of a busy host: checks, lock and all.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "journal.db")
	j := openAt(b, path)
	update(b, j, func(tx *Tx) error {
		for n := range 200 {
			if err := tx.PutSeat(benchRow(fmt.Sprintf("s%03d", n))); err != nil {
				return err
			}
		}
		return nil
	})
	j.Close()
	for b.Loop() {
		j, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		j.Close()
	}
}

func median(d []time.Duration) float64 {
	if len(d) == 0 {
		return 0
	}
	d = slices.Clone(d)
	slices.Sort(d)
	return float64(d[len(d)/2]) / float64(time.Microsecond)
}
