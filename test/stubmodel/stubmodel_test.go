package stubmodel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func server(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// post asks as an agent with one tool does.
func post(ctx context.Context, t *testing.T, s *Server, stream bool, messages ...object) *http.Response {
	t.Helper()
	body, err := json.Marshal(object{
		"model": "stub-model", "stream": stream, "reasoning_effort": "high", "messages": messages,
		"tools": list{object{"type": "function", "function": object{"name": "bash"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.BaseURL()+"/chat/completions", bytes.NewReader(body))
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

func user(text string) object { return object{"role": "user", "content": text} }

// deltas reads a stream to its end: the text, the tool call's arguments, and how it ended.
func deltas(t *testing.T, r io.Reader) (text, args, finish string, done bool) {
	t.Helper()
	scan := bufio.NewScanner(r)
	for scan.Scan() {
		data, ok := strings.CutPrefix(scan.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return text, args, finish, true
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
					Tools   []struct {
						Function struct {
							Name string `json:"name"`
							Args string `json:"arguments"`
						} `json:"function"`
					} `json:"tool_calls"`
				} `json:"delta"`
				Finish string `json:"finish_reason"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatalf("chunk %s: %v", data, err)
		}
		for _, c := range chunk.Choices {
			text += c.Delta.Content
			finish += c.Finish
			for _, tool := range c.Delta.Tools {
				args += tool.Function.Name + " " + tool.Function.Args
			}
		}
	}
	return text, args, finish, false
}

func TestRulesAreAppliedToTheLastUserText(t *testing.T) {
	s := server(t, Config{})
	for name, c := range map[string]struct {
		messages           []object
		text, args, finish string
	}{
		"anything is echoed with the count of user texts": {
			[]object{user("one"), {"role": "assistant", "content": "x"}, user("two <system-reminder>noise</system-reminder>")},
			"STUB-REPLY users=2 last=<<two>>", "", "stop",
		},
		"typed parts count as text": {
			[]object{{"role": "user", "content": list{object{"type": "text", "text": "part one"}, object{"type": "image_url"}}}},
			"STUB-REPLY users=1 last=<<part one>>", "", "stop",
		},
		"HISTORY lists the earlier texts": {
			[]object{user("one"), user("two"), user("HISTORY")},
			"STUB-HISTORY <<one>> <<two>>", "", "stop",
		},
		"TOOLCALL calls the tool": {
			[]object{user(`TOOLCALL bash {"command":"ls"}`)},
			"", `bash {"command":"ls"}`, "tool_calls",
		},
		"a tool's result ends the call": {
			[]object{user(`TOOLCALL bash {"command":"ls"}`), {"role": "tool", "tool_call_id": "call_1", "content": "a b"}},
			"STUB-TOOLRESULT <<a b>>", "", "stop",
		},
		"STREAM sends numbered words": {
			[]object{user("STREAM 3 1")},
			"word0001 word0002 word0003 STREAM-END", "", "stop",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, args, finish, done := deltas(t, post(t.Context(), t, s, true, c.messages...).Body)
			if text != c.text || args != c.args || finish != c.finish || !done {
				t.Errorf("got %q, tool %q, finish %q, done %v, want %q, %q, %q", text, args, finish, done, c.text, c.args, c.finish)
			}
		})
	}
}

func TestAnAnswerInOnePieceWhenNotStreamed(t *testing.T) {
	s := server(t, Config{})
	var got struct {
		Choices []struct {
			Message struct{ Content string }
		}
	}
	if err := json.NewDecoder(post(t.Context(), t, s, false, user("whole")).Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if len(got.Choices) != 1 || got.Choices[0].Message.Content != "STUB-REPLY users=1 last=<<whole>>" {
		t.Errorf("answer %+v", got)
	}
}

// What makes "mid-answer" something a test can act on: words arrive one by one, and an answer whose
// client went away is not done.
func TestAStreamIsObservableInTheMiddle(t *testing.T) {
	s := server(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := bufio.NewReader(post(ctx, t, s, true, user("STREAM 5000 20")).Body)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "word0003") {
			break
		}
	}
	if got := s.Requests(); len(got) != 1 || got[0].Done || got[0].Turn.Effort != "high" || got[0].Side {
		t.Errorf("in the middle: %+v, want one main request that is not done", got)
	}
	cancel()
	waited, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if _, err := s.Wait(waited, Asked("STREAM")); err == nil || !strings.Contains(err.Error(), "done=false") {
		t.Errorf("Wait for an answer that was broken off: %v, want an error that lists it", err)
	}
}

func TestAnAnswerIsHeldBackUntilItIsLetGo(t *testing.T) {
	s := server(t, Config{})
	r := bufio.NewReader(post(t.Context(), t, s, true, user("HOLD one and say it")).Body)
	if line, err := r.ReadString('\n'); err != nil || strings.Contains(line, "STUB-REPLY") {
		t.Fatalf("the stream opens with %q, %v", line, err)
	}
	s.Open("another")
	if got := s.Requests(); len(got) != 1 || got[0].Done {
		t.Errorf("held back: %+v, want one request that is not done", got)
	}
	s.Open("one")
	s.Open("one")
	if rest, err := io.ReadAll(r); err != nil || !strings.Contains(string(rest), "STUB-REPLY") {
		t.Errorf("let go, it goes on with %q, %v", rest, err)
	}
}

func TestRequestsAreLoggedAsLines(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	s := server(t, Config{Log: writer(func(p []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(p) })})
	_, _ = io.Copy(io.Discard, post(t.Context(), t, s, true, user("logged")).Body)
	for path, status := range map[string]int{"/models": 200, "/nowhere": 404} {
		resp, err := http.Get(s.BaseURL() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("GET %s: %d, want %d", path, resp.StatusCode, status)
		}
	}
	s.Close() // every handler has ended: every line is written
	mu.Lock()
	defer mu.Unlock()
	var lines []Request
	for line := range strings.Lines(log.String()) {
		var r Request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		lines = append(lines, r)
	}
	if len(lines) != 3 || lines[0].Turn.LastUser() != "logged" || !lines[0].Done || lines[0].Dialect != "chat" {
		t.Errorf("log %+v, want three lines, the first of them the question", lines)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestOnlyLoopbackIsServed(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "localhost:0", "192.168.0.1:0"} {
		if s, err := Start(Config{Addr: addr}); err == nil {
			s.Close()
			t.Errorf("Start(%q) serves", addr)
		}
	}
}
