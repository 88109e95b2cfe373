//go:build linux

package e2e

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// stage is a world whose host was told by a flag alone where new seats run.
type stage struct {
	*harness.World
	t       *testing.T
	host    *harness.Host
	runtime string
	detach  string // what a person presses to leave
}

// inEveryRuntime plays one row of the terminal reports in each runtime that ships.
func inEveryRuntime(t *testing.T, play func(*testing.T, *stage)) {
	t.Parallel()
	for _, r := range runtimes {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t)
			play(t, &stage{World: w, t: t, host: w.Start(harness.HostOptions{Args: r.args}), runtime: r.name, detach: r.detach})
		})
	}
}

// shows waits until a seat has printed a text.
func (s *stage) shows(seat, text string) {
	s.t.Helper()
	await(s.t, harness.DefaultWait, fmt.Sprintf("%s shows %q", seat, text), func() (bool, string) {
		out := s.CLI("logs", seat).OK().Stdout
		return strings.Contains(out, text), out
	})
}

// reader starts an agent that takes every byte as it comes, with its terminal in raw mode, after it printed
// what switches modes on. The result is what it has read so far.
func (s *stage) reader(name, modes string) func() string {
	s.t.Helper()
	file := filepath.Join(s.Dir, name+".hex")
	said, err := json.Marshal(modes + "ready\r\n")
	if err != nil {
		s.t.Fatal(err)
	}
	s.SpawnFake(name, fmt.Sprintf(`[{"raw": true}, {"print": %s}, {"hexlog": {"file": %q, "bytes": 0}}]`, said, file))
	s.shows(name, "ready")
	return func() string {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			s.t.Fatal(err)
		}
		got, err := hex.DecodeString(string(text[:len(text)&^1]))
		if err != nil {
			s.t.Fatalf("decode what %s has read: %v", name, err)
		}
		return string(got)
	}
}

// arrives waits until an agent has read a text, then sends one key more and fails if anything but the two
// has come.
func (s *stage) arrives(name string, read func() string, want string) {
	s.t.Helper()
	await(s.t, harness.DefaultWait, name+" has read it all", func() (bool, string) {
		got := read()
		return len(got) >= len(want), fmt.Sprintf("%d bytes, %q", len(got), got[:min(len(got), 200)])
	})
	s.CLI("input", name, "--keys", "~").OK()
	await(s.t, harness.DefaultWait, name+" has read the last key", func() (bool, string) {
		got := read()
		return strings.HasSuffix(got, "~"), fmt.Sprintf("%d bytes, %q", len(got), got[max(0, len(got)-200):])
	})
	if got := read(); got != want+"~" {
		s.t.Errorf("%s has read %d bytes %.300q, want %d bytes %.300q", name, len(got), got, len(want)+1, want+"~")
	}
}

// desk is a terminal at which one cotal command after the other is run.
type desk struct {
	t        *testing.T
	w        *harness.World
	ptm, pts *os.File
	before   unix.Termios

	mu  sync.Mutex
	out []byte
}

// desk opens a terminal.
func (s *stage) desk(rows, cols uint16) *desk {
	s.t.Helper()
	ptm, pts, err := pty.Open()
	if err != nil {
		s.t.Fatal(err)
	}
	// Another descriptor that a close wakes from its read, whoever else holds the terminal open.
	fd, err := unix.FcntlInt(ptm.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	ptm.Close()
	ptm = os.NewFile(uintptr(fd), "ptm")
	d := &desk{t: s.t, w: s.World, ptm: ptm, pts: pts}
	d.size(rows, cols)
	d.before = d.settings()
	read := make(chan struct{})
	go func() { // ends when the terminal is closed
		defer close(read)
		buf := make([]byte, 64<<10)
		for {
			n, err := ptm.Read(buf)
			d.mu.Lock()
			d.out = append(d.out, buf[:n]...)
			d.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	s.t.Cleanup(func() {
		pts.Close()
		ptm.Close()
		<-read
	})
	return d
}

// seated is a command at a desk.
type seated struct {
	*desk
	cmd   *exec.Cmd
	from  int // where its output begins
	ended chan struct{}
}

// run starts a cotal command at the desk. It is killed with the test.
func (d *desk) run(args ...string) *seated {
	d.t.Helper()
	c := &seated{desk: d, from: len(d.text()), ended: make(chan struct{})}
	c.cmd = exec.Command(filepath.Join(d.w.Bin, "cotal"), args...)
	c.cmd.Dir, c.cmd.Env = d.w.Root, d.w.Environ()
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = d.pts, d.pts, d.pts
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.ended)
	}()
	d.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.ended
	})
	return c
}

func (d *desk) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return string(d.out)
}

func (d *desk) settings() unix.Termios {
	d.t.Helper()
	st, err := unix.IoctlGetTermios(int(d.pts.Fd()), unix.TCGETS)
	if err != nil {
		d.t.Fatal(err)
	}
	return *st
}

func (d *desk) size(rows, cols uint16) {
	d.t.Helper()
	if err := pty.Setsize(d.pts, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) typed(text string) {
	d.t.Helper()
	if _, err := d.ptm.WriteString(text); err != nil {
		d.t.Fatal(err)
	}
}

// taken waits until nothing that was typed is left to read.
func (d *desk) taken() {
	d.t.Helper()
	await(d.t, harness.DefaultWait, "what was typed is taken from the terminal", func() (bool, string) {
		n, err := unix.IoctlGetInt(int(d.pts.Fd()), unix.TIOCINQ)
		return err == nil && n == 0, fmt.Sprintf("%d bytes wait, %v", n, err)
	})
}

// shown is what the command was seen to print.
func (c *seated) shown() string { return c.text()[c.from:] }

func (c *seated) see(text string) {
	c.t.Helper()
	await(c.t, harness.DefaultWait, fmt.Sprintf("the terminal shows %q", text), func() (bool, string) {
		all := c.shown()
		return strings.Contains(all, text), fmt.Sprintf("it was shown %q", all[max(0, len(all)-1500):])
	})
}

// leave presses the detach key until the command ends (harness.PressUntil), and returns its exit code.
func (c *seated) leave(key string) int {
	c.t.Helper()
	harness.PressUntil(c.ptm, key, c.ended, harness.DefaultWait)
	return c.wait()
}

// wait waits for the end of the command and of its output and returns the exit code, -1 if it was killed.
func (c *seated) wait() int {
	c.t.Helper()
	await(c.t, harness.DefaultWait, "cotal ends", func() (bool, string) {
		select {
		case <-c.ended:
			return true, ""
		default:
			all := c.shown()
			return false, fmt.Sprintf("it was shown %q", all[max(0, len(all)-1500):])
		}
	})
	last := -1
	await(c.t, harness.DefaultWait, "all output is read", func() (bool, string) {
		n := len(c.text())
		same := n == last
		last = n
		if !same {
			<-time.After(20 * time.Millisecond)
		}
		return same, fmt.Sprintf("%d bytes so far", n)
	})
	return c.cmd.ProcessState.ExitCode()
}

// atRest fails unless the terminal is as it was before the command.
func (c *seated) atRest(when string) {
	c.t.Helper()
	all := c.shown()
	var m terminal.ModeScanner
	m.Write([]byte(strings.ReplaceAll(all, "\x1b[1;30r", "\x1b[r"))) // tmux names all 30 rows for none
	if m.Modes() != 0 || !m.Ground() {
		c.t.Errorf("%s: the terminal is left in modes %#x; shown last %q", when, m.Modes(), all[max(0, len(all)-600):])
	}
	if got := c.settings(); got != c.before {
		c.t.Errorf("%s: settings of the terminal changed:\nbefore %+v\nafter  %+v", when, c.before, got)
	}
}

// emulator is a terminal that draws, and answers what it is asked, with a command in it: a tmux server of
// the test's own.
type emulator struct {
	t      *testing.T
	w      *harness.World
	socket string
}

// emulator makes a terminal of a size and runs a shell command in it.
func (s *stage) emulator(name string, rows, cols int, command string) *emulator {
	s.t.Helper()
	e := &emulator{t: s.t, w: s.World, socket: filepath.Join(s.Dir, name)}
	conf := filepath.Join(s.Dir, name+".conf")
	text := "set -g status off\nset -g remain-on-exit on\nset -s escape-time 0\nset -g default-terminal screen-256color\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(e.end)
	e.call("-f", conf, "new-session", "-d", "-x", fmt.Sprint(cols), "-y", fmt.Sprint(rows), command)
	return e
}

func (e *emulator) try(args ...string) (string, error) {
	cmd := exec.Command("tmux", append([]string{"-u", "-S", e.socket}, args...)...)
	cmd.Dir, cmd.Env = e.w.Root, e.w.Environ()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e *emulator) call(args ...string) string {
	e.t.Helper()
	out, err := e.try(args...)
	if err != nil {
		e.t.Fatalf("tmux %q: %v %s", args, err, out)
	}
	return out
}

// keys presses keys, each when the one before has been read and a moment is over: what a tmux in the terminal reads
// within a millisecond it takes for a paste, which is text for its program and no key.
func (e *emulator) keys(keys ...string) {
	e.t.Helper()
	tty, err := os.OpenFile(strings.TrimSpace(e.call("display-message", "-p", "#{pane_tty}")), os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		e.t.Fatal(err)
	}
	defer tty.Close()
	for _, k := range keys {
		e.call("send-keys", k)
		await(e.t, harness.DefaultWait, "the key "+k+" is read", func() (bool, string) {
			n, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCINQ)
			return err != nil || n == 0, fmt.Sprint(n)
		})
		<-time.After(20 * time.Millisecond)
	}
}

// detached ends the terminal that a command in e has at the tmux of a seat, as a user's `tmux detach-client` does. Its
// keys would not do in a test of answers: one that tmux reads together with an answer of the terminal is a paste to it
// and goes to the agent.
func (s *stage) detached(seat string, e *emulator) {
	s.t.Helper()
	var place struct{ Socket string }
	if err := json.Unmarshal([]byte(read(s.t, filepath.Join(s.SeatRoot, s.Inspect(seat).SeatID, "tmux.json"))), &place); err != nil {
		s.t.Fatal(err)
	}
	tty := strings.TrimSpace(e.call("display-message", "-p", "#{pane_tty}"))
	// The one before it may be listed still, and this one not yet.
	await(s.t, harness.DefaultWait, "its terminal is detached", func() (bool, string) {
		out, err := exec.Command("tmux", "-S", place.Socket, "detach-client", "-t", tty).CombinedOutput()
		return err == nil, fmt.Sprintf("%v %s", err, out)
	})
}

// drawn is what it shows: cells with their colours, and where the cursor is.
func (e *emulator) drawn() string {
	e.t.Helper()
	return e.call("capture-pane", "-e", "-p", ";", "display-message", "-p", "cursor #{cursor_x},#{cursor_y} #{alternate_on}")
}

func (e *emulator) see(text string) {
	e.t.Helper()
	await(e.t, harness.DefaultWait, fmt.Sprintf("it is drawn: %q", text), func() (bool, string) {
		out := e.call("capture-pane", "-p")
		return strings.Contains(out, text), out
	})
}

// end closes the terminal as a person closes a window: its programs are hung up.
func (e *emulator) end() { _, _ = e.try("kill-server") }
