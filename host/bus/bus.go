// Package bus is the host's connection to its mesh: the server side of the endpoint rails and the
// publishing of events. With sdk/mesh and host/broker it is the only importer of NATS packages.
package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Errors of Connect.
var (
	// ErrUnreachable: no server answered at the URL.
	ErrUnreachable = errors.New("mesh server is unreachable")
	// ErrRefused: the server refused the credentials.
	ErrRefused = errors.New("mesh server refused the credentials")
	// ErrControlLine: the server cut the connection since it takes shorter lines than these credentials need.
	ErrControlLine = errors.New("mesh server takes no credentials of this size; its max_control_line has to be 65536")
)

const (
	connectTimeout = 5 * time.Second
	// reconnectMin and reconnectMax bound the wait between attempts to reach a lost server. The
	// attempts never end: seats do not need the broker to live, so the host has all the time.
	reconnectMin  = 50 * time.Millisecond
	reconnectMax  = 2 * time.Second
	flushTimeout  = 2 * time.Second
	reconnectBuf  = 4 << 20 // bytes of replies and events kept while disconnected
	pingInterval  = 20 * time.Second
	pendingMsgs   = 8192
	pendingBytes  = 32 << 20
	closedTimeout = 2 * time.Second
)

// InProcessProvider opens connections to an embedded server (broker.InProcess).
type InProcessProvider interface {
	InProcessConn() (net.Conn, error)
}

// Credentials prove to a broker in operator mode who connects. Both methods are called for every connection
// that is made, also when a lost one comes back.
type Credentials interface {
	// Token is the user JWT; an error ends the attempt with nothing shown to the broker.
	Token() (string, error)
	// Sign signs the broker's nonce with the key that the token names.
	Sign(nonce []byte) ([]byte, error)
	// Inbox is the prefix of the inboxes that the token allows.
	Inbox() string
}

// Config of a Bus. Token, TokenFile, CredsFile and Credentials exclude each other.
type Config struct {
	// URL of the server, nats://host:port, several separated by commas. Ignored with InProcess.
	URL string
	// Token, if the server wants one.
	Token string
	// TokenFile holds it, when Token is empty; mode 0600 (mesh.ReadToken).
	TokenFile string
	// CredsFile is a NATS credentials file (JWT and nkey seed).
	CredsFile string
	// Credentials are asked anew for each connection that is made, so that one that comes back comes with what
	// they are then. They exclude the other three.
	Credentials Credentials
	// OneShot makes a connection for one step: once lost, it does not come back.
	OneShot bool
	// Strict keeps nothing for later: what was asked or written and given up does not happen when a lost server is
	// back. Records and leases are read and written over such a connection, or have one made for them.
	Strict bool
	// InProcess connects to the embedded server without the network stack.
	InProcess InProcessProvider
	// Name of the connection; default "cotal-host".
	Name string
	// OnState is told of every loss and return of the server, and then logs it; without one the bus
	// does. It must not block.
	OnState func(connected bool, reason string)
	Log     hclog.Logger
}

// Bus is one connection. It reconnects for ever; its services keep serving after each reconnect.
type Bus struct {
	nc     *nats.Conn
	log    hclog.Logger
	closed chan struct{}
	// embedded: the server is in this process, and started with it.
	embedded bool
	// dial opens a further connection to the same server, which Close closes too.
	dial func(purpose string, more ...nats.Option) (*nats.Conn, error)
	// strict: it keeps nothing for later. line ends with each connection to the server then.
	strict bool
	line   *lifeline

	denied denials

	mu    sync.Mutex
	extra []*nats.Conn
	back  []func() // called when a lost server is back
}

// Connect dials once and returns ErrUnreachable or ErrRefused (wrapped, with the address) when that
// fails: a server that is down at start is a mistake to report, not to wait out.
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	if cfg.Name == "" {
		cfg.Name = "cotal-host"
	}
	b := &Bus{
		log: cfg.Log, closed: make(chan struct{}), embedded: cfg.InProcess != nil, strict: cfg.Strict || cfg.OneShot, line: newLifeline(),
	}
	opts := []nats.Option{
		nats.Timeout(timeLeft(ctx, connectTimeout)),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(backoff),
		nats.PingInterval(pingInterval),
		nats.IgnoreAuthErrorAbort(), // a server restarted with another token may get the right one back
		nats.ErrorHandler(b.onError),
	}
	own := []nats.Option{
		nats.Name(cfg.Name),
		nats.ReconnectBufSize(reconnectBuf),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { b.line.lost(); b.onState(cfg.OnState, false, err) }),
		nats.ReconnectHandler(func(*nats.Conn) { b.onState(cfg.OnState, true, nil); b.isBack() }),
		nats.ClosedHandler(func(*nats.Conn) { close(b.closed) }),
	}
	where := cfg.URL
	switch {
	case cfg.Token != "":
		opts = append(opts, nats.Token(cfg.Token))
	case cfg.TokenFile != "":
		token, err := mesh.ReadToken(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("connect bus: %w", err)
		}
		opts = append(opts, nats.Token(token))
	case cfg.CredsFile != "":
		opts = append(opts, nats.UserCredentials(cfg.CredsFile))
	case cfg.Credentials != nil:
		opts = append(opts, nats.UserJWT(cfg.Credentials.Token, cfg.Credentials.Sign), nats.CustomInboxPrefix(cfg.Credentials.Inbox()))
	}
	if cfg.OneShot {
		opts = append(opts, nats.NoReconnect())
	}
	if b.strict {
		own = append(own, nats.ReconnectBufSize(-1), nats.CustomReconnectDelay(soon))
	}
	if cfg.InProcess != nil {
		where = "in-process"
		opts = append(opts, nats.InProcessServer(cfg.InProcess))
	}
	b.dial = func(purpose string, more ...nats.Option) (*nats.Conn, error) {
		nc, err := nats.Connect(cfg.URL, slices.Concat(opts, []nats.Option{nats.Name(cfg.Name + " " + purpose)}, more)...)
		if err != nil {
			return nil, fmt.Errorf("connect bus for %s: %w at %s: %w", purpose, ErrUnreachable, where, err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.extra = append(b.extra, nc)
		return nc, nil
	}
	var nc *nats.Conn
	var err error
	for slow, resets := 1, 1; ; {
		if nc, err = nats.Connect(cfg.URL, slices.Concat(opts, own)...); err == nil || ctx.Err() != nil {
			break
		}
		if reset := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE); reset && cfg.Credentials != nil && resets < wordless {
			resets++
		} else if cutShort(err) && slow < handshakes {
			slow++
		} else {
			break
		}
	}
	if err != nil {
		kind := ErrUnreachable
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
			kind = ErrRefused
		}
		if cfg.Credentials != nil && strings.Contains(strings.ToLower(err.Error()), "maximum control line") {
			kind = ErrControlLine
		}
		return nil, fmt.Errorf("connect bus: %w at %s: %w", kind, where, err)
	}
	b.nc = nc
	return b, nil
}

// wordless is how often a server is asked again that cut a connection as it was given the credentials. Its last word, which
// may be that they are too long for it, is lost then more often than not.
const wordless = 12

// handshakes is how often a connection is tried that the server began and did not come to the end of.
const handshakes = 3

// cutShort reports whether a server was there and the handshake was too slow, as it is where everybody connects at once on
// a machine that has much to do: the server gives it two seconds, and asks by then whether its client is there, which the
// client library takes for garbled.
func cutShort(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "expected 'pong', got 'ping'") || strings.Contains(text, "closed pipe") || strings.Contains(text, "authentication timeout")
}

func timeLeft(ctx context.Context, limit time.Duration) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		limit = min(limit, max(time.Until(d), time.Millisecond))
	}
	return limit
}

// backoff doubles from reconnectMin to reconnectMax.
func backoff(attempts int) time.Duration {
	d := reconnectMin << min(max(attempts-1, 0), 10)
	return min(d, reconnectMax)
}

func (b *Bus) onState(tell func(bool, string), connected bool, err error) {
	reason := ""
	switch {
	case connected:
	case err != nil:
		reason = err.Error()
	default:
		return // our own Close
	}
	switch {
	case tell != nil:
		tell(connected, reason)
	case connected:
		b.log.Info("mesh server is back")
	default:
		b.log.Warn("mesh server is lost; seats are not touched", "err", reason)
	}
}

func (b *Bus) onError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if sub != nil && errors.Is(err, nats.ErrSlowConsumer) {
		n, _ := sub.Dropped()
		b.log.Warn("requests were dropped before they were read", "op", sub.Subject, "dropped", n)
		return
	}
	b.denied.note(err)
	b.log.Warn("mesh server reports a problem", "err", err)
}

// onBack has fn called each time that a lost server is back.
func (b *Bus) onBack(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.back = append(b.back, fn)
}

func (b *Bus) isBack() {
	b.mu.Lock()
	back := slices.Clone(b.back)
	b.mu.Unlock()
	for _, fn := range back {
		fn()
	}
}

// Connected reports whether the server is reachable now.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// PublishEvent publishes an event of this incarnation. Events are hints: the error is for the log.
func (b *Bus) PublishEvent(s wire.EventSubject, data any) error {
	subject, err := s.Subject()
	if err != nil {
		return fmt.Errorf("publish event: %w", err)
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("publish event: %w", err)
	}
	p, err := json.Marshal(wire.Event{V: wire.Version, Topic: strings.Join(s.Topic, "."), TS: time.Now().UnixMilli(), Data: raw})
	if err != nil {
		return fmt.Errorf("publish event: %w", err)
	}
	if err := b.nc.Publish(subject, p); err != nil {
		return fmt.Errorf("publish event: %w", err)
	}
	return nil
}

// PublishProgress publishes a progress event of a goal to whoever watches it.
func (b *Bus) PublishProgress(space, endpoint, instanceID string, epoch uint64, c wire.Caller, goalID string, p wire.GoalProgress) error {
	return b.PublishEvent(wire.EventSubject{
		Space: space, Endpoint: endpoint, InstanceID: instanceID, Epoch: epoch,
		Topic: []string{"goal", c.Owner, c.Actor, c.UID, goalID, "progress"},
	}, p)
}

// Flush waits until the server has everything published so far.
func (b *Bus) Flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := b.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("flush bus: %w", err)
	}
	return nil
}

// Close ends the connection, after at most 2 s of handing over what was published.
func (b *Bus) Close() {
	if b.nc.IsConnected() {
		_ = b.nc.FlushTimeout(flushTimeout) // nobody is left to tell
	}
	b.nc.Close()
	b.mu.Lock()
	for _, nc := range b.extra {
		nc.Close()
	}
	b.mu.Unlock()
	t := time.NewTimer(closedTimeout)
	defer t.Stop()
	select {
	case <-b.closed:
	case <-t.C:
	}
}
