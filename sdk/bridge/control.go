package bridge

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Bounds of the control socket.
const (
	maxFrame     = 64 << 10        // of a request; events are clipped long before
	maxAnswer    = 16 << 20        // of a reply, which may bring messages: one of them whole, however it is escaped
	frameTimeout = 5 * time.Second // until a frame is whole
	maxTalks     = 32              // connections at a time
	// RelayBudget is how long a hook may take of its program's time, in all.
	RelayBudget = 2 * time.Second
)

// frame is one request on the control socket: one line of JSON, answered by one.
type frame struct {
	Token string `json:"token,omitempty"`
	Op    string `json:"op,omitempty"` // opEvent or opNext
	Event Event  `json:"event,omitzero"`
	// WaitMs bounds opNext.
	WaitMs int64 `json:"waitMs,omitempty"`
	// Deliver: the program's hooks can take messages over, as the reply's Output.
	Deliver bool `json:"deliver,omitempty"`
}

// Operations of the control socket.
const (
	opEvent = ""     // a hook tells something
	opNext  = "next" // somebody in the program takes messages over
)

type answer struct {
	OK     bool            `json:"ok"`
	Output json.RawMessage `json:"output,omitempty"` // for the hook to print
	Notice *Notice         `json:"notice,omitempty"`
}

// control serves the control socket of a bridge.
type control struct {
	l     *net.UnixListener
	token [sha256.Size]byte
	open  bool // there is no token
	talks chan struct{}
	b     *Bridge
}

func newControl(path, token string, b *Bridge) (*control, error) {
	l, err := listen(path)
	if err != nil {
		return nil, err
	}
	return &control{
		l: l, token: sha256.Sum256([]byte(token)), open: token == "", talks: make(chan struct{}, maxTalks), b: b,
	}, nil
}

// serve returns once the listener is closed and every talk is over.
func (c *control) serve() {
	for {
		conn, err := c.l.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				t := time.NewTimer(50 * time.Millisecond) // no descriptors left, or the like: they come back
				<-t.C
				continue
			}
			break
		}
		c.talks <- struct{}{}
		go func() {
			defer func() { <-c.talks }()
			defer conn.Close()
			c.talk(conn)
		}()
	}
	for range maxTalks {
		c.talks <- struct{}{}
	}
}

// close ends the service and removes the socket.
func (c *control) close() { _ = c.l.Close() }

// talk answers one frame. Whoever is not the user, has another token or sends something else is not answered.
func (c *control) talk(conn *net.UnixConn) {
	if uid, err := peerUID(conn); err != nil || uid != os.Geteuid() {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(frameTimeout))
	line, err := readLine(conn, maxFrame)
	if err != nil {
		return
	}
	var f frame
	if json.Unmarshal(line, &f) != nil {
		return
	}
	if sum := sha256.Sum256([]byte(f.Token)); !c.open && subtle.ConstantTimeCompare(sum[:], c.token[:]) != 1 {
		return
	}
	switch f.Op {
	case opEvent:
		a, items := c.b.onFrame(f)
		c.b.bring(items, send(conn, a))
	case opNext:
		wait := min(max(time.Duration(f.WaitMs)*time.Millisecond, 0), MaxNext)
		_ = conn.SetDeadline(time.Now().Add(wait + frameTimeout))
		items := c.b.next(wait)
		a := answer{OK: true}
		if len(items) > 0 {
			n := noticeOf(items)
			a.Notice = &n
		}
		c.b.bring(items, send(conn, a))
	}
}

func send(conn *net.UnixConn, a answer) error {
	reply, err := json.Marshal(a)
	if err == nil {
		_, err = conn.Write(append(reply, '\n')) // whoever asked may be gone
	}
	return err
}

// readLine reads up to a newline, at most limit bytes.
func readLine(r io.Reader, limit int64) ([]byte, error) {
	line, err := bufio.NewReader(io.LimitReader(r, limit)).ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read frame: %w", err)
	}
	return line, nil
}

// Relay tells the bridge of a seat of an event, and returns what the hook is to print, which may be nothing. deliver
// says that the program reads what its hooks print: then waiting messages may come with it.
//
// It takes RelayBudget at most, and less when ctx ends. When a session starts its bridge may be about to: only then
// it is waited for. Any error means that the hook prints nothing and succeeds; the program must not notice.
func Relay(ctx context.Context, l Launch, e Event, deliver bool) (output []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, RelayBudget)
	defer cancel()
	a, err := askControl(ctx, l, frame{Event: e, Deliver: deliver}, word(e.Name) == "sessionstart")
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", e.Name, err)
	}
	return a.Output, nil
}

// MaxNext bounds the wait of Next.
const MaxNext = time.Minute

// Next waits until there are messages that an idle agent is to be told of, at most MaxNext, and takes them over: they
// count as read. It is for what runs inside of an agent program, or beside it, and can begin a turn there. ok is false
// when there were none in the time; ask again.
//
// Errors: ctx's; the bridge is away, or not this seat's.
func Next(ctx context.Context, l Launch, wait time.Duration) (n Notice, ok bool, err error) {
	a, err := askControl(ctx, l, frame{Op: opNext, WaitMs: wait.Milliseconds()}, false)
	if err != nil {
		return Notice{}, false, fmt.Errorf("wait for messages: %w", err)
	}
	if a.Notice == nil {
		return Notice{}, false, nil
	}
	return *a.Notice, true, nil
}

// askControl exchanges one frame.
func askControl(ctx context.Context, l Launch, f frame, patient bool) (answer, error) {
	var a answer
	conn, err := dialControl(ctx, l.Socket, patient)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	f.Token = l.ControlToken
	body, err := json.Marshal(f)
	if err != nil {
		return a, fmt.Errorf("encode frame: %w", err)
	}
	if _, err := conn.Write(append(body, '\n')); err != nil {
		return a, fmt.Errorf("send frame: %w", err)
	}
	line, err := readLine(conn, maxAnswer)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("decode answer: %w", err)
	}
	return a, nil
}

// dialControl connects to the control socket; patient: also to one that is about to be there.
func dialControl(ctx context.Context, path string, patient bool) (*net.UnixConn, error) {
	var d net.Dialer
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			c, ok := conn.(*net.UnixConn)
			if !ok {
				conn.Close()
				return nil, fmt.Errorf("dial %s: not a unix socket", path)
			}
			// Who listens may be somebody else when the socket was put into a directory that others share.
			if uid, err := peerUID(c); err != nil || uid != os.Geteuid() {
				c.Close()
				return nil, fmt.Errorf("dial %s: it belongs to another user", path)
			}
			return c, nil
		}
		if !patient {
			return nil, err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}
