package trust

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// proves: CRED-16
func TestNextRenewal(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	for name, tc := range map[string]struct {
		life   time.Duration
		at     time.Duration // after issue
		failed int
		want   time.Duration
	}{
		"one that is fresh waits for three quarters of its life":           {day, 0, 0, 18 * time.Hour},
		"half-way there is a quarter of the life left to wait":             {day, 12 * time.Hour, 0, 6 * time.Hour},
		"at three quarters it is renewed at once":                          {day, 18 * time.Hour, 0, 0},
		"one that is past its time is renewed at once":                     {day, 23 * time.Hour, 0, 0},
		"one that has expired is renewed at once":                          {day, 30 * time.Hour, 0, 0},
		"a first failure is tried again after a second":                    {day, 18 * time.Hour, 1, time.Second},
		"failures wait twice as long each time":                            {day, 18 * time.Hour, 5, 16 * time.Second},
		"and never longer than five minutes":                               {day, 18 * time.Hour, 40, 5 * time.Minute},
		"before its end there is room for four tries":                      {day, day - time.Minute, 40, 15 * time.Second},
		"a short life has room for four tries, too":                        {20 * time.Second, 15 * time.Second, 9, 1250 * time.Millisecond},
		"a source that stays dead after the end is not asked all the time": {20 * time.Second, time.Hour, 40, 5 * time.Minute},
		"a clock that was set forward makes it due":                        {day, 100 * day, 0, 0},
		"a clock that was set back a little only waits longer":             {day, -time.Hour, 0, 19 * time.Hour},
		"a clock that was set back by more than a life makes it due":       {day, -2 * day, 0, 0},
	} {
		if got := nextRenewal(t0, t0.Add(tc.life), t0.Add(tc.at), tc.failed); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestHealthOf(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		issued, expires time.Time
		at              time.Duration
		want            Health
	}{
		"a fresh one is healthy":                         {t0, t0.Add(time.Hour), 0, Healthy},
		"one of three quarters is near its end":          {t0, t0.Add(time.Hour), 45 * time.Minute, NearExpiry},
		"one at its end has expired":                     {t0, t0.Add(time.Hour), time.Hour, Expired},
		"one without an end is unbounded":                {t0, time.Time{}, 0, Unbounded},
		"one with an end and no beginning is unreadable": {time.Time{}, t0.Add(time.Hour), 0, Unreadable},
		"one that ends before it begins is unreadable":   {t0.Add(time.Hour), t0, 0, Unreadable},
	} {
		if got := HealthOf(tc.issued, tc.expires, t0.Add(tc.at)); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// A holder is never without: what it has is renewed before its end, and a connection that the broker ends at the
// old one's end comes back with the new one.
//
// proves: START-8
func TestFieldG1_AConnectionOutlivesTheCredentialItBeganWith(t *testing.T) {
	r := newRig(t)
	s, err := r.auth.Stand(t.Context(), Request{Profile: Observer, Life: 3 * time.Second})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer running.Wait()
	defer cancel()
	first := s.Current()
	back := make(chan struct{}, 10)
	lost := make(chan error, 10)
	closed := make(chan struct{})
	nc, err := nats.Connect(r.br.URL(), nats.UserJWT(s.Token, s.Sign), nats.CustomInboxPrefix(s.Inbox()), nats.MaxReconnects(-1),
		nats.ReconnectWait(10*time.Millisecond), nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // that it expired is what this is about
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { lost <- err }), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	must(t, err)
	defer func() { nc.Close(); <-closed }()
	select {
	case <-back:
	case <-time.After(busy.Limit(20 * time.Second)):
		t.Fatalf("the connection was not ended and made again: %v", nc.LastError())
	}
	if time.Now().Before(first.Expires.Add(-time.Second)) {
		t.Errorf("the connection was lost before its credential ended: %v", <-lost)
	}
	now := s.Current()
	if now.ID == first.ID || now.Public != first.Public || !now.Expires.After(first.Expires) {
		t.Errorf("renewed to %v until %v, from %v until %v", now, now.Expires, first, first.Expires)
	}
	if h, err := s.Health(); h != Healthy || err != nil {
		t.Errorf("health %s, %v", h, err)
	}
}

// A renewal that fails leaves the last good one, and says so; a source that is dead is not asked all the time.
func TestAFailedRenewalKeepsTheLastGoodCredential(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	s, err := r.auth.Stand(t.Context(), Request{Profile: Agent, UID: uid})
	must(t, err)
	first := s.Current()
	boom := errors.New("the file system is read-only")
	var delivered []string
	fail := true
	s.Configure(StandingConfig{Deliver: func(_ context.Context, c Credential) error {
		delivered = append(delivered, c.ID)
		if fail {
			return boom
		}
		return nil
	}})
	r.clock.add(time.Second)
	if err := s.Renew(t.Context()); !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
	if h, err := s.Health(); s.Current().ID != first.ID || h != Healthy || !errors.Is(err, boom) {
		t.Errorf("%v, %s, %v", s.Current(), h, err)
	}
	fail = false
	r.clock.add(time.Second)
	must(t, s.Renew(t.Context()))
	if s.Current().ID != delivered[1] || s.Current().ID == first.ID {
		t.Errorf("%v, delivered %v", s.Current(), delivered)
	}
}

// Retirement is final: the renewal stops, and brings nothing back.
//
// proves: CRED-16
func TestRenewalEndsWithTheLife(t *testing.T) {
	r := newRig(t)
	uid := r.activate()
	s, err := r.auth.Stand(t.Context(), Request{Profile: Agent, UID: uid, Life: 2 * time.Second})
	must(t, err)
	op := &wire.GateOp{OpID: wire.NewUID(), Kind: wire.OpRetirement}
	r.setGate(wire.Gate{LifecycleUID: uid, State: wire.GateRetired, Generation: 1, Op: op})
	ended := make(chan struct{})
	go func() { s.Run(t.Context()); close(ended) }()
	select {
	case <-ended:
	case <-time.After(busy.Limit(15 * time.Second)):
		t.Fatal("the renewal goes on")
	}
	if n := len(r.ledger(Life{UID: uid})); n > 1 {
		t.Errorf("%d rows", n)
	}
}

func TestAOneShotProfileIsNotRenewed(t *testing.T) {
	r := newRig(t)
	_, err := r.auth.Stand(t.Context(), Request{Profile: Purger})
	wantErr(t, "purger", err, ErrRefused)
}

// attempts counts the renewals that are tried between two times, when each one fails.
func attempts(life, from, to time.Duration) int {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n, failed := 0, 0
	for at := time.Duration(0); ; failed++ {
		at += nextRenewal(t0, t0.Add(life), t0.Add(at), failed)
		if at >= to {
			return n
		}
		if at >= from {
			n++
		}
	}
}

// However long a life is, its last quarter has room for three tries at least.
func TestFieldG2_TheLastQuarterOfALifeHasRoomForSeveralTries(t *testing.T) {
	for _, life := range []time.Duration{2 * time.Second, 20 * time.Second, time.Minute, time.Hour, MaxLife} {
		if n := attempts(life, life*3/4, life); n < 3 {
			t.Errorf("%v: %d tries", life, n)
		}
	}
}

// A mint that does not answer is asked less and less, before the end of the credential and after it.
func TestFieldG4_ADeadSourceIsAskedLessAndLess(t *testing.T) {
	if n := attempts(MaxLife, MaxLife*3/4, MaxLife*3/4+2*time.Minute); n > 10 {
		t.Errorf("%d tries in two minutes", n)
	}
	if n := attempts(20*time.Second, time.Minute, time.Hour); n > 20 {
		t.Errorf("%d tries in an hour after its end", n)
	}
}

// A seat outlives the host that minted its credential: the next one goes on with the file, and mints nothing before
// it is due.
func TestTheNextHostGoesOnWithTheCredentialOfASeat(t *testing.T) {
	r := newRig(t)
	uid, other := r.activate(), r.activate()
	req := Request{Profile: Agent, UID: uid, Scope: Scope{Read: []string{"dev"}}}
	name := CredentialFile(space, "reviewer", uid)
	c := r.mint(req)
	must(t, ToFile(r.store, name)(t.Context(), c))
	file, err := r.store.Read(name)
	must(t, err)

	next := r.static(bus.Config{URL: r.br.URL()})
	s, err := next.Adopt(req, file)
	must(t, err)
	if got := s.Current(); got.ID != c.ID || got.Public != c.Public || !got.Expires.Equal(c.Expires) {
		t.Errorf("adopted %v, want %v", got, c)
	}
	if n := len(r.ledger(Life{UID: uid})); n != 1 {
		t.Errorf("%d rows, want the one it had", n)
	}
	s.Configure(StandingConfig{Deliver: ToFile(r.store, name)})
	r.clock.add(time.Second)
	must(t, s.Renew(t.Context()))
	if got := s.Current(); got.ID == c.ID || got.Public != c.Public {
		t.Errorf("renewed to %v, from %v", got, c)
	}
	if now, err := r.store.Read(name); err != nil || string(now) == string(file) {
		t.Errorf("the file was not written again: %v", err)
	}
	for what, tc := range map[string]struct {
		req  Request
		file []byte
	}{
		"another life":    {Request{Profile: Agent, UID: other}, file},
		"another profile": {Request{Profile: Observer}, file},
		"a one-shot":      {Request{Profile: Purger}, file},
		"a torn file":     {req, file[:len(file)/2]},
		"no file":         {req, nil},
	} {
		if _, err := next.Adopt(tc.req, tc.file); !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), string(c.seed)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// source is an authority that mints nothing, and notes when it was asked.
type source struct {
	Authority
	asked chan time.Time
}

func (s source) Mint(ctx context.Context, _ Request) (Credential, error) {
	select {
	case s.asked <- time.Now():
	case <-ctx.Done():
	}
	return Credential{}, errors.New("away")
}

// A broker that is back has everybody come who waited for it: not all at once, since each makes a few connections.
func TestARetryDoesNotMakeEverybodyComeInTheSameInstant(t *testing.T) {
	const many = 40
	from, again := source{asked: make(chan time.Time, 3*many)}, &pulse{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	now := time.Now()
	for range many {
		s := &Standing{
			auth: from, now: time.Now, asked: make(chan struct{}, 1), again: again, failed: 30, // the next try is minutes away
			current: Credential{Issued: now.Add(-MaxLife), Expires: now.Add(MaxLife / 4)},
		}
		running.Go(func() { s.Run(ctx) })
	}
	var first, last time.Time
	for n := 0; n < many; {
		again.beat() // who does not wait yet will hear the next one
		select {
		case at := <-from.asked:
			if n++; n == 1 {
				first = at
			}
			last = at
		case <-time.After(10 * time.Millisecond):
		}
	}
	if d := last.Sub(first); d < renewalSpread/4 {
		t.Errorf("%d of them come within %v", many, d)
	}
}
