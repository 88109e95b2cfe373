package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
)

const (
	// bootTimeout bounds the way to a session with its prompt: the connector's readiness window, less
	// what the host needs to notice.
	bootTimeout = 110 * time.Second
	// partnerGrace is what the other process gets when one has ended, and exceeds no patience: it has
	// nothing left to do.
	partnerGrace = 3 * time.Second
	// stopGrace is what both get after a signal; the seat's own grace is 10 s.
	stopGrace = 8 * time.Second
	// waitDelay bounds the wait for the server's output pipe when one of its children holds it.
	waitDelay = time.Second
	// maxLog bounds the server's log.
	maxLog = 1 << 20
)

// Exit codes of the launcher's own; any other is the client's.
const (
	exitUsage  = 2
	exitFailed = 1
)

// Main runs the plan named by the only argument and returns the exit code. It must be called on the main
// goroutine, locked to its thread: the children are told to end when the thread that started them does.
func Main(args []string, stderr io.Writer) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(stderr, "cotal-opencode-seat:", err)
		return code
	}
	if len(args) != 1 {
		return fail(exitUsage, errors.New("usage: cotal-opencode-seat <plan file>; the opencode connector starts this inside a seat"))
	}
	plan, err := ReadPlan(args[0])
	if err != nil {
		return fail(exitUsage, err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	r := &run{plan: plan, dir: filepath.Dir(args[0]), signals: signals}
	code, err := r.run()
	if err != nil {
		return fail(code, err)
	}
	return code
}

// run is one run of a plan. Everything happens on one goroutine; the others only wait and report.
type run struct {
	plan    Plan
	dir     string
	signals <-chan os.Signal
	server  *child
	log     *cappedFile
}

func (r *run) run() (int, error) {
	fmt.Fprintf(os.Stderr, "starting the OpenCode server on 127.0.0.1:%d ...\r\n", r.plan.Port)
	log, err := openLog(filepath.Join(r.dir, LogName))
	if err != nil {
		return exitFailed, err
	}
	r.log = log
	defer log.Close()
	cmd := exec.Command(r.plan.Binary, "serve", "--hostname", "127.0.0.1", "--port", strconv.Itoa(r.plan.Port))
	cmd.Env = append(os.Environ(), "OPENCODE_SERVER_PASSWORD="+r.plan.Password)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = log, log, waitDelay
	if r.server, err = start(cmd); err != nil {
		return exitFailed, fmt.Errorf("start server: %w", err)
	}
	session, code, err := r.boot()
	if err != nil || session == "" {
		r.server.end(partnerGrace)
		return code, err
	}
	return r.foreground(session)
}

// boot brings the session up. An empty session without an error means that a signal ended the boot.
func (r *run) boot() (session string, code int, err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), bootTimeout, fmt.Errorf("the server was not ready within %s", bootTimeout))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var err error
		session, err = prepare(ctx, api.New(r.plan.Port, r.plan.Password), r.plan, r.dir)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return "", exitFailed, r.withLog(err)
		}
		return session, 0, nil
	case <-r.server.exited:
		cancel()
		<-done
		return "", exitFailed, r.withLog(fmt.Errorf("the server ended while it was starting: %s", r.server.state()))
	case s := <-r.signals:
		cancel()
		<-done
		return "", 128 + int(s.(syscall.Signal)), nil
	}
}

// foreground runs the terminal client until it or the server ends.
func (r *run) foreground(session string) (int, error) {
	cmd := exec.Command(r.plan.Binary, "attach", "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(r.plan.Port)), "--session", session)
	cmd.Env = append(clientEnv(os.Environ()), "OPENCODE_SERVER_PASSWORD="+r.plan.Password)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	client, err := start(cmd)
	if err != nil {
		r.server.end(partnerGrace)
		return exitFailed, fmt.Errorf("start client: %w", err)
	}
	return r.attend(client)
}

// attend waits for the end of both and returns the code of what ended first.
func (r *run) attend(client *child) (int, error) {
	asked := false
	lost := func() (int, error) {
		return max(r.server.code(), exitFailed), r.withLog(fmt.Errorf("the server ended: %s", r.server.state()))
	}
	for {
		select {
		case s := <-r.signals:
			if s == syscall.SIGINT || s == syscall.SIGQUIT {
				client.signal(s) // what it means is the program's business
				continue
			}
			asked = true
			client.signal(s)
			r.server.signal(s)
			both := time.AfterFunc(stopGrace, func() { client.signal(syscall.SIGKILL); r.server.signal(syscall.SIGKILL) })
			defer both.Stop()
		case <-client.exited:
			if !asked && len(r.signals) == 0 && r.server.ended() { // it took the client with it
				return lost()
			}
			r.server.end(partnerGrace)
			return client.code(), nil
		case <-r.server.exited:
			client.end(partnerGrace)
			if asked {
				return client.code(), nil
			}
			return lost()
		}
	}
}

// withLog adds the end of the server's output to an error, unless the error says it all.
func (r *run) withLog(err error) error {
	if errors.Is(err, api.ErrNotFound) || errors.Is(err, api.ErrNotOffered) {
		return err
	}
	if tail := r.log.tail(); tail != "" {
		return fmt.Errorf("%w; the server's last words:\r\n%s", err, tail)
	}
	return err
}

// clientEnv is the environment of the terminal client: without COTAL_ variables and the seat's
// configuration, which are the server's. The nonce stays: it marks what belongs to the seat.
func clientEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		return strings.HasPrefix(kv, "OPENCODE_CONFIG_CONTENT=") ||
			(strings.HasPrefix(kv, "COTAL_") && !strings.HasPrefix(kv, "COTAL_SEAT_NONCE="))
	})
}

// child is one process, in the launcher's own process group so that the terminal's signals and the
// seat's stop ladder reach it.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once it has been waited for
}

func start(cmd *exec.Cmd) (*child, error) {
	cmd.SysProcAttr = childAttr()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(c.exited)
		_ = cmd.Wait() // the state says what happened
	}()
	return c, nil
}

// ended says whether it has been waited for.
func (c *child) ended() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// signal is harmless once the process has been waited for.
func (c *child) signal(s os.Signal) { _ = c.cmd.Process.Signal(s) }

// end asks, waits, and kills.
func (c *child) end(grace time.Duration) {
	c.signal(syscall.SIGTERM)
	timer := time.AfterFunc(grace, func() { c.signal(syscall.SIGKILL) })
	defer timer.Stop()
	<-c.exited
}

func (c *child) state() string { return c.cmd.ProcessState.String() }

// code is the exit code, or 128 and the signal's number.
func (c *child) code() int {
	if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}

// cappedFile takes the first maxLog bytes and drops the rest, so that a talkative server fills no disk
// and is never held up.
type cappedFile struct {
	mu   sync.Mutex
	f    *os.File
	left int
	last []byte // at most 2 KiB, for the message about a failure
}

func openLog(path string) (*cappedFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open server log: %w", err)
	}
	return &cappedFile{f: f, left: maxLog}, nil
}

func (c *cappedFile) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = append(c.last, p...)
	c.last = c.last[max(0, len(c.last)-2048):]
	if n := min(len(p), c.left); n > 0 {
		_, _ = c.f.Write(p[:n]) // a full disk must not end the server
		c.left -= n
	}
	return len(p), nil
}

// tail is the end of the output, safe for a terminal.
func (c *cappedFile) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	clean := strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(c.last), ""))
	return strings.ReplaceAll(strings.TrimSpace(clean), "\n", "\r\n")
}

func (c *cappedFile) Close() { _ = c.f.Close() }
