package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/cotal-ai/cotal-host/host/bus"
)

// Standing is a credential that is renewed for as long as its holder lives: the same key and the same rights,
// with a later end. It implements bus.Credentials; a connection that comes back comes with the latest one.
type Standing struct {
	auth Authority
	req  Request
	now  func() time.Time
	// deliver hands a renewed credential to its holder; nil: the holder asks.
	deliver func(context.Context, Credential) error
	asked   chan struct{} // gets a value when one that has ended was asked for
	again   *pulse        // of its authority
	// verified says whether what a key has signed is let in; nil: nobody takes one away.
	verified func(issuer string) bool

	mu      sync.Mutex
	current Credential
	failed  int // attempts since the last success
	err     error
	over    bool // the gate is closed to it for good
}

// StandingConfig says what happens with a renewed credential besides that it is held.
type StandingConfig struct {
	// Deliver hands it to its holder, by a file for one. Until it returns nil the renewal counts as failed, and
	// the holder has what it had; the new one is in the ledger, and ends by itself.
	Deliver func(context.Context, Credential) error
}

// Stand mints a credential that is renewed.
func (a *Static) Stand(ctx context.Context, r Request) (*Standing, error) {
	if !r.Profile.Standing() {
		return nil, fmt.Errorf("%w: profile %q is for one step and is not renewed", ErrRefused, string(r.Profile))
	}
	if r.Key.Public == "" {
		var err error
		if r.Key, err = a.NewKey(); err != nil {
			return nil, err
		}
	}
	c, err := a.Mint(ctx, r)
	if err != nil {
		return nil, err
	}
	r.Over = nil // it ends long before the first renewal
	return &Standing{auth: a, req: r, now: a.cfg.Now, asked: make(chan struct{}, 1), again: &a.again, verified: a.cfg.Keys.verifies, current: c}, nil
}

// Adopt goes on with a credential that is a file: its holder outlives the host that minted it. Nothing is minted
// before it is due. The file has to be of the profile and the life of the request.
func (a *Static) Adopt(r Request, file []byte) (*Standing, error) {
	p := r.Profile.row()
	if !p.standing {
		return nil, fmt.Errorf("adopt credential: %w: profile %q is for one step and is not renewed", ErrRefused, string(r.Profile))
	}
	token, err := jwt.ParseDecoratedJWT(file)
	if err != nil {
		return nil, fmt.Errorf("adopt credential: %w: it is no credentials file", ErrRefused)
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return nil, fmt.Errorf("adopt credential: %w: its token cannot be read", ErrRefused)
	}
	kp, err := jwt.ParseDecoratedUserNKey(file)
	if err != nil {
		return nil, fmt.Errorf("adopt credential: %w: its key cannot be read", ErrRefused)
	}
	defer kp.Wipe()
	seed, err := kp.Seed()
	if err != nil {
		return nil, fmt.Errorf("adopt credential: %w: its key cannot be read", ErrRefused)
	}
	r.Key = Key{Public: claims.Subject, Seed: bytes.Clone(seed)}
	life := a.cfg.Instance
	if p.agent {
		life = r.UID
	}
	switch {
	case checkKey(r.Key) != nil:
		return nil, fmt.Errorf("adopt credential: %w: its key is not that of its token", ErrRefused)
	case claims.Name != a.Principal(claims.Subject).String() || !slices.Contains(claims.Tags, tagProfile+string(p.name)) || !slices.Contains(claims.Tags, tagLife+life):
		return nil, fmt.Errorf("adopt credential: %w: it is not of profile %s in life %s", ErrRefused, p.name, life)
	case claims.Expires == 0:
		return nil, fmt.Errorf("adopt credential: %w: it has no end", ErrRefused)
	}
	if !p.agent {
		a.minted.adopt(a.Principal(claims.Subject))
	}
	return &Standing{auth: a, req: r, now: a.cfg.Now, asked: make(chan struct{}, 1), again: &a.again, verified: a.cfg.Keys.verifies, current: Credential{
		ID: credentialID(token), Profile: p.name, Public: claims.Subject, Issued: time.Unix(claims.IssuedAt, 0), Expires: time.Unix(claims.Expires, 0),
		token: token, issuer: claims.Issuer, seed: r.Key.Seed, now: a.cfg.Now,
	}}, nil
}

// ToFile delivers a credential to a file of a store, in one step. Its holder reads it whenever it connects.
func ToFile(store SecretStore, name string) func(context.Context, Credential) error {
	return func(_ context.Context, c Credential) error {
		file, err := c.File()
		if err != nil {
			return err
		}
		defer clear(file)
		return store.Write(name, file)
	}
}

// pulse wakes everybody who waits for it.
type pulse struct {
	mu sync.Mutex
	ch chan struct{} // closed with the next one
}

func (p *pulse) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ch == nil {
		p.ch = make(chan struct{})
	}
	return p.ch
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ch != nil {
		close(p.ch)
		p.ch = nil
	}
}

// Retry lets no renewal wait longer that has failed.
func (a *Static) Retry() { a.again.beat() }

// Configure sets what Run does beside renewing; before Run.
func (s *Standing) Configure(cfg StandingConfig) { s.deliver = cfg.Deliver }

// Token is the latest user JWT. One that has ended, or that a key has signed which was taken away, is renewed as soon as it is
// asked for: a connection that asks has reached a server.
//
// Error: ErrExpired.
func (s *Standing) Token() (string, error) {
	c := s.Current()
	token, err := c.Token()
	if err != nil || !s.letIn(c.issuer) {
		select {
		case s.asked <- struct{}{}:
		default:
		}
	}
	return token, err
}

// letIn reports whether what a key has signed is let in.
func (s *Standing) letIn(issuer string) bool { return s.verified == nil || s.verified(issuer) }

// Sign signs what the broker asks.
func (s *Standing) Sign(nonce []byte) ([]byte, error) { return s.Current().Sign(nonce) }

// Inbox is the prefix of the holder's inboxes.
func (s *Standing) Inbox() string { return s.Current().Inbox() }

// Current is the latest credential.
func (s *Standing) Current() Credential {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Health says how a credential stands, and why it was not renewed when that failed.
func (s *Standing) Health() (Health, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return HealthOf(s.current.Issued, s.current.Expires, s.now()), s.err
}

// Run renews until ctx ends or the gate is closed for good. It never gives up before: what cannot be renewed
// now may be in a moment, and until its end the credential is good.
func (s *Standing) Run(ctx context.Context) {
	for {
		again := s.again.next()
		s.mu.Lock()
		wait, failed, issuer := nextRenewal(s.current.Issued, s.current.Expires, s.now(), s.failed), s.failed > 0, s.current.issuer
		s.mu.Unlock()
		if !failed && !s.letIn(issuer) {
			wait = 0 // the key that signed it was taken away: nobody lets it in any more, whatever its end
		}
		// Not all at once, where many were minted together.
		wait += time.Duration(rand.Int64N(int64(wait/20) + 1))
		t := time.NewTimer(min(wait, renewalLook))
		select {
		case <-t.C:
			if wait > renewalLook {
				continue // a clock that was set, or a machine that slept, is seen within a minute
			}
		case <-s.asked:
			t.Stop()
		case <-again:
			t.Stop()
			if !failed {
				continue
			}
			if !s.spread(ctx) {
				return
			}
		case <-ctx.Done():
			t.Stop()
			return
		}
		if err := s.Renew(ctx); errors.Is(err, ErrGate) && s.ended() {
			return
		}
	}
}

// spread waits for a moment, and not all wait for the same: everybody who has failed is told in the same instant that the
// broker is back, and each renewal is a few connections. Who is asked for a credential waits no longer. It reports
// whether there is anything left to wait for.
func (s *Standing) spread(ctx context.Context) bool {
	t := time.NewTimer(rand.N(renewalSpread))
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.asked:
	case <-ctx.Done():
		return false
	}
	return true
}

// ended reports whether the last attempt found that the life is over.
func (s *Standing) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// Renew mints a successor now. The last good credential stays in place until the new one is whole.
//
// Errors: as of Mint, and what Deliver returns.
func (s *Standing) Renew(ctx context.Context) error {
	c, err := s.auth.Mint(ctx, s.req)
	if err == nil && s.deliver != nil {
		err = s.deliver(ctx, c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed++
		s.err = fmt.Errorf("renew %s: %w", s.req.Profile, err)
		s.over = errors.Is(err, ErrRetired)
		return s.err
	}
	s.current, s.failed, s.err = c, 0, nil
	return nil
}

// Bounds of renewal.
const (
	// renewalShare of its life is over when a credential is renewed, in per cent.
	renewalShare = 75
	// renewalLook is how long a wait is at most before the clock is looked at again.
	renewalLook = time.Minute
	// renewalRetry is the first wait after a failure; it doubles up to renewalPause, and the rest of the life has
	// room for renewalTries of them.
	renewalRetry = time.Second
	renewalPause = 5 * time.Minute
	renewalTries = 4
	// renewalSpread is within which all are renewed that have waited for the same broker.
	renewalSpread = time.Second
)

// nextRenewal says how long to wait before the next attempt to renew what was issued and expires then, after
// so many failures in a row. What is past its time is renewed at once, also when it has expired already: its
// holder has been without since, and not everything that fails fails for ever.
func nextRenewal(issued, expires, now time.Time, failed int) time.Duration {
	life := expires.Sub(issued)
	due := issued.Add(life * renewalShare / 100)
	if issued.After(now) && issued.Sub(now) > life {
		// The clock was set back by more than a life: how old the credential is cannot be told.
		due = now
	}
	wait := max(due.Sub(now), 0)
	if failed == 0 {
		return wait
	}
	pause := min(renewalRetry<<min(failed-1, 20), renewalPause)
	// Short lives leave room for a few attempts at least, and expired ones are no reason to hurry.
	if left := expires.Sub(now); left > 0 {
		pause = min(pause, max(left/renewalTries, renewalRetry/10))
	}
	return max(wait, pause)
}

// Health is how a credential stands.
type Health string

// Healths.
const (
	Healthy    Health = "healthy"
	NearExpiry Health = "near-expiry" // at or past 75 % of its life
	Expired    Health = "expired"
	Unbounded  Health = "unbounded"  // it has no end
	Unreadable Health = "unreadable" // an end without a beginning counts as that too
)

// HealthOf judges a credential by its times; a zero time is one that it does not have.
func HealthOf(issued, expires, now time.Time) Health {
	switch {
	case expires.IsZero():
		return Unbounded
	case issued.IsZero() || !issued.Before(expires):
		return Unreadable
	case !now.Before(expires):
		return Expired
	case now.Sub(issued)*100 >= expires.Sub(issued)*renewalShare:
		return NearExpiry
	}
	return Healthy
}

var (
	_ bus.Credentials = (*Standing)(nil)
	_ bus.Credentials = Credential{}
)
