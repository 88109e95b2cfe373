package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host/trust"
)

func authCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "auth",
		Short: "Work with the keys of a workspace",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(authExportCmd())
	return cmd
}

func authExportCmd() *cobra.Command {
	var t cli.Target
	var conf trust.ServerConfig
	var out string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the configuration of a NATS server that trusts this workspace",
		Long: `Write the configuration of a NATS server that trusts this workspace: its operator, its system account and
the account of the space. There is no secret in it. The keys stay in .cotal/auth, and are made if there are none.
Every server of a cluster gets the same text; cotal-host doctor auth --server URL says whether it is as it should be.`,
		Example: `  cotal-host auth export --listen 0.0.0.0:4222 --output nats.conf
  nats-server -c nats.conf`,
		Args: cli.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&t.Root, "root", "", "workspace whose keys are meant (default: the nearest one upwards, else this directory)")
	f.StringVar(&t.Space, "space", "", "space to serve (default: the host's, else main)")
	f.StringVar(&conf.Listen, "listen", "127.0.0.1:4222", "where the server listens")
	f.StringVar(&conf.StoreDir, "store-dir", "./jetstream", "where the server keeps its streams")
	f.StringVar(&conf.Accounts, "accounts-dir", "./accounts", "where the server keeps the accounts it is told of")
	f.BoolVar(&conf.Fragment, "fragment", false, "leave out listen and jetstream, to include the rest in a configuration that has them")
	f.StringVarP(&out, "output", "o", "", "file to write (default: standard output)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a, err := t.OpenAuth(cmd.Context(), true)
		if err != nil {
			return err
		}
		b, err := a.Keys.Bundle()
		if err != nil {
			return err
		}
		text := b.Config(conf)
		if out == "" {
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		}
		return writeNew(out, text)
	}
	return cmd
}

// writeNew writes a file whole or not at all, and never over another one.
func writeNew(path, text string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return cli.Fail(cli.Refused, "write %s: there is something already; move it away or name another file with --output", path)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".cotal-export-")
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Link(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

func doctorCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong, and how it is repaired",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(doctorAuthCmd())
	return cmd
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
		if *asJSON {
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
