package stubmodel

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Turn is a model request, whatever its dialect.
type Turn struct {
	Model      string   `json:"model,omitempty"`
	Stream     bool     `json:"stream,omitempty"`
	System     string   `json:"system,omitempty"`     // system texts, joined by blank lines
	Users      []string `json:"users,omitempty"`      // user texts in order, wrappers stripped
	Reminders  []string `json:"reminders,omitempty"`  // what agents add to the user's texts in wrappers, in order
	ToolResult *string  `json:"toolResult,omitempty"` // set when the last message is a tool's result
	Tools      []string `json:"tools,omitempty"`      // names offered
	Effort     string   `json:"effort,omitempty"`     // reasoning effort, as sent
}

// LastUser is the last user text, or "".
func (t Turn) LastUser() string {
	if len(t.Users) == 0 {
		return ""
	}
	return t.Users[len(t.Users)-1]
}

// answer is what the rules decide; the dialects write it.
type answer struct {
	delay time.Duration // between the head of the stream and the first text
	parts []string      // text, in the pieces it is streamed in
	every time.Duration // between two parts
	gate  string        // Open of this word lets the text go; empty: there is none
	tool  *toolCall

	opened <-chan struct{} // of the gate
}

type toolCall struct {
	id, name, args string
}

func (a answer) text() string { return strings.Join(a.parts, "") }

func (a answer) summary() string {
	if a.tool != nil {
		return "TOOLCALL " + a.tool.name
	}
	return a.text()
}

var (
	wrappers   = regexp.MustCompile(`(?s)<(system-reminder|environment_context|user_instructions)>.*?</(system-reminder|environment_context|user_instructions)>`)
	toolRule   = regexp.MustCompile(`(?s)TOOLCALL\s+(\S+)\s+(\{.*\})`)
	holdRule   = regexp.MustCompile(`HOLD (\w+)`)
	slowRule   = regexp.MustCompile(`SLOW (\d{1,4})`)
	streamRule = regexp.MustCompile(`STREAM (\d{1,6})(?: (\d{1,5}))?`)
)

// strip removes the blocks that agents wrap around or append to a user's text.
func strip(s string) string { return strings.TrimSpace(wrappers.ReplaceAllString(s, "")) }

// wrapped returns what strip takes away, without the wrappers.
func wrapped(s string) []string {
	var all []string
	for _, m := range wrappers.FindAllString(s, -1) {
		m = m[strings.Index(m, ">")+1 : strings.LastIndex(m, "</")]
		all = append(all, strings.TrimSpace(m))
	}
	return all
}

// decide applies the rules of the package comment.
func decide(t Turn) answer {
	if len(t.Tools) == 0 {
		// A side request quotes the user's text: rules in it must not delay or repeat the answer.
		return answer{parts: []string{"Stub title"}}
	}
	if t.ToolResult != nil {
		return answer{parts: split(fmt.Sprintf("STUB-TOOLRESULT <<%s>>", head(*t.ToolResult, 200)))}
	}
	last := t.LastUser()
	if m := toolRule.FindStringSubmatch(last); m != nil && json.Valid([]byte(m[2])) {
		return answer{tool: &toolCall{id: "call_" + strconv.Itoa(len(t.Users)), name: m[1], args: m[2]}}
	}
	if m := streamRule.FindStringSubmatch(last); m != nil {
		n, every := atoi(m[1]), 50
		if m[2] != "" {
			every = atoi(m[2])
		}
		a := answer{every: time.Duration(every) * time.Millisecond}
		for i := 1; i <= n; i++ {
			a.parts = append(a.parts, fmt.Sprintf("word%04d ", i))
		}
		a.parts = append(a.parts, "STREAM-END")
		return a
	}
	text := fmt.Sprintf("STUB-REPLY users=%d last=<<%s>>", len(t.Users), tail(last, 60))
	if strings.Contains(last, "HISTORY") {
		text = "STUB-HISTORY"
		for _, u := range t.Users[:len(t.Users)-1] {
			text += " <<" + tail(u, 60) + ">>"
		}
	}
	a := answer{parts: split(text)}
	if m := holdRule.FindStringSubmatch(last); m != nil {
		a.gate = m[1]
	}
	if m := slowRule.FindStringSubmatch(last); m != nil {
		a.delay = time.Duration(atoi(m[1])) * time.Second
	}
	return a
}

// split cuts a text into a few pieces at spaces, so that clients see more than one delta.
func split(s string) []string { return strings.SplitAfter(s, " ") }

func atoi(s string) int {
	n, _ := strconv.Atoi(s) // the expressions admit digits only
	return n
}

func head(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n])
	}
	return s
}

func tail(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[len(r)-n:])
	}
	return s
}
