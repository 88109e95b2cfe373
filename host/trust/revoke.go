package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Places where a revocation may be cut short. Called again, it goes on.
var (
	fpRowsRevoked = failpoint.New("host.revoke.rows")   // the ledger says revoked, the servers do not know
	fpPushed      = failpoint.New("host.revoke.pushed") // the servers refuse the keys, connections may live
	fpEvicted     = failpoint.New("host.revoke.evicted")
	fpLearned     = failpoint.New("host.revoke.learned") // a push knows what the servers refuse, and has told them nothing
)

// Bounds of a revocation.
const (
	rowsAtOnce  = 16 // rows written, and connections ended, at a time
	evictRounds = 6
	evictPause  = 50 * time.Millisecond // a server that was told to end a connection has a moment to do so
	pushRounds  = 6
	pushPause   = 50 * time.Millisecond // whoever else tells the servers has a moment to come to the end
	pushAhead   = 3 * time.Second       // a clock is at most that far ahead to be waited for
)

// Revoke ends every credential of a life; of the host's own instance every one that this process has not minted. What
// cannot be done now keeps nothing else from being done: the credential that is to end is one that works.
func (a *Static) Revoke(ctx context.Context, of Life) (Revoked, error) {
	var r Revoked
	if err := of.check(); err != nil {
		return r, err
	}
	holders, err := a.revokeRows(ctx, of)
	errs := []error{err}
	if err != nil && of.Actor != "" {
		holders["local."+of.Actor] = family{} // whatever it was that could not be read
	}
	for h, c := range holders {
		r.Holders = append(r.Holders, h)
		r.Credentials += c.credentials
	}
	slices.Sort(r.Holders)
	var keys []string
	until := map[string]time.Time{}
	for _, h := range r.Holders {
		p, perr := wire.PrincipalOf(h)
		if perr != nil || !nkeys.IsValidPublicUserKey(p.Actor) {
			errs = append(errs, fmt.Errorf("%w: holder %s is not known by its key; another authority made it, and has to end it", ErrUnverified, h))
			continue
		}
		keys = append(keys, p.Actor)
		if until[p.Actor] = holders[h].until; err != nil {
			until[p.Actor] = a.cfg.Now().Add(MaxLife) // it may have one more, in a row that was not read
		}
	}
	if len(keys) > 0 { // else nothing was ever minted, so nobody holds anything
		errs = append(errs, a.refuse(ctx, keys, until, &r))
	}
	if err := errors.Join(errs...); err != nil {
		return r, fmt.Errorf("revoke credentials of %s: %w", of.UID, err)
	}
	return r, nil
}

// refuse has every server refuse keys, and ends the connections of their holders.
func (a *Static) refuse(ctx context.Context, keys []string, until map[string]time.Time, r *Revoked) error {
	if err := fpRowsRevoked.Hit(); err != nil {
		return err
	}
	if err := a.cfg.Keys.RevokeUntil(ctx, until); err != nil {
		return err
	}
	return a.evict(ctx, keys, r)
}

// family is what one holder has in a family.
type family struct {
	credentials int
	until       time.Time // the end of the last of them
}

// revokeRows marks every row of a family, and returns what each holder has in it, the credentials that were marked
// before included: whoever marked them may not have come to the end. With an error these are the ones that are known.
func (a *Static) revokeRows(ctx context.Context, of Life) (map[string]family, error) {
	holders := map[string]family{}
	filter, err := of.family()
	if err != nil {
		return holders, err
	}
	return holders, a.asExecutorOf(ctx, of, func(rec *bus.Records) error {
		rows, err := rec.Scan(ctx, filter)
		if err != nil && len(rows) == 0 {
			return err
		}
		all := inParallel{errs: []error{err}}
		for _, row := range rows {
			c, err := wire.DecodeCredentialRow(row.Key, row.Value)
			if err != nil {
				all.add(fmt.Errorf("%w: %w", bus.ErrCorrupt, err))
				continue
			}
			if of == a.own() && a.minted.has(c) {
				continue
			}
			h := holders[c.HolderPrincipal]
			h.credentials++
			if end := time.UnixMilli(c.Exp); end.After(h.until) {
				h.until = end
			}
			holders[c.HolderPrincipal] = h
			if c.State == wire.CredentialActive {
				all.Go(func() error { return a.markRevoked(ctx, rec, row.Key) })
			}
		}
		return all.Wait()
	})
}

// inParallel does rowsAtOnce things at a time. One that fails keeps none of the others from being done.
type inParallel struct {
	g    errgroup.Group
	once sync.Once
	mu   sync.Mutex
	errs []error
}

func (p *inParallel) add(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs = append(p.errs, err)
}

func (p *inParallel) Go(do func() error) {
	p.once.Do(func() { p.g.SetLimit(rowsAtOnce) })
	p.g.Go(func() error {
		p.add(do())
		return nil
	})
}

// Wait returns all errors, once everything is done.
func (p *inParallel) Wait() error {
	_ = p.g.Wait() // nil: see Go
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.errs...)
}

// asExecutorOf runs do with the rows of a life.
func (a *Static) asExecutorOf(ctx context.Context, of Life, do func(*bus.Records) error) error {
	switch {
	case of == a.own():
		return a.asExecutor(ctx, Scope{}, do)
	case of.Endpoint != "":
		return fmt.Errorf("%w: instance %s of %s is another host's", ErrRefused, of.UID, of.Endpoint)
	}
	// Which principal the life belongs to does not matter for its ledger; the head of none is granted.
	return a.asExecutor(ctx, Scope{Target: wire.Caller{Owner: wire.OwnerLocal, Actor: "_", UID: of.UID}}, do)
}

// markRevoked marks one row, which stays until its credential's end.
func (a *Static) markRevoked(ctx context.Context, rec *bus.Records, key wire.Key) error {
	return a.mark(ctx, rec, key, MaxLife)
}

// mark marks one row as revoked, and keeps it for as long as its credential lasts, but at most for keep. There is no way
// back, so a lost race is a race that another revocation won.
func (a *Static) mark(ctx context.Context, rec *bus.Records, key wire.Key, keep time.Duration) error {
	for range gateTries {
		row, err := rec.Get(ctx, key)
		if errors.Is(err, bus.ErrAbsent) {
			return nil // its end came, and with it the credential's
		}
		if err != nil {
			return err
		}
		c, err := wire.DecodeCredentialRow(key, row.Value)
		if err != nil {
			return fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
		}
		if c.State == wire.CredentialRevoked {
			return nil
		}
		c.State = wire.CredentialRevoked
		value, err := c.Encode()
		if err != nil {
			return err
		}
		_, err = rec.UpdateFor(ctx, key, value, row.Rev, min(keep, time.UnixMilli(c.Exp).Sub(a.cfg.Now())))
		if !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: the row changes all the time", bus.ErrConflict)
}

// PushAccount gives every server of the broker the account of the space as the keys have it, and returns how
// many there are.
//
// Errors: ErrUnverified, as of Mint.
func (a *Static) PushAccount(ctx context.Context) (int, error) {
	n := 0
	push := func(sys *bus.System) error {
		var err error
		n, err = a.push(ctx, sys)
		return err
	}
	err := a.asEvictor(ctx, push)
	if n == 0 && errors.Is(err, bus.ErrNotWritten) {
		// Before a space is set up there is no ledger, and nothing in it that could be revoked. A server may have to
		// be told of a key before one can be made.
		var c Credential
		if c, _, err = a.draft(Request{Profile: Evictor}); err == nil {
			err = a.use(ctx, c, func(_ context.Context, b *bus.Bus) error { return push(b.System()) })
		}
	}
	return n, err
}

// push tells the servers, and looks what they have then: another one tells them too, by the same keys or by a copy of
// them, and of two who do so at once the later one counts, whatever it knew.
func (a *Static) push(ctx context.Context, sys *bus.System) (int, error) {
	select {
	case a.pushing <- struct{}{}:
		defer func() { <-a.pushing }()
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: another push does not end: %w", ErrUnverified, context.Cause(ctx))
	}
	if _, err := a.learn(ctx, sys); err != nil {
		return 0, err
	}
	if err := fpLearned.Hit(); err != nil {
		return 0, err
	}
	why := ""
	for round := range pushRounds {
		b, err := a.cfg.Keys.Bundle() // read in here: whoever comes later pushes what is later
		if err != nil {
			return 0, err
		}
		n, err := sys.PushAccount(ctx, b.Account, b.Accounts[b.Account])
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrUnverified, err)
		}
		have, err := a.learn(ctx, sys)
		if err != nil {
			return 0, err
		}
		now, err := a.cfg.Keys.Bundle()
		if err != nil {
			return 0, err
		}
		var ahead time.Duration
		if why, ahead, err = untold(b.Accounts[b.Account], now.Accounts[now.Account], have); err != nil {
			return 0, err
		}
		if why == "" {
			return n, a.cfg.Keys.Activate(ctx, b.Signing)
		}
		select {
		case <-time.After(max(pushPause<<round, min(ahead, pushAhead))):
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: %s: %w", ErrUnverified, why, context.Cause(ctx))
		}
	}
	return 0, fmt.Errorf("%w: %s", ErrUnverified, why)
}

// untold says why the servers have to be told once more; empty: they need not be. pushed is what they were told, want
// what there is to tell by now, and have what each has. ahead is how far the clock was ahead by which one of them was signed that
// a server keeps instead of ours.
func untold(pushed, want string, have []string) (why string, ahead time.Duration, err error) {
	last, err := jwt.DecodeAccountClaims(pushed)
	if err != nil {
		return "", 0, fmt.Errorf("read account: %w", err)
	}
	ours, err := jwt.DecodeAccountClaims(want)
	if err != nil {
		return "", 0, fmt.Errorf("read account: %w", err)
	}
	if !slices.Equal(sorted(last.SigningKeys.Keys()), sorted(ours.SigningKeys.Keys())) || refusesLess(last, ours) {
		return "the keys change all the time", 0, nil
	}
	for _, token := range have {
		theirs, err := jwt.DecodeAccountClaims(token)
		switch {
		case err != nil:
			why = "a server does not keep what it is told of the account"
		case refusesLess(theirs, ours):
			why = "a server refuses less than it was told to: another host tells it something else"
			if theirs.IssuedAt > last.IssuedAt {
				why += ", by a clock that is ahead of the one here"
				ahead = max(ahead, time.Duration(theirs.IssuedAt-last.IssuedAt)*time.Second)
			}
		}
	}
	return why, ahead, nil
}

func sorted(keys []string) []string {
	slices.Sort(keys)
	return keys
}

// refusesLess reports whether an account lets in what another one refuses.
func refusesLess(a, than *jwt.AccountClaims) bool {
	for key, end := range than.Revocations {
		if have, ok := a.Revocations[key]; !ok || have < end {
			return true
		}
	}
	return false
}

// learn takes over what the servers refuse already, which a push would let in again otherwise. A server that has not
// heard of the account refuses nobody. It returns the account as each server has it.
func (a *Static) learn(ctx context.Context, sys *bus.System) ([]string, error) {
	account, err := a.cfg.Keys.account()
	if err != nil {
		return nil, err
	}
	have, err := sys.LookUpAccount(ctx, account)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnverified, err)
	}
	for i, token := range have {
		if token != "" && !slices.Contains(have[:i], token) {
			if err := a.cfg.Keys.Learn(ctx, token); err != nil {
				return nil, err
			}
		}
	}
	return have, nil
}

// remind tells the servers again where one of them refuses less than this store says, and reports whether one did.
func (a *Static) remind(ctx context.Context, sys *bus.System) (bool, error) {
	have, err := a.learn(ctx, sys)
	if err != nil {
		return false, err
	}
	b, err := a.cfg.Keys.Bundle()
	if err != nil {
		return false, err
	}
	why, _, err := untold(b.Accounts[b.Account], b.Accounts[b.Account], have)
	if err != nil || why == "" {
		return false, err
	}
	a.cfg.Log.Warn("the servers are told again which keys are refused", "reason", why)
	_, err = a.push(ctx, sys)
	return true, err
}

// Remind looks once in a while whether the servers still refuse what they were told to, until ctx ends: who has a copy of
// the keys, and was held up while it told them of the account, has undone since what it did not know. Nobody has a copy
// of those of an embedded broker.
func (a *Static) Remind(ctx context.Context) {
	if a.cfg.Reach.InProcess != nil {
		return
	}
	t := time.NewTicker(renewalLook)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if err := a.remindOnce(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Log.Debug("whether the servers refuse what they were told to is not known", "err", err)
		}
	}
}

func (a *Static) remindOnce(ctx context.Context) error {
	revoked, err := a.cfg.Keys.readRevoked()
	if err != nil || len(prunedRevocations(revoked, a.cfg.Now()).Revoked) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewalLook)
	defer cancel()
	return a.asEvictor(ctx, func(sys *bus.System) error {
		_, err := a.remind(ctx, sys)
		return err
	})
}

// asEvictor runs do over a one-shot connection to the system account. Its ledger row is written like any
// other's, in the family of the host's instance.
func (a *Static) asEvictor(ctx context.Context, do func(*bus.System) error) error {
	return a.With(ctx, Request{Profile: Evictor}, func(_ context.Context, b *bus.Bus) error { return do(b.System()) })
}

// evict makes the servers refuse keys and proves that nobody with one of them is connected anywhere: two looks in a row
// find nobody, and in between every server refuses the keys still. One look may come between the last word of a server
// that lets somebody in and its list of those who are.
func (a *Static) evict(ctx context.Context, keys []string, r *Revoked) error {
	return a.asEvictor(ctx, func(sys *bus.System) error {
		var err error
		if r.Servers, err = a.push(ctx, sys); err != nil {
			return err
		}
		if err := fpPushed.Hit(); err != nil {
			return err
		}
		account, err := a.cfg.Keys.account()
		if err != nil {
			return err
		}
		nobody := false
		for round := range evictRounds {
			left, _, err := a.connected(ctx, sys, account, keys)
			if err != nil {
				return err
			}
			if len(left) == 0 {
				if nobody {
					return fpEvicted.Hit()
				}
				again, err := a.remind(ctx, sys)
				if err != nil {
					return err
				}
				nobody = !again
				continue
			}
			nobody = false
			if round > 0 {
				select {
				case <-time.After(evictPause << round):
				case <-ctx.Done():
					return fmt.Errorf("%w: %w", ErrUnverified, context.Cause(ctx))
				}
			}
			g, gctx := errgroup.WithContext(ctx)
			g.SetLimit(rowsAtOnce)
			for _, c := range left {
				g.Go(func() error { return sys.Kick(gctx, c) })
			}
			if err := g.Wait(); err != nil {
				return fmt.Errorf("%w: %w", ErrUnverified, err)
			}
			r.Ended += len(left)
		}
		return fmt.Errorf("%w: connections of the holders come back", ErrUnverified)
	})
}

// connected lists the connections of keys on every server, and says how many servers there are.
func (a *Static) connected(ctx context.Context, sys *bus.System, account string, keys []string) ([]bus.Conn, int, error) {
	all, servers, err := sys.Connections(ctx, account)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrUnverified, err)
	}
	all = slices.DeleteFunc(all, func(c bus.Conn) bool { return !slices.Contains(keys, c.User) })
	return all, servers, nil
}

// Live looks for connections of a principal on every server.
func (a *Static) Live(ctx context.Context, p wire.Principal) (Liveness, error) {
	if !nkeys.IsValidPublicUserKey(p.Actor) || p.Owner != wire.OwnerLocal {
		return Unknown, fmt.Errorf("look for %s: %w: it is not known by its key", p, ErrUnverified)
	}
	verdict := Unknown
	err := a.asEvictor(ctx, func(sys *bus.System) error {
		account, err := a.cfg.Keys.account()
		if err != nil {
			return err
		}
		found, _, err := a.connected(ctx, sys, account, []string{p.Actor})
		switch {
		case err != nil:
			return err
		case len(found) > 0:
			verdict = Live
		default:
			verdict = Gone
		}
		return nil
	})
	if err != nil {
		return Unknown, fmt.Errorf("look for %s: %w", p, err)
	}
	return verdict, nil
}
