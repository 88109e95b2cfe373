package stubmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// chat is the Chat Completions dialect: POST .../chat/completions, streamed as server-sent events
// that end with [DONE], or whole.
type chat struct{}

func (chat) name() string             { return "chat" }
func (chat) matches(path string) bool { return strings.HasSuffix(path, "/chat/completions") }

// chatContent is a string or a list of typed parts, of which the text ones count.
type chatContent string

func (c *chatContent) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*c = chatContent(s)
		return nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return fmt.Errorf("decode content: %w", err)
	}
	var texts []string
	for _, p := range parts {
		if p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	*c = chatContent(strings.Join(texts, "\n"))
	return nil
}

func (chat) parse(body []byte) (Turn, error) {
	var in struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role    string      `json:"role"`
			Content chatContent `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		} `json:"tools"`
		Effort string `json:"reasoning_effort"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return Turn{}, err
	}
	t := Turn{Model: in.Model, Stream: in.Stream, Effort: in.Effort}
	var system []string
	for i, m := range in.Messages {
		switch m.Role {
		case "system", "developer":
			system = append(system, string(m.Content))
		case "user":
			if text := strip(string(m.Content)); text != "" {
				t.Users = append(t.Users, text)
			}
		case "tool":
			if i == len(in.Messages)-1 {
				result := string(m.Content)
				t.ToolResult = &result
			}
		}
	}
	t.System = strings.Join(system, "\n\n")
	for _, tool := range in.Tools {
		t.Tools = append(t.Tools, tool.Function.Name)
	}
	return t, nil
}

type (
	object = map[string]any
	list   = []any
)

func (chat) write(ctx context.Context, w http.ResponseWriter, t Turn, a answer) error {
	usage := object{"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}
	finish := "stop"
	if a.tool != nil {
		finish = "tool_calls"
	}
	if !t.Stream {
		if err := a.hold(ctx); err != nil {
			return err
		}
		message := object{"role": "assistant", "content": a.text()}
		if a.tool != nil {
			message = object{"role": "assistant", "content": nil, "tool_calls": list{chatTool(a.tool)}}
		}
		w.Header().Set("Content-Type", "application/json")
		return json.NewEncoder(w).Encode(object{
			"id": "chatcmpl-stub", "object": "chat.completion", "created": 1767225600, "model": t.Model,
			"choices": list{object{"index": 0, "message": message, "finish_reason": finish}}, "usage": usage,
		})
	}
	send := events(w)
	chunk := func(choices list, extra ...object) error {
		o := object{
			"id": "chatcmpl-stub", "object": "chat.completion.chunk", "created": 1767225600,
			"model": t.Model, "choices": choices,
		}
		for _, e := range extra {
			for k, v := range e {
				o[k] = v
			}
		}
		return send("", o)
	}
	delta := func(d object, finish any) list {
		return list{object{"index": 0, "delta": d, "finish_reason": finish}}
	}
	if err := chunk(delta(object{"role": "assistant", "content": ""}, nil)); err != nil {
		return err
	}
	if err := a.hold(ctx); err != nil {
		return err
	}
	if a.tool != nil {
		if err := chunk(delta(object{"tool_calls": list{chatTool(a.tool)}}, nil)); err != nil {
			return err
		}
	}
	for i, part := range a.parts {
		if i > 0 {
			if err := pause(ctx, a.every); err != nil {
				return err
			}
		}
		if err := chunk(delta(object{"content": part}, nil)); err != nil {
			return err
		}
	}
	if err := chunk(delta(object{}, finish)); err != nil {
		return err
	}
	if err := chunk(list{}, object{"usage": usage}); err != nil {
		return err
	}
	return send("", nil)
}

func chatTool(c *toolCall) object {
	return object{
		"index": 0, "id": c.id, "type": "function",
		"function": object{"name": c.name, "arguments": c.args},
	}
}

// events returns a function that writes one server-sent event and flushes it; a nil body is the
// closing [DONE]. An empty event name leaves the event line out.
func events(w http.ResponseWriter) func(event string, body any) error {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	return func(event string, body any) error {
		data := []byte("[DONE]")
		if body != nil {
			var err error
			if data, err = json.Marshal(body); err != nil {
				return fmt.Errorf("encode event: %w", err)
			}
		}
		if event != "" {
			event = "event: " + event + "\n"
		}
		if _, err := fmt.Fprintf(w, "%sdata: %s\n\n", event, data); err != nil {
			return fmt.Errorf("write event: %w", err)
		}
		return control.Flush()
	}
}
