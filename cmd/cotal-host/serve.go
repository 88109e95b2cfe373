package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host"
	"github.com/cotal-ai/cotal-host/host/config"
	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func serveCmd() *cobra.Command {
	cfg := host.Config{Version: version, Stdout: os.Stdout, Stderr: os.Stderr}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a workspace until stopped",
		Long: `Serve a workspace: start the message broker (or join one with --server), take back every seat an earlier
host left running, and answer commands. It prints "ready" on standard output once it really serves.

Every seat has a credential of its own, for what it may do, and so has every connection of the host. The keys are in
.cotal/auth, and are made at the first start; a broker that was started elsewhere is told of them by what
cotal-host auth export prints. With --open there are no keys: one token for everything. A workspace stays what it was.

Without --root the workspace is this directory. In one that is below a workspace, and has no .cotal of its own, it
is refused: --root says which of the two is meant.

SIGINT, SIGTERM and SIGHUP stop the host and spare the seats: each is printed with the command that ends it.
A second signal only makes it faster.

Exit code 75: the mesh did not let it begin, which may pass by itself; no seat was touched.`,
		Example: `  cotal-host serve
  cotal-host serve --server nats://nats.example:4222              after: cotal-host auth export
  cotal-host serve --server nats://nats.example:4222 --keys ~/one  a second host of that space
  cotal-host serve --open`,
		Args: cli.NoArgs,
	}
	f := cmd.Flags()
	f.BoolVar(&cfg.Open, "open", false, "open mode, without credentials: whoever holds the broker's token may do everything")
	f.BoolVar(&cfg.FreshAuth, "fresh-auth", false, "begin an empty authenticated space in a workspace that was served with --open; what is stored there is kept beside it")
	f.StringVar(&cfg.Keys, "keys", "", "workspace that has the keys of the space, for several hosts of one space (default: the one that is served)")
	f.StringVar(&cfg.Space, "space", "main", "space to serve")
	f.StringVar(&cfg.Server, "server", "", "NATS server to join, nats://host:port (default: an embedded one)")
	f.StringVar(&cfg.TokenFile, "token-file", "", "file that holds the token for --server, with --open")
	f.StringVar(&cfg.PluginsPath, "plugins", "", "plugins.toml to use alone (default: the workspace's over the user's over the one beside this program; an entry replaces the same one below it)")
	f.StringVar(&cfg.Root, "root", "", "workspace to serve (default: this directory)")
	f.StringVar(&cfg.Runtime, "runtime", "pty", "runtime for new seats; those of every other runtime are kept all the same")
	f.IntVar(&cfg.MaxSeats, "max-seats", 0, "how many seats may live at once (default: config.toml, else built in)")
	f.IntVar(&cfg.MaxSessions, "max-sessions", 0, "how many attach sessions over the mesh may be open at once (default 64)")
	cooling := f.Duration("cooling", 0, "how long the place of a seat that ended by itself stays taken, from its start; 0s: not at all (default: config.toml, else 10s)")
	f.BoolVar(&cfg.SyncAlways, "sync-always", false, "the embedded broker syncs every write to disk: survives power loss, slower")
	_ = cmd.RegisterFlagCompletionFunc("runtime", cobra.FixedCompletions([]cobra.Completion{"pty", "tmux"}, cobra.ShellCompDirectiveNoFileComp)) // fails for a flag that does not exist
	level := f.String("log-level", "info", "what goes into the log: trace, debug, info, warn, error")
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]cobra.Completion{"trace", "debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagDirname("root")
	_ = cmd.MarkFlagDirname("keys")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if st, err := os.Stat(cfg.Root); cfg.Root != "" && (err != nil || !st.IsDir()) {
			return cli.Fail(cli.Usage, "--root %s: there is no such directory", cfg.Root)
		}
		switch {
		case cfg.MaxSeats < 0 || cfg.MaxSeats > config.MaxMaxSeats:
			return cli.Fail(cli.Usage, "--max-seats %d: use 1 to %d, or 0 for the default", cfg.MaxSeats, config.MaxMaxSeats)
		case cfg.MaxSessions < 0:
			return cli.Fail(cli.Usage, "--max-sessions %d: use 1 or more, or 0 for the default", cfg.MaxSessions)
		case *cooling < 0 || *cooling > config.MaxCooling:
			return cli.Fail(cli.Usage, "--cooling %s: use 0s to 1h", *cooling)
		case cfg.TokenFile != "" && cfg.Server == "":
			return cli.Fail(cli.Usage, "--token-file is for --server; the embedded broker makes its own token")
		case cfg.TokenFile != "" && !cfg.Open:
			return cli.Fail(cli.Usage, "--token-file is for --open; without it the host shows credentials, by the keys in .cotal/auth")
		case cfg.Open && cfg.FreshAuth:
			return cli.Fail(cli.Usage, "--open and --fresh-auth exclude each other")
		case cfg.Open && cfg.Keys != "":
			return cli.Fail(cli.Usage, "--keys is not for --open: an open space has no keys")
		}
		if err := checkServer(cfg.Server); err != nil {
			return err
		}
		if cfg.Root == "" {
			if err := below(); err != nil {
				return err
			}
		}
		if cmd.Flags().Changed("cooling") {
			cfg.Cooling = cooling
		}
		if cfg.LogLevel = hclog.LevelFromString(*level); cfg.LogLevel == hclog.NoLevel {
			return cli.Fail(cli.Usage, "--log-level %s: use trace, debug, info, warn or error", *level)
		}
		h, err := host.New(cfg)
		if err != nil {
			return cli.Fail(cli.Usage, "%w", err)
		}
		debug.SetTraceback("all") // a crash report that names every goroutine is worth its length
		ctx, done := context.WithCancel(cmd.Context())
		defer done()
		go boundHeap(ctx)
		if err := h.Run(ctx); errors.Is(err, host.ErrNotBegun) {
			return cli.Fail(cli.Uncertain, "%w", err)
		} else if err != nil {
			return err
		}
		return nil
	}
	return cmd
}

// checkServer refuses what is no address of a mesh server: a client would look it up as the name of a host.
func checkServer(servers string) error {
	for _, one := range strings.Split(servers, ",") {
		scheme, _, ok := strings.Cut(strings.TrimSpace(one), "://")
		if ok && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
			return cli.Fail(cli.Usage, "--server %s: %s is no scheme of a NATS server; write nats://host:port or tls://host:port", one, scheme)
		}
	}
	return nil
}

// below refuses to serve this directory when it is in a workspace and is none itself. Who serves there again after a
// stop means the workspace, and would find nothing of it in another one.
func below() error {
	dir, err := os.Getwd()
	if err != nil {
		return nil // the host says what is wrong with it
	}
	above := new(cli.Target).Workspace()
	if above == "" || above == dir {
		return nil
	}
	if st, err := os.Stat(filepath.Join(dir, ".cotal")); err == nil && st.IsDir() {
		return nil // somebody has made it one
	}
	rows, _ := cli.LivingSeats(above, wire.Endpoint{}) // the host of that workspace says what is wrong with them
	run, _ := instance.Probe(above)
	return cli.Fail(cli.Usage, "%s", belowText(dir, above, run.Held, rows))
}

// belowText says what there is to choose from in a directory below a workspace.
func belowText(dir, above string, held bool, rows []wire.AgentRow) string {
	text := fmt.Sprintf("%s is in the workspace %s", dir, above)
	switch {
	case held:
		text += ", whose host runs: cotal finds it from here"
	case cli.GoOn(rows) != "":
		text += fmt.Sprintf(" (%s); to serve that: %s", cli.GoOn(rows), cli.ServeCommand(above, rows))
	default:
		text += "; to serve that: " + cli.ServeCommand(above, rows)
	}
	return text + "; to make a workspace of its own here: cotal-host serve --root ."
}
