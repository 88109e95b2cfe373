package mesh

import (
	"errors"
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

// refusedByServer is the subject of a message that stands for the server's refusal of the request itself. No
// message that was published can have it. deafByServer stands for that of the replies, as of one who calls as somebody
// else: then the request itself may be with whoever serves it.
const (
	refusedByServer = " refused"
	deafByServer    = " deaf"
)

// refused hands the server's refusal of a publish to the call it was of: the nonce stands in the subject that the
// server names. That of the replies goes to all of them.
func (r *replies) refused(err error) {
	if subject, ok := refusedSubject(err); ok {
		r.hand(&nats.Msg{Subject: refusedByServer}, subject)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sub == nil || !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), `"`+r.sub.Subject+`"`) {
		return
	}
	_ = r.sub.Unsubscribe() // there is none; the next call tries anew
	for _, room := range r.waiting {
		select {
		case room <- &nats.Msg{Subject: deafByServer, Header: nats.Header{deafByServer: {r.sub.Subject}}}:
		default:
		}
	}
	r.sub = nil
}

// refusedSubject is the subject of a publish that the server did not permit.
func refusedSubject(err error) (string, bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, subject, ok := strings.Cut(err.Error(), `for Publish to "`)
	if !ok {
		return "", false
	}
	subject, _, ok = strings.Cut(subject, `"`)
	return subject, ok
}

// notPermitted is the error of a call whose publish the server refused: nobody has seen it.
func notPermitted(subject string) error {
	return &notSent{wire.Refuse(wire.CodePermissionDenied, "the mesh server does not permit this caller to publish on %s", subject)}
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

func (r *replies) deliver(m *nats.Msg) { r.hand(m, m.Subject) }

// hand gives m to the call whose nonce is the last token of subject.
func (r *replies) hand(m *nats.Msg, subject string) {
	nonce := subject[strings.LastIndexByte(subject, '.')+1:]
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
