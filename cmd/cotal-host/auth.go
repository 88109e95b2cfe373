package main

import (
	"fmt"

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
		return cli.WriteNew(out, []byte(text))
	}
	return cmd
}
