package lease_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/test/relay"
)

// A renewal extends the lease from the moment at which it was begun: the broker may have written it then, and says so
// later.
//
// proves: LEASE-2
func TestALeaseCountsFromTheBeginningOfItsRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var clock atomic.Int64
	slow := &slowStore{clock: &clock, by: int64(r.ttl) * 3 / 4}
	h := r.holder("", "/work", 4, func(c *lease.Config) {
		slow.Store, c.Store = c.Store, slow
		c.Now = func() lease.Moment {
			d := time.Duration(clock.Load())
			return lease.Moment{Mono: d, Wall: time.Unix(0, 0).Add(d)}
		}
	})
	if err := h.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Renew(t.Context())
	if err := h.Check(); err != nil {
		t.Fatalf("the renewal took three quarters of the TTL: %v", err)
	}
	clock.Add(int64(r.ttl) / 2)
	if err := h.Check(); !errors.Is(err, lease.ErrUnproven) {
		t.Errorf("half a TTL after its answer: %v", err)
	}
}

// slowStore lets time pass before the answer to an update.
type slowStore struct {
	lease.Store
	clock *atomic.Int64
	by    int64
}

func (s *slowStore) Update(ctx context.Context, id string, value []byte, rev uint64) (uint64, error) {
	next, err := s.Store.Update(ctx, id, value, rev)
	s.clock.Add(s.by)
	return next, err
}

// Clocks are set by people, and machines sleep. A lease that may be over is not counted on until it was renewed; one
// that is held stays so.
func TestFieldH13_AClockThatJumpsCostsAMomentAndNoLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var jump atomic.Int64
	begun := time.Now()
	var lost atomic.Int32
	count := &busyStore{}
	h := r.holder("", "/work", 4, func(c *lease.Config) {
		count.Store = c.Store
		c.Store = count
		c.Now = func() lease.Moment {
			d := time.Since(begun)
			return lease.Moment{Mono: d, Wall: begun.Add(d + time.Duration(jump.Load())).Round(0)}
		}
		c.Lost = func(error) { lost.Add(1) }
	})
	if err := h.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	jump.Store(int64(time.Hour))
	if err := h.Check(); !errors.Is(err, lease.ErrUnproven) {
		t.Errorf("an hour later: %v", err)
	}
	h.Renew(t.Context())
	if err := h.Check(); err != nil {
		t.Errorf("renewed: %v", err)
	}
	jump.Store(-int64(time.Hour))
	if err := h.Check(); err != nil {
		t.Errorf("set back: %v", err)
	}
	h.Start()
	before := count.writes.Load()
	begin := time.Now()
	for n := int64(0); time.Since(begin) < r.ttl; n++ { // five minutes to and fro, all the time
		jump.Store((n%3 - 1) * int64(5*time.Minute))
		time.Sleep(time.Millisecond)
	}
	jump.Store(0)
	if n := count.writes.Load() - before; n > 3*int32(r.ttl/(r.ttl/4)) || lost.Load() != 0 {
		t.Errorf("%d renewals within a TTL, %d losses", n, lost.Load())
	}
	r.eventually("it is held", func() bool { return h.Check() == nil && h.Status().Verdict == lease.Held })
}

// A broker that comes back with its store costs nothing. One that lost it has nothing to say about who holds what:
// nothing new is started, and its bucket is not made anew but by a host that starts. That one waits for those who may
// count on a lease that was in it; the one who lives gets it back.
func TestABrokerThatComesBackWithoutItsStoreIsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		cutOff bool // the holder cannot reach the broker when another process comes
	}{{"its holder is there", false}, {"its holder is cut off", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			way := relay.New(t).Lead(strings.TrimPrefix(r.broker.URL(), "nats://"))
			var lost atomic.Int32
			h := r.hold(way.URL(), "/work", 4, func(c *lease.Config) { c.Lost = func(error) { lost.Add(1) } })
			port := r.broker.Port()
			r.broker.Shutdown()
			r.start(port)
			r.eventually("it is renewed on the same store", func() bool {
				st := h.Status()
				return st.Verdict == lease.Held && st.Renewed < r.ttl/2 && st.Fenced == ""
			})

			r.broker.Shutdown()
			if err := os.RemoveAll(filepath.Join(r.dir, "js")); err != nil {
				t.Fatal(err)
			}
			r.start(port)
			r.eventually("nothing new is started", func() bool {
				return h.Status().Verdict == lease.Unreadable && errors.Is(h.Check(), lease.ErrUnproven)
			})
			if c.cutOff {
				way.Hold(true, true)
			}
			var m memory
			if err := m.made("KV_cotal_manager_main"); err != nil {
				t.Fatal(err)
			}
			store, err := r.connect(r.broker.URL()).Leases(bus.LeasesConfig{Space: "main", TTL: r.ttl, Known: m.known, Made: m.made})
			if err != nil {
				t.Fatal(err)
			}
			next := r.holder("", "/copy", 5, func(c *lease.Config) { c.Store, c.Self.BootID = store, "another machine" })
			begin := time.Now()
			err = next.Acquire(t.Context())
			if !c.cutOff {
				if !errors.Is(err, lease.ErrHeld) {
					t.Fatalf("beside one that lives: %v", err)
				}
				r.eventually("it goes on", func() bool { return h.Check() == nil })
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took < r.ttl {
				t.Errorf("it was taken after %s, with a TTL of %s: whoever held it may still have counted on it", took, r.ttl)
			}
			next.Start()
			way.Heal()
			r.eventually("the one before learns that it is another's", func() bool { return lost.Load() == 1 && h.Status().Verdict == lease.Replaced })
		})
	}
}
