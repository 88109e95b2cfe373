package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrNotSetUp: the space has no stream or bucket for this; a host of the space makes them when it starts.
var ErrNotSetUp = errors.New("space is not set up")

// requestTimeout bounds one exchange with the server; whoever asks may set an earlier end through its context.
const requestTimeout = 2 * time.Second

// codeConsumerExists is an error code of the JetStream API that the library does not name.
const codeConsumerExists nats.ErrorCode = 10148

// refusedWith reports whether the server refused a JetStream request with one of these codes.
func refusedWith(err error, codes ...nats.ErrorCode) bool {
	var e *nats.APIError
	return errors.As(err, &e) && slices.Contains(codes, e.ErrorCode)
}

// conflict reports whether a write lost to another one.
func conflict(err error) bool {
	return refusedWith(err, nats.JSErrCodeStreamWrongLastSequence, nats.JSErrCodeStreamWrongLastSequenceConstant)
}

// failure names a failed exchange with the server in the words of this package.
func failure(err error) error {
	switch {
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrDisconnected):
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case errors.Is(err, nats.ErrNoResponders):
		return &notSent{fmt.Errorf("%w: nothing keeps this subject", ErrNotSetUp)}
	case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrNoReply, err)
	}
	return err
}

// denials tells exchanges whose request the server has refused: it says so beside them, and answers nothing.
type denials struct {
	mu      sync.Mutex
	waiting map[string][]*denial // by subject
}

type denial struct{ end context.CancelCauseFunc }

// errDenied is why the context of an exchange ends early.
var errDenied = errors.New("the server refused the request")

// await returns a context that ends when the server refuses a publish on subject. done is to be called.
func (d *denials) await(ctx context.Context, subject string) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	one := &denial{cancel}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = map[string][]*denial{}
	}
	d.waiting[subject] = append(d.waiting[subject], one)
	return ctx, func() {
		cancel(nil)
		d.mu.Lock()
		defer d.mu.Unlock()
		rest := slices.DeleteFunc(d.waiting[subject], func(o *denial) bool { return o == one })
		if len(rest) == 0 {
			delete(d.waiting, subject)
			return
		}
		d.waiting[subject] = rest
	}
}

func (d *denials) tell(subject string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.waiting[subject] {
		one.end(errDenied)
	}
}

// refused takes what the server says beside everything else: a permission that was missing.
func (c *Client) refused(err error) {
	c.replies.refused(err)
	if subject, ok := refusedSubject(err); ok {
		c.denials.tell(subject)
	}
}

// denied is the error of an exchange whose request the server refused: nobody has seen it.
func denied(subject string) error {
	return &notSent{fmt.Errorf("%w: this caller may not publish on %s", ErrDenied, subject)}
}

// request is one exchange with the server, of at most requestTimeout. While the server is lost it fails at
// once: nothing is kept for later.
func (c *Client) request(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	if !c.nc.IsConnected() {
		if c.nc.IsClosed() {
			return nil, ErrClosed
		}
		return nil, c.unreachable()
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, done := c.denials.await(ctx, msg.Subject)
	defer done()
	for try := 0; ; try++ {
		reply, err := c.nc.RequestMsgWithContext(ctx, msg)
		if err == nil {
			return reply, nil
		}
		if c.wasDenied(ctx, msg.Subject) {
			return nil, denied(msg.Subject)
		}
		if !errors.Is(err, nats.ErrNoResponders) || !strings.HasPrefix(msg.Subject, "$JS.API.") || try == absentTries {
			return nil, failure(err)
		}
		select {
		case <-time.After(absentPause << try):
		case <-ctx.Done():
			return nil, failure(err)
		}
	}
}

// unreachable is the error of an exchange while the server is lost. What keeps it lost is told with it where that is
// the credential: a server that is only away comes back by itself.
func (c *Client) unreachable() error {
	why := c.nc.LastError()
	for _, own := range []error{ErrCredentialEnded, ErrCredsFile, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked} {
		if errors.Is(why, own) {
			return fmt.Errorf("%w: %w", ErrUnreachable, why)
		}
	}
	return ErrUnreachable
}

// notPublished is the error of a message that did not leave this client.
func (c *Client) notPublished(err error) error {
	if err = failure(err); errors.Is(err, ErrUnreachable) {
		err = c.unreachable()
	}
	return &notSent{err}
}

// wasDenied says whether an exchange without an answer was refused. Over a connection that is somebody else's the
// refusal is told to its owner: then it is known by the last thing that went wrong there.
func (c *Client) wasDenied(ctx context.Context, subject string) bool {
	if errors.Is(context.Cause(ctx), errDenied) {
		return true
	}
	if !c.borrowed {
		return false
	}
	last, ok := refusedSubject(c.nc.LastError())
	return ok && last == subject
}

// A server that is given an account anew, as it is when a credential is revoked, takes the API away from it for a
// moment. A request that met nobody was not carried out; it is sent again after waits that double.
const (
	absentTries = 6
	absentPause = 5 * time.Millisecond
)

// api asks the JetStream API. req and resp may be nil.
func (c *Client) api(ctx context.Context, op string, req, resp any) error {
	msg := nats.NewMsg("$JS.API." + op)
	if req != nil {
		var err error
		if msg.Data, err = json.Marshal(req); err != nil {
			return err
		}
	}
	reply, err := c.request(ctx, msg)
	if err != nil {
		return err
	}
	return decodeAPI(reply.Data, resp)
}

func decodeAPI(p []byte, resp any) error {
	var head struct {
		Error *nats.APIError `json:"error"`
	}
	if err := json.Unmarshal(p, &head); err != nil {
		return fmt.Errorf("%w: the server's answer cannot be read: %w", ErrBadReply, err)
	}
	if e := head.Error; e != nil {
		if e.ErrorCode == nats.JSErrCodeStreamNotFound {
			return fmt.Errorf("%w: %w", ErrNotSetUp, e)
		}
		return e
	}
	if resp == nil {
		return nil
	}
	if err := json.Unmarshal(p, resp); err != nil {
		return fmt.Errorf("%w: the server's answer cannot be read: %w", ErrBadReply, err)
	}
	return nil
}

// pubAck says where a message was stored.
type pubAck struct {
	Stream    string `json:"stream"`
	Seq       uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate"`
}

// store publishes into a stream and returns once the server says that it is kept there.
func (c *Client) store(ctx context.Context, msg *nats.Msg) (pubAck, error) {
	var ack pubAck
	reply, err := c.request(ctx, msg)
	if err == nil {
		err = decodeAPI(reply.Data, &ack)
	}
	if err == nil && ack.Stream == "" {
		err = fmt.Errorf("%w: somebody other than a stream answered", ErrBadReply)
	}
	return ack, err
}

// bucket is the name of a bucket of the client's space.
func (c *Client) bucket(b wire.Bucket) string {
	name, _ := wire.BucketName(b, c.cfg.Space) // the space was checked by Connect
	return name
}

// FromConn is a Client on a connection that somebody else made and closes: a program that is on the server
// already needs no second one. Close of the client only ends what the client itself started on it. A zero
// caller gets a fresh principal, as in Connect. cfg needs Space and Name; the rest is not looked at.
func FromConn(nc *nats.Conn, cfg Config) (*Client, error) {
	if !wire.ValidSpace(cfg.Space) {
		return nil, fmt.Errorf("use connection: space %q is not 1..64 characters of [A-Za-z0-9_-]", cfg.Space)
	}
	caller := cfg.Caller
	if caller.IsZero() {
		var err error
		if caller, err = NewCaller(); err != nil {
			return nil, fmt.Errorf("use connection: %w", err)
		}
	} else if err := caller.Check(); err != nil {
		return nil, fmt.Errorf("use connection: %w", err)
	}
	c := &Client{nc: nc, cfg: cfg, caller: caller, closed: make(chan struct{}), borrowed: true, turn: make(chan struct{}, 1), epochs: map[string]uint64{}}
	return c, nil
}
