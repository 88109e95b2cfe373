package stubmodel

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// respond asks as an agent of the Responses dialect does, with a tool of its own and one in a namespace.
func respond(t *testing.T, s *Server, stream bool, input ...object) *http.Response {
	t.Helper()
	body, err := json.Marshal(object{
		"model": "stub-model", "stream": stream, "instructions": "BASE", "reasoning": object{"effort": "high"}, "input": input,
		"tools": list{
			object{"type": "function", "name": "exec_command"},
			object{"type": "namespace", "name": "mcp__cotal", "tools": list{object{"type": "function", "name": "cotal_send"}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.BaseURL()+"/responses", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func said(role, text string) object {
	return object{"type": "message", "role": role, "content": list{object{"type": "input_text", "text": text}}}
}

// spoken reads a stream to its end and checks its order: rising numbers, and what was streamed is what is
// said to be done.
func spoken(t *testing.T, r io.Reader) (item object) {
	t.Helper()
	var text, args strings.Builder
	number, last := 0, ""
	scan := bufio.NewScanner(r)
	for scan.Scan() {
		data, ok := strings.CutPrefix(scan.Text(), "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type   string `json:"type"`
			Number int    `json:"sequence_number"`
			Delta  string `json:"delta"`
			Item   object `json:"item"`
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("event %s: %v", data, err)
		}
		if e.Number != number {
			t.Errorf("event %s has number %d, want %d", e.Type, e.Number, number)
		}
		number++
		switch last = e.Type; e.Type {
		case "response.output_text.delta":
			text.WriteString(e.Delta)
		case "response.function_call_arguments.delta":
			args.WriteString(e.Delta)
		case "response.output_item.done":
			item = e.Item
		}
	}
	if last != "response.completed" {
		t.Errorf("the stream ends with %s, want response.completed", last)
	}
	if item["type"] == "function_call" {
		if item["arguments"] != args.String() {
			t.Errorf("arguments %v, streamed %q", item["arguments"], args.String())
		}
		return item
	}
	parts, _ := item["content"].(list)
	if len(parts) != 1 || parts[0].(object)["text"] != text.String() {
		t.Errorf("item %v, streamed %q", item, text.String())
	}
	item["streamed"] = text.String()
	return item
}

func TestResponsesAreRead(t *testing.T) {
	s := server(t, Config{})
	respond(t, s, true,
		said("developer", "PERSONA"),
		said("user", "<environment_context>x</environment_context>"),
		said("user", "one"), said("assistant", "reply"), said("user", "two"))
	got, err := s.Wait(t.Context(), Asked("two"))
	if err != nil {
		t.Fatal(err)
	}
	turn := got.Turn
	if got.Dialect != "responses" || turn.Effort != "high" || turn.Model != "stub-model" || turn.System != "BASE\n\nPERSONA" {
		t.Errorf("%+v, want the dialect, effort, model and both system texts", got)
	}
	if strings.Join(turn.Users, ",") != "one,two" || strings.Join(turn.Tools, ",") != "exec_command,mcp__cotal__cotal_send" {
		t.Errorf("users %q tools %q, want the wrapper stripped and the namespace in the name", turn.Users, turn.Tools)
	}
}

func TestResponsesStreamText(t *testing.T) {
	s := server(t, Config{})
	item := spoken(t, respond(t, s, true, said("user", "one"), said("user", "HISTORY please")).Body)
	if item["streamed"] != "STUB-HISTORY <<one>>" {
		t.Errorf("%v, want the earlier text", item)
	}
}

func TestResponsesCallTools(t *testing.T) {
	s := server(t, Config{})
	for name, c := range map[string]struct{ text, namespace, tool string }{
		"a tool of an MCP server is in its namespace": {`TOOLCALL mcp__cotal__cotal_send {"text":"hi"}`, "mcp__cotal", "cotal_send"},
		"another namespace is one too":                {`TOOLCALL agents_v1__spawn {"message":"x"}`, "agents_v1", "spawn"},
		"a tool of the program has none":              {`TOOLCALL exec_command {"cmd":"true"}`, "", "exec_command"},
	} {
		t.Run(name, func(t *testing.T) {
			item := spoken(t, respond(t, s, true, said("user", c.text)).Body)
			namespace, _ := item["namespace"].(string)
			if item["name"] != c.tool || namespace != c.namespace || !json.Valid([]byte(item["arguments"].(string))) {
				t.Errorf("%v, want %s of %q", item, c.tool, c.namespace)
			}
		})
	}
	for name, output := range map[string]any{
		"a string": "sent", "parts": list{object{"type": "input_text", "text": "sent"}}, "an object": object{"content": "sent", "success": true},
	} {
		t.Run("its result comes back as "+name, func(t *testing.T) {
			item := spoken(t, respond(t, s, true, said("user", "TOOLCALL exec_command {}"),
				object{"type": "function_call", "call_id": "call_1", "name": "exec_command", "arguments": "{}"},
				object{"type": "function_call_output", "call_id": "call_1", "output": output}).Body)
			if item["streamed"] != "STUB-TOOLRESULT <<sent>>" {
				t.Errorf("%v, want the result quoted", item)
			}
		})
	}
}

func TestResponsesWhole(t *testing.T) {
	s := server(t, Config{})
	var got struct {
		Status string `json:"status"`
		Output []struct {
			Content []struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"output"`
	}
	if err := json.NewDecoder(respond(t, s, false, said("user", "hello")).Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Status != "completed" || len(got.Output) != 1 || got.Output[0].Content[0].Text != "STUB-REPLY users=1 last=<<hello>>" {
		t.Errorf("%+v, want the whole answer", got)
	}
}
