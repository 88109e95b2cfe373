package launcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk/bridge"
)

const (
	// tellAgain is the pause after the bridge did not take an event.
	tellAgain = 200 * time.Millisecond
	// subscribeAgain is the pause until a session that began to work is asked for again.
	subscribeAgain = 200 * time.Millisecond
)

// session keeps the view of the session that the seat shows.
type session struct {
	mu      sync.Mutex
	now     view
	changed chan struct{} // of one place: it is looked at again
}

func (s *session) init() { s.changed = make(chan struct{}, 1) }

// note takes a notification in.
func (s *session) note(n note) {
	s.mu.Lock()
	s.now = s.now.next(n)
	s.mu.Unlock()
	s.ring()
}

// follow names the session, unless it is known already.
func (s *session) follow(thread string) {
	s.mu.Lock()
	if s.now.Thread != thread {
		s.now = view{Thread: thread}
	}
	s.mu.Unlock()
	s.ring()
}

// failed notes that the last turn of a session failed, unless another one runs.
func (s *session) failed(thread string, f *failure) {
	s.mu.Lock()
	if s.now.Thread == thread && !s.now.Active {
		s.now.Failure = f
	}
	s.mu.Unlock()
}

func (s *session) ring() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *session) view() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// tell passes on to the bridge what the server tells, until ctx ends. States that were over before they could be told
// are not: only what is now counts.
func (r *run) tell(ctx context.Context) {
	subscribed := r.session.view().Thread // by opening it
	var told view
	var last bridge.Event
	for {
		v := r.session.view()
		var again <-chan time.Time
		if v.Thread != subscribed {
			// The person at the terminal opened another session. It can be followed once it is in its file.
			if r.subscribe(ctx, v) {
				if err := plan.NoteSession(r.dir, v.Thread); err != nil {
					fmt.Fprintln(r.log, err)
				}
				subscribed, v = v.Thread, r.session.view()
			} else if v.Active {
				again = time.After(subscribeAgain)
			}
		}
		events := []bridge.Event{}
		if v.Thread != told.Thread {
			// How it began is not said: its name has put it into its file, so it can be gone on with from now on.
			events = append(events, bridge.Event{Name: "SessionStart", Session: v.Thread})
		}
		if v.Turns != told.Turns {
			events = append(events, bridge.Event{Name: "UserPromptSubmit", Session: v.Thread})
		}
		if e := v.event(); e != last || len(events) > 0 {
			events = append(events, e)
		}
		for _, e := range events {
			if err := bridge.Tell(ctx, r.launch, e); err != nil {
				again = time.After(tellAgain)
				break
			}
			if e.Name == bridge.EventStatus {
				told, last = v, e
			}
		}
		select {
		case <-r.session.changed:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// subscribe has the server tell of a session that another client opened. How its last turn ended may have been told
// before.
func (r *run) subscribe(ctx context.Context, v view) bool {
	var out struct {
		Thread struct {
			Turns []struct {
				Status string     `json:"status"`
				Error  *turnError `json:"error"`
			} `json:"turns"`
		} `json:"thread"`
	}
	resume := func() error {
		return r.client.call(ctx, "thread/resume", map[string]any{"threadId": v.Thread}, &out)
	}
	if resume() != nil {
		// See open. Without this a new session could not be reopened either, if the seat ended before its first turn.
		if r.client.name(ctx, v.Thread, r.launch.Name) != nil || resume() != nil {
			return false
		}
	}
	if turns := out.Thread.Turns; len(turns) > 0 && turns[len(turns)-1].Status == "failed" {
		r.session.failed(v.Thread, failureOf(turns[len(turns)-1].Error))
	}
	return true
}

// hello introduces this client.
func (c *client) hello(ctx context.Context, version string) error {
	err := c.call(ctx, "initialize", map[string]any{
		"clientInfo": map[string]any{"name": "cotal", "title": "Cotal", "version": version},
		"capabilities": map[string]any{
			"experimentalApi": true,
			// What is streamed is for the terminal.
			"optOutNotificationMethods": []string{
				"item/agentMessage/delta", "item/reasoning/textDelta", "item/reasoning/summaryTextDelta", "item/plan/delta",
				"item/commandExecution/outputDelta", "item/fileChange/outputDelta", "command/exec/outputDelta", "turn/diff/updated",
			},
		},
	}, nil)
	if err != nil {
		return err
	}
	return c.notify(ctx, "initialized")
}

// open makes the plan's session available and returns its id. A new one, and a fork, gets a name.
func (c *client) open(ctx context.Context, p plan.Plan, name string) (string, error) {
	params := map[string]any{"cwd": p.Cwd}
	method := "thread/start"
	switch p.Action {
	case plan.ActionFork:
		method = "thread/fork"
	case plan.ActionOpen:
		method = "thread/resume"
	}
	if p.Action != plan.ActionNew {
		params["threadId"] = p.Session
		// Without these it goes on with the model it had.
		if p.Model != "" {
			params["model"] = p.Model
		}
		if p.Effort != "" {
			params["config"] = map[string]any{"model_reasoning_effort": p.Effort}
		}
	}
	var out struct {
		Thread struct {
			ID string `json:"id"`
		} `json:"thread"`
	}
	if err := c.call(ctx, method, params, &out); err != nil {
		return "", fmt.Errorf("open session %s: %w", p.Session, err)
	}
	if out.Thread.ID == "" {
		return "", fmt.Errorf("open session %s: the server named no id", p.Session)
	}
	if p.Action != plan.ActionOpen {
		// The terminal program can open a session only once it is in its file, and a name puts it there.
		if err := c.name(ctx, out.Thread.ID, name); err != nil {
			return "", fmt.Errorf("name session: %w", err)
		}
	}
	return out.Thread.ID, nil
}

func (c *client) name(ctx context.Context, thread, name string) error {
	return c.call(ctx, "thread/name/set", map[string]any{"threadId": thread, "name": name}, nil)
}

// turn begins a turn. It is sent once: a second one would be a second turn.
func (c *client) turn(ctx context.Context, thread, text string) error {
	return c.call(ctx, "turn/start", map[string]any{
		"threadId": thread, "input": []any{map[string]any{"type": "text", "text": text}},
	}, nil)
}
