package bridge

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// receive takes a message in.
func (b *Bridge) receive(m mesh.Message, d *mesh.Delivery) {
	if d == nil && m.Sender.String() == b.l.ID { // what it said itself on a channel that it reads
		return
	}
	b.mu.Lock()
	r := routeOf(arrival{
		kind: m.Kind, mentioned: mentioned(m, b.l.Name), historical: m.Historical, attention: b.attention, mode: b.modes[m.Channel],
	})
	b.mu.Unlock()
	if r == routeDrop {
		return
	}
	if !b.box.put(item{m: m, d: d, urgent: r == routeWake, silent: r == routeSilent, turn: r == routeTurn}) {
		return
	}
	if b.opts.OnMessage != nil {
		b.opts.OnMessage()
	}
	if r == routeWake {
		b.wake()
	}
}

// readDirect reads the direct messages. They stay on the mesh until the agent has read them: what waits here when
// this process ends comes to the next one of the same life.
func (b *Bridge) readDirect(q *mesh.Queue) {
	defer func() { q.Close() }()
	for {
		if room := b.box.full(); room != nil {
			select {
			case <-room:
			case <-b.ctx.Done():
				return
			}
		}
		d, err := q.Next(b.ctx)
		switch {
		case err == nil:
			b.receive(d.Message, &d)
		case b.ctx.Err() != nil:
			return
		default:
			b.log.Warn("cannot read direct messages", "err", err)
			if !b.pause(retryMax) {
				return
			}
			c, merr := b.mesh()
			if merr != nil {
				return
			}
			if again, oerr := c.DirectMessages(b.ctx, mesh.QueueOptions{}); oerr == nil { // the queue was deleted
				q.Close()
				q = again
			}
		}
	}
}

// readTasks reads what is sent to the role, one task at a time and only while the agent is idle: another of the same
// role may have the time. One that is not read here within a while goes to whoever is next; one that somebody has out at
// that moment does not, since a turn may be about to begin with it.
func (b *Bridge) readTasks() {
	c, err := b.mesh()
	if err != nil {
		return
	}
	var q *mesh.Queue
	for q == nil {
		if q, err = c.Tasks(b.ctx, b.l.Role, mesh.QueueOptions{}); err != nil {
			b.log.Warn("cannot read tasks of the role", "role", b.l.Role, "err", err)
			if !b.pause(retryMax) {
				return
			}
		}
	}
	defer func() { q.Close() }()
	for {
		for !b.idle() {
			if !b.pause(time.Second) {
				return
			}
		}
		d, err := q.Next(b.ctx)
		if b.ctx.Err() != nil {
			return
		}
		if err != nil {
			b.log.Warn("cannot read tasks of the role", "role", b.l.Role, "err", err)
			if !b.pause(retryMax) {
				return
			}
			if again, oerr := c.Tasks(b.ctx, b.l.Role, mesh.QueueOptions{}); oerr == nil { // the queue was deleted
				q.Close()
				q = again
			}
			continue
		}
		it := item{m: d.Message, d: &d}
		b.receive(d.Message, &d)
		for limit := time.Now().Add(b.times.task); b.box.has(it); {
			ends := !b.pause(min(time.Second, b.times.task))
			if (ends || time.Now().After(limit)) && b.box.withdraw(it) {
				_ = d.Again(0)
			}
			if ends {
				return
			}
		}
	}
}

// idle reports whether a turn may begin now.
func (b *Bridge) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opts.Eager || mayWake(b.state) && (b.woken.IsZero() || time.Since(b.woken) >= wakeSettle)
}

// begun notes that a turn was begun with messages, of which the program has not told yet.
func (b *Bridge) begun() {
	b.mu.Lock()
	b.woken = time.Now()
	b.mu.Unlock()
	for _, d := range []time.Duration{wakeSettle, nudgeCheck} { // it may tell nothing
		time.AfterFunc(d, b.wake)
	}
}

// unread takes out what an idle agent is to be told of now.
func (b *Bridge) unread() []item {
	b.mu.Lock()
	unanswered := b.heard && !b.woken.IsZero() && time.Since(b.woken) >= nudgeCheck
	b.mu.Unlock()
	items, _, _ := b.box.take(func(it item) bool { return mayBring(it, unanswered) })
	return items
}

// next waits for urgent messages to an idle agent, and takes them out for a part of its program that takes them over.
// There are none when there were none in the time.
func (b *Bridge) next(limit time.Duration) []item {
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		changed := b.rung.wait()
		if b.idle() {
			if items := b.unread(); len(items) > 0 {
				return items
			}
		}
		select {
		case <-changed:
		case <-end.C:
			return nil
		case <-b.ctx.Done():
			return nil
		}
	}
}

// holdOn tells the mesh that messages which are here are still being handled: it would send them again, and those to a
// role to another.
func (b *Bridge) holdOn() {
	for b.pause(b.times.hold) {
		for _, it := range b.box.held() {
			_ = it.d.Working()
		}
	}
}

// boot joins a channel that the agent begins with.
func (b *Bridge) boot(name string) {
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		ctx, cancel := context.WithTimeout(b.ctx, stepTimeout)
		_, err := b.join(ctx, name, replayOnJoin)
		cancel()
		if err == nil || b.ctx.Err() != nil {
			return
		}
		b.log.Warn("cannot join channel", "channel", name, "err", err)
		var bad *wire.SubjectError
		if errors.As(err, &bad) || errors.Is(err, mesh.ErrDenied) || !b.pause(wait) {
			return
		}
	}
}

// join subscribes a channel. One that was joined already is left as it is.
func (b *Bridge) join(ctx context.Context, name string, replay int) (*mesh.Channel, error) {
	c, err := b.mesh()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	ch := b.channels[name]
	b.mu.Unlock()
	if ch != nil {
		return ch, nil
	}
	if ch, err = c.JoinChannel(ctx, name, mesh.ChannelOptions{Replay: replay}); err != nil {
		return nil, err
	}
	b.mu.Lock()
	if other := b.channels[name]; other != nil {
		b.mu.Unlock()
		ch.Leave()
		return other, nil
	}
	b.channels[name] = ch
	b.order = append(b.order, name)
	b.mu.Unlock()
	b.wg.Go(func() { b.readChannel(ch) })
	return ch, nil
}

func (b *Bridge) readChannel(ch *mesh.Channel) {
	defer ch.Leave()
	for {
		m, err := ch.Next(b.ctx)
		if err != nil {
			return
		}
		b.receive(m, nil)
	}
}

// leave ends the subscription of a channel; false: it was not joined.
func (b *Bridge) leave(name string) bool {
	b.mu.Lock()
	ch := b.channels[name]
	delete(b.channels, name)
	b.order = slices.DeleteFunc(b.order, func(o string) bool { return o == name })
	b.mu.Unlock()
	if ch == nil {
		return false
	}
	ch.Leave()
	return true
}

// deliver brings urgent messages to an idle agent.
func (b *Bridge) deliver() {
	if b.opts.Waker == nil {
		return
	}
	var again <-chan time.Time
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-b.bell:
		case <-again:
		}
		again = nil
		if !b.idle() {
			continue // the hook that tells of its end rings
		}
		items := b.unread()
		if len(items) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(b.ctx, wakeTimeout)
		read, err := b.opts.Waker.Wake(ctx, noticeOf(items))
		cancel()
		switch {
		case err == nil && read:
			b.begun()
			b.done(items)
			continue
		case err == nil:
			b.begun()
			items = nudged(items)
		case errors.Is(err, ErrNotNow):
			again = time.After(wakeAgain)
		case b.ctx.Err() == nil:
			b.log.Warn("cannot wake the agent; its messages wait for it", "err", err)
		}
		b.box.back(items)
	}
}
