package stubmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// anthropic is the Messages dialect: POST .../messages, streamed as named server-sent events, or whole; and
// POST .../messages/count_tokens.
type anthropic struct{}

func (anthropic) name() string { return "anthropic" }

func (anthropic) matches(path string) bool {
	return strings.HasSuffix(path, "/messages") || strings.HasSuffix(path, "/messages/count_tokens")
}

// blocks is a string, or a list of typed parts.
type blocks []struct {
	Type    string `json:"type"`
	Text    string `json:"text"`
	Content blocks `json:"content"` // of a tool's result
}

func (b *blocks) UnmarshalJSON(p []byte) error {
	var text string
	if json.Unmarshal(p, &text) == nil {
		*b = blocks{{Type: "text", Text: text}}
		return nil
	}
	type plain blocks
	if err := json.Unmarshal(p, (*plain)(b)); err != nil {
		return fmt.Errorf("decode content: %w", err)
	}
	return nil
}

func (b blocks) text() string {
	var all []string
	for _, part := range b {
		if part.Type == "text" && part.Text != "" {
			all = append(all, part.Text)
		}
	}
	return strings.Join(all, "\n")
}

func (anthropic) parse(body []byte) (Turn, error) {
	var in struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		System   blocks `json:"system"`
		Messages []struct {
			Role    string `json:"role"`
			Content blocks `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
		Output struct {
			Effort string `json:"effort"`
		} `json:"output_config"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return Turn{}, err
	}
	t := Turn{Model: in.Model, Stream: in.Stream, System: in.System.text(), Effort: in.Output.Effort}
	for _, m := range in.Messages {
		if m.Role == "assistant" {
			t.ToolResult = nil
		}
		if m.Role == "system" { // what the program adds in between, such as what its hooks print
			t.Reminders = append(t.Reminders, m.Content.text())
		}
		if m.Role != "user" {
			continue
		}
		if text := strip(m.Content.text()); text != "" {
			t.Users = append(t.Users, text)
		}
		t.Reminders = append(t.Reminders, wrapped(m.Content.text())...)
		for _, part := range m.Content { // a text of the user's behind a result asks something new
			switch {
			case part.Type == "tool_result":
				result := part.Content.text()
				t.ToolResult = &result
			case strip(part.Text) != "":
				t.ToolResult = nil
			}
		}
	}
	for _, tool := range in.Tools {
		t.Tools = append(t.Tools, tool.Name)
	}
	return t, nil
}

// messages numbers the answers: a client takes those of one id for parts of one.
var messages atomic.Int64

func (anthropic) write(ctx context.Context, w http.ResponseWriter, t Turn, a answer) error {
	id := fmt.Sprintf("toolu_stub%d", messages.Add(1))
	stop, content := "end_turn", list{object{"type": "text", "text": a.text()}}
	if a.tool != nil {
		stop = "tool_use"
		content = list{object{"type": "tool_use", "id": id, "name": a.tool.name, "input": json.RawMessage(a.tool.args)}}
	}
	message := object{
		"id": fmt.Sprintf("msg_stub%d", messages.Add(1)), "type": "message", "role": "assistant", "model": t.Model, "content": content, "stop_reason": stop, "stop_sequence": nil,
		"usage": object{"input_tokens": 10, "output_tokens": 12, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
	}
	if !t.Stream {
		if err := a.hold(ctx); err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		return json.NewEncoder(w).Encode(message)
	}
	events := events(w)
	send := func(name string, body object) error {
		body["type"] = name
		return events(name, body)
	}
	message["content"], message["stop_reason"] = list{}, nil
	if err := send("message_start", object{"message": message}); err != nil {
		return err
	}
	if err := a.hold(ctx); err != nil {
		return err
	}
	begin, deltas := object{"type": "text", "text": ""}, list{}
	for _, part := range a.parts {
		deltas = append(deltas, object{"type": "text_delta", "text": part})
	}
	if a.tool != nil {
		begin = object{"type": "tool_use", "id": id, "name": a.tool.name, "input": object{}}
		deltas = list{object{"type": "input_json_delta", "partial_json": a.tool.args}}
	}
	if err := send("content_block_start", object{"index": 0, "content_block": begin}); err != nil {
		return err
	}
	for i, delta := range deltas {
		if i > 0 {
			if err := pause(ctx, a.every); err != nil {
				return err
			}
		}
		if err := send("content_block_delta", object{"index": 0, "delta": delta}); err != nil {
			return err
		}
	}
	if err := send("content_block_stop", object{"index": 0}); err != nil {
		return err
	}
	if err := send("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 12}}); err != nil {
		return err
	}
	return send("message_stop", object{})
}

// countTokens answers how long a question is.
func countTokens(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"input_tokens":10}`)
}
