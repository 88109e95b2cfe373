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
	opEvent = ""      // a hook tells something
	opNext  = "next"  // somebody in the program takes messages over; once a turn began with them the frame opTaken follows
	opTaken = "taken" // the agent has the messages: they are read
	opSeen  = "seen"  // the agent knows that there are some
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

func newControl(launch Launch, b *Bridge) (*control, error) {
	l, err := launch.listen()
	if err != nil {
		return nil, err
	}
	return &control{
		l: l, token: sha256.Sum256([]byte(launch.ControlToken)), open: launch.ControlToken == "", talks: make(chan struct{}, maxTalks), b: b,
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
	defer context.AfterFunc(c.b.ctx, func() { _ = conn.SetDeadline(past) })()
	c.within(conn, frameTimeout)
	f, err := readFrame(conn)
	if err != nil {
		return
	}
	if sum := sha256.Sum256([]byte(f.Token)); !c.open && subtle.ConstantTimeCompare(sum[:], c.token[:]) != 1 {
		return
	}
	switch f.Op {
	case opEvent:
		a, items := c.b.onFrame(f)
		err := send(conn, a)
		if err == nil && len(items) > 0 { // the hook says that its program has them
			c.within(conn, RelayBudget)
			var f frame
			if f, err = readFrame(conn); err == nil && f.Op != opTaken {
				err = errors.New("the hook did not take them")
			}
		}
		c.b.bring(f.Event, items, err)
	case opNext:
		c.next(conn, min(max(time.Duration(f.WaitMs)*time.Millisecond, 0), MaxNext))
	}
}

// past is a deadline that ends whatever a connection waits for.
var past = time.Unix(1, 0)

// within bounds what follows on a connection. One of a bridge that ends stays over: its end either sees this deadline
// and sets another one, or is seen here.
func (c *control) within(conn *net.UnixConn, limit time.Duration) {
	_ = conn.SetDeadline(time.Now().Add(limit))
	if c.b.ctx.Err() != nil {
		_ = conn.SetDeadline(past)
	}
}

// next hands messages to somebody in the program. They are out until that one says what became of them, or is gone:
// then they come again, to whoever asks next.
func (c *control) next(conn *net.UnixConn, wait time.Duration) {
	c.within(conn, wait+takeTimeout)
	items := c.b.next(wait)
	if len(items) == 0 {
		_ = send(conn, answer{OK: true}) // whoever asked asks again
		return
	}
	n := noticeOf(items)
	if err := send(conn, answer{OK: true, Notice: &n}); err != nil { // it is gone: for whoever else waits
		c.b.box.back(items)
		c.b.wake()
		return
	}
	c.within(conn, takeTimeout)
	f, err := readFrame(conn)
	switch {
	case err == nil && f.Op == opTaken:
		c.b.begun()
		c.b.done(items)
	case err == nil && f.Op == opSeen:
		c.b.begun()
		c.b.box.back(nudged(items))
	default:
		c.b.box.back(items)
		time.AfterFunc(wakeAgain, c.b.wake)
	}
}

func readFrame(conn *net.UnixConn) (frame, error) {
	var f frame
	line, err := readLine(conn, maxFrame)
	if err == nil {
		err = json.Unmarshal(line, &f)
	}
	return f, err
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
