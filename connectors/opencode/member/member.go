// Package member makes a running OpenCode a participant of the mesh. It is the program's MCP server, as
// cotal-bridge is for others, and the program's own API tells it what a bridge is told by hooks otherwise: what
// the sessions do (its stream of events), and how a turn is begun (prompt_async). Nothing is typed, and nothing is
// read from the screen.
package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// knowFirst is how long the program's tools wait for its own state to be known: a turn that begins and ends
	// before that would not be seen.
	knowFirst = 5 * time.Second
	askWithin = 5 * time.Second
	againMin  = 200 * time.Millisecond
	againMax  = 5 * time.Second
)

// Main is `cotal-opencode-seat mcp RECORD`: it serves MCP on standard input and output until the program that
// started it ends. It returns the exit code.
func Main(args []string, version string, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "cotal-opencode-seat: usage: cotal-opencode-seat mcp <api.json>; OpenCode starts this inside a seat")
		return 2
	}
	if err := run(args[0], version, slog.New(slog.NewTextHandler(stderr, nil))); err != nil {
		fmt.Fprintln(stderr, "cotal-opencode-seat:", err)
		return 1
	}
	return 0
}

func run(path, version string, log *slog.Logger) error {
	rec, err := api.ReadRecord(path)
	if err != nil {
		return err
	}
	l, err := bridge.ReadLaunch(rec.Material, nil)
	if err != nil {
		return err
	}
	m := newMember(api.New(rec.Port, rec.Password), filepath.Join(filepath.Dir(path), api.SessionFile))
	b := bridge.Start(l, bridge.Options{Log: log, Waker: m})
	defer b.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var followed sync.WaitGroup
	followed.Go(func() { m.follow(ctx, b.Tell, log) })
	defer followed.Wait()
	defer cancel()
	return b.ServeStdio(ctx, version, func(ctx context.Context) { m.await(ctx, knowFirst) })
}

// member follows one server.
type member struct {
	client  *api.Client
	session string        // path of the file with the session that the launch began with
	seen    chan struct{} // closed once the state is known

	mu   sync.Mutex // no I/O under it
	v    view
	last bridge.Event // that was told
}

func newMember(c *api.Client, session string) *member {
	return &member{client: c, session: session, seen: make(chan struct{}), v: newView()}
}

// await waits until the state is known, for a while.
func (m *member) await(ctx context.Context, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-m.seen:
	case <-t.C:
	case <-ctx.Done():
	}
}

// follow tells what happens in the server until ctx ends. When the stream breaks, what was told last stands until
// the server is heard again: nothing is inferred.
func (m *member) follow(ctx context.Context, tell func(bridge.Event), log *slog.Logger) {
	for wait := againMin; ; wait = min(2*wait, againMax) {
		heard, err := m.listen(ctx, tell)
		if ctx.Err() != nil {
			return
		}
		log.Debug("follow OpenCode", "err", err)
		if heard {
			wait = againMin
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// listen is one stream: first the state as it is, then what happens. heard says whether it came to that.
func (m *member) listen(ctx context.Context, tell func(bridge.Event)) (heard bool, err error) {
	events, err := m.client.Events(ctx)
	if err != nil {
		return false, err
	}
	defer events.Close()
	m.mu.Lock()
	child := maps.Clone(m.v.child)
	m.mu.Unlock()
	now, err := m.look(ctx, child)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	first := !m.v.known
	now.agent, now.model, now.variant = m.v.agent, m.v.model, m.v.variant
	if _, at := now.busy[m.v.root]; at || now.root == "" { // another at work may be a subagent that nobody told of
		now.root = m.v.root
	}
	m.v = now
	m.mu.Unlock()
	if first {
		close(m.seen)
	}
	m.say(tell)
	for {
		e, err := events.Next()
		if err != nil {
			return true, err
		}
		m.mu.Lock()
		m.v.apply(e)
		m.mu.Unlock()
		m.say(tell)
	}
}

// look asks the server for its state. That does not say which sessions are those of subagents; child is what is known.
func (m *member) look(ctx context.Context, child map[string]bool) (view, error) {
	v := newView()
	v.child = child
	var busy map[string]status
	if err := m.client.Call(ctx, askWithin, http.MethodGet, "/session/status", nil, &busy); err != nil {
		return v, err
	}
	for session, s := range busy {
		v.status(session, s)
	}
	for path, event := range map[string]string{"/permission": "permission.asked", "/question": "question.asked"} {
		var asked []request
		err := m.client.Call(ctx, askWithin, http.MethodGet, path, nil, &asked)
		if err != nil && !errors.Is(err, api.ErrNotFound) { // an older one has no questions
			return v, err
		}
		for _, r := range asked {
			v.ask(event, r)
		}
	}
	v.known = true
	return v, nil
}

// say tells the bridge what has changed. A turn that begins is told as such: what the agent said of itself in the
// last one does not hold any more.
func (m *member) say(tell func(bridge.Event)) {
	m.mu.Lock()
	e, last := m.v.told(), m.last
	m.last = e
	m.mu.Unlock()
	if e == last {
		return
	}
	if e.Status == wire.StatusWorking && last.Status != wire.StatusWorking && last.Status != wire.StatusWaiting {
		tell(bridge.Event{Name: "UserPromptSubmit", Session: e.Session, Model: e.Model})
	}
	tell(e)
}

// Wake begins a turn with the messages, in the session that was last at work and with its agent and model.
func (m *member) Wake(ctx context.Context, n bridge.Notice) (read bool, err error) {
	m.mu.Lock()
	v := m.v.clone()
	m.mu.Unlock()
	if !v.free() {
		return false, bridge.ErrNotNow
	}
	session, made := or(v.root, m.began()), false
	if session == "" {
		if session, err = m.client.NewSession(ctx); err != nil {
			return false, err
		}
		made = true
	}
	p := api.Prompt{Text: n.Text}
	if session == v.root {
		p.Agent, p.Model, p.Variant = v.agent, v.model, v.variant
	}
	if err := m.client.Send(ctx, session, p); err != nil {
		if errors.Is(err, api.ErrNotFound) { // the person deleted it
			m.forget(session)
			err = fmt.Errorf("%w: %w", bridge.ErrNotNow, err)
		}
		return false, err
	}
	if made {
		_ = m.client.Select(ctx, session) // the turn runs all the same
	}
	return true, nil
}

// began is the session that the launch began with, or "".
func (m *member) began() string {
	id, err := os.ReadFile(m.session)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

func (m *member) forget(session string) {
	m.mu.Lock()
	if m.v.root == session {
		m.v.root = ""
	}
	m.mu.Unlock()
	if m.began() == session {
		_ = os.Remove(m.session)
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
