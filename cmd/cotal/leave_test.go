//go:build linux

package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// Whatever ends an attach ends it while the terminal takes no output, too: nobody reads it, or Ctrl-S.
func TestAnAttachEndsWhileItsTerminalTakesNoOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start("flood", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done")
	for name, leave := range map[string]func(*exec.Cmd, func(string)){
		"detach": func(_ *exec.Cmd, send func(string)) { send("\x1d") },
		"TERM":   func(c *exec.Cmd, _ func(string)) { c.Process.Signal(syscall.SIGTERM) },
		"HUP":    func(c *exec.Cmd, _ func(string)) { c.Process.Signal(syscall.SIGHUP) },
	} {
		ptm, pts, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer ptm.Close()
		defer pts.Close()
		if err := pty.Setsize(ptm, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "attach", "--no-nudge", "flood")
		cmd.Dir, cmd.Env = r.root, r.env()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = pts, pts, pts
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		t.Cleanup(func() { cmd.Process.Kill(); <-ended })
		buf := make([]byte, 64<<10)
		for got := 0; got < 100<<10; { // it is live; from here on nobody reads
			n, err := ptm.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		leave(cmd, func(text string) {
			if _, err := ptm.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		})
		select {
		case <-ended:
		case <-time.After(waitFor):
			t.Errorf("%s does not end it", name)
		}
	}
}

// The program that shows a terminal may hang with its server: the attach ends all the same, and nothing of it
// goes on reading the keyboard, however the attach ended.
func TestAClientThatHangsKeepsNobody(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("mux", "sh", "-c", "exec sleep 600")
	r := worldRig(t, w)
	for name, sig := range map[string]syscall.Signal{"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL} {
		s := r.runEnv([]string{asClient + "=1"}, "mux", "sh", "-c", `trap "" TERM HUP INT; stty raw -echo; printf 'client %d.' $$; while :; do sleep 1; done`)
		s.see("client ")
		s.see(".")
		_, rest, _ := strings.Cut(s.text(), "client ")
		digits, _, _ := strings.Cut(rest, ".")
		pid, err := strconv.Atoi(digits)
		if err != nil {
			t.Fatalf("the client shows %q", s.text())
		}
		id, err := seat.IdentityOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		s.cmd.Process.Signal(sig)
		code, shown := s.wait()
		if sig == syscall.SIGTERM && (code != 130 || s.termios() != s.before) {
			t.Errorf("%s: exit code %d, terminal restored %v, shown %q", name, code, s.termios() == s.before, tail(shown))
		}
		eventually(t, name+": the client is gone", func() bool {
			l, _ := seat.Check(id)
			return l == seat.Dead
		})
	}
}
