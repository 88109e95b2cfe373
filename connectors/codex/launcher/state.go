package launcher

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// view is what the server has told of the session that the seat shows.
type view struct {
	Thread  string // its id
	Active  bool   // a turn runs
	Asks    string // what it waits for a person with: the server's flag; "" for nothing
	Turns   int    // turns that began
	Tool    string // that runs
	Failure *failure
	Retry   *failure
}

// failure is why a turn failed, or is tried again.
type failure struct {
	Code    string // of a condition
	Native  string // the program's word
	Message string
}

// Flags of an active session that a person is asked.
const (
	flagApproval = "waitingOnApproval"
	flagInput    = "waitingOnUserInput"
)

// params is what of all notifications is looked at.
type params struct {
	ThreadID string `json:"threadId"`
	Status   struct {
		Type  string   `json:"type"`
		Flags []string `json:"activeFlags"`
	} `json:"status"`
	Turn struct {
		Status string     `json:"status"`
		Error  *turnError `json:"error"`
	} `json:"turn"`
	Item struct {
		Type   string `json:"type"`
		Server string `json:"server"`
		Tool   string `json:"tool"`
	} `json:"item"`
	Error     *turnError `json:"error"`
	WillRetry bool       `json:"willRetry"`
	Thread    struct {
		ID        string          `json:"id"`
		Ephemeral bool            `json:"ephemeral"`
		Source    json.RawMessage `json:"source"`
	} `json:"thread"`
}

type turnError struct {
	Message string          `json:"message"`
	Info    json.RawMessage `json:"codexErrorInfo"`
}

// next says what follows from a notification. One of another session, and one that says nothing of the state,
// leaves everything as it is.
func (v view) next(n note) view {
	var p params
	if json.Unmarshal(n.Params, &p) != nil {
		return v
	}
	if n.Method == "thread/started" {
		if id := p.Thread.ID; id != "" && id != v.Thread && !p.Thread.Ephemeral && !subagent(p.Thread.Source) {
			return view{Thread: id, Turns: v.Turns} // the terminal program shows another session now
		}
		return v
	}
	if p.ThreadID != v.Thread {
		return v
	}
	switch n.Method {
	case "thread/status/changed":
		was := v.Active
		v.Active, v.Asks = p.Status.Type == "active", ""
		for _, flag := range []string{flagApproval, flagInput} {
			if v.Active && slices.Contains(p.Status.Flags, flag) {
				v.Asks = flag
			}
		}
		if !v.Active {
			v.Tool, v.Retry = "", nil
		}
		if p.Status.Type == "systemError" && !was && v.Failure == nil { // within a turn its end follows, with the reason
			v.Failure = &failure{Code: "failed", Native: p.Status.Type}
		}
	case "turn/started":
		v.Active, v.Asks, v.Tool, v.Failure, v.Retry = true, "", "", nil, nil
		v.Turns++
	case "turn/completed":
		v.Active, v.Asks, v.Tool, v.Failure, v.Retry = false, "", "", nil, nil
		if p.Turn.Status == "failed" {
			v.Failure = failureOf(p.Turn.Error)
		}
	case "error":
		if !p.WillRetry {
			v.Failure = failureOf(p.Error) // the end of the turn follows
			break
		}
		v.Retry = failureOf(p.Error)
		v.Retry.Code = "retrying"
	case "item/started":
		if tool := toolOf(p); tool != "" {
			v.Tool, v.Retry = tool, nil
		}
	case "item/completed":
		if toolOf(p) != "" {
			v.Tool = ""
		}
	}
	return v
}

// subagent reports whether a session was made by another one: its source is then no plain word.
func subagent(source json.RawMessage) bool {
	s := strings.TrimSpace(string(source))
	return strings.HasPrefix(s, "{")
}

// toolOf names the tool of an item; "" for an item that is none.
func toolOf(p params) string {
	switch p.Item.Type {
	case "commandExecution":
		return "shell"
	case "fileChange":
		return "apply_patch"
	case "mcpToolCall":
		return p.Item.Tool
	case "webSearch":
		return "web_search"
	case "contextCompaction":
		return "compacting its context"
	case "dynamicToolCall", "collabToolCall", "collabAgentToolCall":
		return p.Item.Tool
	}
	return ""
}

// event is the state in the words of the mesh.
func (v view) event() bridge.Event {
	e := bridge.Event{Name: bridge.EventStatus, Session: v.Thread, Status: wire.StatusIdle}
	condition := func(f *failure) {
		if f != nil {
			e.Condition, e.Source, e.Message = f.Code, f.Native, f.Message
		}
	}
	switch {
	case v.Asks != "":
		e.Status, e.Activity = wire.StatusWaiting, v.Tool
		code := map[string]string{flagApproval: "approval", flagInput: "input"}[v.Asks]
		condition(&failure{Code: code, Native: v.Asks, Message: v.Tool})
	case v.Active:
		e.Status, e.Activity = wire.StatusWorking, v.Tool
		condition(v.Retry)
	default:
		condition(v.Failure)
	}
	return e
}

// failureOf reads why something failed: a word, or an object of one word with the HTTP status of the provider.
func failureOf(e *turnError) *failure {
	f := &failure{Code: "failed"}
	if e == nil {
		return f
	}
	f.Message = e.Message
	if json.Unmarshal(e.Info, &f.Native) == nil {
		f.Code = conditionOf(f.Native, 0)
		return f
	}
	var in map[string]struct {
		Status int `json:"httpStatusCode"`
	}
	if json.Unmarshal(e.Info, &in) == nil {
		for word, detail := range in {
			f.Native, f.Code = word, conditionOf(word, detail.Status)
		}
	}
	return f
}

// conditions are the program's words for what failed.
var conditions = map[string]string{
	"contextWindowExceeded": "context", "sessionBudgetExceeded": "budget", "usageLimitExceeded": "rate_limit",
	"serverOverloaded": "overloaded", "unauthorized": "auth", "badRequest": "request", "cyberPolicy": "request",
	"internalServerError": "server", "httpConnectionFailed": "server", "responseStreamConnectionFailed": "server",
	"responseStreamDisconnected": "server", "responseTooManyFailedAttempts": "server",
}

// conditionOf is the code of a failure. What the provider refuses, its status says best; why it fails, the program's word.
func conditionOf(word string, status int) string {
	byStatus := bridge.ConditionOfStatus(status)
	if byStatus != "" && status < 500 {
		return byStatus
	}
	return cmp.Or(conditions[word], byStatus, "failed")
}
