package lease_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/relay"
)

// proves: LEASE-1, LEASE-2
func TestALeaseIsRenewedAndSeenByOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if o := r.observe(); o.Life != lease.Lapsed {
		t.Fatalf("before anybody holds it: %+v", o)
	}
	h := r.hold("", "/work", 4, nil)
	first := r.observe()
	row := first.Row
	if first.Life != lease.Live || row.Holder != "local.manager_"+instance || row.InstanceID != instance || row.Runtime != "pty" ||
		row.Root != "/work" || row.PID != os.Getpid() || row.Epoch != 4 || row.Since == 0 || row.Claim == "" {
		t.Fatalf("others see %+v", first)
	}
	begin := time.Now()
	r.eventually("it outlives its TTL by being renewed", func() bool {
		o := r.observe()
		if o.Life == lease.Lapsed {
			t.Fatal("it lapsed")
		}
		return o.Rev > first.Rev && time.Since(begin) > 2*r.ttl
	})
	if err := h.Check(); err != nil {
		t.Errorf("its holder may start nothing: %v", err)
	}
	all, err := lease.ObserveAll(t.Context(), r.seen)
	if err != nil || len(all) != 1 || all[0].InstanceID != instance || all[0].Life != lease.Live {
		t.Errorf("all leases: %+v, %v", all, err)
	}
	r.broker.Shutdown()
	if o := r.observe(); o.Life != lease.Uncertain || o.Err == nil {
		t.Errorf("without a broker: %+v", o)
	}
}

// The answers to renewals are lost for longer than the lease lasts, while the renewals themselves arrive. Nothing is
// lost by that, and nobody else sees a gap; whether anything new may be started is not known meanwhile, and it is not.
//
// proves: LEASE-6, LEASE-8
func TestFieldH1_ALostAnswerIsNoLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	way := relay.New(t).Lead(strings.TrimPrefix(r.broker.URL(), "nats://"))
	var lost atomic.Int32
	h := r.hold(way.URL(), "/work", 4, func(c *lease.Config) { c.Lost = func(error) { lost.Add(1) } })
	way.Hold(false, true)
	begin := time.Now()
	r.eventually("it is known that it is not known", func() bool { return h.Status().Verdict == lease.Unreadable })
	for time.Since(begin) < 2*r.ttl {
		if o := r.observe(); o.Life != lease.Live && o.Life != lease.Uncertain && h.Status().Verdict != lease.Gone {
			break // the last renewal that arrived has aged
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.eventually("it cannot be proved any more", func() bool { return errors.Is(h.Check(), lease.ErrUnproven) })
	way.Heal()
	r.verdict(h, lease.Held)
	r.eventually("something new may be started again", func() bool { return h.Check() == nil })
	if lost.Load() != 0 {
		t.Error("it was given up")
	}
}

// One answer is lost: the row is read, is ours, at another revision, and is written again with that one.
//
// proves: LEASE-6
func TestARenewalThatWasNotAnsweredIsAdopted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var drop atomic.Bool
	h := r.holder("", "/work", 4, func(c *lease.Config) {
		c.Store = &lossy{Store: c.Store, drop: &drop}
	})
	if err := h.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := r.row()
	if err != nil {
		t.Fatal(err)
	}
	drop.Store(true)
	h.Renew(t.Context())
	after, err := r.row()
	if err != nil {
		t.Fatal(err)
	}
	if st := h.Status(); st.Verdict != lease.Held || after.Rev < before.Rev+2 {
		t.Errorf("it is %+v at revision %d, was %d; want it held by a second write", st, after.Rev, before.Rev)
	}
	if err := h.Check(); err != nil {
		t.Error(err)
	}
}

// lossy carries one update out and loses its answer.
type lossy struct {
	lease.Store
	drop *atomic.Bool
}

func (s *lossy) Update(ctx context.Context, id string, value []byte, rev uint64) (uint64, error) {
	next, err := s.Store.Update(ctx, id, value, rev)
	if s.drop.CompareAndSwap(true, false) {
		return 0, fmt.Errorf("renew lease: %w", bus.ErrUnavailable)
	}
	return next, err
}

// busyStore counts the exchanges that run at once.
type busyStore struct {
	lease.Store
	running, most, writes atomic.Int32
}

func (s *busyStore) Update(ctx context.Context, id string, value []byte, rev uint64) (uint64, error) {
	n := s.running.Add(1)
	defer s.running.Add(-1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	s.writes.Add(1)
	return s.Store.Update(ctx, id, value, rev)
}

// proves: LEASE-3
func TestRenewalsNeverOverlap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	count := &busyStore{}
	var lost atomic.Int32
	h := r.hold("", "/work", 4, func(c *lease.Config) {
		count.Store = c.Store
		c.Store, c.Every = count, time.Millisecond
		c.Lost = func(error) { lost.Add(1) }
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				h.Renew(t.Context())
			}
		})
	}
	wg.Wait()
	if count.most.Load() != 1 || count.writes.Load() < 10 || lost.Load() != 0 {
		t.Errorf("%d at once, %d in all, %d losses", count.most.Load(), count.writes.Load(), lost.Load())
	}
	if st := h.Status(); st.Verdict != lease.Held {
		t.Errorf("it is %+v", st)
	}
}

// A release while renewals come from everywhere: the row is gone when it returns, at whatever revision it was, and
// none of those that come after puts it back.
//
// proves: LEASE-4, LEASE-5, LEASE-9
func TestAReleasedLeaseIsNeverAcquiredAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rounds := 15
	if os.Getenv("COTAL_LONG") != "" {
		rounds = 200
	}
	for round := range rounds {
		h := r.hold("", "/work", uint64(round+1), func(c *lease.Config) { c.Every = time.Millisecond })
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						h.Renew(t.Context())
					}
				}
			})
		}
		h.Release(t.Context())
		if row, err := r.row(); !errors.Is(err, bus.ErrAbsent) {
			t.Errorf("round %d: after the release there is %s, %v", round, row.Value, err)
		}
		if !errors.Is(h.Check(), lease.ErrReleased) || h.Status().Verdict != lease.Released {
			t.Errorf("round %d: %+v, %v", round, h.Status(), h.Check())
		}
		h.Renew(t.Context())
		close(stop)
		wg.Wait()
		h.Wait()
		if row, err := r.row(); !errors.Is(err, bus.ErrAbsent) {
			t.Errorf("round %d: later there is %s, %v", round, row.Value, err)
		}
	}
}

// proves: LEASE-9, LEASE-12
func TestAReleaseLeavesARowThatIsNotOurs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.holder("", "/work", 4, nil)
	if err := h.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	foreign := h.self
	foreign.Claim, foreign.Root = wire.NewUID(), "/copy"
	value, err := foreign.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.put(string(value))
	h.Release(t.Context())
	if row, err := r.row(); err != nil || string(row.Value) != string(value) {
		t.Errorf("the row of another process is %s, %v", row.Value, err)
	}
	// A stop that could not prove everything leaves its own row to age.
	kept := r.holder("", "/work", 5, nil)
	r.eventually("the foreign row ages", func() bool { return r.observe().Life == lease.Lapsed })
	if err := kept.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept.Abandon(t.Context())
	if o := r.observe(); o.Life != lease.Live {
		t.Errorf("an abandoned lease is %+v", o)
	}
	r.eventually("it ages", func() bool { return r.observe().Life == lease.Lapsed })
}

// Whoever releases while its broker is away is not held up.
func TestAReleaseWithoutBrokerIsOverAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := r.hold("", "/work", 4, nil)
	r.broker.Shutdown()
	begin := time.Now()
	h.Release(t.Context())
	if busy.Over(begin, 2*time.Second) {
		t.Errorf("it took %s", time.Since(begin))
	}
}

// A release that is not carried out is told of once, by the instance and the space, and where it is not known what
// stands there not at all. It never fails.
//
// proves: LEASE-10
func TestALeaseThatIsStillThereAfterItsReleaseIsToldOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		unread bool // what stands there cannot be read behind the deletion
		tells  int
	}{{"it is seen that it is there", false, 1}, {"it cannot be seen", true, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			log := &lines{}
			h := r.holder("", "/work", 4, func(cfg *lease.Config) {
				cfg.Store, cfg.Log = &stuckStore{Store: cfg.Store, unread: c.unread}, log.logger()
			})
			if err := h.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.Release(t.Context())
			if n := log.count("is still there"); n != c.tells {
				t.Errorf("told of %d times", n)
			}
			if c.tells > 0 && log.count("instance="+instance) != 1 || c.tells > 0 && log.count("space=main") != 1 {
				t.Error("it does not name the instance and the space")
			}
			if h.Status().Verdict != lease.Released {
				t.Errorf("%+v", h.Status())
			}
		})
	}
}

// stuckStore deletes nothing.
type stuckStore struct {
	lease.Store
	unread  bool
	deleted bool
}

func (s *stuckStore) Delete(context.Context, string, uint64) error {
	s.deleted = true
	return fmt.Errorf("delete lease: %w", bus.ErrUnavailable)
}

func (s *stuckStore) Get(ctx context.Context, id string) (bus.LeaseRow, error) {
	if s.deleted && s.unread {
		return bus.LeaseRow{}, fmt.Errorf("read lease: %w", bus.ErrUnavailable)
	}
	return s.Store.Get(ctx, id)
}

// proves: LEASE-11
func TestTheLeaseOfAProcessThatIsProvedDeadIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	r := newRigOf(t, wire.LeaseTTL) // nobody waits for that
	p := r.spawn("", "/copy", 3, "")
	p.says("held")
	p.signal(syscall.SIGKILL)
	p.end()
	if o := r.observe(); o.Life != lease.Live {
		t.Fatalf("the row of the dead one is %+v; the test shows nothing", o)
	}
	begin := time.Now()
	h := r.holder("", "/work", 4, func(c *lease.Config) { c.Waiting = func(wire.ManagerLease, time.Duration) { t.Error("it waits") } })
	if err := h.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if busy.Over(begin, time.Second) {
		t.Errorf("it took %s", time.Since(begin))
	}
}

// proves: START-10, RECON-11, H11
func TestTheLeaseOfALivingProcessIsRefusedByItsName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.spawn("", "/copy", 3, "")
	p.says("held")
	h := r.holder("", "/work", 4, nil)
	err := h.Acquire(t.Context())
	if !errors.Is(err, lease.ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", p.cmd.Process.Pid)) || !strings.Contains(err.Error(), "/copy") ||
		!strings.Contains(err.Error(), "pty") || !strings.Contains(err.Error(), "cotal-host stop --root /copy") {
		t.Fatalf("it says %v", err)
	}
	p.signal(syscall.SIGTERM)
	if code := p.end(); code != 0 {
		t.Errorf("the holder ended with code %d", code)
	}
	if err := h.Acquire(t.Context()); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// Of one that cannot be asked, on another machine, it is seen whether it renews.
//
// proves: LEASE-11
func TestTheLeaseOfAProcessElsewhereIsWaitedForAndTakenWhenItAges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	elsewhere := func(c *lease.Config) { c.Self.BootID, c.Self.PID = "another machine", c.Self.PID+1 }
	there := r.hold("", "/work", 3, elsewhere)
	var told atomic.Int32
	here := r.holder("", "/work", 4, func(c *lease.Config) {
		c.Waiting = func(row wire.ManagerLease, atMost time.Duration) {
			if row.Holder != "" && atMost == r.ttl {
				told.Add(1)
			}
		}
	})
	if err := here.Acquire(t.Context()); !errors.Is(err, lease.ErrHeld) || !strings.Contains(err.Error(), "renews it") {
		t.Fatalf("while it renews: %v", err)
	}
	there.Abandon(t.Context()) // as a machine that lost its power
	begin := time.Now()
	if err := here.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 2*r.ttl+busy.Limit(time.Second) || told.Load() == 0 {
		t.Errorf("it took %s with a TTL of %s, and was told %d times", took, r.ttl, told.Load())
	}
}

// A container that was restarted with its broker inside: the host before had process numbers of another namespace, and
// the lock of the workspace. It is not waited for; one of another workspace is.
func TestTheHostBeforeOfAWorkspaceWithABrokerOfItsOwnIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, root string
		epoch      uint64
		waits      bool
	}{
		{"the host before of this workspace", "/work", 3, false},
		{"a host of another workspace", "/copy", 3, true},
		{"a host of a later epoch", "/work", 5, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			dead := r.holder("", c.root, c.epoch, func(c *lease.Config) { c.Self.PIDSpace = "pid:[of another container]" })
			if err := dead.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			waits := false
			h := r.holder("", "/work", 4, func(c *lease.Config) {
				c.Own = true
				c.Waiting = func(wire.ManagerLease, time.Duration) { waits = true }
			})
			if err := h.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			if waits != c.waits {
				t.Errorf("it waits: %v", waits)
			}
		})
	}
}

// Where its clock stands still the broker drops nothing. Who sees no change for a whole TTL takes the lease all the same,
// and never earlier.
func TestFieldH8_ARowThatTheBrokerDoesNotDropIsTakenAfterATTL(t *testing.T) {
	t.Parallel()
	const long = ttlLeast
	r := newRigOf(t, 20*long) // the bucket has a TTL that the test does not see the end of
	dead := r.hold("", "/work", 3, func(c *lease.Config) { c.Self.BootID = "another machine" })
	dead.Abandon(t.Context())
	h := r.holder("", "/work", 4, func(c *lease.Config) { c.TTL = long })
	begin := time.Now()
	if err := h.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < long || took > 4*long && busy.Factor() == 1 {
		t.Errorf("taken after %s; the TTL is %s", took, long)
	}
}

// proves: LEASE-6
func TestFieldH9_ARowThatIsNoLeaseIsNobodysAndFlapsNothing(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"empty": "", "an empty object": "{}", "an empty holder": `{"holder":"","instanceId":"` + instance + `","runtime":"pty","root":"/work","pid":1,"since":1}`,
		"random bytes": "\x00\xff\x13", "another instance": `{"holder":"x","instanceId":"bbbbbbbbbbbbbbbbbbbbbbbbbb","runtime":"pty","root":"/work","pid":1,"since":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var lost atomic.Int32
			h := r.hold("", "/work", 4, func(c *lease.Config) { c.Lost = func(error) { lost.Add(1) } })
			r.put(value)
			r.eventually("it is not taken for anything", func() bool { v := h.Status().Verdict; return v == lease.Unreadable })
			r.eventually("nothing new is started behind the TTL", func() bool { return errors.Is(h.Check(), lease.ErrUnproven) })
			r.verdict(h, lease.Held) // it ages, and is gone
			r.eventually("something may be started again", func() bool { return h.Check() == nil })
			if lost.Load() != 0 {
				t.Error("it was given up")
			}
			h.Release(t.Context())

			r.put(value)
			next := r.holder("", "/work", 5, nil)
			if err := next.Acquire(t.Context()); err != nil {
				t.Errorf("a start that meets it: %v", err)
			}
		})
	}
}

// proves: LEASE-7
func TestAnAbsenceIsToldEveryTimeAndTheRegistryIsAskedBehindIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var asked atomic.Int32
	var answer atomic.Pointer[error]
	over := errors.New("over")
	var lost atomic.Pointer[error]
	log := &lines{}
	h := r.holder("", "/work", 4, func(c *lease.Config) {
		c.Fence = func(context.Context) error {
			asked.Add(1)
			if p := answer.Load(); p != nil {
				return *p
			}
			return nil
		}
		c.Over = func(err error) bool { return errors.Is(err, over) }
		c.Lost = func(err error) { lost.Store(&err) }
		c.Log = log.logger()
	})
	if err := h.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	remove := func() {
		t.Helper()
		row, err := r.row()
		if err == nil {
			err = r.seen.Delete(t.Context(), instance, row.Rev)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		remove()
		h.Renew(t.Context())
		if st := h.Status(); st.Verdict != lease.Held || st.Fenced != "" || asked.Load() != int32(n+1) {
			t.Fatalf("the %d. time: %+v, asked %d times", n, st, asked.Load())
		}
	}
	if n, m := log.count("was gone"), log.count("held again"); n != 3 || m != 3 {
		t.Errorf("three absences were told of %d and %d times", n, m)
	}
	// A registry that does not answer proves nothing; one that says that another incarnation was there ends it.
	unknown := error(bus.ErrUnavailable)
	answer.Store(&unknown)
	remove()
	h.Renew(t.Context())
	if err := h.Check(); !errors.Is(err, lease.ErrUnproven) || h.Status().Verdict != lease.Held {
		t.Errorf("before the registry answers: %v, %+v", err, h.Status())
	}
	answer.Store(&over)
	h.Renew(t.Context())
	r.eventually("it is told of", func() bool { return lost.Load() != nil })
	if err := h.Check(); !errors.Is(err, over) || h.Status().Verdict != lease.Replaced {
		t.Errorf("another incarnation is registered: %v, %+v", err, h.Status())
	}
}
