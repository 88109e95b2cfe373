package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// The real program is followed in test/e2e. The server here is a stand-in for what the real one does on a bad day.
type fake struct {
	t      *testing.T
	server *httptest.Server
	events chan string // lines of the stream; "" breaks it

	mu      sync.Mutex
	calls   []string
	answers map[string]string // by path; absent: 404 for POST, empty for GET
	streams int
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, events: make(chan string, 16), answers: map[string]string{"/session/status": `{}`, "/permission": `[]`}}
	f.server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.server.Close)
	return f
}

func (f *fake) answer(path, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[path] = text
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	if _, password, _ := r.BasicAuth(); password != "secret" {
		http.Error(w, "who are you", http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/event" {
		f.stream(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	if r.Method == http.MethodPost {
		f.calls = append(f.calls, r.URL.Path+" "+string(body))
	}
	text, ok := f.answers[r.URL.Path]
	f.mu.Unlock()
	if !ok {
		http.Error(w, `{"name":"NotFoundError"}`, http.StatusNotFound)
		return
	}
	fmt.Fprint(w, text)
}

func (f *fake) stream(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.streams++
	f.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: {\"type\":\"server.connected\",\"properties\":{}}\n\n")
	w.(http.Flusher).Flush()
	for {
		select {
		case line := <-f.events:
			if line == "" {
				return
			}
			fmt.Fprintf(w, "%s\n\n", line)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fake) tells(kind, properties string) {
	data, err := json.Marshal(api.Event{Type: kind, Properties: json.RawMessage(properties)})
	if err != nil {
		f.t.Fatal(err)
	}
	f.events <- "data: " + string(data)
}

func (f *fake) posted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// followed is a member that follows a fake; what it tells is kept.
type followed struct {
	*member
	f    *fake
	told chan bridge.Event
}

func follow(t *testing.T, f *fake) *followed {
	t.Helper()
	port := f.server.Listener.Addr().(*net.TCPAddr).Port
	m := &followed{member: newMember(api.New(port, "secret"), filepath.Join(t.TempDir(), "session")), f: f, told: make(chan bridge.Event, 64)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.follow(ctx, func(e bridge.Event) { m.told <- e }, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

// sees waits until it told a state.
func (m *followed) sees(want bridge.Event) {
	m.f.t.Helper()
	want.Name = bridge.EventStatus
	limit := time.After(busy.Limit(20 * time.Second))
	for {
		select {
		case e := <-m.told:
			if e == want {
				return
			}
		case <-limit:
			m.f.t.Fatalf("it never told %+v", want)
		}
	}
}

func TestAStreamThatBreaksIsOpenedAgainAndTheStateAskedAnew(t *testing.T) {
	f := newFake(t)
	m := follow(t, f)
	m.sees(bridge.Event{Status: "idle"})
	f.tells("session.status", `{"sessionID":"ses_a","status":{"type":"busy"}}`)
	m.sees(bridge.Event{Status: "working", Session: "ses_a"})
	// What happens while nobody listens is seen all the same.
	f.answer("/session/status", `{"ses_a":{"type":"busy"}}`)
	f.answer("/permission", `[{"id":"per_1","sessionID":"ses_a","permission":"bash","patterns":["ls"]}]`)
	f.events <- ""
	m.sees(bridge.Event{Status: "waiting", Condition: "approval", Source: "permission.asked", Message: "bash: ls", Session: "ses_a"})
	f.answer("/session/status", `{}`)
	f.answer("/permission", `[]`)
	f.events <- ""
	m.sees(bridge.Event{Status: "idle", Session: "ses_a"})
}

// The list of sessions at work does not say which are those of subagents: their parent stays the one that is woken.
func TestASubagentIsNotTakenForTheSessionAfterAStreamBroke(t *testing.T) {
	f := newFake(t)
	m := follow(t, f)
	m.sees(bridge.Event{Status: "idle"})
	f.tells("session.status", `{"sessionID":"ses_a","status":{"type":"busy"}}`)
	f.tells("session.created", `{"info":{"id":"ses_b","parentID":"ses_a"}}`)
	m.sees(bridge.Event{Status: "working", Session: "ses_a"})
	for _, c := range []struct{ message, status string }{
		{"known", `{"ses_b":{"type":"retry","message":"known"}}`},
		{"new", `{"ses_a":{"type":"busy"},"ses_c":{"type":"retry","message":"new"},"ses_d":{"type":"busy"}}`},
	} {
		f.answer("/session/status", c.status)
		f.events <- ""
		m.sees(bridge.Event{Status: "working", Condition: "retrying", Source: "session.status", Message: c.message, Session: "ses_a"})
	}
}

func TestALineThatIsNoEventEndsNothing(t *testing.T) {
	f := newFake(t)
	m := follow(t, f)
	m.sees(bridge.Event{Status: "idle"})
	f.events <- ": a comment"
	f.events <- "data: {broken"
	f.events <- `data: {"type":"message.part.updated","properties":{"part":{"type":"text","text":"` + strings.Repeat("x", 3<<20) + `"}}}`
	f.tells("session.status", `{"sessionID":"ses_a","status":{"type":"busy"}}`)
	m.sees(bridge.Event{Status: "working", Session: "ses_a"})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.streams != 1 {
		t.Errorf("the stream was opened %d times", f.streams)
	}
}

// A server that takes the connection while it boots and says nothing is asked again.
func TestAServerThatHangsHoldsNothingUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := newMember(api.New(l.Addr().(*net.TCPAddr).Port, "secret"), filepath.Join(t.TempDir(), "session"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	m.await(ctx, time.Hour)
	if read, err := m.Wake(t.Context(), bridge.Notice{Text: "x"}); read || !errors.Is(err, bridge.ErrNotNow) {
		t.Errorf("what is not known is not woken: %t, %v", read, err)
	}
}

func TestAWakeIsATurnOfTheSessionThatIsShown(t *testing.T) {
	f := newFake(t)
	f.answer("/session/ses_a/prompt_async", "")
	m := follow(t, f)
	m.sees(bridge.Event{Status: "idle"})
	f.tells(asked[0], asked[1])
	f.tells(permit[0], permit[1])
	m.sees(bridge.Event{Status: "waiting", Condition: "approval", Source: "permission.asked", Message: "bash: touch x", Session: "ses_a", Model: "p/m/x"})
	if read, err := m.Wake(t.Context(), bridge.Notice{Text: "hello"}); read || !errors.Is(err, bridge.ErrNotNow) {
		t.Errorf("while a question is open: %t, %v, want ErrNotNow", read, err)
	}
	f.tells(answered[0], answered[1])
	m.sees(bridge.Event{Status: "idle", Session: "ses_a", Model: "p/m/x"})
	if read, err := m.Wake(t.Context(), bridge.Notice{Text: "hello"}); !read || err != nil {
		t.Errorf("idle: %t, %v", read, err)
	}
	want := []string{`/session/ses_a/prompt_async {"agent":"build","model":{"modelID":"m/x","providerID":"p"},"parts":[{"text":"hello","type":"text"}],"variant":"high"}`}
	if got := f.posted(); !slices.Equal(got, want) {
		t.Errorf("it asked\n%s\nwant\n%s", strings.Join(got, "\n"), want[0])
	}
	f.tells(working[0], working[1])
	m.sees(bridge.Event{Status: "working", Session: "ses_a", Model: "p/m/x"})
	if read, err := m.Wake(t.Context(), bridge.Notice{Text: "hello"}); read || !errors.Is(err, bridge.ErrNotNow) {
		t.Errorf("while it works: %t, %v, want ErrNotNow", read, err)
	}
}

func TestAWakeBeforeThereIsASessionMakesOneAndShowsIt(t *testing.T) {
	f := newFake(t)
	f.answer("/session", `{"id":"ses_n"}`)
	f.answer("/session/ses_n/prompt_async", "")
	f.answer("/tui/select-session", "true")
	m := follow(t, f)
	m.sees(bridge.Event{Status: "idle"})
	if read, err := m.Wake(t.Context(), bridge.Notice{Text: "hello"}); !read || err != nil {
		t.Errorf("%t, %v", read, err)
	}
	want := []string{"/session {}", `/session/ses_n/prompt_async {"parts":[{"text":"hello","type":"text"}]}`, `/tui/select-session {"sessionID":"ses_n"}`}
	if got := f.posted(); !slices.Equal(got, want) {
		t.Errorf("it asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAWakeGoesToTheSessionThatTheLaunchBeganWith(t *testing.T) {
	f := newFake(t)
	f.answer("/session/ses_x/prompt_async", "")
	m := follow(t, f)
	if err := os.WriteFile(m.session, []byte("ses_x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.sees(bridge.Event{Status: "idle"})
	if read, err := m.Wake(t.Context(), bridge.Notice{Text: "hello"}); !read || err != nil {
		t.Errorf("%t, %v", read, err)
	}
	// Its person deletes it: the next one is another's.
	f.mu.Lock()
	delete(f.answers, "/session/ses_x/prompt_async")
	f.mu.Unlock()
	if read, err := m.Wake(t.Context(), bridge.Notice{Text: "hello"}); read || !errors.Is(err, bridge.ErrNotNow) {
		t.Errorf("a session that is gone: %t, %v, want ErrNotNow", read, err)
	}
	if got := m.began(); got != "" {
		t.Errorf("it remembers %q", got)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"a record that others can read": {`{"port":1,"password":"x"}`, 0o644, "mode 0644"},
		"a record that is none":         {`{`, 0o600, "unexpected end"},
		"a record without a port":       {`{"password":"x"}`, 0o600, "port is 0"},
		"a record without a password":   {`{"port":1}`, 0o600, "password is empty"},
		"material that is no path":      {`{"port":1,"password":"x","material":"m.json"}`, 0o600, `"m.json" is no absolute path`},
		"material that is not there":    {`{"port":1,"password":"x","material":"/no/such/material.json"}`, 0o600, "/no/such/material.json"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "_"))
			if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
				t.Fatal(err)
			}
			var stderr strings.Builder
			if code := Main([]string{path}, "test", &stderr); code != 1 || !strings.Contains(stderr.String(), c.want) {
				t.Errorf("code %d, %s, want %q", code, stderr.String(), c.want)
			}
		})
	}
	var stderr strings.Builder
	if code := Main(nil, "test", &stderr); code != 2 || !strings.Contains(stderr.String(), "usage") {
		t.Errorf("code %d, %s", code, stderr.String())
	}
}
