package lease_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/relay"
)

// lines is a log that is counted in.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: l, Level: hclog.Debug})
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// A holder is frozen for longer than its lease lasts, as a machine that is paused, and nobody comes meanwhile: it
// notices that it has to look first, and holds it again.
func TestFieldH2_AFrozenHolderTakesItsLeaseBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.spawn("", "/work", 4, "")
	p.says("held")
	r.eventually("it works", func() bool { return len(granted(t, p.grants)) > 10 })
	p.signal(syscall.SIGSTOP)
	r.eventually("its lease lapses", func() bool { return r.observe().Life == lease.Lapsed })
	frozen := len(granted(t, p.grants))
	p.signal(syscall.SIGCONT)
	r.eventually("it holds it again", func() bool { return r.observe().Life == lease.Live })
	r.eventually("it works again", func() bool { return len(granted(t, p.grants)) > frozen+10 })
	p.signal(syscall.SIGTERM)
	if code := p.end(); code != 0 {
		t.Errorf("it ended with code %d", code)
	}
	if o := r.observe(); o.Life != lease.Lapsed {
		t.Errorf("after its stop: %+v", o)
	}
}

// A holder is frozen for longer than its lease lasts, and a copy of it, elsewhere, takes its place. When it goes on it
// ends, leaves the lease of the other one alone, and at no time might both have started something.
//
// proves: LEASE-8
func TestFieldH3_AFrozenHolderThatWasReplacedStartsNothingMore(t *testing.T) {
	t.Parallel()
	rounds := 2
	if os.Getenv("COTAL_LONG") != "" {
		rounds = 20
	}
	for range rounds {
		r := newRig(t)
		p := r.spawn("", "/work", 4, "")
		p.says("held")
		r.eventually("it works", func() bool { return len(granted(t, p.grants)) > 10 })
		p.signal(syscall.SIGSTOP)
		r.eventually("its lease lapses", func() bool { return r.observe().Life == lease.Lapsed })
		next := r.spawn("", "/copy", 5, "")
		next.says("held")
		r.eventually("the other one works", func() bool { return len(granted(t, next.grants)) > 2 })
		p.signal(syscall.SIGCONT)
		if line := p.says("lost"); !strings.Contains(line, fmt.Sprint("process ", next.cmd.Process.Pid)) || !strings.Contains(line, "/copy") {
			t.Errorf("it said %q; want it to name who has its lease", line)
		}
		if code := p.end(); code != 1 {
			t.Errorf("it ended with code %d", code)
		}
		if o := r.observe(); o.Life != lease.Live || o.Row.PID != next.cmd.Process.Pid {
			t.Errorf("the lease is %+v", o)
		}
		oneAfterTheOther(t, granted(t, p.grants), granted(t, next.grants))
	}
}

// The connection of the lease alone is cut, or held up in one direction, while its holder goes on: it starts nothing
// from the moment on at which another one might be in its place, and ends when it hears of it.
func TestAHolderThatIsCutOffStopsBeforeAnotherOneBegins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		toServer, to bool
	}{
		{"in both directions", true, true},
		{"its renewals are held up", true, false},
		{"the answers are held up", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			way := relay.New(t).Lead(strings.TrimPrefix(r.broker.URL(), "nats://"))
			p := r.spawn(way.URL(), "/work", 4, "")
			p.says("held")
			r.eventually("it works", func() bool { return len(granted(t, p.grants)) > 10 })
			way.Hold(c.toServer, c.to)
			r.eventually("its lease lapses", func() bool { return r.observe().Life == lease.Lapsed })
			next := r.spawn("", "/copy", 5, "")
			next.says("held")
			r.eventually("the other one works", func() bool { return len(granted(t, next.grants)) > 2 })
			way.Heal() // what was held up arrives now, late
			p.says("lost")
			if code := p.end(); code != 1 {
				t.Errorf("it ended with code %d", code)
			}
			if o := r.observe(); o.Life != lease.Live || o.Row.PID != next.cmd.Process.Pid {
				t.Errorf("the lease is %+v", o)
			}
			oneAfterTheOther(t, granted(t, p.grants), granted(t, next.grants))
		})
	}
}

// Two processes of one instance take turns at once, again and again: every try comes to a verdict, one at most has the
// lease, and none is stuck.
func TestFieldH7_TwoThatTakeTurnsAtOnceComeToAVerdict(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rounds := 20
	if os.Getenv("COTAL_LONG") != "" {
		rounds = 200
	}
	var mu sync.Mutex
	holding, had := 0, [2]int{}
	var wg sync.WaitGroup
	buses := []string{r.broker.URL(), r.broker.URL()}
	for i, url := range buses {
		b := r.connect(url)
		wg.Go(func() {
			for n := 0; n < rounds; {
				h, err := newHolder(b, r.ttl, fmt.Sprintf("/work%d", i), uint64(n+1), nil)
				if err != nil {
					t.Error(err)
					return
				}
				err = h.Acquire(t.Context())
				if errors.Is(err, lease.ErrHeld) {
					h.store.Close()
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
					continue
				}
				if errors.Is(err, bus.ErrUnavailable) && busy.Factor() > 1 {
					h.store.Close() // a store that did not answer on a busy machine says nothing of the two
					continue
				}
				if err != nil {
					t.Errorf("no verdict: %v", err)
					return
				}
				n++
				mu.Lock()
				if holding++; holding > 1 {
					t.Error("both have it")
				}
				had[i]++
				holding--
				mu.Unlock()
				h.Release(t.Context())
				h.store.Close()
			}
		})
	}
	wg.Wait()
	if had[0] != rounds || had[1] != rounds {
		t.Errorf("they had it %v times", had)
	}
}

// A holder that is killed at any step of a lease leaves something that its successor takes at once, and that nobody
// else takes for a living holder for longer than a TTL.
func TestAHolderThatIsKilledAtAnyStepIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		place string
		after func(*rig, *process) // what leads there
	}{
		{"host.lease.acquiring", nil},
		{"host.lease.acquired", nil},
		{"host.lease.renewing", nil},
		{"host.lease.renewed", nil},
		{"host.lease.reread", func(r *rig, p *process) { p.says("held"); r.drop() }},
		{"host.lease.returned", func(r *rig, p *process) { p.says("held"); r.drop() }},
		{"host.lease.releasing", func(_ *rig, p *process) { p.says("held"); p.signal(syscall.SIGTERM) }},
		{"host.lease.released", func(_ *rig, p *process) { p.says("held"); p.signal(syscall.SIGTERM) }},
	} {
		t.Run(c.place, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := r.spawn("", "/work", 4, c.place+"=crash")
			if c.after != nil {
				c.after(r, p)
			}
			select {
			case <-p.drained():
			case <-time.After(busy.Limit(20 * time.Second)):
				t.Fatal("the place was never reached")
			}
			if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
				t.Fatalf("it ended with %v", s)
			}
			begin := time.Now()
			next := r.spawn("", "/work", 5, "")
			next.says("held")
			if took, limit := time.Since(begin), busy.Limit(time.Second); took > limit {
				t.Errorf("its successor held the lease after %s", took)
			}
			if o := r.observe(); o.Life != lease.Live || o.Row.PID != next.cmd.Process.Pid {
				t.Errorf("the lease is %+v", o)
			}
			next.signal(syscall.SIGTERM)
			if code := next.end(); code != 0 {
				t.Errorf("its successor ended with code %d", code)
			}
		})
	}
}

// drop takes the row away, whoever's it is.
func (r *rig) drop() {
	r.t.Helper()
	r.eventually("the row is taken away", func() bool {
		row, err := r.row()
		return err == nil && r.seen.Delete(r.t.Context(), instance, row.Rev) == nil
	})
}

// drained is closed at the end of the process, whatever it still says.
func (p *process) drained() <-chan struct{} {
	go func() {
		for range p.lines {
		}
	}()
	return p.ended
}
