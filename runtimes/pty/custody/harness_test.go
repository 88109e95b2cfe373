//go:build linux

package custody_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/busy"
)

const patience = 60 * time.Second

var seatBinary string

func TestMain(m *testing.M) {
	if os.Getenv("COTAL_TEST_LISTEN") != "" {
		listenForEver()
	}
	dir, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	seatBinary = filepath.Join(dir, "cotal-seat")
	args, env := []string{"build", "-trimpath", "-ldflags=-s -w"}, "CGO_ENABLED=0"
	if os.Getenv("COTAL_TEST_SEAT_RACE") != "" { // the seat itself under the race detector; needs a C compiler
		args, env = []string{"build", "-race"}, "CGO_ENABLED=1"
	}
	build := exec.Command("go", append(args, "-o", seatBinary, "github.com/cotal-ai/cotal-host/cmd/cotal-seat")...)
	build.Env = append(os.Environ(), env)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build cotal-seat: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// held is one seat of a test.
type held struct {
	t      testing.TB
	id     string
	dir    string
	launch seat.Launch
	self   seat.Identity
	cmd    *exec.Cmd
	done   chan struct{} // the custody process has ended
	line   string        // what it said
}

func hexID(t testing.TB) string {
	t.Helper()
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(b)
}

// script is an agent: a shell with this program.
func script(text string) func(*seat.Launch) {
	return func(l *seat.Launch) { l.Path, l.Args = "/bin/sh", []string{"-c", text} }
}

// launchSeat starts a custody process and returns what it said, without judging it.
func launchSeat(t testing.TB, env []string, opts ...func(*seat.Launch)) *held {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	id := hexID(t)
	h := &held{t: t, id: id, dir: filepath.Join(root, id), done: make(chan struct{})}
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	token := make([]byte, seat.TokenBytes)
	_, _ = rand.Read(token)
	rec, err := record.Embed{Owner: record.Owner{InstanceID: "i", Space: "main", Alias: "tester"}, StopGraceMs: 1000}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	h.launch = seat.Launch{
		Dir:    h.dir,
		Socket: filepath.Join(root, "s"),
		Nonce:  "nonce-" + id,
		Token:  token,
		Path:   "/bin/sh",
		Args:   []string{"-c", "exec cat"},
		Env:    []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "TERM=xterm"},
		Cwd:    root,
		Fence:  1,
		Record: rec,
	}
	for _, o := range opts {
		o(&h.launch)
	}
	h.start(env)
	t.Cleanup(func() {
		h.killAll()
		_ = os.RemoveAll(root)
	})
	return h
}

func (h *held) start(env []string) {
	h.t.Helper()
	h.cmd = exec.Command(seatBinary, h.id)
	h.cmd.Env = append(env, seat.NonceVar+"="+h.launch.Nonce, "GORACE=halt_on_error=1")
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	h.cmd.Stdin = bytes.NewReader(seat.EncodeLaunch(h.launch))
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.line, _ = bufio.NewReader(out).ReadString('\n')
	done := h.done
	go func() {
		_ = h.cmd.Wait()
		close(done)
	}()
}

// killAll ends what the test started and fails when something with its nonce is left.
func (h *held) killAll() {
	if h.cmd != nil && h.cmd.Process != nil {
		_ = h.cmd.Process.Kill()
		<-h.done
	}
	deadline := time.Now().Add(patience)
	for {
		left, err := seat.FindByNonce(h.launch.Nonce)
		if err == nil && len(left) == 0 {
			return
		}
		for _, p := range left {
			_ = seat.SignalExact(p.Identity, syscall.SIGKILL)
		}
		if time.Now().After(deadline) {
			h.t.Errorf("processes left: %+v %v", left, err)
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// prepared starts a custody process that must become prepared.
func prepared(t testing.TB, opts ...func(*seat.Launch)) *held {
	t.Helper()
	return preparedEnv(t, nil, opts...)
}

func preparedEnv(t testing.TB, env []string, opts ...func(*seat.Launch)) *held {
	t.Helper()
	h := launchSeat(t, env, opts...)
	f := strings.Fields(h.line)
	if len(f) != 4 || f[0] != "prepared" {
		t.Fatalf("seat said %q", h.line)
	}
	pid, _ := strconv.Atoi(f[1])
	ticks, _ := strconv.ParseUint(f[2], 10, 64)
	h.self = seat.Identity{PID: pid, StartTicks: ticks, BootID: f[3]}
	return h
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (h *held) config(role seat.Role) seat.DialConfig {
	c := seat.DialConfig{Socket: h.launch.Socket, Token: h.launch.Token, Role: role}
	if role.Has(seat.RoleControl) {
		c.Fence = h.launch.Fence
	}
	return c
}

func (h *held) dial(role seat.Role, edit ...func(*seat.DialConfig)) *seat.Conn {
	h.t.Helper()
	cfg := h.config(role)
	for _, e := range edit {
		e(&cfg)
	}
	c, err := seat.Dial(testContext(h.t), cfg)
	if err != nil {
		h.t.Fatalf("dial: %v\n%s", err, h.log())
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// status asks through a connection of its own.
func (h *held) status() seat.Status {
	h.t.Helper()
	c := h.dial(0)
	defer c.Close()
	return c.Welcome()
}

// commit starts the agent through a connection of its own.
func (h *held) commit() seat.Status {
	h.t.Helper()
	c := h.dial(seat.RoleControl)
	st, err := c.Commit(testContext(h.t))
	if err != nil {
		h.t.Fatalf("commit: %v\n%s", err, h.log())
	}
	_ = c.Close()
	return st
}

func (h *held) act(a seat.Action) {
	h.t.Helper()
	c := h.dial(seat.RoleControl)
	if err := c.Signal(testContext(h.t), a); err != nil {
		h.t.Fatalf("signal: %v", err)
	}
	_ = c.Close()
}

func (h *held) ack() {
	h.t.Helper()
	c := h.dial(seat.RoleControl)
	if err := c.AckExit(testContext(h.t)); err != nil {
		h.t.Fatalf("ack: %v", err)
	}
	_ = c.Close()
}

func (h *held) log() string {
	p, _ := os.ReadFile(filepath.Join(h.dir, record.LogFile))
	return string(p)
}

// awaitExit waits for the exit record on disk.
func (h *held) awaitExit() record.Exit {
	h.t.Helper()
	var x record.Exit
	h.eventually("exit record", func() (err error) {
		x, err = record.ReadExit(h.dir)
		return err
	})
	return x
}

func (h *held) awaitEnd() {
	h.t.Helper()
	select {
	case <-h.done:
	case <-time.After(patience):
		h.t.Fatalf("custody process did not end\n%s", h.log())
	}
}

func (h *held) eventually(what string, try func() error) {
	h.t.Helper()
	begin := time.Now()
	for {
		err := try()
		if err == nil {
			return
		}
		if busy.Over(begin, patience) {
			h.t.Fatalf("%s: %v\n%s", what, err, h.log())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// viewer collects everything one connection is told.
type viewer struct {
	t    testing.TB
	conn *seat.Conn
	done chan struct{}
	err  error

	mu     sync.Mutex
	out    bytes.Buffer
	next   uint64
	gaps   [][2]uint64
	news   []seat.Status
	exit   *seat.ExitRecord
	exitAt uint64
	status seat.Status
	sink   io.Writer // instead of out
}

// view attaches and reads in the background.
func (h *held) view(role seat.Role, edit ...func(*seat.DialConfig)) *viewer {
	h.t.Helper()
	v := &viewer{t: h.t, conn: h.dial(role|seat.RoleOutput, edit...), done: make(chan struct{})}
	cfg := h.config(role)
	for _, e := range edit {
		e(&cfg)
	}
	v.next = cfg.From
	if cfg.From == seat.FromLive {
		v.next = v.conn.Welcome().Next
	}
	go v.run()
	return v
}

func (v *viewer) run() {
	defer close(v.done)
	v.err = v.conn.Run(context.Background(), seat.Handler{
		Output: func(seq uint64, p []byte) error {
			v.mu.Lock()
			defer v.mu.Unlock()
			if seq != v.next {
				return fmt.Errorf("output at %d, expected %d", seq, v.next)
			}
			v.next = seq + uint64(len(p))
			if v.sink != nil {
				_, err := v.sink.Write(p)
				return err
			}
			v.out.Write(p)
			return nil
		},
		Gap: func(from, to uint64) error {
			v.mu.Lock()
			defer v.mu.Unlock()
			if from != v.next {
				return fmt.Errorf("gap at %d, expected %d", from, v.next)
			}
			v.next = to
			v.gaps = append(v.gaps, [2]uint64{from, to})
			return nil
		},
		Status: func(s seat.Status) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.news = append(v.news, s)
		},
		Exit: func(s seat.Status, x seat.ExitRecord) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.exit, v.status, v.exitAt = &x, s, v.next
		},
	})
}

func (v *viewer) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.out.String()
}

func (v *viewer) awaitText(want string) {
	v.t.Helper()
	begin := time.Now()
	for !strings.Contains(v.text(), want) {
		if busy.Over(begin, patience) {
			v.t.Fatalf("no %q in %q", want, tail(v.text()))
		}
		time.Sleep(time.Millisecond)
	}
}

func tail(s string) string {
	if len(s) > 400 {
		return "..." + s[len(s)-400:]
	}
	return s
}

// awaitExit waits until this viewer was told of the exit, and checks that it was told last.
func (v *viewer) awaitExit() seat.ExitRecord {
	v.t.Helper()
	select {
	case <-v.done:
	case <-time.After(60 * time.Second):
		v.t.Fatal("viewer was never told of the exit")
	}
	if v.err != nil {
		v.t.Fatalf("run: %v", v.err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.exitAt != v.status.Next {
		v.t.Errorf("told of the exit at output %d of %d", v.exitAt, v.status.Next)
	}
	return *v.exit
}

// running lists the processes that carry the seat's nonce, the custody process excepted.
func (h *held) running() []seat.Proc {
	h.t.Helper()
	all, err := seat.FindByNonce(h.launch.Nonce)
	if err != nil {
		h.t.Fatal(err)
	}
	var out []seat.Proc
	for _, p := range all {
		if p.PID != h.cmd.Process.Pid {
			out = append(out, p)
		}
	}
	return out
}
