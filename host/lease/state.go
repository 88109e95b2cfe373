package lease

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Status is how this process stands to its lease.
type Status struct {
	Verdict Verdict
	Why     string        // the verdict, where something is wrong
	For     time.Duration // how long it has been so
	// Renewed is how long ago the last acknowledged renewal began; negative: there was none.
	Renewed time.Duration
	// Fenced says why nothing new may be started; empty when it may.
	Fenced string
}

// Status returns how it is now.
func (l *Lease) Status() Status {
	at := l.cfg.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	st := Status{Verdict: l.verdict, Why: l.why, For: at.Since(l.entered), Renewed: -1}
	if l.ever {
		st.Renewed = at.Since(l.renewed)
	}
	if err := l.check(at); err != nil {
		st.Fenced = err.Error()
	}
	return st
}

// Check says whether something new may be started now: the lease was renewed less than a TTL ago, and no other
// incarnation has been there since it was away.
//
// Errors: ErrUnproven, ErrReleased, or that of the loss.
func (l *Lease) Check() error {
	at := l.cfg.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.check(at)
}

// check decides under mu.
func (l *Lease) check(at Moment) error {
	switch {
	case l.lost != nil:
		return l.lost
	case l.stopping:
		return ErrReleased
	case !l.ever:
		return fmt.Errorf("%w: it could not be acquired yet%s", ErrUnproven, l.because())
	case at.Since(l.renewed) >= l.cfg.TTL:
		return fmt.Errorf("%w: it was last renewed %s ago, and is over after %s%s", ErrUnproven,
			at.Since(l.renewed).Round(time.Millisecond), l.cfg.TTL, l.because())
	case l.verdict == Gone:
		return fmt.Errorf("%w: it was gone, and is being acquired again", ErrUnproven)
	case !l.checked:
		return fmt.Errorf("%w: it was gone and is held again, and the registry has not said yet that no other host was there", ErrUnproven)
	}
	return nil
}

func (l *Lease) because() string {
	if l.why == "" {
		return ""
	}
	return " (" + l.why + ")"
}

// Await waits until something new may be started.
//
// Errors: ErrReleased, that of the loss; ErrUnproven with the error of ctx.
func (l *Lease) Await(ctx context.Context) error {
	for {
		at := l.cfg.Now()
		l.mu.Lock()
		err, changed := l.check(at), l.changed
		l.mu.Unlock()
		if !errors.Is(err, ErrUnproven) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// over reports whether this process has nothing more to write.
func (l *Lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopping || l.lost != nil
}

func (l *Lease) revision() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rev
}

// confirm takes an acknowledged write that began at a moment.
func (l *Lease) confirm(rev uint64, begin Moment) {
	l.mu.Lock()
	l.rev, l.renewed, l.ever = rev, begin, true
	tell := l.enter(Held, "")
	l.announce()
	l.mu.Unlock()
	tell()
}

// adopt takes the revision that was read: of our own row, or of what a dead process left, or none. A read is no
// renewal; it is to be written again.
func (l *Lease) adopt(v Verdict, rev uint64, cause error) {
	l.mu.Lock()
	l.rev = rev
	if v == Gone {
		l.checked = false
	}
	tell := l.enter(v, text(cause))
	l.mu.Unlock()
	tell()
}

// note changes the verdict, and nothing else.
func (l *Lease) note(v Verdict, cause error) {
	l.mu.Lock()
	tell := l.enter(v, text(cause))
	l.mu.Unlock()
	tell()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// enter changes the verdict under mu, and returns what tells of it, for behind mu. A verdict that stays is told of
// once. Every time that the lease was gone is a fact, also when it is held again in the same breath.
func (l *Lease) enter(v Verdict, why string) (tell func()) {
	l.why = why
	if l.verdict == v {
		return func() {}
	}
	was := l.verdict
	l.verdict, l.entered = v, l.cfg.Now()
	return func() {
		log := l.cfg.Log.With("was", string(was), "state", string(v))
		switch v {
		case Held:
			if was == Unheld || was == HeldUnrenewed {
				log.Info("the lease of this instance is held")
			} else {
				log.Warn("the lease of this instance is held again")
			}
		case HeldUnrenewed:
			log.Info("a renewal of the lease was not acknowledged; the lease is ours, and is renewed again", "err", why)
		case Gone:
			log.Warn("the lease of this instance was gone; it is acquired again, and nothing new is started before", "err", why)
		case Unreadable:
			log.Warn("the lease of this instance cannot be read; once it is over nothing new is started, and seats go on", "err", why)
		}
	}
}

// announce wakes those who wait. The caller holds mu.
func (l *Lease) announce() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// lose ends the lease: it is another process's. Whoever is stopping is not told.
func (l *Lease) lose(err error) {
	l.mu.Lock()
	told := l.lost != nil || l.stopping
	if l.lost == nil {
		l.lost = err
	}
	tell := l.enter(Replaced, err.Error())
	l.announce()
	l.mu.Unlock()
	tell()
	if !told && l.cfg.Lost != nil {
		go l.cfg.Lost(err)
	}
}
