package mesh

import (
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// replies hands every message on the caller's reply rail to the call that waits for it. One subscription, made
// with the first call, serves all of them: it matches what belongs to this life of this caller and nothing else,
// and a call costs the server no subscription of its own.
type replies struct {
	mu      sync.Mutex
	sub     *nats.Subscription
	waiting map[string]chan *nats.Msg // by nonce
}

// replyRoom is how many replies of one call may be waiting to be read.
const replyRoom = 64

// expect makes a place for the replies to one nonce. The subscription stands before anything is published on
// the same connection.
func (c *Client) expect(nonce string) (<-chan *nats.Msg, error) {
	room := make(chan *nats.Msg, replyRoom)
	return room, c.expectIn(nonce, room)
}

// expectIn is expect with a place that several calls may share.
func (c *Client) expectIn(nonce string, room chan *nats.Msg) error {
	r := &c.replies
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sub == nil {
		rail, err := wire.CallerReplies(c.cfg.Space, c.caller, false)
		if err != nil {
			return err
		}
		if r.sub, err = c.nc.Subscribe(rail, r.deliver); err != nil {
			return fmt.Errorf("subscribe for the reply: %w", err)
		}
		r.waiting = map[string]chan *nats.Msg{}
	}
	r.waiting[nonce] = room
	return nil
}

// end takes the subscription back, of a client whose connection goes on.
func (r *replies) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sub != nil {
		_ = r.sub.Unsubscribe() // fails only when the connection is gone
		r.sub = nil
	}
}

func (r *replies) forget(nonce string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, nonce)
}

func (r *replies) deliver(m *nats.Msg) {
	nonce := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	r.mu.Lock()
	defer r.mu.Unlock()
	room := r.waiting[nonce]
	if room == nil {
		return // too late, or nobody's
	}
	select {
	case room <- m:
	default: // a flood of repeats: what counts has come already
	}
}
