package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
)

// releaseTries is how often a row of ours is deleted at the revision that was read: a late write of our own may come
// in between.
const releaseTries = 2

// Release gives the lease back: no renewal begins from here on, the one that runs is waited for, and the row is
// deleted at the revision that the broker has, if it is this process's own. It never fails; a row that is known to be
// still there is told of in the log. It may be called more than once.
func (l *Lease) Release(ctx context.Context) {
	if !l.halt(ctx) {
		l.cfg.Log.Warn("the renewal of the lease did not end in time; the lease ages by itself", "limit", l.cfg.TTL.String())
		return
	}
	defer l.give()
	l.mu.Lock()
	nothing := l.verdict == Released || l.verdict == Replaced
	l.mu.Unlock()
	if nothing {
		return
	}
	// What the broker has counts: a write whose answer was lost may have moved the revision.
	seen := l.look(ctx)
	for range releaseTries {
		if !seen.ours(l.cfg.Self) {
			break
		}
		_ = fpReleasing.Hit()
		err := l.remove(ctx, seen.Rev)
		_ = fpReleased.Hit()
		seen = l.look(ctx)
		if err == nil || !errors.Is(err, bus.ErrConflict) {
			break
		}
	}
	l.note(Released, seen.Err)
	if seen.ours(l.cfg.Self) {
		l.cfg.Log.Warn("the lease is still there and ages by itself; until then a host of this instance on another machine has to wait for it",
			"instance", l.cfg.Self.InstanceID, "space", l.cfg.Space, "limit", l.cfg.TTL.String())
	}
}

func (l *Lease) remove(ctx context.Context, rev uint64) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Attempt)
	defer cancel()
	if err := l.cfg.Store.Delete(ctx, l.cfg.Self.InstanceID, rev); err != nil {
		return fmt.Errorf("release lease: %w", err)
	}
	return nil
}

// Abandon ends the renewals and leaves the row to age: of a stop that could not prove the end of every seat. It waits
// for the renewal that runs.
func (l *Lease) Abandon(ctx context.Context) {
	if !l.halt(ctx) {
		return
	}
	defer l.give()
	l.note(Released, errors.New("left to age"))
}

// halt begins the end of the lease, and has the turn when it returns true. The flag comes first: neither a tick nor a
// renewal that runs puts the row back once it is set.
func (l *Lease) halt(ctx context.Context) bool {
	l.mu.Lock()
	l.stopping = true
	stop := l.stop
	l.announce()
	l.mu.Unlock()
	had := l.take(ctx)
	if stop != nil {
		stop() // what waits ends; what exchanges with the store has ended, or its time is over
	}
	if had {
		return true
	}
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return l.take(limit)
}

// Wait returns when no renewal runs any more.
func (l *Lease) Wait() { l.kept.Wait() }
