package main

import (
	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

// extCmd is everything about plugins, which people call extensions.
func extCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ext",
		Short: "Install, list, upgrade, restart and verify plugins",
		Long: `The plugins of the host: connectors, which know agent programs, and runtimes, which give seats a place to
run. A seat goes on working while its connector or runtime is restarted, replaced or quarantined.`,
		Example: `  cotal ext install ./cotal-connector-echo
  cotal ext list
  cotal ext info             what is installed, with its files and digests
  cotal ext restart pty      a new process takes over, then the old one ends
  cotal ext reload           read plugins.toml again, after an upgrade or an edit
  cotal ext new echo         a connector of your own, to begin with`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		extListCmd(a), extInfoCmd(a), extInstallCmd(a), extUpgradeCmd(a), extRollbackCmd(a), extRemoveCmd(a),
		extEnableCmd(a), extDisableCmd(a), extRestartCmd(a), extReloadCmd(a), newExtVerify(a), extNewCmd(a),
	)
	return cmd
}
