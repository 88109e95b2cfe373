//go:build linux

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestFieldD8_AnAttachShowsTheScreenAndNotItsHistory: of a program that has drawn and is silent, the second
// terminal sees what the first one saw, and nothing that was there before.
func TestFieldD8_AnAttachShowsTheScreenAndNotItsHistory(t *testing.T) {
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("box", "sh", "-c", `stty raw -echo; printf '\033[?1049h\033[Hthe first picture\033[6n\033[2J\033[5;9Hthe last\033[6;9Hpicture'; exec sleep 600`)
	harness.Eventually(t, harness.DefaultWait, "it has drawn", func() (bool, string) {
		out := w.CLI("logs", "box").Stdout
		return strings.Contains(out, "picture"), out
	})
	r := worldRig(t, w)
	r.run("attach", "--no-nudge", "box").see("the last") // it may be smaller than the seat, and brings it to its size
	harness.Eventually(t, harness.DefaultWait, "an attach is shown the screen, the host being fast enough", func() (bool, string) {
		s := r.run("attach", "--no-nudge", "--read-only", "box")
		s.see("the last")
		s.see("picture")
		s.send("\x1d")
		code, shown := s.wait()
		if code != 0 || !strings.Contains(shown, "\x1b[?1049h") || strings.Contains(shown, "\x1b[6n") || !strings.Contains(shown, "detached from box") {
			t.Errorf("exit code %d, shown %q", code, tail(shown))
		}
		return !strings.Contains(shown, "the first picture"), tail(shown)
	})
}

// A runtime plugin that hangs does not keep a terminal from being shown: the output is replayed.
func TestAttach_DoesNotWaitForAPluginThatHangs(t *testing.T) {
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("shown", "sh", "-c", "echo begun; exec sleep 600")
	plugin := w.PluginPID("pty")
	if err := syscall.Kill(plugin, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(plugin, syscall.SIGCONT)
	r := worldRig(t, w)
	waits := r.run("inspect", "shown") // it wants to be sure, and takes seconds
	s := r.run("attach", "--no-nudge", "shown")
	s.see("begun")
	select {
	case <-waits.ended:
		t.Errorf("the attach was no faster than what waits for the plugin: %q", tail(waits.text()))
	default:
	}
	s.send("\x1d")
	if code, shown := s.wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
}

// A seat of tmux is shown by tmux, typed into by the host, and its screen is printed; what tmux cannot do is
// refused by name.
func TestASeatOfAnotherRuntimeIsReachedByIt(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed")
	}
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	log := w.Path("log")
	w.CLI("spawn", "--agent", "command", "--name", "pane", "--runtime", "tmux", "--detach", "--", "sh", "-c", `echo begun; while read -r x; do echo "<$x>" | tee -a `+log+`; done`).OK()
	if row := w.Inspect("pane"); row.Mode != "tmux" || row.Status != "running" {
		t.Fatalf("%+v", row)
	}
	w.CLI("input", "pane", "--wait-text", "begun", "--text", "-n $HOME ; Enter #{pid}").OK()
	harness.Eventually(t, harness.DefaultWait, "the program read it as it is", func() (bool, string) {
		got, _ := os.ReadFile(log)
		return string(got) == "<-n $HOME ; Enter #{pid}>\n", string(got)
	})
	w.CLI("input", "pane", "--keys", "y,enter").OK()
	harness.Eventually(t, harness.DefaultWait, "the screen is printed", func() (bool, string) {
		r := w.CLI("logs", "pane")
		return r.Code == 0 && strings.Contains(r.Stdout, "<-n $HOME ; Enter #{pid}>\n") && strings.Contains(r.Stdout, "<y>\n"), r.String()
	})
	if r := w.CLI("logs", "-f", "pane").Want(1); !strings.Contains(r.Stderr, "runtime tmux keeps no output that could be followed") {
		t.Errorf("%v", r)
	}
	r := worldRig(t, w)
	if code, shown := r.run("attach", "--read-only", "pane").wait(); code != 1 || !strings.Contains(shown, "runtime tmux cannot do --read-only") {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	s := r.run("attach", "pane")
	s.see("<y>")
	s.send("typed here\r")
	s.see("<typed here>")
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, shown := s.wait(); code != 130 || !strings.Contains(shown, "pane goes on running") || s.termios() != s.before {
		t.Errorf("exit code %d: %q", code, tail(shown))
	}
	w.CLI("stop", "pane").OK()
}
