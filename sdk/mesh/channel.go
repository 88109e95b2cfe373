package mesh

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Errors of channels.
var (
	// ErrNoBackstop: a channel promises durable delivery, and nobody is there who would keep messages for a
	// member that is away. What is published while it is connected reaches it all the same.
	ErrNoBackstop = errors.New("joined live, durable backstop unavailable")
	// ErrDenied: the server does not let these credentials do that.
	ErrDenied = errors.New("mesh server denies this")
)

// What of a channel may wait to be read before further messages are dropped.
const (
	channelPending      = 8192
	channelPendingBytes = 16 << 20
)

// catchUpAfter is after how many live messages the place is noted from which a channel catches up.
const catchUpAfter = 512

// ChannelOptions say how a channel is joined.
type ChannelOptions struct {
	// Replay is how many earlier messages to begin with: 0 for none, at most MaxHistory. The channel's own
	// settings may forbid it or bound how old they are. A pattern has no replay.
	Replay int
	// OnRejected is told of messages that were dropped because they are not well-formed or not by whom they
	// say; reason is one of wire.Reject*. It must not block.
	OnRejected func(subject, reason string)
}

// Channel is a channel that was joined. Messages are delivered at most once, in the order of each sender; what
// was published while the server was lost is read from the history when it is back.
type Channel struct {
	c       *Client
	pattern string
	opts    ChannelOptions
	info    ChannelInfo
	sub     *nats.Subscription
	in      chan *nats.Msg
	status  chan nats.Status

	mu      sync.Mutex // held by the one Next that runs
	seen    seenIDs
	waiting []Message
	place   uint64 // what the stream had when we last looked
	since   int    // live messages since then
	lost    bool   // the server was lost since

	missed atomic.Bool
	left   chan struct{}
	once   sync.Once
}

// JoinChannel subscribes a channel, or a pattern of channels (* for one token, > for the rest), and returns once
// the server has the subscription: what is published from then on comes. Membership is never a condition for
// sending. Messages of the client's own come too.
//
// Errors: *wire.SubjectError, ErrDenied, ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed.
func (c *Client) JoinChannel(ctx context.Context, pattern string, opts ChannelOptions) (*Channel, error) {
	ch, err := c.joinChannel(ctx, pattern, opts)
	if err != nil {
		return nil, fmt.Errorf("join channel %s: %w", pattern, err)
	}
	return ch, nil
}

func (c *Client) joinChannel(ctx context.Context, pattern string, opts ChannelOptions) (_ *Channel, err error) {
	filter, err := wire.ChannelFilter(c.cfg.Space, pattern)
	if err != nil {
		return nil, err
	}
	ch := &Channel{c: c, pattern: pattern, opts: opts, in: make(chan *nats.Msg), left: make(chan struct{})}
	concrete := wire.ValidChannel(pattern)
	if concrete {
		if ch.info, err = c.ChannelInfo(ctx, pattern); err != nil {
			return nil, err
		}
	}
	// What waits is with the connection, which counts its bytes: those in a Go channel nobody counts.
	if ch.sub, err = c.nc.Subscribe(filter, ch.hand); err != nil {
		return nil, failure(err)
	}
	defer func() {
		if err != nil {
			ch.Leave()
		}
	}()
	if err = ch.sub.SetPendingLimits(channelPending, channelPendingBytes); err != nil {
		return nil, failure(err)
	}
	if err = c.accepted(ctx, filter); err != nil {
		return nil, err
	}
	// The subscription stands before the history is read: what comes in between is in both, and told once.
	q := HistoryQuery{Channel: pattern, Limit: min(opts.Replay, MaxHistory)}
	if window, ok := wire.ParseReplayWindow(ch.info.ReplayWindow); ok {
		q.Since = time.Now().Add(-window)
	}
	if concrete && ch.info.Replay && opts.Replay > 0 {
		ch.waiting, ch.place, _, err = c.history(ctx, q, 0)
	} else {
		var stream string
		if stream, err = wire.StreamName(wire.StreamChat, c.cfg.Space); err == nil {
			var st streamState
			st, err = c.streamState(ctx, stream)
			ch.place = st.LastSeq
		}
	}
	if err != nil {
		return nil, err
	}
	ch.status = c.nc.StatusChanged()
	return ch, nil
}

// hand passes one message on to whoever reads.
func (ch *Channel) hand(msg *nats.Msg) {
	select {
	case ch.in <- msg:
	case <-ch.left:
	case <-ch.c.closed:
	}
}

// accepted returns when the server has all subscriptions made so far, and refuses when it refused this one.
func (c *Client) accepted(ctx context.Context, filter string) error {
	if err := c.flush(ctx); err != nil {
		return failure(err)
	}
	// A refusal comes before the answer to the flush, and is kept as the last error of the connection.
	if err := c.nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+filter+`"`) {
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return nil
}

// Next returns the next message; the replay comes first. One Next at a time is served.
//
// Errors: ctx's, ErrClosed (after Leave, or the end of the client).
func (ch *Channel) Next(ctx context.Context) (Message, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for {
		for len(ch.waiting) > 0 {
			m := ch.waiting[0]
			ch.waiting = ch.waiting[1:]
			if ch.seen.first(m.ID) {
				return m, nil
			}
		}
		if ch.since >= catchUpAfter || ch.lost {
			ch.catchUp(ctx)
			if len(ch.waiting) > 0 {
				continue
			}
		}
		retry := (<-chan time.Time)(nil)
		var t *time.Timer
		if ch.lost { // the history could not be read yet
			t = time.NewTimer(watchRetryMax)
			retry = t.C
		}
		m, err := ch.wait(ctx, retry)
		if t != nil {
			t.Stop()
		}
		if err != nil {
			return Message{}, fmt.Errorf("read channel %s: %w", ch.pattern, err)
		}
		if m != nil && ch.seen.first(m.ID) {
			return *m, nil
		}
	}
}

// wait returns a live message, or nil when something else has to be looked at.
func (ch *Channel) wait(ctx context.Context, retry <-chan time.Time) (*Message, error) {
	select {
	case <-ch.left:
		return nil, ErrClosed
	default:
	}
	select {
	case msg := <-ch.in:
		ch.since++
		m, err := open(msg.Subject, msg.Data)
		if err != nil {
			ch.reject(msg.Subject, err)
			return nil, nil
		}
		return &m, nil
	case <-ch.status:
		if ch.c.nc.IsClosed() {
			return nil, ErrClosed
		}
		ch.lost = true // it is back, or will be: the catch-up finds out
		return nil, nil
	case <-retry:
		return nil, nil
	case <-ch.left:
		return nil, ErrClosed
	case <-ch.c.closed:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (ch *Channel) reject(subject string, err error) {
	if ch.opts.OnRejected != nil {
		ch.opts.OnRejected(subject, rejection(err))
	}
}

// catchUp reads what the stream took in since the place that was noted. Without a loss of the server it only
// notes the new place, so that what has to be read after one stays little.
func (ch *Channel) catchUp(ctx context.Context) {
	if !ch.c.nc.IsConnected() {
		return
	}
	if !ch.lost {
		stream, _ := wire.StreamName(wire.StreamChat, ch.c.cfg.Space)
		if st, err := ch.c.streamState(ctx, stream); err == nil {
			// What is stored now may still be on its way here, and is in seen when it is read again.
			ch.place, ch.since = max(ch.place, st.LastSeq-min(st.LastSeq, catchUpAfter)), 0
		} else {
			ch.since = 0
		}
		return
	}
	msgs, last, more, err := ch.c.history(ctx, HistoryQuery{Channel: ch.pattern, Limit: MaxHistory}, ch.place)
	if err != nil {
		return
	}
	if more || len(msgs) >= MaxHistory {
		ch.missed.Store(true)
	}
	for i := range msgs {
		msgs[i].Historical = false // it was published while we were a member
	}
	ch.waiting, ch.place, ch.since, ch.lost = append(ch.waiting, msgs...), last, 0, false
}

// Info is what the registry said of the channel when it was joined; the zero value for a pattern.
func (ch *Channel) Info() ChannelInfo { return ch.info }

// Missed reports whether messages may have been lost here: more were published during a loss of the server than
// are read again, or more waited to be read than are kept.
func (ch *Channel) Missed() bool {
	n, err := ch.sub.Dropped()
	return ch.missed.Load() || err == nil && n > 0
}

// Backstop is ErrNoBackstop when the channel's class is durable: no delivery daemon is asked to keep messages
// for this member.
func (ch *Channel) Backstop() error {
	if ch.info.DeliveryClass == wire.DeliveryDurable {
		return ErrNoBackstop
	}
	return nil
}

// Leave ends the subscription. A Next that waits returns ErrClosed.
func (ch *Channel) Leave() {
	ch.once.Do(func() {
		close(ch.left)
		_ = ch.sub.Unsubscribe() // fails only on a connection that is gone
		if ch.status != nil {
			ch.c.nc.RemoveStatusListener(ch.status)
		}
	})
}

// ChannelInfo is what is known of a channel.
type ChannelInfo struct {
	Name string
	// Registered: it stands in the registry, as Config says. Others exist because somebody wrote to them.
	Registered bool
	Config     wire.ChannelConfig
	// What counts for it, with the defaults of the space.
	Replay        bool
	ReplayWindow  string // "" for no bound
	DeliveryClass string
	// Messages that are kept of it. Only Channels counts them.
	Messages uint64
}

func infoOf(name string, config *wire.ChannelConfig, d wire.ChannelDefaults) ChannelInfo {
	i := ChannelInfo{Name: name, Registered: config != nil}
	if config != nil {
		i.Config = *config
	}
	i.Replay, i.ReplayWindow, i.DeliveryClass = i.Config.Effective(d)
	return i
}

// ChannelInfo returns what the registry says of a channel. One that is not registered has the defaults.
//
// Errors: *wire.SubjectError, ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed.
func (c *Client) ChannelInfo(ctx context.Context, name string) (ChannelInfo, error) {
	if !wire.ValidChannel(name) {
		return ChannelInfo{}, fmt.Errorf("describe channel: %w", &wire.SubjectError{Op: "read registry", Field: "channel", Why: "is not a channel"})
	}
	var d wire.ChannelDefaults
	raw, err := c.registryEntry(ctx, wire.DefaultsKey)
	if err == nil && raw != nil {
		d, err = wire.DecodeChannelDefaults(raw)
	}
	var config *wire.ChannelConfig
	if err == nil {
		if raw, err = c.registryEntry(ctx, name); err == nil && raw != nil {
			var cc wire.ChannelConfig
			cc, err = wire.DecodeChannelConfig(raw)
			config = &cc
		}
	}
	if err != nil {
		return ChannelInfo{}, fmt.Errorf("describe channel %s: %w", name, err)
	}
	return infoOf(name, config, d), nil
}

// registryEntry reads one entry of the channel registry; nil without one.
func (c *Client) registryEntry(ctx context.Context, key string) ([]byte, error) {
	bucket := c.bucket(wire.BucketChannels)
	var reply struct {
		Message struct {
			Data []byte `json:"data"`
			Hdrs []byte `json:"hdrs"`
		} `json:"message"`
	}
	err := c.api(ctx, "STREAM.MSG.GET."+wire.BucketStream(bucket), map[string]string{"last_by_subj": wire.BucketSubject(bucket, key)}, &reply)
	switch {
	case refusedWith(err, nats.JSErrCodeMessageNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if h, err := nats.DecodeHeadersMsg(reply.Message.Hdrs); err == nil && deleted(&nats.Msg{Header: h}) {
		return nil, nil
	}
	return reply.Message.Data, nil
}

// ConfigureChannel writes what the registry says of a channel. Where principals have rights, this is one of its own.
//
// Errors: *wire.FieldError, *wire.SubjectError, ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed.
func (c *Client) ConfigureChannel(ctx context.Context, name string, config wire.ChannelConfig) error {
	body, err := config.Encode()
	if err == nil && !wire.ValidChannel(name) {
		err = &wire.SubjectError{Op: "write registry", Field: "channel", Why: "is not a channel"}
	}
	if err == nil {
		msg := nats.NewMsg(wire.BucketSubject(c.bucket(wire.BucketChannels), name))
		msg.Data = body
		_, err = c.store(ctx, msg)
	}
	if err != nil {
		return fmt.Errorf("configure channel %s: %w", name, err)
	}
	return nil
}

// Channels lists the channels of the space by name: those that are registered, and those of which messages are
// kept.
//
// Errors: ErrNotSetUp, ErrUnreachable, ErrNoReply, ErrClosed, ctx's.
func (c *Client) Channels(ctx context.Context) ([]ChannelInfo, error) {
	list, err := c.channels(ctx)
	if err != nil {
		return nil, fmt.Errorf("list channels of %s: %w", c.cfg.Space, err)
	}
	return list, nil
}

func (c *Client) channels(ctx context.Context) ([]ChannelInfo, error) {
	all := &collector{rows: map[string][]byte{}, full: make(chan struct{})}
	w, err := c.startWatch(ctx, c.bucket(wire.BucketChannels), all)
	if err != nil {
		return nil, err
	}
	defer w.close()
	select {
	case <-all.full:
	case <-w.done:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	rows := all.copy()
	d, err := wire.DecodeChannelDefaults(rows[wire.DefaultsKey])
	if err != nil {
		d = wire.ChannelDefaults{} // none, or damaged: the contract's own
	}
	found := map[string]ChannelInfo{}
	for name, raw := range rows {
		if config, err := wire.DecodeChannelConfig(raw); err == nil && wire.ValidChannel(name) {
			found[name] = infoOf(name, &config, d)
		}
	}
	counts, err := c.messageCounts(ctx)
	if err != nil {
		return nil, err
	}
	for name, n := range counts {
		i, ok := found[name]
		if !ok {
			i = infoOf(name, nil, d)
		}
		i.Messages = n
		found[name] = i
	}
	list := make([]ChannelInfo, 0, len(found))
	for _, i := range found {
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b ChannelInfo) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// messageCounts counts the messages that are kept, by channel. The server tells subjects page by page.
func (c *Client) messageCounts(ctx context.Context) (map[string]uint64, error) {
	stream, err := wire.StreamName(wire.StreamChat, c.cfg.Space)
	if err != nil {
		return nil, err
	}
	counts := map[string]uint64{}
	for offset := 0; ; {
		var page struct {
			Total int         `json:"total"`
			State streamState `json:"state"`
		}
		if err := c.api(ctx, "STREAM.INFO."+stream, map[string]any{"subjects_filter": ">", "offset": offset}, &page); err != nil {
			return nil, err
		}
		for subject, n := range page.State.Subjects {
			if s, err := wire.ParseMessageSubject(subject); err == nil && s.Kind == wire.MessageChat {
				counts[s.Channel] += n
			}
		}
		if offset += len(page.State.Subjects); offset >= page.Total || len(page.State.Subjects) == 0 {
			return counts, nil
		}
	}
}

// collector reads a bucket once.
type collector struct {
	mu   sync.Mutex
	rows map[string][]byte
	full chan struct{}
	once sync.Once
}

func (c *collector) copy() map[string][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.rows)
}

func (c *collector) armed(bool) {}
func (c *collector) heard()     {}
func (c *collector) populated() { c.once.Do(func() { close(c.full) }) }

func (c *collector) record(key string, deleted bool, value []byte, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if deleted {
		delete(c.rows, key)
	} else {
		c.rows[key] = value
	}
}
