// Command cotal-bridge makes an agent program a participant of a mesh. It is started by the agent program, in a seat.
//
//	cotal-bridge mcp               the program's MCP server, on standard input and output
//	cotal-bridge hook EVENT        a hook of the program: its JSON on standard input, or as a further argument
//	cotal-bridge run -- ARGV...    a program that has neither
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/sdk/bridge"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Written by the linker.
var version, commit = "dev", "unknown"

// parentEvery is how often it is looked whether the agent program is still the parent.
const parentEvery = time.Second

// maxHookInput bounds what of a hook's input is read as an event; the rest is read and thrown away.
const maxHookInput = 4 << 20

func main() {
	code := 0
	root := command(&code)
	if err := root.Execute(); err != nil {
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

	root.AddCommand(&cobra.Command{
		Use: "mcp", Short: "Be the MCP server of an agent program", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			l, err := launch()
			if err != nil {
				return err
			}
			return serve(l)
		},
	})

	var deliver bool
	hook := &cobra.Command{
		Use: "hook EVENT [JSON]", Short: "Tell the bridge what a hook of the program tells", Args: cobra.ArbitraryArgs,
		// Nothing that goes wrong here may be noticed by the program.
		RunE: func(_ *cobra.Command, args []string) error {
			relay(launch, args, deliver)
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
func serve(l bridge.Launch) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer cancel()
	if term.IsTerminal(int(os.Stdin.Fd())) {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
	} else {
		signal.Ignore(os.Interrupt) // it is meant for the program, in whose group this is
	}
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	go func() {
		parent := os.Getppid()
		tick := time.NewTicker(parentEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if os.Getppid() != parent {
					gone()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	b := bridge.Start(l, bridge.Options{Log: logger()})
	defer b.Close()
	err := b.Server(version).Run(ctx, &mcp.StdioTransport{})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// relay passes an event on. It ends within bridge.RelayBudget, whatever happens.
func relay(launch func() (bridge.Launch, error), args []string, deliver bool) {
	ctx, cancel := context.WithTimeout(context.Background(), bridge.RelayBudget)
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
		// All of it is read: a program that writes into a closed pipe would notice.
		text, _ = io.ReadAll(io.LimitReader(os.Stdin, maxHookInput))
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	l, err := launch()
	if err != nil {
		return
	}
	out, err := bridge.Relay(ctx, l, bridge.ParseEvent(name, text), deliver)
	if err == nil && len(out) > 0 {
		_, _ = os.Stdout.Write(append(out, '\n'))
	}
}
