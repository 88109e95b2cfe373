package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// goalMargin is how much longer than the host's own readiness window its verdict is waited for.
	goalMargin = 15 * time.Second
	// hostWait is how long a spawn whose reply was lost waits for a host to ask again.
	hostWait = 10 * time.Second
	// goalPollMin and goalPollMax bound the pause between two questions for the result; events only
	// make the next question come sooner.
	goalPollMin = 100 * time.Millisecond
	goalPollMax = time.Second
	// defaultWindow is the readiness window of a host that does not say one.
	defaultWindow = 60 * time.Second
)

// spawnFlags are the flags of spawn as given.
type spawnFlags struct {
	agent, name, role, model, variant, cwd, prompt, resume, config, runtime string

	opts         []string
	detach, json bool
	given        func(flag string) bool
}

func spawnCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "spawn [<persona>] [flags] [-- <program> <arg>...]",
		Short: "Start a seat and attach to it",
		Long: `Start an agent in a seat of its own, and attach this terminal to it. The persona is a file of the
workspace, .cotal/agents/<persona>.md, or the file --config names; flags win over it. Without a persona,
--agent and --name are needed: --agent command runs the program after --.

Progress is on standard error. When standard input or output is no terminal, or with --detach or --json, it
returns once the seat runs. Detaching (Ctrl-]) leaves the seat running and returns 0. When the agent ends
while attached, the exit code is 0 if it ended well or was asked to, else 1; the agent's own code is printed,
and kept by the host (cotal inspect <seat> --json).`,
		Example: `  cotal spawn reviewer
  cotal spawn reviewer --name r2 --model anthropic/claude-sonnet-4-5 --prompt 'review the last commit' --detach
  cotal spawn --config ~/agents/tester.md
  cotal spawn --agent command --name build -- make -C /src all`,
	}
	var f spawnFlags
	fl := cmd.Flags()
	fl.StringVar(&f.agent, "agent", "", "connector that knows the agent program, such as command or opencode")
	fl.StringVar(&f.name, "name", "", "alias of the seat; refused when it is taken (default: the persona's, numbered when taken)")
	fl.StringVar(&f.role, "role", "", "role shown to others")
	fl.StringVar(&f.config, "config", "", "agent file to use as persona, a path from here, instead of one of the workspace")
	fl.StringVar(&f.model, "model", "", "model, in the words of the agent program, such as provider/model")
	fl.StringVar(&f.variant, "variant", "", "variant of the model")
	fl.StringVar(&f.cwd, "cwd", "", "directory to run in, from here (default: the persona's, else the workspace)")
	fl.StringVar(&f.prompt, "prompt", "", "first message to the agent")
	fl.StringVar(&f.resume, "resume", "", "session of the agent program to fork from")
	fl.StringVar(&f.runtime, "runtime", "", "runtime to run it on, such as pty or tmux (default: the host's)")
	fl.StringArrayVar(&f.opts, "opt", nil, "launch option key=value for the connector; may be repeated")
	fl.BoolVarP(&f.detach, "detach", "d", false, "do not attach")
	fl.BoolVar(&f.json, "json", false, "print one JSON object; implies --detach")
	f.given = fl.Changed
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if n := positional(cmd, args); n > 1 {
			return cli.Fail(cli.Usage, "one persona at most, got %d; the program to run comes after --", n)
		}
		return nil
	}
	cmd.ValidArgsFunction = a.personaNames
	_ = cmd.RegisterFlagCompletionFunc("agent", a.agentNames) // fails for a flag that does not exist
	_ = cmd.RegisterFlagCompletionFunc("runtime", a.runtimeNames)
	_ = cmd.MarkFlagDirname("cwd")
	_ = cmd.MarkFlagFilename("config", "md")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		n := positional(cmd, args)
		req, err := f.request(args[:n], args[n:])
		if err != nil {
			return err
		}
		return runSpawn(cmd.Context(), a, req, f)
	}
	return cmd
}

// positional is the number of arguments before "--".
func positional(cmd *cobra.Command, args []string) int {
	if n := cmd.ArgsLenAtDash(); n >= 0 {
		return n
	}
	return len(args)
}

// request turns the command line into the arguments of the spawn command. Every error is a usage error.
func (f *spawnFlags) request(persona, argv []string) (wire.SpawnArgs, error) {
	args := wire.SpawnArgs{Agent: f.agent, Identity: f.name, Role: f.role, Runtime: f.runtime}
	switch {
	case len(persona) == 1 && f.config != "":
		return args, cli.Fail(cli.Usage, "the persona is given twice: %s and --config %s; leave one out", persona[0], f.config)
	case len(persona) == 1:
		args.Name = persona[0]
	case f.config != "":
		file, err := filepath.Abs(f.config)
		if err != nil {
			return args, cli.Fail(cli.Usage, "--config %s: %w", f.config, err)
		}
		args.Config, args.Name = file, strings.TrimSuffix(filepath.Base(file), ".md")
	case f.agent == "" && len(argv) > 0:
		return args, cli.Fail(cli.Usage, "to run a program say: cotal spawn --agent command --name <name> -- %s", strings.Join(argv, " "))
	case f.agent == "" || f.name == "":
		return args, cli.Fail(cli.Usage, "name a persona, or give --agent and --name; for example: cotal spawn --agent command --name top -- top")
	case f.agent == "command" && len(argv) == 0:
		return args, cli.Fail(cli.Usage, "put the program after --, as in: cotal spawn --agent command --name top -- top")
	default:
		args.Name = f.name
	}
	for _, flag := range []struct {
		name  string
		value *string
		into  **string
	}{{"model", &f.model, &args.Model}, {"variant", &f.variant, &args.Variant}, {"prompt", &f.prompt, &args.Prompt}, {"resume", &f.resume, &args.Resume}} {
		if f.given(flag.name) {
			*flag.into = flag.value
		}
	}
	for flag, value := range map[string]string{"agent": f.agent, "name": f.name, "cwd": f.cwd, "role": f.role, "config": f.config, "runtime": f.runtime} {
		if value == "" && f.given(flag) {
			return args, cli.Fail(cli.Usage, "--%s is empty; leave it out or give a value", flag)
		}
	}
	if strings.ContainsFunc(f.name, unicode.IsSpace) {
		return args, cli.Fail(cli.Usage, "--name %q: a name has no spaces", f.name)
	}
	if f.cwd != "" {
		dir, err := filepath.Abs(f.cwd)
		if err != nil {
			return args, cli.Fail(cli.Usage, "--cwd %s: %w", f.cwd, err)
		}
		args.Cwd = dir
	}
	opts, err := parseOpts(f.opts)
	if err != nil {
		return args, err
	}
	if len(argv) > 0 {
		if _, twice := opts["argv"]; twice {
			return args, cli.Fail(cli.Usage, "the program is given twice: by --opt argv= and after --")
		}
		if opts == nil {
			opts = map[string]any{}
		}
		opts["argv"] = argv
	}
	args.LaunchOptions = opts
	return args, nil
}

var optKey = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// parseOpts reads --opt key=value: the first = separates, and every value is a string.
func parseOpts(list []string) (map[string]any, error) {
	var opts map[string]any
	for _, o := range list {
		key, value, ok := strings.Cut(o, "=")
		_, twice := opts[key]
		switch {
		case !ok:
			return nil, cli.Fail(cli.Usage, "--opt %s: write key=value", o)
		case key == "":
			return nil, cli.Fail(cli.Usage, "--opt %s: the key is empty", o)
		case !optKey.MatchString(key) || key == "constructor" || key == "prototype":
			return nil, cli.Fail(cli.Usage, "--opt %s: the key must be a letter and then letters, digits, _ or -", o)
		case twice:
			return nil, cli.Fail(cli.Usage, "--opt %s is given twice", key)
		}
		if opts == nil {
			opts = map[string]any{}
		}
		opts[key] = value
	}
	return opts, nil
}

// spawned is the result of a spawn, and its JSON form.
type spawned struct {
	State  string            `json:"state"` // a goal terminal
	Name   string            `json:"name"`
	GoalID string            `json:"goalId"`
	Result *wire.SpawnResult `json:"result,omitempty"`
	Error  *wire.Error       `json:"error,omitempty"`
}

func runSpawn(ctx context.Context, a *app, args wire.SpawnArgs, f spawnFlags) error {
	con := newConsole(a.in, a.outFile)
	attaching := !f.detach && !f.json && con.isTerminal()
	if attaching {
		if _, err := detachKeyFromEnv(); err != nil {
			return cli.Fail(cli.Usage, "%w", err)
		}
		if rows, cols, err := con.size(); err == nil {
			args.Rows, args.Cols = rows, cols
		}
	}
	show := newProgress(a.errw)
	defer show.close()
	c, acc, err := submit(ctx, a, args, show)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, w := range acc.Warnings {
		show.note(w)
	}
	res, err := awaitGoal(ctx, c, acc, show)
	show.close()
	if err != nil {
		if ctx.Err() != nil {
			return cli.Fail(cli.Interrupted, "interrupted; the spawn of %s goes on. Look: cotal ps   end it: cotal stop %s", acc.Name, acc.Name)
		}
		return err
	}
	out := spawned{State: res.State, Name: acc.Name, GoalID: acc.GoalID, Error: res.Error}
	if len(res.Data) > 0 && res.State == wire.GoalSucceeded {
		out.Result = &wire.SpawnResult{}
		if err := json.Unmarshal(res.Data, out.Result); err != nil {
			return fmt.Errorf("read result of spawn: %w", err)
		}
	}
	if f.json {
		if err := cli.PrintJSON(a.out, out); err != nil {
			return err
		}
	}
	if err := out.err(); err != nil {
		return err
	}
	if !attaching {
		if !f.json {
			fmt.Fprintln(a.out, out.line())
		}
		return nil
	}
	var row wire.AgentRow
	if err := c.Read(ctx, wire.CmdInspect, wire.NameArgs{Name: acc.UID}, &row); err != nil {
		return fmt.Errorf("%s runs, but attaching to it failed: %w", acc.Name, err)
	}
	p, err := placeOf(ctx, c, row, c.Endpoint, true)
	if err != nil {
		return fmt.Errorf("%s runs, but attaching to it failed: %w", acc.Name, err)
	}
	c.Close()
	return a.attachPlace(ctx, con, p, attachOptions{Fresh: true})
}

// err is nil for a seat that runs; else it says why not, or that nobody knows.
func (s spawned) err() error {
	why := "no reason was given"
	if s.Error != nil {
		why = s.Error.Message
	}
	switch s.State {
	case wire.GoalSucceeded:
		return nil
	case wire.GoalUncertain:
		return cli.Fail(cli.Uncertain, "it is uncertain whether %s runs: %s; look: cotal inspect %s   end it: cotal stop %s", s.Name, why, s.Name, s.Name)
	case wire.GoalFailed:
		return cli.Fail(cli.Refused, "%s did not start: %s", s.Name, why)
	}
	return cli.Fail(cli.Refused, "the spawn of %s was %s: %s", s.Name, s.State, why)
}

// line is the one line about a seat that runs.
func (s spawned) line() string {
	line := "spawned " + s.Name
	if r := s.Result; r != nil {
		role := "no role"
		if r.Role != "" {
			role = "role " + r.Role
		}
		line += fmt.Sprintf(" (%s), agent %s on %s", role, r.Agent, r.Mode)
		if r.PID > 0 {
			line += fmt.Sprintf(", pid %d", r.PID)
		}
	}
	line += "; attach: cotal attach " + s.Name
	if r := s.Result; r != nil && r.Mode == tmuxRuntime {
		line += " (C-b d detaches)"
	}
	return cli.OneLine(line)
}

// submit sends the request. Without a reply it is sent once more with the same id, which starts nothing
// twice: a host that accepted it, or the one that comes after it, answers with the same acceptance.
func submit(ctx context.Context, a *app, args wire.SpawnArgs, show *progress) (*cli.Client, wire.Acceptance, error) {
	call := mesh.Call{Command: wire.CmdSpawn, ID: wire.NewID(), Args: args}
	call.GoalID = call.ID
	c, acc, err := submitOnce(ctx, a, call)
	if errors.Is(err, mesh.ErrNoReply) && ctx.Err() == nil {
		show.say("no reply; asking again with the same request id")
		first := err
		limit := time.Now().Add(hostWait)
		for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			c, acc, err = submitOnce(ctx, a, call)
			if err == nil || cli.CodeOf(err) != cli.Unreachable || ctx.Err() != nil || time.Now().After(limit) {
				break
			}
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
		var refused *wire.Error
		if err != nil && !errors.As(err, &refused) { // a refusal is an answer: it was not started
			err = cli.Fail(cli.Uncertain, "not known whether the seat was started: %w; look with cotal ps before trying again", first)
		}
	}
	switch {
	case err == nil:
		show.accepted(acc.Name)
		return c, acc, nil
	case ctx.Err() != nil:
		return nil, acc, cli.Fail(cli.Interrupted, "interrupted; the spawn may have been accepted. Look: cotal ps")
	}
	return nil, acc, err
}

// submitOnce finds the host anew, which may be another process by now, and sends the request.
func submitOnce(ctx context.Context, a *app, call mesh.Call) (*cli.Client, wire.Acceptance, error) {
	var acc wire.Acceptance
	c, err := a.target.Connect(ctx)
	if err != nil {
		return nil, acc, err
	}
	if err := c.Manager(ctx, call, &acc); err != nil {
		c.Close()
		return nil, acc, err
	}
	return c, acc, nil
}

// awaitGoal waits for the terminal of a spawn. Progress events are shown and make it ask sooner; only
// the answer to goal-result is believed.
func awaitGoal(ctx context.Context, c *cli.Client, acc wire.Acceptance, show *progress) (wire.GoalResult, error) {
	kick := make(chan struct{}, 1)
	unwatch, err := c.WatchGoal(ctx, wire.EndpointManager, "", acc.GoalID, func(p wire.GoalProgress) {
		show.phase(p.Phase)
		if p.Phase == wire.PhaseTerminal {
			select {
			case kick <- struct{}{}:
			default:
			}
		}
	})
	if err == nil { // without events the questions below do
		defer unwatch()
	}
	window := time.Duration(acc.ReadinessDeadlineMs) * time.Millisecond
	if window <= 0 {
		window = defaultWindow
	}
	limit := time.NewTimer(window + goalMargin)
	defer limit.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for wait := goalPollMin; ; wait = min(2*wait, goalPollMax) {
		select {
		case <-pause.C:
		case <-kick:
		case <-limit.C:
			return wire.GoalResult{}, cli.Fail(cli.Uncertain, "no result within %s; look: cotal inspect %s   end it: cotal stop %s",
				window+goalMargin, acc.Name, acc.Name)
		case <-ctx.Done():
			return wire.GoalResult{}, ctx.Err()
		}
		var reply wire.GoalResultReply
		// A host that does not answer may be restarting; it finds the goal again.
		err := c.Read(ctx, wire.CmdGoalResult, wire.GoalResultArgs{GoalID: acc.GoalID}, &reply)
		if err == nil {
			if reply.Result != nil {
				return *reply.Result, nil
			}
			show.phase(reply.Phase)
		}
		pause.Reset(wait)
	}
}
