//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// asCotal makes a copy of the test binary be the cotal command.
const asCotal = "COTAL_TEST_AS_COTAL"

// asClient makes it attach to a seat whose terminal is said to be shown by a program: the arguments.
const asClient = "COTAL_TEST_AS_CLIENT"

func clientMain(ref string, argv []string) int {
	a := &app{in: os.Stdin, out: cli.NewOutput(os.Stdout), errw: os.Stderr, outFile: os.Stdout}
	cmd := &cobra.Command{Use: "attach", RunE: func(cmd *cobra.Command, _ []string) error {
		row, err := inspect(cmd.Context(), a, ref)
		if err != nil {
			return err
		}
		return a.attachPlace(cmd.Context(), newConsole(a.in, a.outFile), &place{row: row, argv: argv}, attachOptions{})
	}}
	a.target.Flags(cmd)
	return cli.Main(context.Background(), cmd, []string{}, os.Stderr)
}

// atOnce is how many tests run at a time: they wait for hosts and terminals more than they compute.
const atOnce = "4"

func TestMain(m *testing.M) {
	if os.Getenv(asClient) != "" {
		os.Exit(clientMain(os.Args[1], os.Args[2:]))
	}
	if os.Getenv(asCotal) != "" {
		main()
		return
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if seatBinary.dir != "" {
		os.RemoveAll(seatBinary.dir)
	}
	os.Exit(code)
}

const waitFor = 60 * time.Second

// eventually polls for a fact.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitFor); !check(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", waitFor, what)
		}
	}
}

var seatBinary struct {
	once sync.Once
	dir  string
	err  error
}

// seatPath builds cotal-seat once.
func seatPath(t *testing.T) string {
	t.Helper()
	seatBinary.once.Do(func() {
		if seatBinary.dir, seatBinary.err = os.MkdirTemp("", "cotal-seat-"); seatBinary.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", seatBinary.dir+"/", "github.com/cotal-ai/cotal-host/cmd/cotal-seat")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			seatBinary.err = errors.New(err.Error() + ": " + string(out))
		}
	})
	if seatBinary.err != nil {
		t.Fatalf("build cotal-seat: %v", seatBinary.err)
	}
	return filepath.Join(seatBinary.dir, "cotal-seat")
}

// rig is a seat root, without any host.
type rig struct {
	t    *testing.T
	root string
	sock string
	vars []string // environment of cotal commands; nil: a seat root and nothing else
}

// worldRig runs cotal commands in a world with a host.
func worldRig(t *testing.T, w *harness.World) *rig {
	return &rig{t: t, root: w.Root, vars: w.Environ()}
}

func newRig(t *testing.T) *rig {
	sock, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sock) })
	return &rig{t: t, root: t.TempDir(), sock: sock}
}

// testSeat is one cotal-seat that runs a shell script.
type testSeat struct {
	t     *testing.T
	id    string
	dir   string
	sock  string
	token []byte
	cmd   *exec.Cmd
	agent seat.Identity
	waits func() error // waits for the end of cotal-seat, once
}

// start runs a shell script in a seat.
func (r *rig) start(alias, script string) *testSeat {
	t := r.t
	t.Helper()
	id := wire.NewCustodyID()
	s := &testSeat{t: t, id: id, dir: filepath.Join(r.root, id), sock: filepath.Join(r.sock, id[:16]+".sock"), token: bytes.Repeat([]byte{7}, seat.TokenBytes)}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := record.WriteToken(s.dir, s.token); err != nil {
		t.Fatal(err)
	}
	embed, err := record.Embed{Owner: record.Owner{InstanceID: wire.NewUID(), Space: "main", Alias: alias, Principal: "local.A", LifecycleUID: wire.NewUID(), RequestID: "r"}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	launch := seat.EncodeLaunch(seat.Launch{
		Dir: s.dir, Socket: s.sock, Nonce: wire.NewNonce(), Token: s.token, Path: "/bin/sh", Args: []string{"-c", script},
		Env: []string{"PATH=" + os.Getenv("PATH"), "TERM=xterm-256color", "LC_ALL=C.UTF-8"}, Cwd: r.root, Rows: 24, Cols: 80, Fence: 1, Record: embed,
	})
	s.cmd = exec.Command(seatPath(t), id)
	s.cmd.Stdin = bytes.NewReader(launch)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.waits = sync.OnceValue(s.cmd.Wait)
	t.Cleanup(s.end)
	line := make([]byte, 256)
	n, _ := out.Read(line)
	if !strings.HasPrefix(string(line[:n]), "prepared ") {
		t.Fatalf("cotal-seat says %q", line[:n])
	}
	c := s.control()
	defer c.Close()
	st, err := c.Commit(context.Background())
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	s.agent = st.Agent
	return s
}

func (s *testSeat) control() *seat.Conn {
	s.t.Helper()
	c, err := seat.Dial(context.Background(), seat.DialConfig{Socket: s.sock, Token: s.token, Role: seat.RoleControl, Fence: 1, From: seat.FromLive})
	if err != nil {
		s.t.Fatalf("dial seat: %v", err)
	}
	return c
}

// signal acts on the agent.
func (s *testSeat) signal(a seat.Action) {
	s.t.Helper()
	c := s.control()
	defer c.Close()
	if err := c.Signal(context.Background(), a); err != nil {
		s.t.Fatalf("signal agent: %v", err)
	}
}

func (s *testSeat) status() seat.Status {
	s.t.Helper()
	c := s.control()
	defer c.Close()
	return c.Welcome()
}

// kill ends cotal-seat with SIGKILL.
func (s *testSeat) kill() {
	s.cmd.Process.Kill()
	s.waits()
}

func (s *testSeat) end() {
	if c, err := seat.Dial(context.Background(), seat.DialConfig{Socket: s.sock, Token: s.token, Role: seat.RoleControl, Fence: 1, From: seat.FromLive}); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = c.Signal(ctx, seat.ActionKill)
		cancel()
		c.Close()
	}
	s.kill()
	if s.agent.PID > 0 {
		if err := seat.SignalExact(s.agent, syscall.SIGKILL); err != nil && !errors.Is(err, seat.ErrProcessGone) {
			s.t.Errorf("end agent %d: %v", s.agent.PID, err)
		}
	}
}

// screen is a terminal with a cotal command in it.
type screen struct {
	t        *testing.T
	ptm, pts *os.File
	cmd      *exec.Cmd
	before   unix.Termios
	ended    chan struct{}
	mu       sync.Mutex
	out      []byte
}

// env is the environment of a cotal command of this rig.
func (r *rig) env(more ...string) []string {
	if r.vars != nil {
		return append(append([]string{asCotal + "=1"}, r.vars...), more...)
	}
	return append([]string{
		asCotal + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + r.root, "COTAL_SEAT_ROOT=" + r.root, "TERM=xterm-256color", "TMPDIR=/tmp",
	}, more...)
}

// run starts a cotal command on a terminal of its own.
func (r *rig) run(args ...string) *screen { return r.runIn(nil, "", args...) }

// runEnv adds environment variables.
func (r *rig) runEnv(env []string, args ...string) *screen { return r.runIn(env, "", args...) }

// typed types a text into the terminal before the command starts.
func (r *rig) typed(text string, args ...string) *screen { return r.runIn(nil, text, args...) }

func (r *rig) runIn(env []string, typed string, args ...string) *screen {
	t := r.t
	t.Helper()
	ptm, pts, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(ptm, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, ptm: ptm, pts: pts, ended: make(chan struct{})}
	s.before = s.termios()
	if typed != "" {
		s.send(typed)
	}
	s.cmd = exec.Command(os.Args[0], args...)
	s.cmd.Dir, s.cmd.Env = r.root, r.env(env...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = pts, pts, pts
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
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
		s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		<-s.ended
		pts.Close()
		ptm.Close()
	})
	return s
}

func (s *screen) termios() unix.Termios {
	s.t.Helper()
	st, err := unix.IoctlGetTermios(int(s.pts.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *st
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.out)
}

// see waits until the terminal was shown a text.
func (s *screen) see(text string) {
	s.t.Helper()
	deadline := time.Now().Add(waitFor)
	for !strings.Contains(s.text(), text) {
		if time.Now().After(deadline) {
			s.t.Fatalf("after %v the terminal was not shown %q; it was shown %q", waitFor, text, tail(s.text()))
		}
		<-time.After(2 * time.Millisecond)
	}
}

func tail(s string) string {
	if len(s) > 3000 {
		return "..." + s[len(s)-3000:]
	}
	return s
}

func (s *screen) send(text string) {
	s.t.Helper()
	if _, err := s.ptm.Write([]byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

// endMark is written behind all that a command has shown.
const endMark = "\x00end of output\x00"

// wait returns the exit code and everything that was shown.
func (s *screen) wait() (int, string) {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(waitFor):
		s.t.Fatalf("cotal did not end; shown: %q", tail(s.text()))
	}
	// What was written before the end is in the pty, and read before what is written now: a pause in which nothing
	// comes proves nothing on a busy machine.
	go func() { _, _ = s.pts.WriteString(endMark) }() // a terminal that was stopped takes nothing
	eventually(s.t, "all output is read", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		before, _, found := bytes.Cut(s.out, []byte(endMark))
		if found {
			s.out = before
		}
		return found
	})
	code := s.cmd.ProcessState.ExitCode()
	return code, s.text()
}

// pipe runs a cotal command without a terminal.
func (r *rig) pipe(stdin string, args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitFor)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Dir, cmd.Env = r.root, r.env()
	cmd.Stdin = strings.NewReader(stdin)
	var out, errw bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errw
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("run %v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errw.String()
}

func unixInq(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.TIOCINQ) }
