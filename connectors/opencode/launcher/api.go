package launcher

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

// Waits of the API. A request that meets the server while it is still booting is never answered, so every
// one has a timeout of its own, and those that change nothing are tried again.
const (
	pollEvery   = 200 * time.Millisecond
	pollTimeout = 1500 * time.Millisecond
	// openTimeout bounds the first question about a session: it makes the server load the project.
	openTimeout = 10 * time.Second
	// changeTimeout bounds a fork or a prompt, which must not be repeated.
	changeTimeout = 60 * time.Second
)

// errNoSession is the server's answer that a session does not exist.
var errNoSession = errors.New("no such session")

type client struct {
	base     string
	password string
	http     http.Client
}

func newClient(port int, password string) *client {
	return &client{
		base:     "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		password: password,
		http:     http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, // no proxy: this is loopback
	}
}

// call makes one request; out may be nil.
func (c *client) call(ctx context.Context, timeout time.Duration, method, path string, in, out any) error {
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
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	r.SetBasicAuth("opencode", c.password)
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return fmt.Errorf("%s %s: read answer: %w", method, path, err)
	}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return errNoSession
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

// get asks again until there is an answer; a session that does not exist is an answer.
func (c *client) get(ctx context.Context, timeout time.Duration, path string, out any) error {
	for {
		err := c.call(ctx, timeout, http.MethodGet, path, nil, out)
		if err == nil || errors.Is(err, errNoSession) {
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

// ready waits until the server answers as itself.
func (c *client) ready(ctx context.Context) error {
	var health struct {
		Healthy bool `json:"healthy"`
	}
	if err := c.get(ctx, pollTimeout, "/global/health", &health); err != nil {
		return err
	}
	if !health.Healthy {
		return errors.New("it says it is not healthy")
	}
	return nil
}

// session makes the plan's session available and returns its id.
func (c *client) session(ctx context.Context, p Plan) (string, error) {
	var s struct {
		ID string `json:"id"`
	}
	if p.Action == ActionNew {
		if err := c.call(ctx, changeTimeout, http.MethodPost, "/session", struct{}{}, &s); err != nil {
			return "", fmt.Errorf("make session: %w", err)
		}
		return s.ID, nil
	}
	path := "/session/" + url.PathEscape(p.Session)
	if err := c.get(ctx, openTimeout, path, &s); err != nil {
		return "", fmt.Errorf("open session %s: %w", p.Session, err)
	}
	if p.Action == ActionFork {
		if err := c.call(ctx, changeTimeout, http.MethodPost, path+"/fork", struct{}{}, &s); err != nil {
			return "", fmt.Errorf("fork session %s: %w", p.Session, err)
		}
	}
	if s.ID == "" {
		return "", fmt.Errorf("session %s: the server named no id", p.Session)
	}
	return s.ID, nil
}

// prompt posts the first turn. It is sent once: a second post would be a second turn.
func (c *client) prompt(ctx context.Context, session string, p Plan) error {
	body := map[string]any{"parts": []any{map[string]any{"type": "text", "text": p.Prompt}}}
	if provider, model, ok := strings.Cut(p.Model, "/"); ok {
		body["model"] = map[string]any{"providerID": provider, "modelID": model}
	}
	if p.Variant != "" {
		body["variant"] = p.Variant
	}
	path := "/session/" + url.PathEscape(session) + "/prompt_async"
	if err := c.call(ctx, changeTimeout, http.MethodPost, path, body, nil); err != nil {
		return fmt.Errorf("post prompt: %w", err)
	}
	return nil
}
