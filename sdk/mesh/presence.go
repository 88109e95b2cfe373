package mesh

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// JoinConfig says who joins a space, and how it appears there.
type JoinConfig struct {
	// Card describes the participant. ID may be empty or the principal of the client; Name defaults to the
	// client's Config.Name, Kind to "agent", ProtocolVersion to the one of this package.
	Card wire.AgentCard
	// LifecycleUID is the id of this life; default the client's.
	LifecycleUID string
	// Status is idle (the default), waiting or working.
	Status string
	// Activity says in a few words what is being done. May be empty.
	Activity string
	// Condition is a state that the agent program reported of itself; nil for none.
	Condition *wire.PresenceCondition
	// Environment is an opaque reference of whoever provided the place to run. May be empty.
	Environment string
}

// Presence is a participant's own record on the mesh, kept up by a heartbeat every two seconds until Leave or
// the end of the client. A process that dies without Leave is taken for offline six seconds later.
//
// While the server is lost nothing is published, and changes are kept: the first heartbeat after its return,
// which comes at once, carries them.
type Presence struct {
	c   *Client
	key string

	mu    sync.Mutex
	rec   wire.Presence
	acked time.Time
	err   error

	ask  chan *presenceUpdate
	stop chan struct{} // closed when it is over
	once sync.Once
	done chan struct{}
}

type presenceUpdate struct {
	ctx   context.Context
	edit  func(*wire.Presence)
	leave bool
	reply chan error
}

// Join makes the client's principal present in its space and returns once the server has its record: whoever
// watches can see it from then on. A client joins once; one that joins as a principal other than its own is
// refused before anything is published.
//
// Errors: *wire.FieldError (something in the record), ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed.
func (c *Client) Join(ctx context.Context, cfg JoinConfig) (*Presence, error) {
	rec, err := c.firstRecord(cfg)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", c.cfg.Space, err)
	}
	p := &Presence{
		c: c, key: rec.Card.ID, rec: rec, ask: make(chan *presenceUpdate), stop: make(chan struct{}), done: make(chan struct{}),
	}
	status := c.nc.StatusChanged()
	seq, err := p.publish(ctx, rec, 0)
	if err != nil {
		c.nc.RemoveStatusListener(status)
		return nil, fmt.Errorf("join %s: %w", c.cfg.Space, err)
	}
	go p.run(seq, status)
	return p, nil
}

func (c *Client) firstRecord(cfg JoinConfig) (wire.Presence, error) {
	rec := wire.Presence{
		Card: cfg.Card, Status: cfg.Status, LifecycleUID: cfg.LifecycleUID, Activity: cfg.Activity,
		Condition: cfg.Condition, Environment: cfg.Environment,
	}
	now := time.Now().UnixMilli()
	self := c.caller.Principal()
	card := &rec.Card
	switch {
	case card.ID == "":
		card.ID = self
	case card.ID != self:
		return rec, &wire.FieldError{Field: "card.id", Why: fmt.Sprintf("%q is not %s, who this client is", card.ID, self)}
	}
	card.Name = first(card.Name, c.cfg.Name)
	card.Kind = first(card.Kind, wire.CardAgent)
	card.ProtocolVersion = first(card.ProtocolVersion, wire.ProtocolVersion)
	rec.LifecycleUID = first(rec.LifecycleUID, c.caller.UID)
	rec.Status = first(rec.Status, wire.StatusIdle)
	rec.TS, rec.StatusSince = now, now
	if rec.Activity != "" {
		rec.ActivitySince = now
	}
	if rec.Status == wire.StatusOffline {
		return rec, &wire.FieldError{Field: "status", Why: "is offline: that is said by leaving"}
	}
	_, err := rec.Encode()
	return rec, err
}

// publish writes a record; over is the sequence that it may replace, 0 for any.
func (p *Presence) publish(ctx context.Context, rec wire.Presence, over uint64) (uint64, error) {
	body, err := rec.Encode()
	if err != nil {
		return 0, err
	}
	msg := nats.NewMsg(wire.BucketSubject(p.c.bucket(wire.BucketPresence), p.key))
	msg.Data = body
	if over > 0 {
		msg.Header.Set(wire.HeaderExpectedSeq, strconv.FormatUint(over, 10))
	}
	ack, err := p.c.store(ctx, msg)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; err == nil {
		p.acked = time.Now()
	}
	return ack.Seq, err
}

// run is the only goroutine that publishes, so records go out in the order in which they were made.
func (p *Presence) run(seq uint64, status chan nats.Status) {
	defer close(p.done)
	defer p.over()
	defer p.c.nc.RemoveStatusListener(status)
	beat := time.NewTicker(wire.PresenceHeartbeat)
	defer beat.Stop()
	for {
		var u *presenceUpdate
		select {
		case <-p.c.closed:
			return
		case <-p.stop:
			return
		case <-status:
			if p.c.nc.IsClosed() {
				return
			}
			if !p.c.nc.IsConnected() {
				continue
			}
		case <-beat.C:
		case u = <-p.ask:
		}
		if u != nil && u.leave {
			u.reply <- p.goodbye(u.ctx, seq)
			return
		}
		rec, err := p.next(u)
		if err == nil {
			// Whoever asked may give up waiting; the answer is awaited all the same, since the goodbye names the record
			// that stands.
			var n uint64
			if n, err = p.publish(context.Background(), rec, 0); err == nil {
				seq = n
			}
		}
		if u != nil {
			u.reply <- err
		}
	}
}

// next is the record to publish now.
func (p *Presence) next(u *presenceUpdate) (wire.Presence, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rec := p.rec
	now := time.Now().UnixMilli()
	if u != nil {
		rec.Card.Meta, rec.ChannelModes = maps.Clone(rec.Card.Meta), maps.Clone(rec.ChannelModes)
		if rec.Condition != nil {
			cond := *rec.Condition
			rec.Condition = &cond
		}
		u.edit(&rec)
		// Who it is does not change within a life.
		rec.Card.ID, rec.LifecycleUID = p.rec.Card.ID, p.rec.LifecycleUID
		if rec.Activity != p.rec.Activity {
			rec.ActivitySince = 0
			if rec.Activity != "" {
				rec.ActivitySince = now
			}
		}
		if rec.Status != p.rec.Status || rec.Activity != p.rec.Activity {
			rec.StatusSince = now
		}
		if rec.Status == wire.StatusOffline {
			return rec, &wire.FieldError{Field: "status", Why: "is offline: that is said by leaving"}
		}
		if _, err := rec.Encode(); err != nil {
			return rec, err
		}
	}
	rec.TS = max(now, rec.TS)
	p.rec = rec
	return rec, nil
}

// goodbye writes the last record, unless somebody else has written over ours since.
func (p *Presence) goodbye(ctx context.Context, seq uint64) error {
	rec := p.Record()
	rec.Status, rec.StatusSince, rec.Condition, rec.TS = wire.StatusOffline, 0, nil, time.Now().UnixMilli()
	_, err := p.publish(ctx, rec, seq)
	if conflict(err) {
		return nil
	}
	return err
}

func (p *Presence) over() { p.once.Do(func() { close(p.stop) }) }

func (p *Presence) tell(ctx context.Context, u *presenceUpdate) error {
	u.ctx, u.reply = ctx, make(chan error, 1)
	select {
	case p.ask <- u:
		select {
		case err := <-u.reply:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	case <-p.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Update changes the record and publishes it. edit gets a copy and must not keep it; it cannot change who the
// participant is. statusSince and activitySince follow by themselves. What cannot be published now (any error
// but a *wire.FieldError and ErrClosed) is kept and goes out with the next heartbeat.
//
// Errors: *wire.FieldError, ErrUnreachable, ErrNoReply, ErrNotSetUp, ErrClosed, ctx's.
func (p *Presence) Update(ctx context.Context, edit func(*wire.Presence)) error {
	if err := p.tell(ctx, &presenceUpdate{edit: edit}); err != nil {
		return fmt.Errorf("update presence: %w", err)
	}
	return nil
}

// SetStatus says what the participant does: idle, waiting or working, and a few words that may be empty.
// Errors: those of Update.
func (p *Presence) SetStatus(ctx context.Context, status, activity string) error {
	return p.Update(ctx, func(r *wire.Presence) { r.Status, r.Activity = status, activity })
}

// SetCondition passes on a state that the agent program reported of itself; nil takes it back. Errors: those of
// Update.
func (p *Presence) SetCondition(ctx context.Context, cond *wire.PresenceCondition) error {
	return p.Update(ctx, func(r *wire.Presence) { r.Condition = cond })
}

// Record is the record as it stands, published or about to be.
func (p *Presence) Record() wire.Presence {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rec
}

// Published is when the server last took the record, and the error of the last attempt, nil when that was it.
func (p *Presence) Published() (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acked, p.err
}

// Leave says goodbye: whoever watches sees the participant offline at once. A record that another life of the
// principal has put in its place is left alone. The heartbeat ends whatever the error; a second Leave is fine.
//
// Errors: ErrUnreachable, ErrNoReply, ctx's: then the record ends by itself after six seconds.
func (p *Presence) Leave(ctx context.Context) error {
	err := p.tell(ctx, &presenceUpdate{leave: true})
	p.over()
	<-p.done
	if err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("leave %s: %w", p.c.cfg.Space, err)
	}
	return nil
}
