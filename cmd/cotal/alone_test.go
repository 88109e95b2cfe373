//go:build linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// A seat in tmux is shown and printed while its host is down; and when tmux hangs, that is what is said, soon.
func TestASeatInTmuxIsReachedWithoutItsHost(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("there is no tmux")
	}
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	w.CLI("spawn", "--agent", "command", "--name", "mux", "--runtime", "tmux", "-d", "--", "sh", "-c", "echo in tmux; exec cat").OK()
	row := w.Inspect("mux")
	root := w.Endpoint().SeatRoot
	text, err := os.ReadFile(filepath.Join(root, row.SeatID, tmuxFile))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct{ Server struct{ PID int } }
	if err := json.Unmarshal(text, &rec); err != nil || rec.Server.PID == 0 {
		t.Fatalf("%s: %v", text, err)
	}
	server, err := seat.IdentityOf(rec.Server.PID)
	if err != nil {
		t.Fatal(err)
	}
	r := worldRig(t, w)
	r.vars = append(r.vars, "COTAL_SEAT_ROOT="+root)
	harness.Eventually(t, harness.DefaultWait, "the screen has it", func() (bool, string) {
		out := w.CLI("logs", "mux").Stdout
		return strings.HasPrefix(out, "in tmux\n"), out
	})
	w.CLI("logs", "mux", "--bytes", "10").Want(2)

	t.Cleanup(func() { _ = seat.SignalExact(server, syscall.SIGCONT) })
	if err := seat.SignalExact(server, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := harness.AwaitStopped(server.PID); err != nil {
		t.Fatal(err)
	}
	s := r.run("attach", "mux")
	if code, shown := s.wait(); code == 0 || !strings.Contains(shown, "tmux does not answer") || strings.Contains(shown, "attach with tmux") {
		t.Errorf("attach to a tmux that hangs: exit code %d, %q", code, shown)
	}
	h.Kill()
	s = r.run("attach", "mux")
	if code, shown := s.wait(); code != 3 || !strings.Contains(shown, "does not answer within 2s") || !strings.Contains(shown, "attach-session") {
		t.Errorf("without a host: exit code %d, %q", code, shown)
	}
	if err := seat.SignalExact(server, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if code, out, errw := r.pipe("", "logs", "mux"); code != 0 || !strings.HasPrefix(out, "in tmux\n") {
		t.Errorf("logs without a host: %d %q %q", code, out, errw)
	}
	s = r.run("attach", "mux")
	s.see("in tmux") // the note before it may be lost: tmux throws away what the terminal was not sent yet
	harness.PressUntil(s.ptm, "\x02d", s.ended, waitFor)
	if code, shown := s.wait(); code != 0 || !strings.Contains(shown, "mux is no longer shown") {
		t.Errorf("attach without a host: exit code %d, %q", code, tail(shown))
	}
	w.Start(harness.HostOptions{})
	w.CLI("stop", "--now", "mux").OK()
}

func TestLogsOfASeatThatPrintedNothingAreEmpty(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.CLI("spawn", "--agent", "command", "--name", "quiet", "-d", "--", "sh", "-c", "sleep 0.1").OK()
	w.AwaitStatus("quiet", "exited")
	harness.Eventually(t, harness.DefaultWait, "its directory is gone", func() (bool, string) {
		r := w.CLI("logs", "quiet")
		return r.Code == 0 && r.Stdout == "" && strings.Contains(r.Stderr, "left no output"), r.Stderr
	})
}
