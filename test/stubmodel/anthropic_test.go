package stubmodel

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// message asks in the Messages dialect, as an agent with one tool does.
func message(t *testing.T, s *Server, stream bool, messages ...object) *http.Response {
	t.Helper()
	body, err := json.Marshal(object{
		"model": "stub-model", "stream": stream, "max_tokens": 100, "messages": messages,
		"system":        list{object{"type": "text", "text": "be careful"}},
		"tools":         list{object{"name": "Bash", "input_schema": object{}}},
		"output_config": object{"effort": "low"},
	})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.BaseURL()+"/messages?beta=true", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func toolResult(text string) object {
	return object{"role": "user", "content": list{
		object{"type": "tool_result", "tool_use_id": "toolu_call_1", "content": list{object{"type": "text", "text": text}}},
		object{"type": "text", "text": "<system-reminder>a note</system-reminder>"},
	}}
}

func TestMessagesAreAnsweredByTheRules(t *testing.T) {
	s := server(t, Config{})
	for name, c := range map[string]struct {
		messages       []object
		text, tool, in string
		stop           string
	}{
		"anything is echoed": {
			[]object{user("one"), {"role": "assistant", "content": "x"}, user("two<system-reminder>noise</system-reminder>")},
			"STUB-REPLY users=2 last=<<two>>", "", "", "end_turn",
		},
		"a tool is called": {[]object{user(`TOOLCALL Bash {"command":"ls"}`)}, "", "Bash", `{"command":"ls"}`, "tool_use"},
		"its result ends the call, and what was added to it is no text of the user's": {
			[]object{user(`TOOLCALL Bash {"command":"ls"}`), {"role": "assistant", "content": list{object{"type": "tool_use"}}}, toolResult("a b"), {"role": "system", "content": "new tools"}},
			"STUB-TOOLRESULT <<a b>>", "", "", "end_turn",
		},
		"a text behind a result is the next question": {
			[]object{user("one"), {"role": "user", "content": list{
				object{"type": "tool_result", "content": "a b"}, object{"type": "text", "text": "two"},
			}}},
			"STUB-REPLY users=2 last=<<two>>", "", "", "end_turn",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var text, tool, in, stop, last string
			scan := bufio.NewScanner(message(t, s, true, c.messages...).Body)
			for scan.Scan() {
				data, ok := strings.CutPrefix(scan.Text(), "data: ")
				if !ok {
					continue
				}
				var e struct {
					Type  string
					Block struct{ Name string } `json:"content_block"`
					Delta struct {
						Text string
						JSON string `json:"partial_json"`
						Stop string `json:"stop_reason"`
					}
				}
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					t.Fatalf("event %s: %v", data, err)
				}
				text, tool, in, stop, last = text+e.Delta.Text, tool+e.Block.Name, in+e.Delta.JSON, stop+e.Delta.Stop, e.Type
			}
			if text != c.text || tool != c.tool || in != c.in || stop != c.stop || last != "message_stop" {
				t.Errorf("text %q tool %q %q stop %q, last event %s", text, tool, in, stop, last)
			}
		})
	}
	var whole struct {
		Content []struct{ Text string }
	}
	if err := json.NewDecoder(message(t, s, false, user("whole")).Body).Decode(&whole); err != nil || len(whole.Content) != 1 || whole.Content[0].Text != "STUB-REPLY users=1 last=<<whole>>" {
		t.Errorf("an answer in one piece: %+v, %v", whole, err)
	}
	message(t, s, false, user("noted"), toolResult("x"))
	all := s.Requests()
	turn := all[len(all)-1].Turn
	if turn.Effort != "low" || turn.System != "be careful" || len(turn.Reminders) != 1 || turn.Reminders[0] != "a note" {
		t.Errorf("of the request it knows %+v", turn)
	}
	resp, err := http.Post(s.BaseURL()+"/messages/count_tokens", "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var count struct {
		Tokens int `json:"input_tokens"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&count); err != nil || count.Tokens == 0 {
		t.Errorf("the count of tokens: %+v, %v", count, err)
	}
	if all := s.Requests(); !all[len(all)-1].Side {
		t.Error("a count of tokens passes for a question")
	}
}

// What the hooks of a program print, it may put into a message of its own between those of the user.
func TestWhatAProgramAddsBetweenMessagesIsAReminder(t *testing.T) {
	body, err := json.Marshal(object{"model": "m", "messages": []object{user("one"), {"role": "system", "content": "a hook says so"}}})
	if err != nil {
		t.Fatal(err)
	}
	turn, err := anthropic{}.parse(body)
	if err != nil || turn.LastUser() != "one" || len(turn.Reminders) != 1 || turn.Reminders[0] != "a hook says so" {
		t.Errorf("%+v, %v", turn, err)
	}
}
