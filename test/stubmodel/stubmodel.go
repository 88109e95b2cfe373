// Package stubmodel is a model server for tests: it answers the requests a coding agent sends to its
// model, on loopback and without a model, by rules that stand in the last user text. Tests assert on
// its request log, which is the proof of what an agent really sent.
//
// The rules are the same for every dialect (Chat Completions, Responses, Messages):
//
//	TOOLCALL <name> <json>   one call of that tool; after its result: "STUB-TOOLRESULT <<result>>"
//	SLOW <n>                 the stream opens, n seconds pass, then the text comes
//	HOLD <word>              the stream opens, and the text comes once the test has called Open with the word
//	STREAM <n> [<ms>]        n numbered words, one every ms milliseconds (50), then STREAM-END
//	HISTORY                  the tail of every earlier user text, in order
//	anything else            "STUB-REPLY users=<n> last=<<last 60 characters>>"
//
// The number of user texts shows how much history was sent, which is what proves a resume or a fork.
// Agents also send side requests (a title for the conversation) with no tools: they are answered, and
// marked Side in the log so that tests need not count them.
package stubmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// maxBody bounds a request body; real requests with a large system prompt stay under 1 MiB.
const maxBody = 32 << 20

// Config of a server. The zero value listens on a free loopback port and keeps its log in memory.
type Config struct {
	Addr string    // "127.0.0.1:0" when empty; anything but loopback is refused
	Log  io.Writer // one JSON line per request, when set
}

// Request is one logged request.
type Request struct {
	Seq       int       `json:"seq"` // from 1
	At        time.Time `json:"at"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Auth      string    `json:"auth,omitempty"` // Authorization or x-api-key, as sent
	UserAgent string    `json:"userAgent,omitempty"`
	Dialect   string    `json:"dialect,omitempty"` // "chat", "responses", "anthropic"; empty when no dialect took it
	Status    int       `json:"status"`
	Side      bool      `json:"side,omitempty"` // a request without tools, such as title generation
	Turn      Turn      `json:"turn,omitzero"`
	Reply     string    `json:"reply,omitempty"` // text of the answer, or "TOOLCALL name"
	Done      bool      `json:"done"`            // the whole answer was written
}

// Server is a running stub.
type Server struct {
	listener net.Listener
	http     *http.Server
	served   chan struct{}
	stop     context.CancelFunc
	handlers sync.WaitGroup

	mu      sync.Mutex // guards the fields below and writes to log
	log     io.Writer
	reqs    []*Request
	gates   map[string]chan struct{} // by the word of HOLD; closed: open
	changed chan struct{}            // closed and replaced at every change of reqs
}

// Start listens and serves until Close.
func Start(cfg Config) (*Server, error) {
	addr := cfg.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("parse address %q: %w", addr, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("listen on %q: only a loopback address such as 127.0.0.1:0 is served", addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", addr, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{listener: l, log: cfg.Log, changed: make(chan struct{}), served: make(chan struct{}), stop: cancel}
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	go func() {
		defer close(s.served)
		_ = s.http.Serve(l) // ErrServerClosed after Close; anything else shows as refused requests
	}()
	return s, nil
}

// BaseURL is what an agent is configured with, ending in /v1.
func (s *Server) BaseURL() string { return "http://" + s.listener.Addr().String() + "/v1" }

// Open lets every answer go that is held back by HOLD word, and those that would be.
func (s *Server) Open(word string) {
	gate := s.gate(word)
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
}

func (s *Server) gate(word string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates == nil {
		s.gates = map[string]chan struct{}{}
	}
	if s.gates[word] == nil {
		s.gates[word] = make(chan struct{})
	}
	return s.gates[word]
}

// Close ends the server and every answer under way; afterwards the log is complete. It may be called twice.
func (s *Server) Close() {
	s.stop()
	_ = s.http.Close()
	<-s.served
	s.handlers.Wait()
}

// Requests returns a copy of the log.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Request, len(s.reqs))
	for i, r := range s.reqs {
		out[i] = *r
	}
	return out
}

// Wait returns the first request, logged already or still to come, that match accepts. The error, when
// ctx ends first, lists what came instead.
func (s *Server) Wait(ctx context.Context, match func(Request) bool) (Request, error) {
	for {
		s.mu.Lock()
		for _, r := range s.reqs {
			if match(*r) {
				found := *r
				s.mu.Unlock()
				return found, nil
			}
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, fmt.Errorf("wait for a model request: %w; got:\n%s", ctx.Err(), s.summary())
		}
	}
}

// Asked matches a finished main request (not a side request) whose last user text contains text.
func Asked(text string) func(Request) bool {
	return func(r Request) bool {
		return r.Done && !r.Side && strings.Contains(r.Turn.LastUser(), text)
	}
}

func (s *Server) summary() string {
	var b strings.Builder
	for _, r := range s.Requests() {
		fmt.Fprintf(&b, "  #%d %s %s %d side=%v users=%q reply=%q done=%v\n", r.Seq, r.Method, r.Path, r.Status, r.Side, r.Turn.Users, r.Reply, r.Done)
	}
	if b.Len() == 0 {
		return "  no request at all"
	}
	return b.String()
}

// dialect is one model protocol. Adding one is adding a file and an entry in dialects.
type dialect interface {
	name() string
	matches(path string) bool
	parse(body []byte) (Turn, error)
	// write sends the answer; it reports an error when the client went away or ctx ended.
	write(ctx context.Context, w http.ResponseWriter, t Turn, a answer) error
}

var dialects = []dialect{chat{}, responses{}, anthropic{}}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.handlers.Add(1)
	defer s.handlers.Done()
	auth := r.Header.Get("Authorization")
	if auth == "" {
		auth = r.Header.Get("X-Api-Key")
	}
	rec := s.record(&Request{
		At: time.Now(), Method: r.Method, Path: r.URL.Path, Auth: auth,
		UserAgent: r.UserAgent(), Status: http.StatusOK,
	})
	defer s.finish(rec)
	switch {
	case r.Header.Get("Upgrade") != "":
		s.refuse(w, rec, http.StatusNotFound, "no upgrade here")
	case r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		s.update(rec, func(q *Request) { q.Done = true })
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/models"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","has_more":false,"data":[{"type":"model","id":"stub-model","object":"model","display_name":"Stub","created_at":"2026-01-01T00:00:00Z"}]}`)
		s.update(rec, func(q *Request) { q.Done = true })
	case r.Method == http.MethodPost:
		s.model(w, r, rec)
	default:
		s.refuse(w, rec, http.StatusNotFound, "no such endpoint")
	}
}

func (s *Server) model(w http.ResponseWriter, r *http.Request, rec *Request) {
	for _, d := range dialects {
		if !d.matches(r.URL.Path) {
			continue
		}
		if strings.HasSuffix(r.URL.Path, "/count_tokens") {
			s.update(rec, func(q *Request) { q.Dialect, q.Side, q.Done = d.name(), true, true })
			countTokens(w)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			s.refuse(w, rec, http.StatusBadRequest, "read body: "+err.Error())
			return
		}
		turn, err := d.parse(body)
		if err != nil {
			s.refuse(w, rec, http.StatusBadRequest, "parse body: "+err.Error())
			return
		}
		a := decide(turn)
		s.update(rec, func(q *Request) {
			q.Dialect, q.Turn, q.Reply, q.Side = d.name(), turn, a.summary(), len(turn.Tools) == 0
		})
		if a.gate != "" {
			a.opened = s.gate(a.gate)
		}
		if err := d.write(r.Context(), w, turn, a); err != nil {
			return // the client went away or the server closes: the record stays not done
		}
		s.update(rec, func(q *Request) { q.Done = true })
		return
	}
	s.refuse(w, rec, http.StatusNotFound, "no such endpoint")
}

func (s *Server) refuse(w http.ResponseWriter, rec *Request, status int, message string) {
	s.update(rec, func(q *Request) { q.Status, q.Reply, q.Done = status, message, true })
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "error", "error": map[string]string{"type": "not_found_error", "message": message},
	})
}

func (s *Server) record(r *Request) *Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Seq = len(s.reqs) + 1
	s.reqs = append(s.reqs, r)
	s.notify()
	return r
}

func (s *Server) update(r *Request, change func(*Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(r)
	s.notify()
}

func (s *Server) finish(r *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log != nil {
		if line, err := json.Marshal(r); err == nil {
			_, _ = s.log.Write(append(line, '\n'))
		}
	}
}

// notify wakes every Wait; s.mu is held.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// hold waits for as long as the rules say before the first text, or until ctx ends.
func (a answer) hold(ctx context.Context) error {
	if a.opened != nil {
		select {
		case <-a.opened:
		case <-ctx.Done():
			return errors.New("stopped while answering")
		}
	}
	return pause(ctx, a.delay)
}

// pause waits d, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errors.New("stopped while answering")
	}
}
