// Command cotal-bridge makes an agent program a participant of a mesh. It is started by the agent program, in a seat.
//
//	cotal-bridge mcp               the program's MCP server, on standard input and output
//	cotal-bridge hook EVENT        a hook of the program: its JSON on standard input, or as a further argument
//	cotal-bridge next              for what can begin a turn in the program: waits for messages and takes them over
//	cotal-bridge run -- ARGV...    a program that has none of these
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Written by the linker.
var version, commit = "dev", "unknown"

// parentMark stands for the process id of the agent program in --status-file.
const parentMark = "{parent}"

// maxHookInput bounds what of a hook's input is read as an event; the rest is read and thrown away.
const maxHookInput = 4 << 20

// inputLimit is how long a hook waits for its input, of the time it has in all.
const inputLimit = bridge.RelayBudget / 2

func main() {
	code := 0
	root := command(&code)
	if err := root.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "cotal-bridge:", err)
		if code == 0 {
			code = 1
		}
	}
	os.Exit(code)
}

func command(code *int) *cobra.Command {
	root := &cobra.Command{
		Use: "cotal-bridge", Short: "Make an agent program a participant of a mesh", Version: version + " " + commit,
		SilenceUsage: true, SilenceErrors: true,
	}
	var material string
	root.PersistentFlags().StringVar(&material, "material", "", "file of the launch material (default: what "+wire.LaunchMaterialEnv+" names)")
	launch := func() (bridge.Launch, error) { return bridge.ReadLaunch(material, nil) }

	wake, wakeFile, file, silence := "", "", "", time.Duration(0)
	server := &cobra.Command{
		Use: "mcp", Short: "Be the MCP server of an agent program", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts := bridge.Options{Log: logger(), Silence: silence, StatusFile: strings.ReplaceAll(file, parentMark, strconv.Itoa(os.Getppid()))}
			switch wake {
			case "none":
			case "host":
				opts.WakeByHost = true
			case "file":
				if wakeFile == "" {
					return errors.New("--wake file needs --wake-file PATH")
				}
				opts.Waker = fileWaker(wakeFile)
			default:
				return fmt.Errorf("--wake %q is not none, host or file", wake)
			}
			l, err := launch()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), l, opts)
		},
	}
	server.Flags().StringVar(&wake, "wake", "none", "how an idle program is told of direct messages: none (it asks, or a hook or next brings them), host (a line is typed into its terminal, never while a person types there), or file (they are added to --wake-file)")
	server.Flags().StringVar(&wakeFile, "wake-file", "", "a file of commands that the program watches; messages are added to it, a line {\"type\":\"submit\",\"text\":…} each time")
	server.Flags().StringVar(&file, "status-file", "", "a file in which the program says its state (idle, busy, waiting), for what its hooks do not tell; "+parentMark+" stands for its process id")
	server.Flags().DurationVar(&silence, "silence", bridge.DefaultSilence, "how long a turn may tell nothing before it counts as over; 0: for ever")
	root.AddCommand(server)

	wait := time.Duration(0)
	next := &cobra.Command{
		Use: "next", Short: "Wait for messages to an idle agent, print them as JSON and take them over", Args: cobra.NoArgs,
		Long: "Waits until there is something that an idle agent is to be told and prints one object: count, text (the messages in full) and nudge\n" +
			"(one line that says that there are some). They count as read. Prints nothing when there was none in the time. Call it again and again.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := launch()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			_, err = bridge.Next(ctx, l, wait, bridge.WakerFunc(func(_ context.Context, n bridge.Notice) (bool, error) {
				return true, json.NewEncoder(os.Stdout).Encode(n)
			}))
			return err
		},
	}
	next.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait, at most a minute")
	root.AddCommand(next, rewakeCmd(launch, &material, code))

	var deliver bool
	hook := &cobra.Command{
		Use: "hook EVENT [JSON]", Short: "Tell the bridge what a hook of the program tells", Args: cobra.ArbitraryArgs,
		// Nothing that goes wrong here may be noticed by the program.
		RunE: func(cmd *cobra.Command, args []string) error {
			relay(cmd.Context(), launch, args, deliver)
			return nil
		},
	}
	hook.Flags().BoolVar(&deliver, "deliver", false, "the program reads what its hooks print: bring waiting messages that way")
	hook.SetFlagErrorFunc(func(*cobra.Command, error) error { return nil })
	root.AddCommand(hook)

	cfg := bridge.RunConfig{}
	messages := ""
	run := &cobra.Command{
		Use: "run [flags] -- ARGV...", Short: "Run a program and be on the mesh for as long as it runs", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			switch messages {
			case "none":
			case "stdin":
				cfg.Stdin = true
			case "file":
				if cfg.File == "" {
					return errors.New("--messages file needs --file PATH")
				}
			default:
				return fmt.Errorf("--messages %q is not none, file or stdin", messages)
			}
			l, err := launch()
			if err != nil {
				return err
			}
			cfg.Argv = args
			*code, err = bridge.Run(l, cfg, bridge.Options{Log: logger()})
			return err
		},
	}
	run.Flags().StringVar(&messages, "messages", "none", "where messages go: none, file, or stdin of the program, a line each")
	run.Flags().StringVar(&cfg.File, "file", "", "the file that messages are appended to")
	run.Flags().BoolVar(&cfg.Text, "text", false, `write "name: text" instead of a JSON object`)
	root.AddCommand(run)
	return root
}

// logger writes to standard error: standard output is the program's.
func logger() *slog.Logger {
	level := slog.LevelWarn
	if os.Getenv("COTAL_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// serve is an MCP server until its program ends: its input ends, it is told to, or its parent is another process.
func serve(ctx context.Context, l bridge.Launch, opts bridge.Options) error {
	b := bridge.Start(l, opts)
	defer b.Close()
	return b.ServeStdio(ctx, version, nil)
}

// relay passes an event on. It ends within bridge.RelayBudget, whatever happens.
func relay(ctx context.Context, launch func() (bridge.Launch, error), args []string, deliver bool) {
	ctx, cancel := context.WithTimeout(ctx, bridge.RelayBudget)
	defer cancel()
	timer := time.AfterFunc(bridge.RelayBudget, func() { os.Exit(0) })
	defer timer.Stop()
	name, text := "", []byte(nil)
	if len(args) > 0 {
		name = args[0]
	}
	if len(args) > 1 {
		text = []byte(args[1])
	} else if !term.IsTerminal(int(os.Stdin.Fd())) {
		text = given(os.Stdin, inputLimit)
	}
	l, err := launch()
	if err != nil {
		return
	}
	var print func([]byte) error
	if deliver {
		print = func(out []byte) error {
			_, err := os.Stdout.Write(append(out, '\n'))
			return err
		}
	}
	_ = bridge.Relay(ctx, l, bridge.ParseEvent(name, text), print)
}

// given is input, and nothing where that takes too long: a hook that is given nothing, over a pipe that nobody closes,
// tells its name.
func given(r io.Reader, limit time.Duration) []byte {
	read := make(chan []byte, 1)
	go func() { read <- input(r) }()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case text := <-read:
		return text
	case <-t.C:
		return nil
	}
}

// input reads the JSON that a hook is given. It ends with the value and does not wait for the end of the pipe, which
// some programs never close. Whatever else there is, is read as well: a program that writes into a closed pipe would
// notice.
func input(r io.Reader) []byte {
	var raw json.RawMessage
	if json.NewDecoder(io.LimitReader(r, maxHookInput)).Decode(&raw) == nil {
		go func() { _, _ = io.Copy(io.Discard, r) }()
		return raw
	}
	_, _ = io.Copy(io.Discard, r)
	return nil
}
