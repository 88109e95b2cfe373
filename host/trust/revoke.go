package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
)

// Bounds of a revocation.
const (
	rowsAtOnce  = 16 // rows written, and connections ended, at a time
	evictRounds = 5
	evictPause  = 50 * time.Millisecond // a server that was told to end a connection has a moment to do so
)

// Revoke ends every credential of a life; of the host's own instance every one that this process has not minted.
func (a *Static) Revoke(ctx context.Context, of Life) (Revoked, error) {
	var r Revoked
	if err := of.check(); err != nil {
		return r, err
	}
	holders, err := a.revokeRows(ctx, of)
	if err != nil {
		return r, fmt.Errorf("revoke credentials of %s: %w", of.UID, err)
	}
	for h, c := range holders {
		r.Holders = append(r.Holders, h)
		r.Credentials += c.credentials
	}
	slices.Sort(r.Holders)
	if len(r.Holders) == 0 {
		return r, nil // nothing was ever minted, so nobody holds anything
	}
	var keys []string
	until := map[string]time.Time{}
	for _, h := range r.Holders {
		p, err := wire.PrincipalOf(h)
		if err != nil || !nkeys.IsValidPublicUserKey(p.Actor) {
			return r, fmt.Errorf("revoke credentials of %s: %w: holder %s is not known by its key; another authority made it, and has to end it", of.UID, ErrUnverified, h)
		}
		keys = append(keys, p.Actor)
		until[p.Actor] = holders[h].until
	}
	if err := fpRowsRevoked.Hit(); err != nil {
		return r, err
	}
	if err := a.cfg.Keys.RevokeUntil(ctx, until); err != nil {
		return r, fmt.Errorf("revoke credentials of %s: %w", of.UID, err)
	}
	if err := a.evict(ctx, keys, &r); err != nil {
		return r, fmt.Errorf("revoke credentials of %s: %w", of.UID, err)
	}
	return r, nil
}

// family is what one holder has in a family.
type family struct {
	credentials int
	until       time.Time // the end of the last of them
}

// revokeRows marks every row of a family, and returns what each holder has in it, the credentials that were marked
// before included: whoever marked them may not have come to the end.
func (a *Static) revokeRows(ctx context.Context, of Life) (map[string]family, error) {
	filter, err := of.family()
	if err != nil {
		return nil, err
	}
	holders := map[string]family{}
	return holders, a.asExecutorOf(ctx, of, func(rec *bus.Records) error {
		rows, err := rec.Scan(ctx, filter)
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(rowsAtOnce)
		for _, row := range rows {
			c, err := wire.DecodeCredentialRow(row.Key, row.Value)
			if err != nil {
				return fmt.Errorf("%w: %w", bus.ErrCorrupt, err)
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
				g.Go(func() error { return a.markRevoked(gctx, rec, row.Key) })
			}
		}
		return g.Wait()
	})
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

func (a *Static) push(ctx context.Context, sys *bus.System) (int, error) {
	select {
	case a.pushing <- struct{}{}:
		defer func() { <-a.pushing }()
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: another push does not end: %w", ErrUnverified, context.Cause(ctx))
	}
	if err := a.learn(ctx, sys); err != nil {
		return 0, err
	}
	b, err := a.cfg.Keys.Bundle() // read in here: whoever comes later pushes what is later
	if err != nil {
		return 0, err
	}
	n, err := sys.PushAccount(ctx, b.Account, b.Accounts[b.Account])
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUnverified, err)
	}
	if err := a.cfg.Keys.Activate(ctx, b.Signing); err != nil {
		return 0, err
	}
	return n, nil
}

// learn takes over what the servers refuse already, which a push would let in again otherwise. A server that has not
// heard of the account refuses nobody.
func (a *Static) learn(ctx context.Context, sys *bus.System) error {
	account, err := a.cfg.Keys.account()
	if err != nil {
		return err
	}
	token, err := sys.LookUpAccount(ctx, account)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnverified, err)
	}
	if token == "" {
		return nil
	}
	return a.cfg.Keys.Learn(ctx, token)
}

// asEvictor runs do over a one-shot connection to the system account. Its ledger row is written like any
// other's, in the family of the host's instance.
func (a *Static) asEvictor(ctx context.Context, do func(*bus.System) error) error {
	return a.With(ctx, Request{Profile: Evictor}, func(_ context.Context, b *bus.Bus) error { return do(b.System()) })
}

// evict makes the servers refuse keys and proves that nobody with one of them is connected anywhere.
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
		for round := range evictRounds {
			left, _, err := a.connected(ctx, sys, account, keys)
			if err != nil {
				return err
			}
			if len(left) == 0 {
				return fpEvicted.Hit()
			}
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
