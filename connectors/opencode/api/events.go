package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Bounds of a stream of events.
const (
	// maxEvent bounds one event; a larger one, such as a tool's whole output, is passed over.
	maxEvent = 1 << 20
	// silence ends a stream that says nothing: the server beats every ten seconds.
	silence = 2 * time.Minute
	// headTimeout bounds the wait for the head of the stream.
	headTimeout = 5 * time.Second
)

// Event is one event of a server: a name, and what belongs to it.
type Event struct {
	Type       string          `json:"type"`
	Properties json.RawMessage `json:"properties"`
}

// Events is a stream of what happens in a server, from the moment that it was opened.
type Events struct {
	body   io.ReadCloser
	lines  *bufio.Reader
	cancel context.CancelCauseFunc
	quiet  *time.Timer
	ctx    context.Context //nolint:containedctx // of the stream
}

var (
	errNoHead = errors.New("the server does not answer")
	errSilent = fmt.Errorf("nothing was heard for %s", silence)
)

// Events opens the stream. Close it.
func (c *Client) Events(ctx context.Context) (*Events, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	head := time.AfterFunc(headTimeout, func() { cancel(errNoHead) })
	resp, err := c.send(ctx, http.MethodGet, "/event", nil)
	head.Stop()
	if err == nil && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		err = fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, fmt.Errorf("open events: %w", err)
	}
	return &Events{
		body: resp.Body, lines: bufio.NewReaderSize(resp.Body, 64<<10), ctx: ctx, cancel: cancel,
		quiet: time.AfterFunc(silence, func() { cancel(errSilent) }),
	}, nil
}

// Next returns the next event. What is no event is passed over. Any error ends the stream.
func (e *Events) Next() (Event, error) {
	for {
		line, whole, err := e.line()
		if err != nil {
			if cause := context.Cause(e.ctx); cause != nil {
				err = cause
			}
			return Event{}, fmt.Errorf("read events: %w", err)
		}
		e.quiet.Reset(silence)
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		var ev Event
		if ok && whole && json.Unmarshal(data, &ev) == nil && ev.Type != "" {
			return ev, nil
		}
	}
}

// line reads one line and keeps its first maxEvent bytes.
func (e *Events) line() (line []byte, whole bool, err error) {
	whole = true
	for {
		part, err := e.lines.ReadSlice('\n')
		if len(line)+len(part) > maxEvent {
			whole = false
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, whole, err
		}
	}
}

// Close ends the stream.
func (e *Events) Close() {
	e.quiet.Stop()
	e.cancel(nil)
	e.body.Close()
}
