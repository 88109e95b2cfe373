package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// goneWait is how long a host may take to end once it said what it did, or was signalled: spawns in
	// flight, plugins, the broker.
	goneWait = 45 * time.Second
	// shutdownWait is how long a host that spares its seats may take to answer, and shutdownWaitAgents
	// one that ends them: the longest grace there is, and the kill after it.
	shutdownWait       = 30 * time.Second
	shutdownWaitAgents = 5 * time.Minute
	// deathWait is for a process that is being killed: the kernel needs milliseconds.
	deathWait = time.Second
)

// stopResult is what a stop did, and its JSON form.
type stopResult struct {
	Stopped bool               `json:"stopped"` // no host runs now
	PID     int                `json:"pid,omitempty"`
	How     string             `json:"how"` // command, signal, not-running
	Spared  []wire.AgentRow    `json:"spared,omitempty"`
	Ended   []wire.StoppedSeat `json:"ended,omitempty"`
	Left    []wire.AgentRow    `json:"left,omitempty"` // asked to end and not proved gone; status "unknown": nor known to be there
}

// stopper carries out one cotal-host stop.
type stopper struct {
	target     cli.Target
	withAgents bool
	verbose    bool
	root       string
	endpoint   wire.Endpoint // zero when no file says one
	running    instance.Running
	lockGone   bool            // running is known by the endpoint file: its lock was deleted or replaced
	sent       bool            // the host was asked to stop
	had        []wire.AgentRow // with withAgents: its seats right before that
	hadErr     error           // why had is not known
	unsure     bool            // what became of the seats is not known
	errw       io.Writer
	goneWait   time.Duration
}

func stopCmd() *cobra.Command {
	s := &stopper{errw: os.Stderr, goneWait: goneWait}
	s.target.Name = "cotal-host"
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the host; seats go on running unless --with-agents",
		Long: `Stop the host and wait until its process is gone. Seats go on running, and each is printed with the
command that ends it; --with-agents ends them first, with proof. A host that does not answer is sent SIGTERM;
its seats are then spared, and with --with-agents nothing is done to the host: exit code 5 and the list of
seats that are left. Seats whose end could not be proved are listed with the reason, with exit code 5 too, and
so are all of them when the host dies or its answer is lost while it ends them.`,
		Example: "  cotal-host stop\n  cotal-host stop --with-agents --json",
		Args:    cli.NoArgs,
	}
	s.target.Flags(cmd)
	cmd.Flags().BoolVar(&s.withAgents, "with-agents", false, "end every seat first, and prove it")
	cmd.Flags().BoolVarP(&s.verbose, "verbose", "v", false, "print everything that was ended and every proof")
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		res, err := s.run(cmd.Context())
		if out, ok := cmd.OutOrStdout().(*cli.Output); ok && err == nil {
			out.Done("the host was stopped")
		}
		if *asJSON {
			if perr := cli.PrintJSON(cmd.OutOrStdout(), res); perr != nil {
				return perr
			}
		} else {
			s.print(cmd.OutOrStdout(), res)
		}
		s.printLeft(res)
		return err
	}
	return cmd
}

// find gathers what is known of the host: its endpoint file if there is one, and the lock, which says
// whether it runs whatever became of the file.
func (s *stopper) find() error {
	ep, _, err := mesh.FindEndpoint(mesh.FindConfig{
		Server: s.target.Server, Space: s.target.Space, TokenFile: s.target.TokenFile, CredsFile: s.target.CredsFile, Root: s.target.Root,
	})
	var gone *mesh.NotRunningError
	switch {
	case err == nil:
		s.endpoint, s.root = ep, ep.Root
	case errors.As(err, &gone) && !errors.Is(err, mesh.ErrSeveralHosts):
		s.root = gone.Endpoint.Root
	case errors.Is(err, mesh.ErrNoEndpoint):
	case errors.Is(err, mesh.ErrTwoSecrets):
		return &cli.Error{Code: cli.Usage, Err: err}
	default:
		return &cli.Error{Code: cli.Unreachable, Err: err}
	}
	if s.root == "" {
		s.root = s.target.Workspace()
	}
	if s.root == "" {
		return nil
	}
	s.running, err = instance.Probe(s.root)
	if err != nil {
		return fmt.Errorf("find out whether a host runs: %w", err)
	}
	if ep := s.endpoint; !s.running.Held && ep.PID != 0 {
		// A lock that nobody holds proves nothing once its file was deleted: the host holds a file without
		// a name. The endpoint file names exactly one process, and whether that lives can be asked.
		id := seat.Identity{PID: ep.PID, StartTicks: ep.StartTicks, BootID: ep.BootID}
		if l, _ := seat.Check(id); l == seat.Alive {
			s.lockGone = true
			s.running = instance.Running{Held: true, PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID, Verified: true}
		}
	}
	return nil
}

// noLock says what is wrong with a host whose lock is gone, and the fix.
func (s *stopper) noLock() string {
	return fmt.Sprintf("running (%s), but its lock file is gone (deleted or replaced), so nothing keeps a second host out; restart it: cotal-host stop --root %s, then %s",
		s.who(), cli.Quote(s.root), cli.ServeCommand(s.root, nil))
}

func (s *stopper) run(ctx context.Context) (stopResult, error) {
	if err := s.find(); err != nil {
		return stopResult{}, err
	}
	if s.root != "" && !s.running.Held {
		return s.notRunning()
	}
	if s.root == "" && s.endpoint.URL == "" {
		return stopResult{How: "not-running"}, cli.Fail(cli.Unreachable, "no host found: there is no .cotal/host here or in a directory above; name the workspace with --root")
	}
	if s.lockGone {
		fmt.Fprintf(s.errw, "note: the lock file of the host (%s) is gone; it is known by its endpoint.json\n", s.who())
	}
	res := stopResult{PID: s.running.PID, How: "command"}
	reply, err := s.command(ctx)
	if err == nil {
		res.Spared, res.Ended, res.Left = reply.Spared, reply.Stopped, reply.Left
		return s.awaitGone(ctx, res)
	}
	if ctx.Err() != nil {
		return res, cli.Fail(cli.Interrupted, "interrupted; the host may be stopping. Look: cotal-host status")
	}
	if s.withAgents && s.sent && mesh.OutcomeOf(err) != wire.OutcomeNotExecuted {
		return s.uncertain(ctx, res, err)
	}
	var refused *wire.Error
	if errors.As(err, &refused) {
		return res, err // it answers, and it said no
	}
	if s.withAgents {
		// What cannot be told to end its seats is not ended itself: it is still their owner.
		left, lerr := s.seats()
		res.Left = left
		if lerr != nil {
			return res, cli.Fail(cli.Partial, "the host (%s) does not answer: %w; and its seats cannot be listed: %w", s.who(), err, lerr)
		}
		return res, cli.Fail(cli.Partial, "the host (%s) does not answer: %w; %d seats are left running, nothing was stopped", s.who(), err, len(left))
	}
	return s.bySignal(ctx, res, err)
}

// uncertain reports a stop of all seats that was asked for and whose answer was lost: the host died on the
// way, or goes on. Every seat it had is listed, with what can be seen of it now.
func (s *stopper) uncertain(ctx context.Context, res stopResult, cause error) (stopResult, error) {
	s.unsure = true
	now := "it may be ending them still; look: cotal-host status"
	if s.awaitDeath(ctx) {
		now = "the host is gone, and the next one says which are left: " + cli.ServeCommand(s.root, nil) + ", then cotal ps"
	}
	text := "the host (" + s.who() + ") was asked to end its seats and stop, and its answer was lost"
	if s.hadErr != nil {
		return res, cli.Fail(cli.Partial, "%s: %w; what became of its seats is not known, nor which they were (%w); %s", text, cause, s.hadErr, now)
	}
	there := map[string]bool{}
	rows, err := s.seats()
	for _, r := range rows {
		there[r.SeatID] = true
	}
	for _, r := range s.had {
		switch {
		case s.root == "" || err != nil:
			r.Reason = ""
		case there[r.SeatID]:
			r.Reason = "its seat still runs"
		default:
			r.Reason = "its seat no longer runs; whether its end was proved is not known"
		}
		r.Status = "unknown"
		res.Left = append(res.Left, r)
	}
	return res, cli.Fail(cli.Partial, "%s: %w; what became of its %d seats is not known; %s", text, cause, len(res.Left), now)
}

// awaitDeath reports whether the process of the host ends within a moment. One that died with our call may
// still be on its way out.
func (s *stopper) awaitDeath(ctx context.Context) bool {
	if s.root == "" || s.running.PID == 0 {
		return false
	}
	for begin := time.Now(); ; {
		if l, _ := seat.Check(s.identity()); l == seat.Dead {
			return true
		}
		t := time.NewTimer(5 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil || time.Since(begin) > deathWait {
			return false
		}
	}
}

// notRunning reports that there is nothing to stop, and which seats go on without a host.
func (s *stopper) notRunning() (stopResult, error) {
	res := stopResult{Stopped: true, How: "not-running"}
	left, err := s.seats()
	if err != nil {
		return res, err
	}
	if s.withAgents && len(left) > 0 {
		res.Left = left
		return res, cli.Fail(cli.Partial, "no host runs for %s, and %d of its seats are left; start one (%s) and stop again", s.root, len(left), cli.ServeCommand(s.root, left))
	}
	res.Spared = left
	return res, nil
}

func (s *stopper) who() string {
	if s.running.PID == 0 {
		return "pid not known"
	}
	return fmt.Sprintf("pid %d", s.running.PID)
}

// command asks the host to stop.
func (s *stopper) command(ctx context.Context) (wire.ShutdownReply, error) {
	var reply wire.ShutdownReply
	if s.endpoint.URL == "" {
		return reply, errors.New("its endpoint.json is missing")
	}
	c, err := s.target.Connect(ctx)
	if err != nil {
		return reply, err
	}
	defer c.Close()
	// Ask something small first: a host that is stopped or hung is found out at once.
	var st wire.StatusReply
	if err := c.Read(ctx, wire.CmdStatus, nil, &st); err != nil {
		return reply, err
	}
	wait := shutdownWait
	if s.withAgents {
		wait = shutdownWaitAgents
	}
	instanceID := c.Endpoint.InstanceID
	if instanceID == "" { // reached by --server: the one that answered
		instanceID = st.InstanceID
	}
	if s.withAgents {
		s.hadErr = s.remember(ctx, c)
	}
	s.sent = true
	living, end := s.whileItLives(ctx)
	defer end()
	err = c.Manager(living, mesh.Call{
		Command: wire.CmdShutdown, Instance: instanceID, Deadline: wait, Args: wire.ShutdownArgs{WithAgents: s.withAgents},
	}, &reply)
	if err != nil && errors.Is(context.Cause(living), errHostDied) {
		err = errHostDied
	}
	return reply, err
}

// errHostDied: a broker of its own goes on without the host, and nobody would say that no answer comes any more.
var errHostDied = errors.New("its process ended before it answered")

// whileItLives is ctx, which ends when the process of the host has ended and an answer that it still gave would have come.
func (s *stopper) whileItLives(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if s.running.PID == 0 || !s.running.Verified {
		return ctx, func() { cancel(nil) }
	}
	go func() {
		t := time.NewTicker(deathWait)
		defer t.Stop()
		for dead := false; !dead; {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			l, _ := seat.Check(s.identity())
			dead = l == seat.Dead
		}
		select {
		case <-t.C: // the next one: an answer is on its way no longer than that
			cancel(errHostDied)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// remember asks the host which seats it has.
func (s *stopper) remember(ctx context.Context, c *cli.Client) error {
	var rows []wire.AgentRow
	if err := c.Read(ctx, wire.CmdPs, nil, &rows); err != nil {
		return err
	}
	for _, r := range rows {
		if r.Status != "exited" {
			s.had = append(s.had, r)
		}
	}
	return nil
}

// bySignal stops a host that does not answer: SIGTERM to exactly the process that holds the lock, or
// that its endpoint file names.
func (s *stopper) bySignal(ctx context.Context, res stopResult, cause error) (stopResult, error) {
	if !s.running.Held || !s.running.Verified {
		return res, cli.Fail(cli.Unreachable, "the host does not answer: %w; and the process that holds its lock is not known for certain, so it was not signalled", cause)
	}
	fmt.Fprintf(s.errw, "note: the host (%s) does not answer (%s); sending it SIGTERM\n", s.who(), cli.OneLine(cause.Error()))
	res.How = "signal"
	if err := seat.SignalExact(s.identity(), syscall.SIGTERM); err != nil && !errors.Is(err, seat.ErrProcessGone) {
		return res, fmt.Errorf("signal the host: %w", err)
	}
	res, err := s.awaitGone(ctx, res)
	if err != nil {
		return res, err
	}
	res.Spared, err = s.seats()
	return res, err
}

func (s *stopper) identity() seat.Identity {
	return seat.Identity{PID: s.running.PID, StartTicks: s.running.StartTicks, BootID: s.running.BootID}
}

// awaitGone polls until the process of the host is gone, and then judges.
func (s *stopper) awaitGone(ctx context.Context, res stopResult) (stopResult, error) {
	if s.root == "" { // a host elsewhere: its answer is all there is
		return s.judge(res)
	}
	deadline := time.Now().Add(s.goneWait)
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		run, err := instance.Probe(s.root)
		l := seat.Dead
		if s.running.PID != 0 {
			l, _ = seat.Check(s.identity())
		}
		if err == nil && (!run.Held || run.PID != s.running.PID) && l == seat.Dead {
			return s.judge(res)
		}
		if time.Now().After(deadline) {
			return res, cli.Fail(cli.Uncertain, "the host (%s) still runs after %s; its log says why: %s. kill -9 %d is safe: seats survive it",
				s.who(), s.goneWait, filepath.Join(instance.DirOf(s.root), "log"), s.running.PID)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return res, cli.Fail(cli.Interrupted, "interrupted; the host is stopping. Look: cotal-host status")
		}
	}
}

func (s *stopper) judge(res stopResult) (stopResult, error) {
	res.Stopped = true
	if n := len(res.Left); n > 0 {
		return res, cli.Fail(cli.Partial, "the host is stopped, but %d of its seats could not be proved gone; their names stay held, and the next host goes on ending them: %s", n, cli.ServeCommand(s.root, nil))
	}
	return res, nil
}

// seats lists the living seats of this workspace's instance from their directories: without a host,
// they are all there is to know.
func (s *stopper) seats() ([]wire.AgentRow, error) {
	return cli.LivingSeats(s.root, s.endpoint)
}

func (s *stopper) print(w io.Writer, res stopResult) {
	root := s.root
	for _, e := range res.Ended {
		cli.PrintStop(w, e.Name, e.Report, s.verbose)
	}
	for _, r := range res.Spared {
		fmt.Fprintf(w, "left running: %s (%s)\n", r.Name, pids(r))
	}
	if len(res.Spared) > 0 {
		fmt.Fprintf(w, "to end one: %s, then cotal stop %s; to look at one: cotal attach %s\n", cli.ServeCommand(root, res.Spared), res.Spared[0].Name, res.Spared[0].Name)
	}
	switch {
	case res.Stopped && res.How == "not-running":
		fmt.Fprintf(w, "no host runs for %s\n", root)
	case res.Stopped && res.PID != 0:
		fmt.Fprintf(w, "stopped cotal-host, pid %d\n", res.PID)
	case res.Stopped:
		fmt.Fprintln(w, "stopped cotal-host")
	}
}

// printLeft lists on standard error the seats that were to end and are not proved gone.
func (s *stopper) printLeft(res stopResult) {
	word := "left"
	if s.unsure {
		word = "not known"
	}
	for _, r := range res.Left {
		fmt.Fprintf(s.errw, "%s: %s (%s)%s\n", word, cli.OneLine(r.Name), pids(r), because(r.Reason))
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + cli.OneLine(reason)
}

func pids(r wire.AgentRow) string {
	switch {
	case r.PID != 0:
		return fmt.Sprintf("pid %d", r.PID)
	case r.SeatPID != 0:
		return fmt.Sprintf("seat pid %d", r.SeatPID)
	case r.SeatID != "":
		return "custody id " + r.SeatID
	}
	return "pid not known"
}
