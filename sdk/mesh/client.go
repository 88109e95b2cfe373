package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Errors of this package. errors.Is finds them; OutcomeOf says what they mean for the effect.
var (
	// ErrUnreachable: no server answered at the address (Connect).
	ErrUnreachable = errors.New("mesh server is unreachable")
	// ErrUnauthorized: the server refused the token or credentials (Connect).
	ErrUnauthorized = errors.New("mesh server refused the credentials")
	// ErrTokenFile: the token file is missing, readable by others, or empty (Connect).
	ErrTokenFile = errors.New("token file is unusable")
	// ErrTwoSecrets: a token and a credential are named, of which a server takes one (Connect, FindEndpoint).
	ErrTwoSecrets = errors.New("a token and a credential exclude each other")
	// ErrNoResponder: the server says that nobody serves the command; nothing was executed.
	ErrNoResponder = errors.New("nobody serves this command")
	// ErrNoReply: the request was sent and no reply came; whether it was executed is unknown.
	ErrNoReply = errors.New("no reply")
	// ErrBadReply: a reply came that breaks the contract. See RejectedReply.
	ErrBadReply = errors.New("reply was rejected")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("client is closed")
)

// DefaultConnectTimeout bounds Connect when Config.Timeout is 0. A server that is stopped takes connections and
// says nothing: whoever asks it should know within two seconds, what comes before and after included.
const DefaultConnectTimeout = 1500 * time.Millisecond

// Config of a Client.
type Config struct {
	// URL of the server: nats://host:port, several separated by commas.
	URL string
	// Token, or TokenFile that holds it (mode 0600), or CredsFile of NATS credentials (mode 0600), which is read anew
	// whenever the server is lost: whoever renews it replaces it in place.
	Token     string
	TokenFile string
	CredsFile string
	// Space to work in. Required.
	Space string
	// Name is the label of this caller (from.name) and of its connection.
	Name string
	// Caller is who calls; zero for whom CredsFile says, else for a fresh principal local.<nkey> with a fresh
	// lifecycle UID. One that is not whom CredsFile says is refused.
	Caller wire.Caller
	// Timeout of the connect, whatever the number of servers; default DefaultConnectTimeout. The context bounds
	// it too.
	Timeout time.Duration
	// Reconnect makes the client reconnect for ever instead of failing once the server is lost.
	Reconnect bool
	// Apart: histories are read through consumers that are one read's own, so that several processes of one principal
	// do not get in each other's way. It takes the rights of an observer; an agent has a consumer of one name.
	Apart bool
	// OnState is told of every loss and return of the server; nil is fine. It must not block.
	OnState func(connected bool)
}

// Client is one connection to a mesh. It may be used from any number of goroutines.
type Client struct {
	nc     *nats.Conn
	cfg    Config
	caller wire.Caller
	closed chan struct{}
	// borrowed: the connection is somebody else's (FromConn), and Close leaves it open.
	borrowed bool
	once     sync.Once
	turn     chan struct{} // of the one that reads a history

	mu        sync.Mutex
	epochs    map[string]uint64 // endpoint and instance id -> highest epoch seen
	contracts contracts         // what incarnations serve
	replies   replies
	denials   denials
}

// Connect dials the server.
//
// Errors: ErrUnreachable, ErrUnauthorized (with ErrCredentialEnded: the server was not asked), ErrTokenFile,
// ErrCredsFile, ErrTwoSecrets; the text names the address or file. context.Canceled when the caller gives up: it says
// nothing of the server.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	if !wire.ValidSpace(cfg.Space) {
		return nil, fmt.Errorf("connect to mesh: space %q is not 1..64 characters of [A-Za-z0-9_-]", cfg.Space)
	}
	c := &Client{cfg: cfg, closed: make(chan struct{}), turn: make(chan struct{}, 1), epochs: map[string]uint64{}}
	who, err := identify(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to mesh: %w", err)
	}
	c.caller = who.caller
	timeout := cfg.Timeout
	if timeout <= 0 {
		timeout = DefaultConnectTimeout
	}
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(d), time.Millisecond))
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("connect to mesh: %w", &notSent{err})
	}
	servers := time.Duration(1 + strings.Count(cfg.URL, ",")) // tried one after the other
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.CustomInboxPrefix(who.inbox),
		nats.Timeout(max(timeout/servers, time.Millisecond)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.refused(err) }), // the default prints
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
	}
	if cfg.Reconnect {
		opts = append(opts, nats.MaxReconnects(-1), nats.CustomReconnectDelay(backoff), nats.IgnoreAuthErrorAbort(),
			// Nothing is kept for later: a request must not run long after its caller gave it up.
			nats.ReconnectBufSize(-1),
			nats.DisconnectErrHandler(func(*nats.Conn, error) { c.tell(false) }),
			nats.ReconnectHandler(func(*nats.Conn) { c.tell(true) }))
	} else {
		opts = append(opts, nats.NoReconnect())
	}
	if who.auth != nil {
		opts = append(opts, who.auth)
	}
	if c.nc, err = dial(ctx, cfg.URL, timeout, opts); err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, fmt.Errorf("connect to mesh: %w", &notSent{ctx.Err()})
		}
		kind := ErrUnreachable
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
			kind = ErrUnauthorized
		}
		return nil, fmt.Errorf("connect to mesh: %w at %s: %w", kind, shown(cfg.URL), err)
	}
	return c, nil
}

// shown is addresses of servers without what stands before an @ in them: that is a password or a token.
func shown(servers string) string {
	list := strings.Split(servers, ",")
	for i, one := range list {
		if at := strings.LastIndexByte(one, '@'); at >= 0 {
			scheme, _, ok := strings.Cut(one[:at], "://")
			if list[i] = one[at+1:]; ok {
				list[i] = scheme + "://" + list[i]
			}
		}
	}
	return strings.Join(list, ",")
}

// dial connects within timeout, whatever the library waits for by itself: each server once for the connection
// and once for its first words. A connection that comes later is closed.
func dial(ctx context.Context, url string, timeout time.Duration, opts []nats.Option) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	came := make(chan result)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	go func() {
		nc, err := nats.Connect(url, opts...)
		select {
		case came <- result{nc, err}:
		case <-ctx.Done():
			if nc != nil {
				nc.Close()
			}
		}
	}()
	select {
	case r := <-came:
		return r.nc, r.err
	case <-ctx.Done():
		return nil, nats.ErrTimeout
	}
}

func (c *Client) tell(connected bool) {
	if c.cfg.OnState != nil {
		c.cfg.OnState(connected)
	}
}

// reconnectMax is the longest wait between two attempts to reach a lost server: a server that is back has its clients
// back soon.
const reconnectMax = 2 * time.Second

// backoff doubles up to reconnectMax.
func backoff(attempts int) time.Duration {
	return min(50*time.Millisecond<<min(max(attempts-1, 0), 10), reconnectMax)
}

// ReadToken reads a token file. It refuses (ErrTokenFile) one that its group or others can read and
// names the fix.
func ReadToken(path string) (string, error) {
	text, err := readOwn(path, maxToken, ErrTokenFile)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("%w: %s is empty", ErrTokenFile, path)
	}
	return token, nil
}

// maxToken bounds a token file, in bytes.
const maxToken = 8 << 10

// readOwn reads a file that its user alone can read, at most limit bytes of it. Every error is kind too.
func readOwn(path string, limit int64, kind error) ([]byte, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", kind, err)
	}
	defer f.Close()
	st, err := f.Stat() // of what was opened: a rename in between changes nothing
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: inspect %s: %w", kind, path, err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%w: %s is not a regular file", kind, path)
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%w: %s can be read by others (mode %04o); fix it with: chmod 600 %s", kind, path, st.Mode().Perm(), path)
	}
	p, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, fmt.Errorf("%w: read %s: %w", kind, path, err)
	}
	return p, nil
}

// NewCaller mints a principal for one life outside user mode: local.<nkey> and a lifecycle UID.
func NewCaller() (wire.Caller, error) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		return wire.Caller{}, fmt.Errorf("mint caller: %w", err)
	}
	defer kp.Wipe()
	pub, err := kp.PublicKey()
	if err != nil {
		return wire.Caller{}, fmt.Errorf("mint caller: %w", err)
	}
	return wire.Caller{Owner: wire.OwnerLocal, Actor: pub, UID: wire.NewUID()}, nil
}

// Caller is who this client calls as.
func (c *Client) Caller() wire.Caller { return c.caller }

// Trouble is why the server could not be reached when that was last tried; nil while it is there.
func (c *Client) Trouble() error {
	if c.nc.IsConnected() {
		return nil
	}
	return c.nc.LastError()
}

// Space is the space this client works in.
func (c *Client) Space() string { return c.cfg.Space }

// Done is closed when the connection has ended for good.
func (c *Client) Done() <-chan struct{} { return c.closed }

// Close ends the connection. Calls in flight return ErrNoReply.
func (c *Client) Close() {
	if c.borrowed {
		c.once.Do(func() {
			c.replies.end()
			close(c.closed)
		})
		return
	}
	c.nc.Close()
	<-c.closed
}
