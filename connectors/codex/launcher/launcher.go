package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

const (
	// bootTimeout bounds the way to a session with its prompt: the connector's readiness window, less what the
	// host needs to notice.
	bootTimeout = 50 * time.Second
	// dialEvery is the pause between attempts to reach the server while it boots.
	dialEvery = 20 * time.Millisecond
	// partnerGrace is what the other process gets when one has ended: it has nothing left to do.
	partnerGrace = 3 * time.Second
	// stopGrace is what both get after a signal; the seat's own grace is 10 s.
	stopGrace = 8 * time.Second
	// waitDelay bounds the wait for the server's output pipe when one of its children holds it.
	waitDelay = time.Second
	// maxLog bounds the server's log.
	maxLog = 1 << 20
)

// Exit codes of the launcher's own; any other is the terminal program's.
const (
	exitUsage  = 2
	exitFailed = 1
)

// Main runs the plan named by the only argument and returns the exit code; with mcp DIR it is what the program starts
// as its MCP server. It must be called on the main goroutine, locked to its thread: the children are told to end when
// the thread that started them does.
func Main(args []string, version string, stderr io.Writer) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(stderr, "cotal-codex-seat:", err)
		return code
	}
	if len(args) == 2 && args[0] == "mcp" {
		if err := forward(args[1], os.Stdin, os.Stdout); err != nil {
			return fail(exitFailed, err)
		}
		return 0
	}
	if len(args) != 1 {
		return fail(exitUsage, errors.New("usage: cotal-codex-seat <plan file>; the codex connector starts this inside a seat"))
	}
	p, err := plan.Read(args[0])
	if err != nil {
		return fail(exitUsage, err)
	}
	launch, err := bridge.ReadLaunch("", nil)
	if err != nil {
		return fail(exitUsage, err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	r := &run{plan: p, launch: launch, version: version, dir: filepath.Dir(args[0]), signals: signals, bridged: make(chan struct{})}
	code, err := r.run()
	if err != nil {
		return fail(code, err)
	}
	return code
}

// run is one run of a plan.
type run struct {
	plan    plan.Plan
	launch  bridge.Launch
	version string
	dir     string
	signals <-chan os.Signal
	server  *program.Child
	log     *program.Log
	client  *client
	session session
	bridge  *bridge.Bridge
	bridged chan struct{} // closed once there is a bridge
}

func (r *run) run() (code int, err error) {
	fmt.Fprint(os.Stderr, "starting Codex ...\r\n")
	if err := linkHome(r.plan); err != nil {
		return exitFailed, err
	}
	if err := bring(r.plan); err != nil {
		return exitFailed, err
	}
	if r.log, err = program.OpenLog(filepath.Join(r.dir, plan.LogName), maxLog); err != nil {
		return exitFailed, err
	}
	defer r.log.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	api, err := private.PlaceSocket(r.dir, plan.APISocket, nil)
	if err != nil {
		return exitFailed, err
	}
	t, err := listenTools(r.dir, func() *mcp.Server { return r.tools(ctx) })
	if err != nil {
		return exitFailed, err
	}
	wg.Go(func() { t.serve(ctx) })
	cmd := exec.Command(r.plan.Binary, "app-server", "--listen", "unix://"+api)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = r.plan.Cwd, r.log, r.log, waitDelay
	if r.server, err = program.Start(cmd); err != nil {
		return exitFailed, fmt.Errorf("start server: %w", err)
	}
	defer func() {
		r.server.End(partnerGrace)
		_ = os.Remove(api) // it does not when it is killed
	}()
	defer func() {
		if r.bridge != nil { // the boot has got that far: it says goodbye however it goes on
			r.bridge.Close()
		}
	}()
	ok, code, err := r.boot(ctx, &wg, api)
	if err != nil || !ok {
		return code, err
	}
	return r.foreground(api)
}

// tools is the MCP server of the seat, once there is a bridge.
func (r *run) tools(ctx context.Context) *mcp.Server {
	select {
	case <-r.bridged:
		return r.bridge.Server(r.version)
	case <-ctx.Done():
		return nil
	}
}

// boot brings the session up and joins the mesh. ok is false without an error when a signal ended the boot.
func (r *run) boot(ctx context.Context, wg *sync.WaitGroup, api string) (ok bool, code int, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("it was not ready within %s", bootTimeout))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.open(ctx, limited, wg, api) }()
	select {
	case err := <-done:
		if err != nil {
			return false, exitFailed, r.withLog(err)
		}
		return true, 0, nil
	case <-r.server.Exited():
		cancel()
		<-done
		return false, exitFailed, r.withLog(fmt.Errorf("the server of Codex ended while it was starting: %s", r.server.State()))
	case s := <-r.signals:
		cancel()
		<-done
		return false, 128 + int(s.(syscall.Signal)), nil
	}
}

// open connects to the server, opens the session, joins the mesh and posts the prompt. ctx is of the whole run, limited
// of the boot.
func (r *run) open(ctx, limited context.Context, wg *sync.WaitGroup, api string) error {
	l, err := dialUntil(limited, api)
	if err != nil {
		return fmt.Errorf("reach the server of Codex: %w", err)
	}
	context.AfterFunc(ctx, l.Close)
	r.session.init()
	r.client = newClient(l, r.session.note)
	wg.Go(func() { r.client.read(ctx) })
	if err := r.client.hello(limited, r.version); err != nil {
		return err
	}
	thread, err := r.client.open(limited, r.plan, r.launch.Name)
	if err != nil {
		return err
	}
	r.session.follow(thread)
	if err := plan.NoteSession(r.dir, thread); err != nil { // without it the session might not be kept while it is open
		return err
	}
	r.bridge = bridge.Start(r.launch, bridge.Options{Log: slog.New(slog.NewTextHandler(r.log, nil)), Waker: bridge.WakerFunc(r.wake)})
	close(r.bridged)
	wg.Go(func() { r.tell(ctx) })
	if r.plan.Prompt == "" {
		return nil
	}
	return r.client.turn(limited, thread, r.plan.Prompt)
}

// dialUntil connects to a server that is about to be there.
func dialUntil(ctx context.Context, socket string) (link, error) {
	for {
		l, err := dialServer(ctx, socket)
		if err == nil {
			return l, nil
		}
		wait := time.NewTimer(dialEvery)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, fmt.Errorf("%w; last answer: %w", context.Cause(ctx), err)
		}
	}
}

// wake begins a turn with the messages. What a person is typing in the terminal stays there.
func (r *run) wake(ctx context.Context, n bridge.Notice) (read bool, err error) {
	v := r.session.view()
	if v.Active {
		return false, bridge.ErrNotNow
	}
	if err := r.client.turn(ctx, v.Thread, n.Text); err != nil {
		return false, err
	}
	return true, nil
}

// foreground runs the terminal program until it or the server ends.
func (r *run) foreground(api string) (int, error) {
	cmd := exec.Command(r.plan.Binary, "resume", "--remote", "unix://"+api, r.session.view().Thread)
	cmd.Env = program.ClientEnv(os.Environ())
	cmd.Dir = r.plan.Cwd
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	tui, err := program.Start(cmd)
	if err != nil {
		return exitFailed, fmt.Errorf("start terminal program: %w", err)
	}
	asked := false
	for {
		select {
		case s := <-r.signals:
			if s == syscall.SIGINT || s == syscall.SIGQUIT {
				tui.Signal(s) // what it means is the program's business
				continue
			}
			asked = true
			tui.Signal(s)
			r.server.Signal(syscall.SIGTERM)
			both := time.AfterFunc(stopGrace, func() { tui.Signal(syscall.SIGKILL); r.server.Signal(syscall.SIGKILL) })
			defer both.Stop()
		case <-tui.Exited():
			return r.outcome(tui, asked)
		case <-r.server.Exited():
			return r.outcome(tui, asked)
		}
	}
}

// outcome is what the end of the terminal program or of the server means. When both have ended, the server that nobody
// asked to end is the reason: the terminal program leaves without complaint.
func (r *run) outcome(tui *program.Child, asked bool) (int, error) {
	for pending := true; pending && !asked; {
		select {
		case s := <-r.signals: // it may have reached them before it was looked at here
			asked = s == syscall.SIGTERM || s == syscall.SIGHUP
		default:
			pending = false
		}
	}
	crashed := !asked && r.server.Over()
	tui.End(partnerGrace)
	if !crashed {
		return tui.Code(), nil
	}
	<-r.server.Exited()
	return max(r.server.Code(), exitFailed), r.withLog(fmt.Errorf("the server of Codex ended: %s", r.server.State()))
}

// withLog adds the end of the server's output to an error.
func (r *run) withLog(err error) error {
	if tail := r.log.Tail(); tail != "" {
		return fmt.Errorf("%w; the server's last words:\r\n%s", err, tail)
	}
	return err
}
