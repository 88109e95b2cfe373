//go:build linux

package main

import (
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestFieldD8_AnAttachShowsTheScreenAndNotItsHistory: of a program that has drawn and is silent, the second
// terminal sees what the first one saw, and nothing that was there before.
func TestFieldD8_AnAttachShowsTheScreenAndNotItsHistory(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("shown", "sh", "-c", "echo begun; exec sleep 600")
	w.Spawn("other", "sleep", "600")
	plugin := w.PluginPID("pty")
	if err := syscall.Kill(plugin, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(plugin, syscall.SIGCONT)
	r := worldRig(t, w)
	waits := r.run("stop", "--now", "other") // it wants to be sure, and takes seconds
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
	t.Parallel()
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

// TestAttach_ToASeatOfTmuxFromWithinTmux: who works in a tmux of their own is shown the seat's, in their pane. The
// client is not told that it is in a pane: it would take the pane's server for the seat's, or refuse.
func TestAttach_ToASeatOfTmuxFromWithinTmux(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed")
	}
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	log := w.Path("log")
	w.CLI("spawn", "--agent", "command", "--name", "pane", "--runtime", "tmux", "--detach", "--",
		"sh", "-c", `echo begun; while read -r x; do echo "<$x>" | tee -a `+log+`; done`).OK()
	r := worldRig(t, w)
	own := func(args ...string) (string, error) {
		cmd := exec.Command("tmux", append([]string{"-S", w.Path("own.sock"), "-f", "/dev/null"}, args...)...)
		cmd.Dir, cmd.Env = w.Root, r.env("TERM=xterm-256color")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() { _, _ = own("kill-server") }) // this test's own, by its socket
	if out, err := own("new-session", "-d", "-x", "100", "-y", "30",
		`echo "within <$TMUX> <$TMUX_PANE>"; '`+os.Args[0]+`' attach pane; echo "code $?"; exec sleep 600`); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	shows := func(text string) {
		t.Helper()
		harness.Eventually(t, harness.DefaultWait, "the pane shows "+text, func() (bool, string) {
			out, err := own("capture-pane", "-p", "-S", "-100")
			return err == nil && strings.Contains(out, text), out
		})
	}
	shows("begun")
	clients := 0
	for _, dir := range procsOf(t, "attach-session", w.Dir) {
		clients++
		if env, _ := os.ReadFile(dir + "/environ"); bytes.Contains(env, []byte("TMUX=")) || bytes.Contains(env, []byte("TMUX_PANE=")) {
			t.Errorf("the client is told of the pane it is in: %q", env)
		}
	}
	if clients != 1 {
		t.Errorf("%d clients are attached", clients)
	}
	if _, err := own("send-keys", "typed in a pane", "Enter"); err != nil {
		t.Error(err)
	}
	shows("<typed in a pane>")
	harness.Eventually(t, harness.DefaultWait, "the program read it", func() (bool, string) {
		got, _ := os.ReadFile(log)
		return string(got) == "<typed in a pane>\n", string(got)
	})
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = harness.Poll(waitFor, func() (bool, string) {
			out, err := own("capture-pane", "-p", "-S", "-100")
			return err != nil || strings.Contains(out, "detached from pane; it is running"), ""
		})
	}()
	harness.PressUntil(pressing(func(p []byte) { _, _ = own("send-keys", "-H", hex.EncodeToString(p)) }), "\x02d", left, waitFor) // to the client in the pane
	shows("detached from pane; it is running")
	shows("code 0")
	if out, _ := own("capture-pane", "-p", "-S", "-100"); !strings.Contains(out, "within <"+w.Path("own.sock")) || strings.Contains(out, "<>") {
		t.Errorf("the test does not try what it should: %s", out)
	}
	w.CLI("stop", "pane").OK()
}

// pressing is a terminal that is typed into by a function, key by key.
type pressing func(p []byte)

func (f pressing) Write(p []byte) (int, error) { f(p); return len(p), nil }

// procsOf finds processes by a word of their command line and by a directory that their environment names.
func procsOf(t *testing.T, word, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		args, _ := os.ReadFile(p + "/cmdline")
		env, _ := os.ReadFile(p + "/environ")
		if slices.Contains(strings.Split(string(args), "\x00"), word) && bytes.Contains(env, []byte(dir)) {
			found = append(found, p)
		}
	}
	return found
}
