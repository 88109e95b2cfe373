package mesh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Times of a queue.
const (
	pullExpires = 30 * time.Second // how long the server holds an empty request
	pullBeat    = 5 * time.Second  // how often it says that it still does
	// lifeInbox is how long the server keeps the queue of a life that nobody reads, when this client made it.
	lifeInbox = 24 * time.Hour
)

// Queue delivers messages at least once: what is not acknowledged within a minute (wire.AckWait) comes again, here
// or to the next process of the same life. What was acknowledged, and a further copy of a message, is not handed
// out again.
type Queue struct {
	c      *Client
	what   string
	stream string
	name   string
	filter string

	sub    *nats.Subscription
	in     chan *nats.Msg
	status chan nats.Status
	mu     sync.Mutex // held by the one Next that runs
	asked  bool       // a request of ours is with the server
	ids    handedOut

	onRejected func(subject, reason string)
	left       chan struct{}
	once       sync.Once
}

// Delivery is a message of a queue. It is to be acknowledged once it was handled.
type Delivery struct {
	Message
	q     *Queue
	reply string
	// Redelivered: it was sent before, to this process or an earlier one.
	Redelivered bool
}

// QueueOptions say how a queue is read.
type QueueOptions struct {
	// OnRejected is told of messages that were ended for good because they are not well-formed or not by whom
	// they say; reason is one of wire.Reject*. It must not block.
	OnRejected func(subject, reason string)
}

// DirectMessages opens the queue of direct messages to the client's own life. Where lives are provisioned it was
// made before the life began and is bound here. In open mode the first to open it makes it: for a principal that is
// the key of one life, as those of seats and of NewCaller are, with all that was sent to it; for another one with
// what is sent from then on.
//
// Errors: ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed.
func (c *Client) DirectMessages(ctx context.Context, opts QueueOptions) (*Queue, error) {
	self := wire.Principal{Owner: c.caller.Owner, Actor: c.caller.Actor}
	filter, err := wire.DirectFilter(c.cfg.Space, self)
	if err != nil {
		return nil, fmt.Errorf("open direct messages: %w", err)
	}
	q, err := c.openQueue(ctx, wire.StreamDirect, wire.DurableDirect(self, c.caller.UID), filter, true, opts)
	if err != nil {
		return nil, fmt.Errorf("open direct messages: %w", err)
	}
	return q, nil
}

// Tasks opens the queue of a role. Everybody of the role reads the same one, and each message goes to one of
// them.
//
// Errors: *wire.SubjectError, ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed.
func (c *Client) Tasks(ctx context.Context, role string, opts QueueOptions) (*Queue, error) {
	role = wire.Sanitize(role)
	filter, err := wire.ServiceFilter(c.cfg.Space, role)
	if err != nil {
		return nil, fmt.Errorf("open tasks: %w", err)
	}
	q, err := c.openQueue(ctx, wire.StreamTask, wire.DurableService(role), filter, false, opts)
	if err != nil {
		return nil, fmt.Errorf("open tasks of %s: %w", role, err)
	}
	return q, nil
}

func (c *Client) openQueue(ctx context.Context, stream, name, filter string, life bool, opts QueueOptions) (*Queue, error) {
	streamName, err := wire.StreamName(stream, c.cfg.Space)
	if err != nil {
		return nil, err
	}
	q := &Queue{
		c: c, what: name, stream: streamName, name: name, filter: filter, in: make(chan *nats.Msg, 64),
		onRejected: opts.OnRejected, left: make(chan struct{}),
	}
	if err := q.bind(ctx, life); err != nil {
		return nil, err
	}
	if q.sub, err = c.nc.ChanSubscribe(c.nc.NewInbox(), q.in); err != nil {
		return nil, failure(err)
	}
	q.status = c.nc.StatusChanged()
	return q, nil
}

// bind finds the consumer, or makes it.
func (q *Queue) bind(ctx context.Context, life bool) error {
	err := q.c.api(ctx, "CONSUMER.INFO."+q.stream+"."+q.name, nil, nil)
	if !refusedWith(err, nats.JSErrCodeConsumerNotFound) {
		return err
	}
	config := map[string]any{
		"durable_name": q.name, "name": q.name, "filter_subject": q.filter, "ack_policy": "explicit",
		"ack_wait": wire.AckWait, "deliver_policy": "all", "max_ack_pending": wire.ConsumerPending,
	}
	if life {
		// What was sent to an earlier life of the principal is not for this one. A principal that is a key has
		// only one: whatever is there was sent to it, if only before it looked.
		begin := uint64(1)
		if !nkeys.IsValidPublicUserKey(q.c.caller.Actor) {
			st, err := q.c.streamState(ctx, q.stream)
			if err != nil {
				return err
			}
			begin = st.LastSeq + 1
		}
		config["deliver_policy"], config["opt_start_seq"] = "by_start_sequence", begin
		config["inactive_threshold"] = lifeInbox
	}
	err = q.c.api(ctx, "CONSUMER.CREATE."+q.stream+"."+q.name+"."+q.filter,
		map[string]any{"stream_name": q.stream, "config": config, "action": "create"}, nil)
	if refusedWith(err, codeConsumerExists) {
		return nil // somebody of the same role was quicker
	}
	if errors.Is(err, ErrDenied) { // it is made by whoever gave the credential, before that is used
		return fmt.Errorf("%w: the queue %s is not there, and its host makes it: %w", ErrNotSetUp, q.name, err)
	}
	return err
}

// Next returns the next message that was not handed out before. One Next at a time is served. It waits out
// losses of the server.
//
// Errors: ctx's, ErrClosed (after Close, or the end of the client), ErrNotSetUp (the queue was deleted).
func (q *Queue) Next(ctx context.Context) (Delivery, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for attempt := 1; ; attempt++ {
		if q.c.nc.IsClosed() {
			return Delivery{}, fmt.Errorf("read %s: %w", q.what, ErrClosed)
		}
		d, ok, err := q.pull(ctx, attempt)
		switch {
		case err != nil:
			return Delivery{}, fmt.Errorf("read %s: %w", q.what, err)
		case ok:
			return d, nil
		}
	}
}

// pull asks for one message, unless it was asked for already, and waits for it. ok is false when it has to be
// asked for again.
func (q *Queue) pull(ctx context.Context, attempt int) (Delivery, bool, error) {
	if !q.asked && q.c.nc.IsConnected() {
		req := nats.NewMsg("$JS.API.CONSUMER.MSG.NEXT." + q.stream + "." + q.name)
		req.Reply = q.sub.Subject
		req.Data = fmt.Appendf(nil, `{"batch":1,"expires":%d,"idle_heartbeat":%d}`, pullExpires, pullBeat)
		q.asked = q.c.nc.PublishMsg(req) == nil
	}
	wait := 2*pullBeat + time.Second // two beats that did not come: the request is lost
	if !q.asked {
		wait = min(watchRetryMin<<min(attempt, 5), watchRetryMax)
	}
	silence := time.NewTimer(wait)
	defer silence.Stop()
	for {
		select {
		case <-q.left:
			return Delivery{}, false, ErrClosed
		default:
		}
		select {
		case msg := <-q.in:
			status := msg.Header.Get("Status")
			if status == "" || len(msg.Data) > 0 {
				q.asked = false
				d, ok := q.take(msg)
				return d, ok, nil
			}
			if status == "100" {
				silence.Reset(wait)
				continue
			}
			q.asked = false
			if status == "409" || status == "503" {
				return Delivery{}, false, q.gone(ctx)
			}
			return Delivery{}, false, nil
		case <-q.status: // a server that was lost has forgotten the request
			q.asked = false
			return Delivery{}, false, nil
		case <-silence.C:
			q.asked = false
			return Delivery{}, false, nil
		case <-q.left:
			return Delivery{}, false, ErrClosed
		case <-q.c.closed:
			return Delivery{}, false, ErrClosed
		case <-ctx.Done():
			return Delivery{}, false, ctx.Err()
		}
	}
}

// gone says whether a refused request means that there is no queue any more.
func (q *Queue) gone(ctx context.Context) error {
	err := q.c.api(ctx, "CONSUMER.INFO."+q.stream+"."+q.name, nil, nil)
	if refusedWith(err, nats.JSErrCodeConsumerNotFound) {
		return fmt.Errorf("%w: %w", ErrNotSetUp, err)
	}
	if errors.Is(err, ErrNotSetUp) || errors.Is(err, ErrClosed) {
		return err
	}
	t := time.NewTimer(watchRetryMin) // whatever it was, not at full speed
	defer t.Stop()
	select {
	case <-t.C:
	case <-q.left:
	case <-ctx.Done():
	}
	return nil
}

// take looks at a message that the server delivered. false: nobody needs to see it.
func (q *Queue) take(msg *nats.Msg) (Delivery, bool) {
	meta, err := msg.Metadata()
	if err != nil {
		return Delivery{}, false
	}
	m, err := open(msg.Subject, msg.Data)
	if err != nil {
		if q.onRejected != nil {
			q.onRejected(msg.Subject, rejection(err))
		}
		_ = q.c.nc.Publish(msg.Reply, []byte("+TERM "+rejection(err))) // lost: it comes again, and is rejected again
		return Delivery{}, false
	}
	m.Seq = meta.Sequence.Stream
	if !q.ids.hand(m.ID, m.Seq) {
		_ = q.c.nc.Publish(msg.Reply, []byte("+ACK")) // lost: it comes again, and is answered again
		return Delivery{}, false
	}
	return Delivery{Message: m, q: q, reply: msg.Reply, Redelivered: meta.NumDelivered > 1}, true
}

// handedOut remembers what became of the latest messages of a queue.
type handedOut struct {
	mu   sync.Mutex
	ids  map[string]*handed
	ring []string
	next int
}

type handed struct {
	seq   uint64
	acked bool
}

// hand reports whether a message is to be handed out: it is new, or was handed out before and comes again because
// nobody acknowledged it. A further copy of one, and one that was acknowledged, is not.
func (h *handedOut) hand(id string, seq uint64) bool {
	if id == "" {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.ids[id]; ok {
		return e.seq == seq && !e.acked
	}
	if h.ids == nil {
		h.ids = map[string]*handed{}
	}
	if len(h.ring) < seenLimit {
		h.ring = append(h.ring, id)
	} else {
		delete(h.ids, h.ring[h.next])
		h.ring[h.next] = id
		h.next = (h.next + 1) % seenLimit
	}
	h.ids[id] = &handed{seq: seq}
	return true
}

func (h *handedOut) ack(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.ids[id]; ok {
		e.acked = true
	}
}

// Ack says that the message was handled, and returns when the server knows it. After ErrNoReply or
// ErrUnreachable the server may send it once more; then it is acknowledged again and not handed out.
//
// Errors: ErrUnreachable, ErrNoReply, ErrClosed, ctx's.
func (d Delivery) Ack(ctx context.Context) error {
	d.q.ids.ack(d.ID)
	msg := nats.NewMsg(d.reply)
	msg.Data = []byte("+ACK")
	if _, err := d.q.c.request(ctx, msg); err != nil {
		return fmt.Errorf("acknowledge message: %w", err)
	}
	return nil
}

// Again says that the message could not be handled now: it comes again, here or elsewhere, after a delay.
func (d Delivery) Again(delay time.Duration) error {
	return d.say(fmt.Sprintf(`-NAK {"delay":%d}`, max(delay, 0)))
}

// Working says that the message is still being handled, and begins AckWait anew.
func (d Delivery) Working() error { return d.say("+WPI") }

// Drop ends the message for good: it cannot be handled by anybody.
func (d Delivery) Drop() error {
	d.q.ids.ack(d.ID)
	return d.say("+TERM")
}

func (d Delivery) say(word string) error {
	if err := d.q.c.nc.Publish(d.reply, []byte(word)); err != nil {
		return fmt.Errorf("answer for message: %w", failure(err))
	}
	return nil
}

// Close stops reading. What was handed out and not acknowledged comes again to whoever opens the queue next.
func (q *Queue) Close() {
	q.once.Do(func() {
		close(q.left)
		_ = q.sub.Unsubscribe() // fails only on a connection that is gone
		q.c.nc.RemoveStatusListener(q.status)
	})
}
