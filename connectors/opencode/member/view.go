package member

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// view is what a server has told of its sessions. A program has one session at a time that a person sees, the
// sessions of subagents below it, and whatever others it was asked for over its API.
type view struct {
	known   bool                // the server was asked
	busy    map[string]string   // sessions at work: why one tries again, or ""
	child   map[string]bool     // sessions of subagents
	asks    map[string]question // what waits for a person, by id
	tools   map[string]string   // the tool that runs, by session
	root    string              // the session that was last at work
	agent   string              // of its last turn
	model   string              // provider/model of its last turn
	variant string
	failed  failure // of its last turn
}

// question is something that the program asks its person.
type question struct{ session, condition, source, about string }

// failure is how a turn ended; the zero value is: well.
type failure struct{ condition, source, message string }

func newView() view {
	return view{busy: map[string]string{}, child: map[string]bool{}, asks: map[string]question{}, tools: map[string]string{}}
}

// clone is for a reader without the lock.
func (v view) clone() view {
	v.busy, v.child, v.asks, v.tools = maps.Clone(v.busy), maps.Clone(v.child), maps.Clone(v.asks), maps.Clone(v.tools)
	return v
}

// status is the state of one session, as events and GET /session/status say it.
type status struct {
	Type    string `json:"type"` // idle, busy, retry
	Message string `json:"message"`
}

// request is something that waits for a person. Permission is what is to be allowed; Action is its name in later
// events; Questions are of the other kind.
type request struct {
	ID         string   `json:"id"`
	RequestID  string   `json:"requestID"` // in answers
	SessionID  string   `json:"sessionID"`
	Permission string   `json:"permission"`
	Action     string   `json:"action"`
	Patterns   []string `json:"patterns"`
	Resources  []string `json:"resources"`
	Questions  []struct {
		Question string `json:"question"`
	} `json:"questions"`
}

// properties is what of an event's properties counts here.
type properties struct {
	request
	Status status `json:"status"`
	Info   struct {
		ID        string `json:"id"`
		SessionID string `json:"sessionID"`
		ParentID  string `json:"parentID"`
		Role      string `json:"role"`
		Agent     string `json:"agent"`
		Variant   string `json:"variant"`
		Model     struct {
			ProviderID string `json:"providerID"`
			ModelID    string `json:"modelID"`
			Variant    string `json:"variant"`
		} `json:"model"`
	} `json:"info"`
	Part struct {
		SessionID string `json:"sessionID"`
		Type      string `json:"type"`
		Tool      string `json:"tool"`
		State     struct {
			Status string `json:"status"`
		} `json:"state"`
	} `json:"part"`
	Error struct {
		Name string `json:"name"`
		Data struct {
			Message    string `json:"message"`
			StatusCode int    `json:"statusCode"`
		} `json:"data"`
	} `json:"error"`
}

// apply takes an event in. One that it does not know changes nothing, and neither do members of other types than
// expected.
func (v *view) apply(e api.Event) {
	var p properties
	_ = json.Unmarshal(e.Properties, &p) // what could be read counts
	switch e.Type {
	case "session.created":
		switch {
		case p.Info.ParentID != "":
			v.child[p.Info.ID] = true
		case p.Info.ID != "" && len(v.busy) == 0: // the person begins another
			v.root, v.failed = p.Info.ID, failure{}
		}
	case "session.deleted":
		v.ended(p.Info.ID)
		delete(v.child, p.Info.ID)
		if v.root == p.Info.ID {
			v.root = ""
		}
	case "session.status":
		v.status(p.SessionID, p.Status)
	case "session.idle":
		v.ended(p.SessionID)
	case "session.error":
		v.failure(p)
	case "permission.asked", "permission.v2.asked", "question.asked", "question.v2.asked":
		v.ask(e.Type, p.request)
	case "permission.replied", "permission.v2.replied", "question.replied", "question.rejected", "question.v2.replied", "question.v2.rejected":
		delete(v.asks, p.RequestID)
	case "message.updated":
		if p.Info.Role == "user" && !v.child[p.Info.SessionID] && p.Info.SessionID != "" {
			v.root, v.agent = p.Info.SessionID, p.Info.Agent
			if m := p.Info.Model; m.ProviderID != "" && m.ModelID != "" {
				v.model, v.variant = m.ProviderID+"/"+m.ModelID, p.Info.Variant
				if m.Variant != "" {
					v.variant = m.Variant
				}
			}
		}
	case "message.part.updated":
		switch s := p.Part.State.Status; {
		case p.Part.Type != "tool":
		case s == "running":
			v.tools[p.Part.SessionID] = p.Part.Tool
		case s == "completed", s == "error":
			delete(v.tools, p.Part.SessionID)
		}
	}
}

func (v *view) status(session string, s status) {
	switch {
	case session == "":
	case s.Type == "busy", s.Type == "retry":
		if _, at := v.busy[session]; !at && !v.child[session] {
			v.root, v.failed = session, failure{}
		}
		v.busy[session] = ""
		if s.Type == "retry" {
			v.busy[session] = "retrying"
			if s.Message != "" {
				v.busy[session] = s.Message
			}
		}
	case s.Type == "idle":
		v.ended(session)
	}
}

// ended is the end of a session's turn, and of what it asked: nobody waits for the answer any more.
func (v *view) ended(session string) {
	delete(v.busy, session)
	delete(v.tools, session)
	maps.DeleteFunc(v.asks, func(_ string, q question) bool { return q.session == session })
}

func (v *view) failure(p properties) {
	switch {
	case v.child[p.SessionID]: // its parent is told, and goes on
	case p.Error.Name == "MessageAbortedError": // by hand
		v.failed = failure{}
	case p.Error.Name != "":
		v.failed = failure{conditionOf(p.Error.Name, p.Error.Data.StatusCode, p.Error.Data.Message), p.Error.Name, p.Error.Data.Message}
	}
}

// conditionOf maps the program's error to the code of a condition. The answer of a model's provider says more than
// the name does.
func conditionOf(name string, status int, message string) string {
	switch name {
	case "ProviderAuthError":
		return "auth"
	case "ContextOverflowError", "MessageOutputLengthError":
		return "context"
	case "ProviderModelNotFoundError", "ModelNotFoundError":
		return "model"
	}
	if code := bridge.ConditionOfStatus(status); code != "" {
		return code
	}
	return bridge.ConditionOf(message)
}

func (v *view) ask(event string, r request) {
	if r.ID == "" {
		return
	}
	q := question{session: r.SessionID, source: event}
	if q.condition = "approval"; strings.HasPrefix(event, "question.") {
		q.condition = "input"
		for _, one := range r.Questions {
			q.about = one.Question
			break
		}
		v.asks[r.ID] = q
		return
	}
	q.about = r.Permission + r.Action
	if what := strings.Join(append(r.Patterns, r.Resources...), " "); what != "" {
		q.about += ": " + what
	}
	v.asks[r.ID] = q
}

// told is what is to be said of the view on the mesh.
func (v *view) told() bridge.Event {
	e := bridge.Event{Name: bridge.EventStatus, Status: wire.StatusIdle, Session: v.root, Model: v.model}
	ids := slices.Sorted(maps.Keys(v.asks)) // they rise with time
	switch {
	case len(ids) > 0:
		q := v.asks[ids[0]]
		e.Status, e.Condition, e.Source, e.Message, e.Activity = wire.StatusWaiting, q.condition, q.source, q.about, v.tools[q.session]
	case len(v.busy) > 0:
		e.Status, e.Activity = wire.StatusWorking, v.activity()
		for _, session := range slices.Sorted(maps.Keys(v.busy)) {
			if why := v.busy[session]; why != "" {
				if e.Condition = bridge.ConditionOf(why); e.Condition == "failed" {
					e.Condition = "retrying"
				}
				e.Source, e.Message = "session.status", why
			}
		}
	case v.failed.condition != "":
		e.Condition, e.Source, e.Message = v.failed.condition, v.failed.source, v.failed.message
	}
	return e
}

// activity is the tool that runs: the session's own, else a subagent's.
func (v *view) activity() string {
	if tool := v.tools[v.root]; tool != "" {
		return tool
	}
	for _, session := range slices.Sorted(maps.Keys(v.tools)) {
		return v.tools[session]
	}
	return ""
}

// free says whether a turn may be begun.
func (v *view) free() bool { return v.known && len(v.busy) == 0 && len(v.asks) == 0 }
