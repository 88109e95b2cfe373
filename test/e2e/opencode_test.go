package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// agentWait bounds what a real agent program needs on a busy machine: it boots in 5 to 30 s.
const agentWait = 120 * time.Second

// stream is an attach stream: a viewer that reads everything a seat prints, from its first byte, and shows it.
type stream struct {
	mu     sync.Mutex
	next   uint64
	text   []byte
	screen *vt.Emulator
	err    error // a gap or a loss of order
}

// attach dials the seat's own socket, as cotal attach does on this machine. The host is not asked.
func attach(t *testing.T, w *harness.World, row wire.AgentRow) *stream {
	t.Helper()
	conn := seatview.Dial(t, w, row, seat.RoleOutput, 0)
	ctx, cancel := context.WithCancel(context.Background())
	size := conn.Welcome()
	s := &stream{screen: vt.NewEmulator(int(size.Cols), int(size.Rows))}
	done, unasked := make(chan struct{}), make(chan struct{})
	go func() { // what it would answer the program: this viewer only watches
		defer close(unasked)
		_, _ = io.Copy(io.Discard, s.screen)
	}()
	go func() {
		defer close(done)
		_ = conn.Run(ctx, seat.Handler{Output: s.output, Gap: s.gap})
	}()
	t.Cleanup(func() {
		cancel()
		conn.Close()
		<-done
		if err := s.screen.InputPipe().(io.Closer).Close(); err != nil { // Close of the emulator races with its reader
			t.Error(err)
		}
		<-unasked
	})
	return s
}

func (s *stream) output(seq uint64, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq != s.next && s.err == nil {
		s.err = fmt.Errorf("output at offset %d, expected %d", seq, s.next)
	}
	s.next = seq + uint64(len(p))
	s.text = append(s.text, p...)
	_, err := s.screen.Write(p)
	return err
}

func (s *stream) gap(from, to uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, fmt.Errorf("bytes %d to %d are lost", from, to))
	s.next = to
	return nil
}

// shows reports whether text is on the screen, or was printed in one piece. A program that draws only what
// changed prints a text in pieces that are next to each other on the screen alone.
func (s *stream) shows(text string) (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	screen := s.screen.String()
	return strings.Contains(screen, text) || strings.Contains(string(s.text), text), screen
}

func (s *stream) lossless(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		t.Errorf("output was lost: %v", s.err)
	}
}

// opencodeWorld is a workspace with a persona for the real program, a home of its own for it, and a
// stub of its model.
func opencodeWorld(t *testing.T) (*harness.World, *stubmodel.Server) {
	t.Helper()
	binary := agents.Need(t, agents.OpenCode)
	stub, err := stubmodel.Start(stubmodel.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stub.Close)
	w := harness.New(t)
	w.Setenv("COTAL_OPENCODE_BIN", binary)
	putJSON(t, w.Path("opencode.json"), opencodeConfig(stub.BaseURL()))
	opencodeHome(t, w.Path("home"))
	w.Persona("coder", "---\nname: coder\nagent: opencode\nlaunchOptions:\n  home: home\n  config: opencode.json\n---\n\nPERSONA-TEXT: you are careful.\n")
	return w, stub
}

// TestRealAgentSurvivesEveryKill is the product in one test: a real coding agent in a seat, typed into,
// answering on an attach stream, while host, runtime plugin, both, and the journal are taken away.
//
// proves: RT-1, RT-7, RT-8, CONN-1, INPUT-1
func TestRealAgentSurvivesEveryKill(t *testing.T) {
	w, stub := opencodeWorld(t)
	h := w.Start(harness.HostOptions{})
	w.CLI("spawn", "coder", "--detach", "--timeout", "2m").OK()
	row := w.AwaitStatus("coder", "running")
	screen := attach(t, w, row)
	ask := func(text string) {
		t.Helper()
		// The host holds the text back until the program takes it; only a boot may take longer than that.
		await(t, agentWait, "the text is typed", func() (bool, string) {
			r := w.CLI("input", "coder", "--text", text)
			return r.Code == 0, r.String()
		})
		ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(agentWait))
		defer cancel()
		if _, err := stub.Wait(ctx, stubmodel.Asked(text)); err != nil {
			t.Fatalf("the model was not asked %q: %v", text, err)
		}
	}
	answer := func(text string) {
		t.Helper()
		await(t, agentWait, "the answer "+text+" is on the attach stream", func() (bool, string) { return screen.shows(text) })
	}
	same := func(when string) {
		t.Helper()
		if got := w.AwaitStatus("coder", "running"); got.PID != row.PID || got.LifecycleUID != row.LifecycleUID {
			t.Fatalf("%s the seat has pid %d, had %d", when, got.PID, row.PID)
		}
	}

	// A message to an agent that nobody has said anything to begins a session, and the terminal shows it.
	client, _ := watchPresence(t, w)
	if _, err := client.SendDirect(t.Context(), row.ID, "a word of greeting"); err != nil {
		t.Fatal(err)
	}
	woken, cancel := context.WithTimeout(t.Context(), busy.Limit(agentWait))
	defer cancel()
	if _, err := stub.Wait(woken, stubmodel.Asked("a word of greeting")); err != nil {
		t.Fatalf("the agent was not woken: %v", err)
	}
	answer("STUB-REPLY users=1")

	ask("say alpha")
	answer("say alpha>>")
	if system := systemPrompt(stub); !strings.Contains(system, "PERSONA-TEXT") {
		t.Error("the persona did not reach the model")
	}

	// kill -9 of the host in the middle of an answer.
	ask("STREAM 40 100 beta")
	answer("word0003")
	h.Kill()
	answer("STREAM-END") // there is no host now, and the answer goes on
	h = w.Start(harness.HostOptions{})
	same("after kill -9 of the host")

	killed := w.PluginPID("pty")
	w.KillPID(killed)
	await(t, harness.DefaultWait, "the runtime plugin is another process", func() (bool, string) { return w.PluginPID("pty") != killed, "" })
	same("after kill -9 of the runtime plugin")
	ask("say gamma")
	answer("say gamma>>")

	pty := w.PluginPID("pty")
	h.Kill()
	w.KillRest(pty) // it ends with its host
	h = w.Start(harness.HostOptions{})
	same("after kill -9 of both")
	ask("say delta")
	answer("say delta>>")

	h.Kill()
	if err := os.Remove(w.Path(".cotal", "host", "journal.db")); err != nil {
		t.Fatal(err)
	}
	w.Start(harness.HostOptions{})
	same("after the loss of the journal")
	ask("HISTORY epsilon")
	answer("STUB-HISTORY")
	screen.lossless(t)

	r := w.CLI("stop", "coder", "--json").OK()
	var stopped []struct {
		Report *wire.StopReport `json:"report"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &stopped); err != nil {
		var one struct {
			Report *wire.StopReport `json:"report"`
		}
		r.JSON(&one)
		stopped = append(stopped, one)
	}
	if len(stopped) != 1 || stopped[0].Report == nil || len(stopped[0].Report.Evidence) == 0 {
		t.Errorf("the stop does not say what proves it: %s", r.Stdout)
	}
	if _, err := os.Stat(filepath.Join(w.SeatRoot, row.SeatID)); !os.IsNotExist(err) {
		t.Errorf("the seat directory is left: %v", err)
	}
	if left := w.ProcsLike("opencode.exe"); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	// The end of the world checks for every other process, socket and directory.
}

func systemPrompt(stub *stubmodel.Server) string {
	var all strings.Builder
	for _, r := range stub.Requests() {
		if !r.Side {
			all.WriteString(r.Turn.System)
		}
	}
	return all.String()
}
