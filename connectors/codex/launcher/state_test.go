package launcher

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
)

func noteOf(method, params string) note { return note{method, json.RawMessage(params)} }

var (
	began    = noteOf("turn/started", `{"threadId":"t","turn":{"id":"1","status":"inProgress"}}`)
	active   = noteOf("thread/status/changed", `{"threadId":"t","status":{"type":"active","activeFlags":[]}}`)
	idle     = noteOf("thread/status/changed", `{"threadId":"t","status":{"type":"idle"}}`)
	approval = noteOf("thread/status/changed", `{"threadId":"t","status":{"type":"active","activeFlags":["waitingOnApproval"]}}`)
	shell    = noteOf("item/started", `{"threadId":"t","item":{"type":"commandExecution","id":"c"}}`)
	shellEnd = noteOf("item/completed", `{"threadId":"t","item":{"type":"commandExecution","id":"c"}}`)
)

func failed(info string) note {
	return noteOf("turn/completed", `{"threadId":"t","turn":{"status":"failed","error":{"message":"it failed","codexErrorInfo":`+info+`}}}`)
}

func TestWhatTheServerTellsIsShownOnTheMesh(t *testing.T) {
	event := func(status, activity, condition, source, message string) bridge.Event {
		return bridge.Event{
			Name: bridge.EventStatus, Session: "t", Status: status, Activity: activity, Condition: condition, Source: source, Message: message,
		}
	}
	for name, c := range map[string]struct {
		notes []note
		want  bridge.Event
	}{
		"a session that was opened is idle":                {nil, event("idle", "", "", "", "")},
		"a turn that began is work":                        {[]note{active, began}, event("working", "", "", "", "")},
		"a tool that runs is what it does":                 {[]note{began, shell}, event("working", "shell", "", "", "")},
		"a tool that ended is not":                         {[]note{began, shell, shellEnd}, event("working", "", "", "", "")},
		"a question waits for a person":                    {[]note{began, shell, approval}, event("waiting", "shell", "approval", "waitingOnApproval", "shell")},
		"an answered question does not":                    {[]note{began, approval, active}, event("working", "", "", "", "")},
		"a question for an input waits too":                {[]note{began, noteOf("thread/status/changed", `{"threadId":"t","status":{"type":"active","activeFlags":["waitingOnUserInput"]}}`)}, event("waiting", "", "input", "waitingOnUserInput", "")},
		"a completed turn is idle":                         {[]note{began, shell, noteOf("turn/completed", `{"threadId":"t","turn":{"status":"completed"}}`)}, event("idle", "", "", "", "")},
		"an interrupted turn is idle":                      {[]note{began, shell, noteOf("turn/completed", `{"threadId":"t","turn":{"status":"interrupted"}}`), idle}, event("idle", "", "", "", "")},
		"a failed turn says why":                           {[]note{began, failed(`"usageLimitExceeded"`)}, event("idle", "", "rate_limit", "usageLimitExceeded", "it failed")},
		"and goes on saying so":                            {[]note{began, failed(`"contextWindowExceeded"`), idle}, event("idle", "", "context", "contextWindowExceeded", "it failed")},
		"until the next turn":                              {[]note{began, failed(`"contextWindowExceeded"`), idle, began}, event("working", "", "", "", "")},
		"the provider's status says more than the word":    {[]note{began, failed(`{"httpConnectionFailed":{"httpStatusCode":401}}`)}, event("idle", "", "auth", "httpConnectionFailed", "it failed")},
		"a word that nobody knows is a failure":            {[]note{began, failed(`"somethingNew"`)}, event("idle", "", "failed", "somethingNew", "it failed")},
		"a failure without a reason is one":                {[]note{began, noteOf("turn/completed", `{"threadId":"t","turn":{"status":"failed"}}`)}, event("idle", "", "failed", "", "")},
		"a broken session is a failure":                    {[]note{noteOf("thread/status/changed", `{"threadId":"t","status":{"type":"systemError"}}`)}, event("idle", "", "failed", "systemError", "")},
		"what broke it is why":                             {[]note{began, noteOf("thread/status/changed", `{"threadId":"t","status":{"type":"systemError"}}`), noteOf("error", `{"threadId":"t","error":{"message":"it failed","codexErrorInfo":"unauthorized"}}`)}, event("idle", "", "auth", "unauthorized", "it failed")},
		"an attempt that is repeated is work":              {[]note{began, noteOf("error", `{"threadId":"t","willRetry":true,"error":{"message":"again","codexErrorInfo":"serverOverloaded"}}`)}, event("working", "", "retrying", "serverOverloaded", "again")},
		"what another session does changes nothing":        {[]note{noteOf("turn/started", `{"threadId":"u"}`)}, event("idle", "", "", "", "")},
		"an agent that this one starts changes nothing":    {[]note{began, noteOf("thread/started", `{"thread":{"id":"u","source":{"subAgent":"review"}}}`)}, event("working", "", "", "", "")},
		"a session for a title changes nothing":            {[]note{began, noteOf("thread/started", `{"thread":{"id":"u","ephemeral":true,"source":"cli"}}`)}, event("working", "", "", "", "")},
		"what is no JSON changes nothing":                  {[]note{began, noteOf("turn/completed", `{`)}, event("working", "", "", "", "")},
		"what nobody knows changes nothing":                {[]note{began, noteOf("thread/something", `{"threadId":"t"}`)}, event("working", "", "", "", "")},
		"a tool of a server is what it does, by its name":  {[]note{began, noteOf("item/started", `{"threadId":"t","item":{"type":"mcpToolCall","server":"cotal","tool":"cotal_send"}}`)}, event("working", "cotal_send", "", "", "")},
		"what it says is no tool":                          {[]note{began, shell, noteOf("item/started", `{"threadId":"t","item":{"type":"agentMessage"}}`)}, event("working", "shell", "", "", "")},
		"the end of a message leaves the tool where it is": {[]note{began, shell, noteOf("item/completed", `{"threadId":"t","item":{"type":"agentMessage"}}`)}, event("working", "shell", "", "", "")},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{Thread: "t"}
			for _, n := range c.notes {
				v = v.next(n)
			}
			if diff := cmp.Diff(c.want, v.event()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnotherSessionInTheTerminalIsFollowed(t *testing.T) {
	v := view{Thread: "t"}.next(began).next(noteOf("thread/started", `{"thread":{"id":"u","source":"cli"}}`))
	if v.Thread != "u" || v.Active || v.Turns != 1 {
		t.Errorf("%+v, want the new session, idle, and the count of turns to go on", v)
	}
	if v = v.next(began); v.Active {
		t.Errorf("%+v: the session that was left still counts", v)
	}
}

func TestConditionsAreThoseOfTheMesh(t *testing.T) {
	for word := range conditions {
		for _, status := range []int{0, 400, 401, 402, 403, 404, 418, 429, 500, 503} {
			s := bridge.Judge(bridge.State{}, bridge.Event{Name: bridge.EventStatus, Status: "idle", Condition: conditionOf(word, status)})
			if s.Condition == nil {
				t.Errorf("%s with HTTP status %d gives %q, which the mesh does not know", word, status, conditionOf(word, status))
			}
		}
	}
}
