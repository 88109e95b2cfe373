// Package onpty runs the launch of a connector on a plain terminal that answers no query, for tests of connectors against
// real programs: it types as the host does, and finds what a launch leaves.
package onpty

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// Config says what is run and how it is watched.
type Config struct {
	Req      sdk.LaunchRequest
	Spec     sdk.LaunchSpec
	Facts    sdk.ConnectorFacts
	Patience time.Duration // of a wait, on a machine that has the time
	// Explain is added to the message of a wait that was in vain, and Failed is called when the test has failed: both may be
	// nil.
	Explain func() string
	Failed  func(*Seat)
}

// Seat is a launch that runs.
type Seat struct {
	Config
	T      testing.TB
	Cmd    *exec.Cmd
	Exited chan struct{} // closed once the process has ended

	pty    *os.File
	nonce  string
	mu     sync.Mutex
	output bytes.Buffer
	modes  terminal.ModeScanner
}

// Run starts a launch and reads what it prints. With the test it ends, and what carries its nonce.
func Run(t testing.TB, cfg Config) *Seat {
	t.Helper()
	s := &Seat{Config: cfg, T: t, nonce: wire.NewNonce(), Exited: make(chan struct{})}
	s.Cmd = &exec.Cmd{Path: cfg.Spec.Path, Args: append([]string{cfg.Spec.Path}, cfg.Spec.Args...), Dir: cfg.Req.Cwd}
	s.Cmd.Env = append(append([]string(nil), cfg.Spec.Env...), "COTAL_SEAT_NONCE="+s.nonce)
	var err error
	if s.pty, err = pty.StartWithSize(s.Cmd, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(s, s.pty) // ends with EIO once the terminal has no user
	}()
	go func() {
		defer close(s.Exited)
		_ = s.Cmd.Wait() // the state says what happened
	}()
	t.Cleanup(func() {
		for _, p := range s.Left() {
			if p.Identity.PID != s.Cmd.Process.Pid {
				_ = seat.SignalExact(p.Identity, syscall.SIGKILL)
			}
		}
		_ = s.Cmd.Process.Kill()
		<-s.Exited
		_ = s.pty.Close()
		<-drained
		if t.Failed() {
			t.Logf("end of the screen: %q", Tail(s.Screen(), 3000))
			if cfg.Failed != nil {
				cfg.Failed(s)
			}
		}
	})
	return s
}

// Write takes what the program prints.
func (s *Seat) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.modes.Write(p)
	return s.output.Write(p)
}

// Screen is all that was printed.
func (s *Seat) Screen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

// Tail is the end of a text.
func Tail(text string, n int) string { return text[max(0, len(text)-n):] }

// Await polls for a fact.
func (s *Seat) Await(what string, fact func() bool) {
	s.T.Helper()
	begin := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !fact() {
		if <-tick.C; !busy.Over(begin, s.Patience) {
			continue
		}
		why := ""
		if s.Explain != nil {
			why = "; " + s.Explain()
		}
		s.T.Fatalf("waited %s for %s%s", time.Since(begin).Round(time.Second), what, why)
	}
}

// Ended reports whether the process has ended.
func (s *Seat) Ended() bool {
	select {
	case <-s.Exited:
		return true
	default:
		return false
	}
}

// AwaitReady waits until the input field has the focus: paste mode is on and the cursor is shown. What is typed before
// that is lost, and the program hides the cursor while it draws and while it asks something.
func (s *Seat) AwaitReady() {
	s.T.Helper()
	s.Await("the input field", func() bool {
		if s.Ended() {
			s.T.Fatalf("it ended: %s", s.Cmd.ProcessState)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.modes.Modes()&(terminal.BracketedPaste|terminal.CursorHidden) == terminal.BracketedPaste
	})
}

// Submit types text as the host does: a paste, the connector's pause, Return.
func (s *Seat) Submit(text string) {
	s.T.Helper()
	s.AwaitReady()
	s.Type("\x1b[200~" + text + "\x1b[201~")
	gap := time.NewTimer(time.Duration(s.Facts.Input.SubmitDelayMs) * time.Millisecond)
	<-gap.C // not a wait for a fact: the pause is the fact under test
	s.Type("\r")
}

// Type types keys.
func (s *Seat) Type(keys string) {
	s.T.Helper()
	if _, err := s.pty.WriteString(keys); err != nil {
		s.T.Fatalf("type: %v", err)
	}
}

// Left are the processes that carry the launch's nonce.
func (s *Seat) Left() []seat.Proc {
	procs, err := seat.FindByNonce(s.nonce)
	if err != nil {
		s.T.Errorf("find processes: %v", err)
	}
	return procs
}

// AwaitEnd waits for the end of everything that the launch started, and returns how the process ended.
func (s *Seat) AwaitEnd() *os.ProcessState {
	s.T.Helper()
	s.Await("the exit", s.Ended)
	s.Await("the end of its descendants", func() bool { return len(s.Left()) == 0 })
	return s.Cmd.ProcessState
}

// Reap has the connector remove what the launch left, as the host does, and again. Then there are the files that are named
// in the seat's directory, and no others.
func (s *Seat) Reap(c sdk.Connector, files ...string) {
	s.T.Helper()
	req := sdk.LeftoverRequest{SeatID: s.Req.SeatID, Dir: s.Req.Dir, Cwd: s.Req.Cwd, WorkspaceRoot: s.Req.WorkspaceRoot}
	for i, want := range []sdk.ReapOutcome{sdk.ReapExited, sdk.ReapAbsent} {
		report, err := c.Reap(s.T.Context(), req)
		if err != nil || report.Outcome != want || len(report.Evidence) == 0 {
			s.T.Errorf("reap %d: %+v, %v, want %s with evidence", i+1, report, err, want)
		}
	}
	entries, err := os.ReadDir(s.Req.Dir)
	left := map[string]bool{}
	for _, e := range entries {
		left[e.Name()] = true
	}
	for _, name := range files {
		if !left[name] {
			s.T.Errorf("%s is gone from the seat's directory", name)
		}
		delete(left, name)
	}
	if err != nil || len(left) > 0 {
		s.T.Errorf("files left in the seat's directory: %v, %v", left, err)
	}
}
