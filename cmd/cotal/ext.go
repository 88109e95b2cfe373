package main

import (
	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

// extCmd is everything about plugins, which people call extensions.
func extCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ext",
		Short: "List, restart, reload and verify plugins",
		Long: `The plugins of the host: connectors, which know agent programs, and runtimes, which give seats a place to
run. A seat goes on working while its connector or runtime is restarted, replaced or quarantined.`,
		Example: `  cotal ext list
  cotal ext restart pty      a new process takes over, then the old one ends
  cotal ext reload           read plugins.toml again, after an upgrade or an edit`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(extListCmd(a), extRestartCmd(a), extReloadCmd(a), newExtVerify(a))
	return cmd
}
