package seatview

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// Terminal is a terminal with a cotal command in it.
type Terminal struct {
	t     testing.TB
	ptm   *os.File
	cmd   *exec.Cmd
	ended chan struct{}

	mu  sync.Mutex
	out []byte
}

// openTerminal returns both ends of a new terminal of that size.
func openTerminal(rows, cols uint16) (ptm, pts *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	ptm = os.NewFile(uintptr(fd), "ptm")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	if err == nil {
		pts, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		ptm.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	return ptm, pts, nil
}

// Start runs a cotal command on a terminal of its own. It is killed with the test, if it still runs.
func Start(t testing.TB, w *harness.World, rows, cols uint16, args ...string) *Terminal {
	t.Helper()
	ptm, pts, err := openTerminal(rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	defer pts.Close()
	s := &Terminal{t: t, ptm: ptm, ended: make(chan struct{})}
	s.cmd = exec.Command(filepath.Join(w.Bin, "cotal"), args...)
	s.cmd.Dir, s.cmd.Env = w.Root, w.Environ()
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = pts, pts, pts
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		ptm.Close()
		t.Fatalf("start cotal %s: %v", strings.Join(args, " "), err)
	}
	read := make(chan struct{})
	go func() { // ends when the last process has closed its end
		defer close(read)
		buf := make([]byte, 64<<10)
		for {
			n, err := ptm.Read(buf)
			s.mu.Lock()
			s.out = append(s.out, buf[:n]...)
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.ended
		ptm.Close()
		<-read
	})
	return s
}

// Attach starts cotal attach and waits until the terminal is live.
func Attach(t testing.TB, w *harness.World, name string, rows, cols uint16) *Terminal {
	t.Helper()
	before := w.Inspect(name).Attached
	s := Start(t, w, rows, cols, "attach", name)
	harness.Eventually(t, harness.DefaultWait, "a terminal is attached to "+name, func() (bool, string) {
		n := w.Inspect(name).Attached
		return n == before+1, fmt.Sprintf("%d are, and it was shown %q", n, s.Text())
	})
	return s
}

// Text returns everything the terminal was shown so far.
func (s *Terminal) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.out)
}

// See waits until the terminal was shown a text.
func (s *Terminal) See(text string) {
	s.t.Helper()
	harness.Eventually(s.t, harness.DefaultWait, fmt.Sprintf("the terminal shows %q", text), func() (bool, string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return bytes.Contains(s.out, []byte(text)), fmt.Sprintf("it was shown %q", s.out[max(0, len(s.out)-2000):])
	})
}

// Type types a text.
func (s *Terminal) Type(text string) {
	s.t.Helper()
	if _, err := s.ptm.WriteString(text); err != nil {
		s.t.Fatalf("type %q: %v", text, err)
	}
}

// Resize gives the terminal another size and tells its programs.
func (s *Terminal) Resize(rows, cols uint16) {
	s.t.Helper()
	c, err := s.ptm.SyscallConn()
	if err != nil {
		s.t.Fatalf("resize terminal: %v", err)
	}
	if cerr := c.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}); cerr != nil || err != nil {
		s.t.Fatalf("resize terminal: %v %v", cerr, err)
	}
}

// Wait waits for the end of the command and returns its exit code, -1 when it was killed.
func (s *Terminal) Wait() int {
	s.t.Helper()
	harness.Eventually(s.t, harness.DefaultWait, "cotal ends", func() (bool, string) {
		select {
		case <-s.ended:
			return true, ""
		default:
			text := s.Text()
			return false, fmt.Sprintf("it was shown %q", text[max(0, len(text)-2000):])
		}
	})
	return s.cmd.ProcessState.ExitCode()
}

// Kill ends the command with SIGKILL: it has no time to put anything right.
func (s *Terminal) Kill() {
	s.t.Helper()
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// Stop stops the command as SIGSTOP does: it reads nothing any more.
func (s *Terminal) Stop() {
	s.t.Helper()
	err := s.cmd.Process.Signal(syscall.SIGSTOP)
	if err == nil {
		err = harness.AwaitStopped(s.cmd.Process.Pid)
	}
	if err != nil {
		s.t.Fatalf("stop cotal: %v", err)
	}
}

// Leave presses keys until the command ends (harness.PressUntil), and returns its exit code.
func (s *Terminal) Leave(keys string) int {
	s.t.Helper()
	harness.PressUntil(s.ptm, keys, s.ended, harness.DefaultWait)
	return s.Wait()
}

// Detach presses the detach key and waits for the end of the command.
func (s *Terminal) Detach() {
	s.t.Helper()
	s.Type("\x1d")
	if code := s.Wait(); code != 0 {
		s.t.Errorf("detach ended with code %d; shown %q", code, s.Text())
	}
}
