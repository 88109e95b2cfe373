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
	maxAnswer    = 1 << 20         // of a reply, which may bring messages
	frameTimeout = 5 * time.Second // until a frame is whole
	maxTalks     = 32              // connections at a time
	// RelayBudget is how long a hook may take of its program's time, in all.
	RelayBudget = 2 * time.Second
)

// frame is one request on the control socket: one line of JSON, answered by one.
type frame struct {
	Token string `json:"token,omitempty"`
	Event Event  `json:"event"`
	// Deliver: the program's hooks can take messages over, as the reply's Output.
	Deliver bool `json:"deliver,omitempty"`
}

type answer struct {
	OK     bool            `json:"ok"`
	Output json.RawMessage `json:"output,omitempty"` // for the hook to print
}

// control serves the control socket of a bridge.
type control struct {
	l     *net.UnixListener
	token [sha256.Size]byte
	open  bool // there is no token
	talks chan struct{}
	do    func(frame) answer
}

func newControl(path, token string, do func(frame) answer) (*control, error) {
	l, err := listen(path)
	if err != nil {
		return nil, err
	}
	return &control{
		l: l, token: sha256.Sum256([]byte(token)), open: token == "", talks: make(chan struct{}, maxTalks), do: do,
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
	reply, err := json.Marshal(c.do(f))
	if err != nil {
		return
	}
	_, _ = conn.Write(append(reply, '\n')) // whoever asked may be gone
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
	conn, err := dialControl(ctx, l.Socket, word(e.Name) == "sessionstart")
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", e.Name, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	body, err := json.Marshal(frame{Token: l.ControlToken, Event: e, Deliver: deliver})
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", e.Name, err)
	}
	if _, err := conn.Write(append(body, '\n')); err != nil {
		return nil, fmt.Errorf("relay %s: %w", e.Name, err)
	}
	line, err := readLine(conn, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", e.Name, err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return nil, fmt.Errorf("relay %s: %w", e.Name, err)
	}
	return a.Output, nil
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
