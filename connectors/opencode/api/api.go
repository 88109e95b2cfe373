// Package api is a client of OpenCode's HTTP API on loopback, as far as a seat needs it.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// What every server answers to.
const (
	User       = "opencode"
	HealthPath = "/global/health"
)

// Waits. A request that meets the server while it is still booting is never answered, so every one has a timeout
// of its own, and those that change nothing are tried again.
const (
	pollEvery   = 200 * time.Millisecond
	pollTimeout = 1500 * time.Millisecond
	// OpenTimeout bounds a question that makes the server load the project.
	OpenTimeout = 10 * time.Second
	// ChangeTimeout bounds a change, which must not be repeated.
	ChangeTimeout = 60 * time.Second
	// maxAnswer bounds an answer; the catalogue of every provider is below 4 MiB.
	maxAnswer = 16 << 20
)

// ErrNotFound is the server's answer that what was asked for does not exist.
var ErrNotFound = errors.New("no such session")

// Client talks to one server.
type Client struct {
	base     string
	password string
	http     http.Client
}

// New returns a client of the server on 127.0.0.1:port.
func New(port int, password string) *Client {
	return &Client{
		base:     "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		password: password,
		http:     http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, // no proxy: this is loopback
	}
}

// Call makes one request; in and out may be nil. Errors: ErrNotFound; any other says what was asked.
func (c *Client) Call(ctx context.Context, timeout time.Duration, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s %s: read answer: %w", method, path, err)
	}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return ErrNotFound
	case resp.StatusCode >= 300:
		return fmt.Errorf("%s %s: HTTP %d: %s", method, path, resp.StatusCode, strings.TrimSpace(string(data[:min(len(data), 300)])))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s %s: parse answer: %w", method, path, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	r.SetBasicAuth(User, c.password)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return c.http.Do(r)
}

// Get asks again until there is an answer; that something does not exist is an answer.
func (c *Client) Get(ctx context.Context, timeout time.Duration, path string, out any) error {
	for {
		err := c.Call(ctx, timeout, http.MethodGet, path, nil, out)
		if err == nil || errors.Is(err, ErrNotFound) {
			return err
		}
		wait := time.NewTimer(pollEvery)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return fmt.Errorf("%w; last answer: %w", context.Cause(ctx), err)
		}
	}
}

// Ready waits until the server answers as itself.
func (c *Client) Ready(ctx context.Context) error {
	var health struct {
		Healthy bool `json:"healthy"`
	}
	if err := c.Get(ctx, pollTimeout, HealthPath, &health); err != nil {
		return err
	}
	if !health.Healthy {
		return errors.New("it says it is not healthy")
	}
	return nil
}

// NewSession makes an empty session and returns its id.
func (c *Client) NewSession(ctx context.Context) (string, error) {
	return c.made(ctx, "make session", "/session")
}

// Fork copies a session and returns the id of the copy. Errors: ErrNotFound.
func (c *Client) Fork(ctx context.Context, session string) (string, error) {
	return c.made(ctx, "fork session "+session, sessionPath(session)+"/fork")
}

func (c *Client) made(ctx context.Context, what, path string) (string, error) {
	var s struct {
		ID string `json:"id"`
	}
	err := c.Call(ctx, ChangeTimeout, http.MethodPost, path, struct{}{}, &s)
	if err == nil && s.ID == "" {
		err = errors.New("the server named no id")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return s.ID, nil
}

// Open asks for a session until the server answers. Errors: ErrNotFound.
func (c *Client) Open(ctx context.Context, session string) error {
	if err := c.Get(ctx, OpenTimeout, sessionPath(session), nil); err != nil {
		return fmt.Errorf("open session %s: %w", session, err)
	}
	return nil
}

// Select has the terminal show a session.
func (c *Client) Select(ctx context.Context, session string) error {
	if err := c.Call(ctx, OpenTimeout, http.MethodPost, "/tui/select-session", map[string]string{"sessionID": session}, nil); err != nil {
		return fmt.Errorf("show session %s: %w", session, err)
	}
	return nil
}

// Prompt is one turn that is begun over the API.
type Prompt struct {
	Text    string
	Model   string // provider/model; empty: the session's
	Variant string
	Agent   string // empty: the default
}

// Send begins a turn, or queues it behind the one that runs. It is sent once: a second would be a second turn.
// Errors: ErrNotFound.
func (c *Client) Send(ctx context.Context, session string, p Prompt) error {
	body := map[string]any{"parts": []any{map[string]any{"type": "text", "text": p.Text}}}
	if provider, model, ok := strings.Cut(p.Model, "/"); ok {
		body["model"] = map[string]any{"providerID": provider, "modelID": model}
	}
	if p.Variant != "" {
		body["variant"] = p.Variant
	}
	if p.Agent != "" {
		body["agent"] = p.Agent
	}
	if err := c.Call(ctx, ChangeTimeout, http.MethodPost, sessionPath(session)+"/prompt_async", body, nil); err != nil {
		return fmt.Errorf("post prompt: %w", err)
	}
	return nil
}

func sessionPath(session string) string { return "/session/" + url.PathEscape(session) }
