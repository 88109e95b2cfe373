package mesh

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Roster is a live view of who is present in a space. Make one with WatchPresence; it goes on over losses of
// the server when its client does.
//
// A participant is there while its record is renewed. It is gone when it said so, when its record was deleted,
// or when the view went on hearing the server for a whole presence window without hearing of it: by the clocks
// of the server and of this process, never by the ts of the record, because clocks of a fleet differ by more
// than a window. A view that hears nothing itself takes nobody for gone.
type Roster struct {
	opts rosterOptions
	w    *watch

	mu      sync.Mutex
	st      rosterState
	shown   listing
	dirty   bool          // the listing has to be made anew
	beats   bool          // it differs by heartbeats only, which can wait for beatLag
	listed  time.Time     // when it was made
	state   string        // that was last announced
	changed chan struct{} // closed by the next change
	ready   chan struct{} // closed when the view is populated
	bad     map[string]string

	kick chan struct{} // the earliest moment at which something changes has moved forward
	stop chan struct{}
	once sync.Once
	done chan struct{}
}

// View is what a Roster knew at one moment. Nothing of it may be modified.
type View struct {
	// Rows, by name and then by id. Whoever is gone is in it as StatusOffline, for as long as the view
	// remembers; of a view that is not current it may be wrong.
	Rows []wire.Presence
	// State is ViewCurrent, ViewStale or ViewUnpopulated. Only in a current view is it a verdict that somebody
	// is offline or missing.
	State string
	// At is when the server last said something about presence, by the clock of this process.
	At time.Time

	shown listing
}

// Row returns the record of a principal (dot form), and whether the view has one.
func (v View) Row(principal string) (wire.Presence, bool) {
	if v.shown.index != nil {
		i, ok := v.shown.index[principal]
		if !ok {
			return wire.Presence{}, false
		}
		return v.shown.rows[i], true
	}
	i := slices.IndexFunc(v.Rows, func(p wire.Presence) bool { return p.Card.ID == principal })
	if i < 0 {
		return wire.Presence{}, false
	}
	return v.Rows[i], true
}

// SeenAt is when the record of a principal was last renewed, by the clock of this process; zero without one.
func (v View) SeenAt(principal string) time.Time { return v.seen(principal).beat }

func (v View) seen(principal string) seen {
	i, ok := v.shown.index[principal]
	if !ok {
		return seen{}
	}
	return v.shown.times[i]
}

// OfflineSince is since when a principal is gone; zero when it is there, was never seen, or when the view is
// not current.
func (v View) OfflineSince(principal string) time.Time {
	if v.State != ViewCurrent {
		return time.Time{}
	}
	return v.seen(principal).offline
}

type rosterOptions struct {
	settling bool
	rejected func(key string, err error)
}

// A RosterOption changes how a roster watches.
type RosterOption func(*rosterOptions)

// Settling is for who knows that the server has only just started: everybody may still be on the way back, so
// the view begins stale, for ten seconds.
func Settling() RosterOption { return func(o *rosterOptions) { o.settling = true } }

// OnRejected is told of every record that is not believed: one that cannot be read, or that somebody wrote
// under the key of somebody else. It is told once for as long as the reason stays the same, and must not block.
func OnRejected(f func(key string, err error)) RosterOption {
	return func(o *rosterOptions) { o.rejected = f }
}

// WatchPresence begins to watch the presence of the client's space. It returns as soon as the server has the
// watch; Ready waits for those who were there already. ctx bounds the start only; Close ends the roster, and so
// does the end of the client.
//
// Errors: ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed.
func (c *Client) WatchPresence(ctx context.Context, opts ...RosterOption) (*Roster, error) {
	r := newRoster(opts...)
	var err error
	if r.w, err = c.startWatch(ctx, c.bucket(wire.BucketPresence), r); err != nil {
		return nil, fmt.Errorf("watch presence of %s: %w", c.cfg.Space, err)
	}
	go func() {
		<-r.w.done
		r.end()
	}()
	go r.run()
	return r, nil
}

func newRoster(opts ...RosterOption) *Roster {
	r := &Roster{
		state: ViewUnpopulated, changed: make(chan struct{}), ready: make(chan struct{}), kick: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{}), bad: map[string]string{},
	}
	for _, o := range opts {
		o(&r.opts)
	}
	return r
}

// beatLag is how late a view may show a heartbeat that says nothing new: a large space has hundreds a second.
const beatLag = wire.PresenceHeartbeat / 8

// View returns what is known now. It is cheap, and answers at once whatever the server does. Heartbeats that say
// nothing new are in it a quarter of a second later at most.
func (r *Roster) View() View {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.st.due(now) {
		r.advance(now, false)
	}
	if r.dirty || r.beats && now.Sub(r.listed) >= beatLag {
		r.shown, r.dirty, r.beats, r.listed = r.st.list(r.shown), false, false, now
	}
	return View{Rows: r.shown.rows, State: r.st.state(now), At: r.st.heard, shown: r.shown}
}

// Changed returns a channel that is closed when next somebody comes, goes or changes more than its heartbeat,
// or the state of the view changes, or the roster ends. Ask for it before View, and again after each change.
func (r *Roster) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Ready waits until everybody who was there at the beginning is in the view. An empty space is ready at once.
//
// Errors: ctx's, ErrClosed.
func (r *Roster) Ready(ctx context.Context) error {
	select {
	case <-r.ready:
		return nil
	default:
	}
	select {
	case <-r.ready:
		return nil
	case <-r.stop:
		return fmt.Errorf("wait for presence: %w", ErrClosed)
	case <-ctx.Done():
		return fmt.Errorf("wait for presence: %w", ctx.Err())
	}
}

// Await waits until match accepts a row, and returns it. Rows that are in the view already count; those who
// are gone are shown too, as StatusOffline. match is called for every row, again after every change and for
// heartbeats that say nothing new a few times a second; it must not call the roster.
//
// Errors: ctx's, ErrClosed.
func (r *Roster) Await(ctx context.Context, match func(wire.Presence) bool) (wire.Presence, error) {
	beats := time.NewTicker(beatLag)
	defer beats.Stop()
	for {
		changed := r.Changed() // before the look: what comes in between is not lost
		for _, p := range r.View().Rows {
			if match(p) {
				return p, nil
			}
		}
		select {
		case <-changed:
		case <-beats.C:
		case <-r.stop:
			return wire.Presence{}, fmt.Errorf("await presence: %w", ErrClosed)
		case <-ctx.Done():
			return wire.Presence{}, fmt.Errorf("await presence: %w", ctx.Err())
		}
	}
}

// Done is closed when the roster watches no more: after Close, or when the connection has ended for good. What
// it knew can still be viewed, and grows stale.
func (r *Roster) Done() <-chan struct{} { return r.stop }

// Close ends the watch.
func (r *Roster) Close() {
	r.end()
	if r.w != nil {
		r.w.close()
	}
	<-r.done
}

func (r *Roster) end() { r.once.Do(func() { close(r.stop) }) }

// run lets time pass.
func (r *Roster) run() {
	defer close(r.done)
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		r.mu.Lock()
		now := time.Now()
		if r.st.due(now) {
			r.advance(now, false)
		}
		wait := time.Hour
		if next := r.st.next; next.After(now) {
			wait = next.Sub(now)
		}
		r.mu.Unlock()
		t.Reset(wait)
		select {
		case <-r.stop:
			r.mu.Lock()
			r.announce()
			r.mu.Unlock()
			return
		case <-r.kick:
		case <-t.C:
		}
	}
}

// advance brings the view up to now; r.mu is held. Whoever waits is woken when it differs.
func (r *Roster) advance(now time.Time, changed bool) {
	before := r.st.next
	st := r.st.state(now)
	if (st != r.state || r.st.due(now)) && r.st.tick(now) {
		changed = true
	}
	r.dirty = r.dirty || changed
	if st != r.state {
		r.state, changed = st, true
	}
	if changed {
		r.announce()
	}
	if r.st.next != before {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}
}

func (r *Roster) announce() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Roster) armed(again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.st.armed(again || r.opts.settling, now)
	r.advance(now, false)
}

func (r *Roster) heard() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.st.hear(now)
	r.advance(now, false)
}

func (r *Roster) populated() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.st.full {
		r.st.full = true
		close(r.ready)
	}
	now := time.Now()
	r.st.next = now
	r.advance(now, false)
}

func (r *Roster) record(key string, deleted bool, value []byte, age time.Duration) {
	var p wire.Presence
	var err error
	if !deleted {
		p, err = wire.DecodePresence(key, value)
	}
	if err != nil {
		r.reject(key, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.bad, key)
	now := time.Now()
	changed := false
	if deleted {
		changed = r.st.remove(key, now)
	} else {
		changed = r.st.put(key, p, age, now)
		r.beats = true
	}
	r.advance(now, changed)
}

// reject drops a record, and tells of it unless it was told of the same one before.
func (r *Roster) reject(key string, err error) {
	r.mu.Lock()
	told := r.bad[key] == err.Error()
	if len(r.bad) > keepOffline {
		clear(r.bad)
	}
	r.bad[key] = err.Error()
	r.mu.Unlock()
	if !told && r.opts.rejected != nil {
		r.opts.rejected(key, err)
	}
}
