package mesh

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Bounds of History.
const (
	DefaultHistory = 100
	MaxHistory     = 1000
	// MaxHistoryBytes bounds what is read at once, and one message is read whatever its size: whoever writes to a
	// channel may write a megabyte at a time.
	MaxHistoryBytes = 16 << 20
)

// HistoryQuery says which messages of a channel to read.
type HistoryQuery struct {
	Channel string // one channel, no pattern
	Limit   int    // the latest so many; default DefaultHistory, at most MaxHistory
	// Before is the Seq of a message: only earlier ones are read. It turns the page back. 0: from the newest on.
	Before uint64
	// Since leaves out what was stored earlier; zero for everything that is kept.
	Since time.Time
}

// History reads the latest messages of a channel, oldest first, as far as MaxHistoryBytes goes; what is before the
// first of them is the next page. Messages that are not well-formed or not by whom they say are left out, and a
// message that was sent twice is returned once. A channel that nobody has written to has an empty history.
//
// Errors: *wire.SubjectError, ErrDenied (this credential may not read that channel), ErrNotSetUp, ErrUnreachable,
// ErrNoReply, ErrClosed.
func (c *Client) History(ctx context.Context, q HistoryQuery) ([]Message, error) {
	msgs, _, err := c.HistoryPage(ctx, q)
	return msgs, err
}

// HistoryPage is History, and reports whether MaxHistoryBytes cut the answer short of q.Limit: earlier messages that
// were asked for are there, before the first.
//
// Errors: those of History.
func (c *Client) HistoryPage(ctx context.Context, q HistoryQuery) (msgs []Message, cut bool, err error) {
	if q.Limit <= 0 {
		q.Limit = DefaultHistory
	}
	q.Limit = min(q.Limit, MaxHistory)
	if !wire.ValidChannel(q.Channel) {
		return nil, false, fmt.Errorf("read history: %w", &wire.SubjectError{Op: "build channel filter", Field: "channel", Why: strconv.Quote(q.Channel) + " is not a channel"})
	}
	msgs, _, more, err := c.history(ctx, q, 0)
	if err != nil {
		return nil, false, fmt.Errorf("read history of %s: %w", q.Channel, err)
	}
	return msgs, more && len(msgs) < q.Limit, nil
}

// history reads messages behind the sequence after, and returns the last sequence of the stream too: whatever
// has a higher one came later. more: there are earlier ones behind it, which did not fit.
func (c *Client) history(ctx context.Context, q HistoryQuery, after uint64) (msgs []Message, last uint64, more bool, err error) {
	filter, err := wire.ChannelFilter(c.cfg.Space, q.Channel)
	if err != nil {
		return nil, 0, false, err
	}
	stream, err := wire.StreamName(wire.StreamChat, c.cfg.Space)
	if err != nil {
		return nil, 0, false, err
	}
	state, err := c.streamState(ctx, stream)
	if err != nil {
		return nil, 0, false, err
	}
	end := state.LastSeq + 1 // exclusive
	if q.Before > 0 {
		end = min(end, q.Before)
	}
	if after > state.LastSeq { // the stream was made anew
		after = 0
	}
	begin := max(state.FirstSeq, after+1, 1)
	if state.Messages == 0 || begin >= end {
		return nil, state.LastSeq, false, nil
	}
	// One read at a time: the consumer of a history has one name per life.
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, 0, false, ctx.Err()
	}
	r := &historyReader{c: c, stream: stream, filter: filter, name: wire.DurableHistory(wire.Principal{Owner: c.caller.Owner, Actor: c.caller.Actor}, c.caller.UID)}
	if c.cfg.Apart {
		r.name = "h" + wire.NewUID()
	}
	defer r.remove()
	msgs, more, err = r.last(ctx, begin, end, q)
	return msgs, state.LastSeq, more, err
}

type streamState struct {
	Messages uint64            `json:"messages"`
	FirstSeq uint64            `json:"first_seq"`
	LastSeq  uint64            `json:"last_seq"`
	Subjects map[string]uint64 `json:"subjects"`
}

func (c *Client) streamState(ctx context.Context, stream string) (streamState, error) {
	var info struct {
		State streamState `json:"state"`
	}
	err := c.api(ctx, "STREAM.INFO."+stream, nil, &info)
	return info.State, err
}

// historyReader reads one channel through a consumer of its own.
type historyReader struct {
	c                    *Client
	stream, filter, name string
	made                 bool
}

// from puts the consumer at a sequence and returns how many messages are there for it from there on.
func (r *historyReader) from(ctx context.Context, seq uint64) (uint64, error) {
	if r.made {
		if err := r.delete(ctx); err != nil {
			return 0, err
		}
	}
	config := map[string]any{
		"name": r.name, "filter_subject": r.filter, "ack_policy": "none", "mem_storage": true, "num_replicas": 1,
		"inactive_threshold": 30 * time.Second, "max_deliver": 1,
		"deliver_policy": "by_start_sequence", "opt_start_seq": seq,
	}
	var info struct {
		NumPending uint64 `json:"num_pending"`
	}
	create := func() error {
		return r.c.api(ctx, "CONSUMER.CREATE."+r.stream+"."+r.name+"."+r.filter,
			map[string]any{"stream_name": r.stream, "config": config, "action": "create"}, &info)
	}
	err := create()
	if refusedWith(err, codeConsumerExists) { // of a read that was interrupted
		if err = r.delete(ctx); err == nil {
			err = create()
		}
	}
	r.made = r.made || err == nil
	return info.NumPending, err
}

func (r *historyReader) delete(ctx context.Context) error {
	err := r.c.api(ctx, "CONSUMER.DELETE."+r.stream+"."+r.name, nil, nil)
	if refusedWith(err, nats.JSErrCodeConsumerNotFound) {
		return nil
	}
	return err
}

func (r *historyReader) remove() {
	if !r.made {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_ = r.delete(ctx) // the server forgets it by itself
}

// last reads the latest messages of [begin, end). The server can count what is behind a sequence but cannot go
// backwards, so the start is sought: twice as far back each time, until enough is behind it.
func (r *historyReader) last(ctx context.Context, begin, end uint64, q HistoryQuery) (msgs []Message, more bool, err error) {
	behind := uint64(0) // messages at end and later, which are not wanted
	if q.Before > 0 {
		if behind, err = r.from(ctx, end); err != nil {
			return nil, false, err
		}
	}
	for back := uint64(max(q.Limit, 64)); ; back *= 4 {
		start := begin
		if end-begin > back {
			start = end - back
		}
		n, err := r.from(ctx, start)
		if err != nil {
			return nil, false, err
		}
		if start == begin || n >= behind+uint64(q.Limit) {
			return r.read(ctx, start, end, n, q)
		}
	}
}

// latest keeps the last of some messages, limit at most, that have MaxHistoryBytes together.
type latest struct {
	limit int
	msgs  []Message
	sizes []int
	bytes int
	over  bool // something was left out
}

func (l *latest) add(m Message, size int) {
	l.msgs, l.sizes, l.bytes = append(l.msgs, m), append(l.sizes, size), l.bytes+size
	for len(l.msgs) > l.limit || len(l.msgs) > 1 && l.bytes > MaxHistoryBytes {
		l.bytes -= l.sizes[0]
		l.msgs[0] = Message{} // the array goes on
		l.msgs, l.sizes, l.over = l.msgs[1:], l.sizes[1:], true
	}
}

// read takes n messages from the consumer and keeps the last of [begin, end).
func (r *historyReader) read(ctx context.Context, begin, end, n uint64, q HistoryQuery) (msgs []Message, more bool, err error) {
	inbox := r.c.nc.NewInbox()
	in := make(chan *nats.Msg, historyBatch+16)
	sub, err := r.c.nc.ChanSubscribe(inbox, in)
	if err != nil {
		return nil, false, failure(err)
	}
	defer sub.Unsubscribe()
	found := latest{limit: q.Limit}
	seen := seenIDs{}
	for alone := false; n > 0; {
		batch := min(n, historyBatch)
		req := nats.NewMsg("$JS.API.CONSUMER.MSG.NEXT." + r.stream + "." + r.name)
		req.Reply = inbox
		req.Data = fmt.Appendf(nil, `{"batch":%d,"no_wait":true,"max_bytes":%d}`, batch, historyBytes)
		if alone { // the next message is larger than a whole batch may be
			batch = 1
			req.Data = []byte(`{"batch":1,"no_wait":true}`)
		}
		if err := r.c.nc.PublishMsg(req); err != nil {
			return nil, false, failure(err)
		}
		got, done, err := r.batch(ctx, in, batch, func(meta *nats.MsgMetadata, msg *nats.Msg) bool {
			seq := meta.Sequence.Stream
			if seq >= end {
				return false
			}
			m, err := open(msg.Subject, msg.Data)
			if err != nil || seq < begin || meta.Timestamp.Before(q.Since) || !seen.first(m.ID) {
				return true
			}
			m.Historical, m.Seq = true, seq
			found.add(m, len(msg.Data))
			return true
		})
		if err != nil {
			return nil, false, err
		}
		if done {
			break
		}
		n -= got
		alone = got == 0
	}
	return found.msgs, found.over, nil
}

// What is asked for at once, and so under way: so many messages, and of these as many as have historyBytes together.
const (
	historyBatch = 256
	historyBytes = 8 << 20
)

// tooLarge is how the server describes that the next message of a pull would exceed its bytes.
const tooLarge = "Message Size Exceeds MaxBytes"

// batch reads the answer to one pull. done: there is nothing more, or take wants no more. A pull that has its bytes is
// answered with fewer than it wants, and with none when the first message is larger than that.
func (r *historyReader) batch(ctx context.Context, in chan *nats.Msg, want uint64, take func(*nats.MsgMetadata, *nats.Msg) bool) (got uint64, done bool, err error) {
	silence := time.NewTimer(requestTimeout)
	defer silence.Stop()
	for bytes := 0; got < want && bytes != historyBytes; { // of exactly as many the server says nothing
		select {
		case msg := <-in:
			if status := msg.Header.Get("Status"); status != "" && len(msg.Data) == 0 {
				switch status {
				case "404", "408":
					return got, true, nil // no more than that is there
				case "409":
					if strings.HasPrefix(msg.Header.Get("Description"), tooLarge) {
						return got, false, nil
					}
				case "503":
					return got, true, fmt.Errorf("%w: the read was interrupted", ErrNoReply)
				}
				continue
			}
			meta, err := msg.Metadata()
			if err != nil {
				return got, true, fmt.Errorf("%w: %w", ErrBadReply, err)
			}
			got++
			bytes += msg.Size()
			if !take(meta, msg) {
				return got, true, nil
			}
			silence.Reset(requestTimeout)
		case <-silence.C:
			if subject, ok := refusedSubject(r.c.nc.LastError()); ok && strings.HasSuffix(subject, "."+r.stream+"."+r.name) {
				return got, true, denied(subject)
			}
			return got, true, fmt.Errorf("%w: the read was interrupted", ErrNoReply)
		case <-r.c.closed:
			return got, true, ErrClosed
		case <-ctx.Done():
			return got, true, ctx.Err()
		}
	}
	return got, false, nil
}
