package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host"
	"github.com/cotal-ai/cotal-host/host/trust"
)

// doctorTimeout bounds a look. A repair has no bound of its own: each of its steps has one.
const doctorTimeout = time.Minute

func doctorCmd() *cobra.Command {
	var t cli.Target
	cfg := host.Config{Version: version, Stdout: io.Discard, Stderr: os.Stderr}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with a workspace, and how it is repaired",
		Long: `Look at a workspace: who serves it, who else can look into its files, its keys and credentials, the store of its
broker, and, where a broker can be asked (that of the host that runs, or --server), at every stream, at the lease and the
registration of this host, and for each seat at what the mesh has of its life. Every fact has a verdict (ok, note, wrong,
unknown), and what is not ok has the command or the act that repairs it. Nothing is changed; --dry-run says the same.

--repair makes again what the mesh has lost: missing streams, a stream or durable that is damaged (it is moved beside the
store, where it can be looked at), the registration, and for every seat that lives its slot, its identity, its durables and
a new credential of the same key. No process is touched: seats go on, and are on the mesh again as they were. It takes the lock
of the workspace, as serve does, so no host may run here meanwhile; seats do not mind. What another host or another life
holds is left alone, and named. What was said and was only in a lost stream stays lost. It may be repeated.

Exit code 0 when nothing is wrong (with --repair: any more), 1 when something is, 3 when the broker could not be asked.`,
		Example: `  cotal-host doctor
  cotal-host doctor --json | jq 'select(.verdict != "ok")'
  cotal-host stop && cotal-host doctor --repair && cotal-host serve`,
		Args: cli.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&t.Root, "root", "", "workspace that is meant (default: the nearest one upwards, else this directory)")
	f.StringVar(&cfg.Space, "space", "", "space that is meant (default: the host's, else main)")
	f.StringVar(&cfg.Server, "server", "", "broker of the space, nats://host:port (default: that of the host that runs; with --repair the embedded one)")
	f.StringVar(&cfg.Keys, "keys", "", "workspace that holds the keys of the space (default: this one)")
	repair := f.Bool("repair", false, "make again what the mesh has lost; no host may run")
	dry := f.Bool("dry-run", false, "look, and change nothing (the default)")
	asJSON := f.Bool("json", false, "print one JSON object a line, one for each fact")
	_ = cmd.MarkFlagDirname("root")
	_ = cmd.MarkFlagDirname("keys")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *repair && *dry {
			return cli.Fail(cli.Usage, "--repair and --dry-run: one changes something, and the other nothing; pass one of the two")
		}
		if err := checkServer(cfg.Server); err != nil {
			return err
		}
		root, err := doctorRoot(&t)
		if err != nil {
			return err
		}
		cfg.Root = root
		if cfg.Keys != "" {
			if cfg.Keys, err = filepath.Abs(cfg.Keys); err != nil {
				return fmt.Errorf("--keys: %w", err)
			}
		}
		var facts []trust.Fact
		if *repair {
			facts, err = host.Repair(cmd.Context(), cfg)
			if errors.Is(err, host.ErrNotBegun) {
				return &cli.Error{Code: cli.Unreachable, Err: err}
			}
			if err != nil {
				return err
			}
		} else {
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
			defer cancel()
			facts = host.Examine(ctx, cfg)
		}
		return tellFacts(cmd, facts, *asJSON)
	}
	cmd.AddCommand(doctorAuthCmd())
	return cmd
}

// doctorRoot is the workspace that is meant.
func doctorRoot(t *cli.Target) (string, error) {
	root := t.Workspace()
	if root == "" {
		root = "."
	}
	root, err := filepath.Abs(root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err == nil {
		var st os.FileInfo
		if st, err = os.Stat(root); err == nil && !st.IsDir() {
			err = errors.New("it is no directory")
		}
	}
	if err != nil {
		return "", cli.Fail(cli.Usage, "--root %s: %w", root, err)
	}
	return root, nil
}

// tellFacts prints facts, and returns the exit code that they ask for.
func tellFacts(cmd *cobra.Command, facts []trust.Fact, asJSON bool) error {
	if asJSON {
		for _, fact := range facts {
			if err := cli.PrintJSON(cmd.OutOrStdout(), fact); err != nil {
				return err
			}
		}
	} else {
		cli.PrintFacts(cmd.OutOrStdout(), facts)
	}
	switch trust.Worst(facts) {
	case trust.Wrong:
		return cli.Silent(cli.Refused)
	case trust.Unasked:
		return cli.Silent(cli.Unreachable)
	}
	return nil
}

func doctorAuthCmd() *cobra.Command {
	var t cli.Target
	cmd := &cobra.Command{
		Use:   "auth",
		Short: "Look at keys, credentials and the broker that has to know them",
		Long: `Look at the keys of a workspace, at the credentials that are files, and, with a broker (the one of the host that
runs, or --server), at each of its servers: whether it trusts these keys, is fit, and takes what it is told of the
account, which is what a revocation needs. Nothing is changed, but that every server then knows the account as it is.

Exit code 0 when nothing is wrong, 1 when something is, 3 when the broker could not be asked.`,
		Example: `  cotal-host doctor auth
  cotal-host doctor auth --server nats://nats.example:4222 --json`,
		Args: cli.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&t.Root, "root", "", "workspace whose keys are meant (default: the nearest one upwards, else this directory)")
	f.StringVar(&t.Space, "space", "", "space that is meant (default: the host's, else main)")
	f.StringVar(&t.Server, "server", "", "broker to look at, nats://host:port (default: that of the host that runs)")
	asJSON := f.Bool("json", false, "print one JSON object a line, one for each fact")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		facts, err := examine(cmd.Context(), &t)
		if err != nil {
			return err
		}
		return tellFacts(cmd, facts, *asJSON)
	}
	return cmd
}

func examine(ctx context.Context, t *cli.Target) ([]trust.Fact, error) {
	ctx, cancel := context.WithTimeout(ctx, cli.AuthTimeout)
	defer cancel()
	a, err := t.OpenAuth(ctx, false)
	if err != nil && (a == nil || a.Store == nil) {
		return nil, err
	}
	if a.Keys == nil && err == nil {
		return nil, a.NoKeys()
	}
	facts := trust.ExamineKeys(a.Store, a.Space, time.Now())
	if a.Keys == nil {
		return facts, nil // what is wrong with them stands there
	}
	auth, err := a.Authority()
	if err != nil {
		return nil, err
	}
	if auth == nil {
		return append(facts, trust.Fact{Name: "broker", Verdict: trust.Unasked, Text: "no host runs here, and no --server was given", Repair: "cotal-host serve, or name the broker with --server"}), nil
	}
	return append(facts, auth.Examine(ctx)...), nil
}
