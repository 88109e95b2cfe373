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
	"strconv"
	"syscall"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/sdk/program"
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
	server  *program.Child
	log     *program.Log
}

func (r *run) run() (int, error) {
	fmt.Fprintf(os.Stderr, "starting the OpenCode server on 127.0.0.1:%d ...\r\n", r.plan.Port)
	log, err := program.OpenLog(filepath.Join(r.dir, LogName), maxLog)
	if err != nil {
		return exitFailed, err
	}
	r.log = log
	defer log.Close()
	cmd := exec.Command(r.plan.Binary, "serve", "--hostname", "127.0.0.1", "--port", strconv.Itoa(r.plan.Port))
	cmd.Env = append(os.Environ(), "OPENCODE_SERVER_PASSWORD="+r.plan.Password)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = log, log, waitDelay
	if r.server, err = program.Start(cmd); err != nil {
		return exitFailed, fmt.Errorf("start server: %w", err)
	}
	session, code, err := r.boot()
	if err != nil || session == "" {
		r.server.End(partnerGrace)
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
	case <-r.server.Exited():
		cancel()
		<-done
		return "", exitFailed, r.withLog(fmt.Errorf("the server ended while it was starting: %s", r.server.State()))
	case s := <-r.signals:
		cancel()
		<-done
		return "", 128 + int(s.(syscall.Signal)), nil
	}
}

// foreground runs the terminal client until it or the server ends.
func (r *run) foreground(session string) (int, error) {
	cmd := exec.Command(r.plan.Binary, "attach", "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(r.plan.Port)), "--session", session)
	// Its configuration is the server's.
	cmd.Env = append(program.ClientEnv(os.Environ(), "OPENCODE_CONFIG_CONTENT"), "OPENCODE_SERVER_PASSWORD="+r.plan.Password)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	client, err := program.Start(cmd)
	if err != nil {
		r.server.End(partnerGrace)
		return exitFailed, fmt.Errorf("start client: %w", err)
	}
	return r.attend(client)
}

// attend waits for the end of both and returns the code of what ended first.
func (r *run) attend(client *program.Child) (int, error) {
	asked := false
	lost := func() (int, error) {
		return max(r.server.Code(), exitFailed), r.withLog(fmt.Errorf("the server ended: %s", r.server.State()))
	}
	for {
		select {
		case s := <-r.signals:
			if s == syscall.SIGINT || s == syscall.SIGQUIT {
				client.Signal(s) // what it means is the program's business
				continue
			}
			asked = true
			client.Signal(s)
			r.server.Signal(s)
			both := time.AfterFunc(stopGrace, func() { client.Signal(syscall.SIGKILL); r.server.Signal(syscall.SIGKILL) })
			defer both.Stop()
		case <-client.Exited():
			if !asked && len(r.signals) == 0 && r.server.Ended() { // it took the client with it
				return lost()
			}
			r.server.End(partnerGrace)
			return client.Code(), nil
		case <-r.server.Exited():
			client.End(partnerGrace)
			if asked {
				return client.Code(), nil
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
	if tail := r.log.Tail(); tail != "" {
		return fmt.Errorf("%w; the server's last words:\r\n%s", err, tail)
	}
	return err
}
