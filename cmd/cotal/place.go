package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/terminal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// screenWait bounds how long an attach waits for the host to say what the screen shows. A host that is slow
// must not make it slower than a replay of the output.
const screenWait = 300 * time.Millisecond

// clientWait is how long the program that shows a terminal may take to end when it is told to.
const clientWait = time.Second

// place is where the terminal of a seat is: a socket of this machine, or a program that shows it.
type place struct {
	*local                        // nil with argv
	row    wire.AgentRow          // zero when no host answered
	argv   []string               // the program
	screen *wire.TerminalSnapshot // nil when there is none
	reason string                 // why there is none
	alone  bool                   // no host was asked
	far    bool                   // it is on another machine: only the mesh reaches it
}

// locateTerminal finds the terminal of the seat that is meant, and its screen if want.
func locateTerminal(ctx context.Context, app *app, ref string, want bool) (*place, error) {
	ep, _, err := app.target.Endpoint()
	if err == nil {
		var c *cli.Client
		if c, err = app.target.Connect(ctx); err == nil {
			defer c.Close()
			var row wire.AgentRow
			if row, err = named(ctx, c, ref); err == nil {
				p, err := placeOf(ctx, c, row, ep, want)
				if err == nil && p.local != nil {
					p.root = app.workspace()
				}
				return p, err
			}
		}
	}
	s, err := locateAlone(ctx, app, ref, ep, err)
	if err != nil {
		return nil, err
	}
	return placeAlone(ctx, s)
}

// ownRuntime is the runtime whose seats have their terminal at their socket. Others may have a socket and
// show the terminal by a program of their own: their host knows.
const ownRuntime = "pty"

// named is the row of a seat. The list is asked first: it waits for no plugin, and a plugin that hangs is no
// reason to show a terminal later.
func named(ctx context.Context, c *cli.Client, ref string) (row wire.AgentRow, err error) {
	if c.Instance == "" {
		return c.Locate(ctx, ref)
	}
	var rows []wire.AgentRow
	if err := c.Read(ctx, wire.CmdPs, nil, &rows); err != nil {
		return row, err
	}
	for _, r := range rows {
		if r.Name == ref && r.Exit == nil {
			return r, nil
		}
	}
	return c.Locate(ctx, ref)
}

// placeOf finds the terminal of a row of the host c is connected to.
func placeOf(ctx context.Context, c *cli.Client, row wire.AgentRow, ep wire.Endpoint, want bool) (*place, error) {
	p := &place{row: row}
	var err error
	p.local, err = fromRow(row, ep)
	if row.Exit != nil {
		return p, err
	}
	own := row.Mode == "" || row.Mode == ownRuntime
	if err == nil && !want && own {
		return p, nil
	}
	far := err != nil && want && isFar(row, err)
	if far && own {
		p.far = true
		return p, nil
	}
	asked := ctx
	if err == nil && own { // it can be reached in any case: the screen is for the first sight of it
		var cancel context.CancelFunc
		asked, cancel = context.WithTimeout(ctx, screenWait)
		defer cancel()
	}
	reply, terr := askTerminal(asked, c, row, true)
	p.screen, p.reason = reply.Snapshot, reply.Reason
	switch {
	case terr == nil && len(reply.Argv) > 0:
		p.local, p.argv = nil, reply.Argv
		if row.Host != "" && row.Host != hostname() {
			return nil, cli.Fail(cli.Refused, "seat %s runs on %s; its terminal can be reached on that machine only", row.Name, row.Host)
		}
		return p, nil
	case terr == nil && far:
		p.far = true
		return p, nil
	case terr != nil && !own: // what answers at its socket is not its terminal
		return nil, cli.Fail(cli.CodeOf(terr), "the terminal of %s is in %s, and %s does not answer: %w", row.Name, row.Mode, row.Mode, terr)
	case err == nil:
		return p, nil
	case terr != nil && cli.CodeOf(terr) != cli.Unreachable && !errors.Is(terr, context.DeadlineExceeded):
		return nil, terr
	}
	return nil, err
}

// isFar says whether a seat that could not be found in the directories of this machine, with err, is one to be reached
// over the mesh: it is on another machine, or in directories that are not ours.
func isFar(row wire.AgentRow, err error) bool {
	elsewhere := row.Host != "" && row.Host != hostname()
	return elsewhere || row.Status == "running" && (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission))
}

// askTerminal asks the host for the terminal of a seat.
func askTerminal(ctx context.Context, c *cli.Client, row wire.AgentRow, screen bool) (reply wire.TerminalReply, err error) {
	target, err := cli.TargetOf(row)
	if err != nil {
		return reply, err
	}
	err = c.Manager(ctx, mesh.Call{
		Command: wire.CmdTerminal, Instance: row.InstanceID, Authz: wire.AuthzAny, Target: target, Args: wire.TerminalArgs{Snapshot: screen}, Deadline: 5 * time.Second,
	}, &reply)
	return reply, err
}

// runClient shows a seat's terminal with the program its runtime names, and says afterwards how it is with
// the seat. The program has the terminal; it is given back whatever the program did to it.
func (a *app) runClient(ctx context.Context, con *console, p *place, opt attachOptions) error {
	for flag, set := range map[string]bool{"--read-only": opt.ReadOnly, "--take-over": opt.TakeOver} {
		if set {
			return cli.Fail(cli.Refused, "runtime %s cannot do %s: its terminals are shown by a program of its own (%s); without the flag it is used, and `cotal logs %s` prints the screen",
				p.row.Mode, flag, p.argv[0], p.row.Name)
		}
	}
	saved, err := term.GetState(int(con.in.Fd()))
	if err != nil {
		return fmt.Errorf("read terminal settings: %w", err)
	}
	if rows, cols, err := con.size(); err == nil && max(rows, cols) > seat.MaxSize { // a client would draw all of it, for minutes
		return cli.Fail(cli.Refused, "this terminal says that it has %d x %d rows and columns; %s of runtime %s can be shown on one of at most %d x %d: set its size with stty rows 40 cols 120",
			rows, cols, p.row.Name, p.row.Mode, seat.MaxSize, seat.MaxSize)
	}
	if p.row.Mode == tmuxRuntime {
		fmt.Fprintf(a.errw, "%s is shown by tmux: Ctrl-B and then d detaches\n", p.row.Name)
	}
	con.flushInput() // what was typed before the terminal is live is not for the agent
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = con.in, con.out, os.Stderr
	dieWithUs(cmd)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { // by these a client knows that it is in a pane, and refuses
		return strings.HasPrefix(v, "TMUX=") || strings.HasPrefix(v, "TMUX_PANE=")
	})
	// What the keyboard sends goes to the program too, being in the foreground with us; it decides.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	runtime.LockOSThread() // the end of the thread that starts it would end it
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("show the terminal of %s: %w", p.row.Name, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var told os.Signal
	var patience <-chan time.Time
	for running := true; running; {
		select {
		case err = <-done:
			running = false
		case s := <-signals:
			if s == syscall.SIGTERM || s == syscall.SIGHUP { // meant for the attach, which the program is
				if told == nil {
					patience = time.After(clientWait)
				}
				told = s
				_ = cmd.Process.Signal(s)
			}
		case <-patience: // its server hangs: it holds nothing but the terminal, which is put right below
			_ = cmd.Process.Kill()
		}
	}
	con.flushInput()               // late answers of the terminal
	if told != nil || err != nil { // it may not have put back what it changed
		_ = term.Restore(int(con.in.Fd()), saved)
		within(clientWait, func() { _, _ = con.out.Write(terminal.Reset(0)) })
	}
	if told != nil {
		return cli.Fail(cli.Interrupted, "detached by signal (%s); %s goes on running", told, p.row.Name)
	}
	return a.afterClient(ctx, p, err)
}

// byKeyboard says whether a program ended by what Ctrl-C or Ctrl-\ sends.
func byKeyboard(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	ws, ok := exit.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && (ws.Signal() == syscall.SIGINT || ws.Signal() == syscall.SIGQUIT)
}

// afterClient says how it is with a seat whose terminal was shown by a program.
func (a *app) afterClient(ctx context.Context, p *place, err error) error {
	name := p.row.Name
	if p.alone {
		if err != nil {
			return cli.Fail(cli.Refused, "the program that shows the terminal of %s failed: %w", name, err)
		}
		fmt.Fprintf(a.errw, "%s is no longer shown; no host answers that could say how it is. Attach again: cotal attach %s\n", name, name)
		return nil
	}
	row, rerr := inspect(ctx, a, p.row.LifecycleUID)
	switch {
	case rerr != nil && err != nil:
		return fmt.Errorf("show the terminal of %s: %w; and the host does not say how it is: %w", name, err, rerr)
	case rerr != nil:
		return fmt.Errorf("the host does not say how it is with %s: %w", name, rerr)
	case row.Exit == nil && byKeyboard(err):
		return cli.Fail(cli.Interrupted, "interrupted; %s is %s. Attach again: cotal attach %s", name, row.Status, name)
	case row.Exit == nil && err != nil:
		return cli.Fail(cli.Refused, "the program that shows the terminal of %s failed: %w; the seat is %s", name, err, row.Status)
	case row.Exit == nil:
		fmt.Fprintf(a.errw, "detached from %s; it is %s. Attach again: cotal attach %s   end it: cotal stop %s\n", name, row.Status, name, name)
		return nil
	}
	fmt.Fprintf(a.errw, "%s ended %s\n", name, cli.HowEnded(row.Exit))
	if !cli.EndedWell(row.Exit) {
		return cli.Silent(cli.Refused)
	}
	return nil
}
