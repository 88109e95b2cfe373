package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// spawnFlags are the flags of spawn as given.
type spawnFlags struct {
	agent, name, role, model, variant, cwd, prompt, resume, config, runtime string

	opts                                                []string
	subscribe, allowSubscribe, allowPublish, shareTools []string
	restarts                                            int
	restartWindow                                       time.Duration
	events, noEvents                                    bool
	detach, json                                        bool
	given                                               func(flag string) bool
}

// commandAgent is the connector that runs a program which is named.
const commandAgent = "command"

// defaultAgentEnv names the connector that this caller prefers where nobody names one.
const defaultAgentEnv = "COTAL_DEFAULT_AGENT"

func spawnCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "spawn [<persona>] [flags] [-- <program> <arg>...]",
		Short: "Start a seat and attach to it",
		Long: `Start an agent in a seat of its own, and attach this terminal to it. The persona is a file of the
workspace, .cotal/agents/<persona>.md, or the file --config names; flags win over it. Without a persona,
--agent and --name are needed: --agent command runs the program after --.

Progress is on standard error: accepted, provisioning, launched, joined. When standard input or output is no
terminal, or with --detach or --json, it returns once it is known how it went: the seat joined the mesh, or
runs; it exited, with the end of what it printed; or that is uncertain, with what to do. Ctrl-C ends the
waiting alone: the spawn goes on, and cotal goal <id> --follow waits again.

Detaching (Ctrl-]) leaves the seat running and returns 0. When the agent ends while attached, the exit code
is 0 if it ended well or was asked to, else 1; the agent's own code is printed, and kept by the host
(cotal inspect <seat> --json).`,
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
	fl.StringSliceVar(&f.subscribe, "subscribe", nil, "channels it reads, separated by commas, instead of the persona's; empty for none")
	fl.StringSliceVar(&f.allowSubscribe, "allow-subscribe", nil, "channels it may read, instead of the persona's")
	fl.StringSliceVar(&f.allowPublish, "allow-publish", nil, "channels it may write to, instead of the persona's")
	fl.StringSliceVar(&f.shareTools, "share-tools", nil, "which of the operator's MCP servers it gets, separated by commas, or none (default: all that are declared)")
	fl.BoolVar(&f.events, "events", false, "demand that it publishes its events")
	fl.BoolVar(&f.noEvents, "no-events", false, "do not let it publish its events")
	fl.IntVar(&f.restarts, "restarts", 0, "start it again when it ends by itself, so often within --restart-window")
	fl.DurationVar(&f.restartWindow, "restart-window", defaultRestartWindow, "the time that --restarts is counted in")
	fl.BoolVarP(&f.detach, "detach", "d", false, "do not attach")
	fl.BoolVar(&f.json, "json", false, "print JSON lines, the last one with the result; implies --detach")
	f.given = fl.Changed
	cmd.MarkFlagsMutuallyExclusive("events", "no-events")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if n := positional(cmd, args); n > 1 {
			return cli.Fail(cli.Usage, "one persona at most, got %d; the program to run comes after --", n)
		}
		return nil
	}
	cmd.ValidArgsFunction = a.personaNames
	_ = cmd.RegisterFlagCompletionFunc("agent", a.agentNames) // fails for a flag that does not exist
	_ = cmd.RegisterFlagCompletionFunc("runtime", a.runtimeNames)
	for _, flag := range []string{"subscribe", "allow-subscribe", "allow-publish"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, a.channelNames)
	}
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
	case f.agent == commandAgent && len(argv) == 0:
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
	if err := f.more(&args); err != nil {
		return args, err
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

// defaultRestartWindow is what --restarts is counted in by itself.
const defaultRestartWindow = 2 * time.Minute

// more adds what a request says of channels, tools, events and restarts. What is not given is left to the persona.
func (f *spawnFlags) more(args *wire.SpawnArgs) error {
	args.DefaultAgent = os.Getenv(defaultAgentEnv)
	for _, l := range []struct {
		flag string
		from []string
		into *[]string
	}{
		{"subscribe", f.subscribe, &args.Subscribe},
		{"allow-subscribe", f.allowSubscribe, &args.AllowSubscribe},
		{"allow-publish", f.allowPublish, &args.AllowPublish},
		{"share-tools", f.shareTools, &args.ShareTools},
	} {
		if f.given(l.flag) {
			*l.into = append([]string{}, l.from...) // empty is none, and not the same as absent
		}
	}
	if len(args.ShareTools) == 1 && args.ShareTools[0] == "none" {
		args.ShareTools = []string{}
	}
	for _, c := range slices.Concat(args.Subscribe, args.AllowSubscribe, args.AllowPublish) {
		if !wire.ValidChannelPattern(c) {
			return cli.Fail(cli.Usage, "%q is no channel, and no pattern of channels", c)
		}
	}
	if f.events || f.noEvents {
		on := f.events
		args.Events = &on
	}
	switch {
	case f.given("restart-window") && !f.given("restarts"):
		return cli.Fail(cli.Usage, "--restart-window says in what time --restarts is counted: give that, too")
	case f.given("restarts") && (f.restarts < 1 || f.restartWindow < time.Millisecond):
		return cli.Fail(cli.Usage, "--restarts %d within %s: write at least 1, and a time", f.restarts, f.restartWindow)
	case f.given("restarts"):
		args.Supervise = &wire.Supervise{Restarts: f.restarts, WindowMs: f.restartWindow.Milliseconds()}
	}
	return nil
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
