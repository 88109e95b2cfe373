package stubmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// responses is the Responses dialect: POST .../responses, streamed as server-sent events that end with
// response.completed, or whole. Tools of MCP servers come in namespaces; here they have one name,
// namespace__tool, as agents write it everywhere else, and a call is sent in the form they came in.
type responses struct{}

func (responses) name() string             { return "responses" }
func (responses) matches(path string) bool { return strings.HasSuffix(path, "/responses") }

// outputText is a tool's output: a string, a list of parts, or an object with one of them as its content.
type outputText string

func (o *outputText) UnmarshalJSON(b []byte) error {
	var content chatContent
	if json.Unmarshal(b, &content) == nil {
		*o = outputText(content)
		return nil
	}
	var nested struct {
		Content chatContent `json:"content"`
	}
	if err := json.Unmarshal(b, &nested); err != nil {
		return fmt.Errorf("decode output: %w", err)
	}
	*o = outputText(nested.Content)
	return nil
}

func (responses) parse(body []byte) (Turn, error) {
	var in struct {
		Model        string `json:"model"`
		Stream       bool   `json:"stream"`
		Instructions string `json:"instructions"`
		Input        []struct {
			Type    string      `json:"type"`
			Role    string      `json:"role"`
			Content chatContent `json:"content"`
			Output  outputText  `json:"output"`
		} `json:"input"`
		Tools []struct {
			Type  string `json:"type"`
			Name  string `json:"name"`
			Tools []struct {
				Name string `json:"name"`
			} `json:"tools"`
		} `json:"tools"`
		Reasoning struct {
			Effort string `json:"effort"`
		} `json:"reasoning"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return Turn{}, err
	}
	t := Turn{Model: in.Model, Stream: in.Stream, Effort: in.Reasoning.Effort}
	var system []string
	if in.Instructions != "" {
		system = append(system, in.Instructions)
	}
	for i, item := range in.Input {
		switch {
		case strings.HasSuffix(item.Type, "_call_output"):
			if i == len(in.Input)-1 {
				result := string(item.Output)
				t.ToolResult = &result
			}
		case item.Role == "system", item.Role == "developer":
			system = append(system, string(item.Content))
		case item.Role == "user":
			if text := strip(string(item.Content)); text != "" {
				t.Users = append(t.Users, text)
			}
		}
	}
	t.System = strings.Join(system, "\n\n")
	for _, tool := range in.Tools {
		if tool.Type != "namespace" {
			if name := nameOrType(tool.Name, tool.Type); name != "" {
				t.Tools = append(t.Tools, name)
			}
			continue
		}
		for _, inner := range tool.Tools {
			t.Tools = append(t.Tools, tool.Name+"__"+inner.Name)
		}
	}
	return t, nil
}

func nameOrType(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// namespaced splits mcp__server__tool and namespace__tool; any other name has no namespace.
func namespaced(name string) (namespace, tool string) {
	const prefix = "mcp__"
	rest, server := strings.CutPrefix(name, prefix)
	before, after, ok := strings.Cut(rest, "__")
	switch {
	case !ok:
		return "", name
	case server:
		return prefix + before, after
	}
	return before, after
}

func (responses) write(ctx context.Context, w http.ResponseWriter, t Turn, a answer) error {
	usage := object{
		"input_tokens": 10, "input_tokens_details": object{"cached_tokens": 0}, "output_tokens": 12,
		"output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 22,
	}
	response := func(status string, output list) object {
		return object{"id": "resp_stub", "object": "response", "created_at": 1767225600, "status": status, "model": t.Model, "output": output, "usage": usage}
	}
	message := func(status string, parts list) object {
		return object{"type": "message", "id": "msg_stub", "role": "assistant", "status": status, "content": parts}
	}
	text := func(s string) object {
		return object{"type": "output_text", "text": s, "annotations": list{}}
	}
	done := message("completed", list{text(a.text())})
	if a.tool != nil {
		done = responsesTool(a.tool, "completed")
	}
	if !t.Stream {
		if err := a.hold(ctx); err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		return json.NewEncoder(w).Encode(response("completed", list{done}))
	}
	write := events(w)
	number := 0
	send := func(kind string, o object) error {
		o["type"], o["sequence_number"] = kind, number
		number++
		return write(kind, o)
	}
	var err error
	then := func(kind string, o object) {
		if err == nil {
			err = send(kind, o)
		}
	}
	at := func(o object) object {
		o["output_index"], o["content_index"] = 0, 0
		return o
	}
	then("response.created", object{"response": response("in_progress", list{})})
	if err == nil {
		err = a.hold(ctx)
	}
	if a.tool != nil {
		then("response.output_item.added", object{"output_index": 0, "item": responsesTool(&toolCall{id: a.tool.id, name: a.tool.name}, "in_progress")})
		then("response.function_call_arguments.delta", object{"item_id": "fc_" + a.tool.id, "output_index": 0, "delta": a.tool.args})
		then("response.function_call_arguments.done", object{"item_id": "fc_" + a.tool.id, "output_index": 0, "arguments": a.tool.args})
	} else {
		then("response.output_item.added", object{"output_index": 0, "item": message("in_progress", list{})})
		then("response.content_part.added", at(object{"item_id": "msg_stub", "part": text("")}))
		for i, part := range a.parts {
			if err == nil && i > 0 {
				err = pause(ctx, a.every)
			}
			then("response.output_text.delta", at(object{"item_id": "msg_stub", "delta": part}))
		}
		then("response.output_text.done", at(object{"item_id": "msg_stub", "text": a.text()}))
		then("response.content_part.done", at(object{"item_id": "msg_stub", "part": text(a.text())}))
	}
	then("response.output_item.done", object{"output_index": 0, "item": done})
	then("response.completed", object{"response": response("completed", list{done})})
	return err
}

func responsesTool(c *toolCall, status string) object {
	namespace, name := namespaced(c.name)
	o := object{"type": "function_call", "id": "fc_" + c.id, "call_id": c.id, "name": name, "arguments": c.args, "status": status}
	if namespace != "" {
		o["namespace"] = namespace
	}
	return o
}
