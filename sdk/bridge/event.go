package bridge

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// maxWords bounds the words of a program that go into its presence, in bytes.
const maxWords = 200

// Event is what an agent program told through a hook. Of what it said only this is kept.
type Event struct {
	// Name is the program's own, such as SessionStart; how it is written (session-start) does not matter.
	// EventStatus is for programs, and plugins in them, that know their state themselves.
	Name    string `json:"name"`
	Source  string `json:"source,omitempty"` // of a session that starts: startup, resume, clear, compact
	Reason  string `json:"reason,omitempty"` // of one that ends: clear, logout, …
	Kind    string `json:"kind,omitempty"`   // of a notification
	Tool    string `json:"tool,omitempty"`
	Error   string `json:"error,omitempty"` // the program's word for what failed
	Message string `json:"message,omitempty"`
	Session string `json:"session,omitempty"` // the program's session id
	Model   string `json:"model,omitempty"`
	// Interrupt: of a tool that failed because somebody stopped the turn by hand.
	Interrupt bool `json:"interrupt,omitempty"`
	// At is when it happened, in epoch milliseconds, where the program says so.
	At int64 `json:"at,omitempty"`
	// Of EventStatus.
	Status    string `json:"status,omitempty"` // idle, working, waiting
	Activity  string `json:"activity,omitempty"`
	Condition string `json:"condition,omitempty"` // a condition code
}

// EventStatus is the name of an event that says the state in the words of the mesh.
const EventStatus = "status"

// How a state is known: the values of wire.MetaStateBy.
const (
	ByHook    = "hook"    // a hook of the program told it
	ByProgram = "program" // the program's server, or a plugin in it, said so
	ByFile    = "file"    // the program's own status file says so
	ByProcess = "process" // the program runs
	ByAgent   = "agent"   // the agent says so itself
	BySilence = "silence" // a turn was open, and nothing was told for so long that it counts as over
)

// State is what the hooks of a program have told so far.
type State struct {
	Status    string // idle, working, waiting
	By        string // how that is known; "": nothing was told
	Activity  string
	Condition *wire.PresenceCondition // Since is not set
	Turn      bool                    // a turn is open
	Tool      string                  // that was begun and has not ended
	Gone      bool                    // the session ended
}

// Judge says what follows from an event. An event it does not know, and one that says nothing of the state, leaves
// everything as it is: nothing is inferred.
func Judge(s State, e Event) State {
	next, _ := judged(s, e)
	return next
}

// judged is Judge; told says that the event says something of the state.
func judged(s State, e Event) (next State, told bool) {
	next, told = judge(s, e)
	switch {
	case !told:
	case word(e.Name) == word(EventStatus):
		next.By = ByProgram
	default:
		next.By = ByHook
	}
	return next, told
}

func judge(s State, e Event) (next State, told bool) {
	working := func(activity string) (State, bool) {
		return State{Status: wire.StatusWorking, Activity: activity, Turn: true, Tool: s.Tool}, true
	}
	waiting := func(code, source string) (State, bool) {
		return State{
			Status: wire.StatusWaiting, Activity: s.Activity, Turn: s.Turn, Tool: s.Tool,
			Condition: &wire.PresenceCondition{Code: code, Source: clip(source), Message: clip(first(e.Message, e.Tool))},
		}, true
	}
	idle := State{Status: wire.StatusIdle}
	switch word(e.Name) {
	case "sessionstart":
		if s.Turn && !s.Gone { // of a turn that compacts its context
			return s, false
		}
		return idle, true
	case "userpromptsubmit", "beforeagent":
		return working("")
	case "pretooluse", "beforetool":
		next, told := working(clip(e.Tool))
		next.Tool = e.Tool
		return next, told
	case "posttoolusefailure":
		if e.Interrupt { // by hand: the turn ends with it, and no other hook says so
			return idle, true
		}
		fallthrough
	case "posttooluse", "aftertool":
		next, told := working("")
		next.Tool = ""
		return next, told
	case "precompact", "precompress": // also between turns, when it is asked for by hand
		next, told := working("compacting its context")
		next.Turn = s.Turn
		return next, told
	case "postcompact":
		if s.Turn {
			return working("")
		}
		return idle, true
	case "permissionrequest":
		return waiting("approval", e.Name)
	case "elicitation":
		return waiting("input", e.Name)
	case "elicitationresult":
		return working("")
	case "notification":
		switch word(e.Kind) {
		case "permissionprompt", "toolpermission":
			if s.Status == wire.StatusWaiting && s.Condition != nil && s.Condition.Code == "approval" {
				return s, true // it is known, and by what
			}
			return waiting("approval", e.Kind)
		case "agentneedsinput", "elicitationdialog":
			return waiting("input", e.Kind)
		case "idleprompt": // an input field that nobody uses: a turn that was interrupted is over
			if s.Status == wire.StatusIdle {
				return s, true
			}
			return idle, true
		}
		return s, false
	case "stop", "afteragent", "agentturncomplete":
		return idle, true
	case "stopfailure":
		idle.Condition = &wire.PresenceCondition{Code: ConditionOf(e.Error), Source: clip(e.Error), Message: clip(e.Message)}
		return idle, true
	case "sessionend":
		idle.Gone = word(e.Reason) != "clear" && word(e.Reason) != "resume" // then another one begins in the same process
		return idle, true
	case word(EventStatus):
		return said(s, e)
	}
	return s, false
}

// said takes over a state that the program says in the words of the mesh. What is no such word is passed over.
func said(s State, e Event) (State, bool) {
	switch e.Status {
	case wire.StatusIdle, wire.StatusWorking, wire.StatusWaiting:
		s = State{Status: e.Status, Activity: clip(e.Activity), Turn: e.Status != wire.StatusIdle, Tool: s.Tool}
		if e.Status == wire.StatusIdle {
			s.Tool = ""
		}
	case "":
		if e.Condition == "" {
			return s, false
		}
	default:
		return s, false
	}
	if e.Condition != "" && slices.Contains(wire.ConditionCodes(), e.Condition) {
		s.Condition = &wire.PresenceCondition{Code: e.Condition, Source: clip(e.Source), Message: clip(e.Message)}
	}
	return s, true
}

// ConditionOf maps an agent program's word for a failure to the code of a condition. A word that nobody knows is
// "failed": the program said that it failed and not why.
func ConditionOf(native string) string {
	w := word(native)
	if w == "" {
		return "failed"
	}
	for _, c := range wire.ConditionCodes() {
		if w == word(c) {
			return c
		}
	}
	for _, m := range conditionWords {
		if strings.Contains(w, m.has) {
			return m.code
		}
	}
	return "failed"
}

// ConditionOfStatus maps the HTTP status with which a provider answered a program to the code of a condition; "" for one
// that is no failure.
func ConditionOfStatus(status int) string {
	switch {
	case status == 401, status == 403:
		return "auth"
	case status == 402:
		return "billing"
	case status == 404:
		return "model"
	case status == 429:
		return "rate_limit"
	case status == 529:
		return "overloaded"
	case status >= 500:
		return "server"
	case status >= 400:
		return "request"
	}
	return ""
}

// conditionWords are looked for in this order.
var conditionWords = []struct{ has, code string }{
	{"ratelimit", "rate_limit"},
	{"toomanyrequests", "rate_limit"},
	{"overloaded", "overloaded"},
	{"maxoutputtokens", "context"},
	{"context", "context"},
	{"prompttoolong", "context"},
	{"budget", "budget"},
	{"billing", "billing"},
	{"account", "billing"},
	{"quota", "billing"},
	{"credit", "billing"},
	{"auth", "auth"},
	{"credential", "auth"},
	{"permissiondenied", "auth"},
	{"modelnotfound", "model"},
	{"notfound", "model"},
	{"invalidrequest", "request"},
	{"badrequest", "request"},
	{"servererror", "server"},
	{"apierror", "server"},
	{"unavailable", "server"},
	{"retry", "retrying"},
}

// ParseEvent reads what an agent program hands to a hook. name is the event as the hook was installed for it; empty:
// what the text says. Members of other types than expected, and a text that is no JSON, say nothing: a hook never
// fails.
func ParseEvent(name string, text []byte) Event {
	var in map[string]json.RawMessage
	if json.Unmarshal(text, &in) != nil {
		return Event{Name: name}
	}
	str := func(keys ...string) string {
		for _, k := range keys {
			var s string
			if json.Unmarshal(in[k], &s) == nil && s != "" {
				return clip(s)
			}
		}
		return ""
	}
	e := Event{
		Name: first(name, str("hook_event_name", "type", "name")), Source: str("source"), Reason: str("reason"),
		Kind: str("notification_type", "kind"), Tool: str("tool_name", "tool"), Message: str("message", "error_details"),
		Session: str("session_id", "thread-id", "session"), Model: str("model"), Status: str("status"),
		Activity: str("activity"), Condition: str("condition"), Error: str("error_type", "error"),
	}
	_ = json.Unmarshal(in["is_interrupt"], &e.Interrupt)
	if at, err := time.Parse(time.RFC3339, str("timestamp")); err == nil {
		e.At = at.UnixMilli()
	}
	var nested struct{ Type, Message string }
	if e.Error == "" && json.Unmarshal(in["error"], &nested) == nil {
		e.Error, e.Message = clip(nested.Type), first(e.Message, clip(nested.Message))
	}
	return e
}

// sessionOf is the session that a program can be reopened in behind an event; known is the one before. Programs write
// a session down, a fork too, once something is said in it: of one that has only begun there is none, and whoever was
// told of it would go on with nothing.
func sessionOf(known string, e Event) string {
	switch word(e.Name) {
	case "sessionstart":
		switch word(e.Source) {
		case "startup", "resume", "clear":
			return ""
		}
	case "notification", "sessionend":
		return known
	}
	return first(e.Session, known)
}

// clearedBehind reports whether the session that was there before an event was put away by a person: it is not to be
// reopened, and there is no other yet.
func clearedBehind(cleared bool, e Event) bool {
	if word(e.Name) != "sessionstart" {
		return cleared
	}
	switch word(e.Source) {
	case "clear":
		return true
	case "startup", "resume":
		return false
	}
	return cleared
}

// overtaken reports whether an event says what is over: programs do not wait for the hook of a notification, so that
// those of what happened afterwards may be here first. latest is the greatest At so far.
func overtaken(e Event, latest int64) bool {
	return word(e.Name) == "notification" && e.At != 0 && e.At < latest
}

// word is a name without what differs between programs in how it is written.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, s)
}

// clip bounds a text of somebody else's to maxWords, in whole characters.
func clip(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	if len(s) <= maxWords {
		return s
	}
	s = s[:maxWords]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

func first(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}
