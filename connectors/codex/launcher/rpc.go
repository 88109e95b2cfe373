package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// link carries whole messages.
type link interface {
	Read(ctx context.Context) ([]byte, error)
	Write(ctx context.Context, p []byte) error
	Close()
}

// dialServer connects to the program's server.
func dialServer(ctx context.Context, socket string) (link, error) {
	var d net.Dialer
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", socket)
	}}
	conn, resp, err := websocket.Dial(ctx, "ws://localhost/", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, CompressionMode: websocket.CompressionDisabled,
	})
	if resp != nil && resp.Body != nil {
		resp.Body.Close()
	}
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1) // a session that is opened comes with its whole history
	return socketLink{conn}, nil
}

type socketLink struct{ c *websocket.Conn }

func (l socketLink) Read(ctx context.Context) ([]byte, error) {
	_, p, err := l.c.Read(ctx)
	return p, err
}

func (l socketLink) Write(ctx context.Context, p []byte) error {
	return l.c.Write(ctx, websocket.MessageText, p)
}

func (l socketLink) Close() { _ = l.c.CloseNow() }

// note is a notification of the server.
type note struct {
	Method string
	Params json.RawMessage
}

// refusal is the server's answer that it does not do what was asked.
type refusal struct {
	Method  string `json:"-"`
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %s (%d)", r.Method, r.Message, r.Code) }

// errServerGone: the connection to the server ended.
var errServerGone = errors.New("the server is gone")

// client speaks the program's protocol: JSON-RPC without its version member. What the server asks its clients, which
// is whether a person allows something, is left to the terminal program.
type client struct {
	link   link
	onNote func(note) // must not block

	mu      sync.Mutex
	last    int
	waiting map[int]chan reply // nil once the connection ended
}

type reply struct {
	Result json.RawMessage
	Err    error
}

type message struct {
	ID     *json.RawMessage `json:"id,omitempty"`
	Method string           `json:"method,omitempty"`
	Params json.RawMessage  `json:"params,omitempty"`
	Result json.RawMessage  `json:"result,omitempty"`
	Error  *refusal         `json:"error,omitempty"`
}

func newClient(l link, onNote func(note)) *client {
	return &client{link: l, onNote: onNote, waiting: map[int]chan reply{}}
}

// read takes in what the server sends, until the connection or ctx ends.
func (c *client) read(ctx context.Context) {
	defer func() {
		c.mu.Lock()
		waiting := c.waiting
		c.waiting = nil
		c.mu.Unlock()
		for _, w := range waiting {
			w <- reply{Err: errServerGone}
		}
	}()
	for {
		p, err := c.link.Read(ctx)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(p, &m) != nil {
			continue
		}
		switch {
		case m.Method != "" && m.ID == nil:
			c.onNote(note{m.Method, m.Params})
		case m.Method == "" && m.ID != nil:
			c.answer(m)
		}
	}
}

func (c *client) answer(m message) {
	var id int
	if json.Unmarshal(*m.ID, &id) != nil {
		return
	}
	c.mu.Lock()
	w := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if w == nil {
		return
	}
	r := reply{Result: m.Result}
	if m.Error != nil {
		r.Err = m.Error
	}
	w <- r
}

// call asks and waits for the answer; out may be nil. Errors: ctx's, errServerGone, *refusal.
func (c *client) call(ctx context.Context, method string, params, out any) error {
	w := make(chan reply, 1)
	c.mu.Lock()
	if c.waiting == nil {
		c.mu.Unlock()
		return fmt.Errorf("%s: %w", method, errServerGone)
	}
	c.last++
	id := c.last
	c.waiting[id] = w
	c.mu.Unlock()
	if err := c.send(ctx, map[string]any{"id": id, "method": method, "params": params}); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case r := <-w:
		var no *refusal
		if errors.As(r.Err, &no) {
			no.Method = method
			return no
		}
		if r.Err != nil || out == nil {
			return r.Err
		}
		if err := json.Unmarshal(r.Result, out); err != nil {
			return fmt.Errorf("%s: read answer: %w", method, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, context.Cause(ctx))
	}
}

// notify tells the server something.
func (c *client) notify(ctx context.Context, method string) error {
	return c.send(ctx, map[string]any{"method": method})
}

func (c *client) send(ctx context.Context, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return c.link.Write(ctx, p)
}
