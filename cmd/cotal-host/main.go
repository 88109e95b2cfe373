// Command cotal-host runs a manager host of coding agents, and says how it is and stops it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
)

// version and commit are set by the build.
var version, commit = "dev", ""

func main() {
	args := os.Args[1:]
	ctx := context.Background()
	if len(args) == 0 || args[0] != "serve" { // serve watches signals itself: a second one means something
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
	}
	os.Exit(cli.Main(ctx, newRoot(), args, os.Stderr))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "cotal-host",
		Short: "Host coding agents on this machine",
		Long: `cotal-host serve turns this machine into a host of coding agents. Agents run in seats that go on when the
host stops, crashes or is killed; the next host finds them again. The command line for users is cotal.

Exit codes: 0 done, 1 refused, 2 usage, 3 host unreachable, 4 no such seat, persona or connector, 5 partly
done, 75 uncertain, 130 interrupted.`,
		Example: `  cotal-host serve                     serve the workspace in this directory
  cotal-host status
  cotal-host stop                      stop the host; seats go on running
  cotal-host stop --with-agents        stop the seats too, with proof`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(cli.NewOutput(os.Stdout))
	root.SetErr(os.Stderr)
	root.AddCommand(serveCmd(), stopCmd(), statusCmd(), versionCmd(), authCmd(), doctorCmd(), bundleCmd())
	return root
}

func versionLine() string {
	line := "cotal-host " + version
	if commit != "" {
		line += " (" + commit + ")"
	}
	return line
}

func versionCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Example: "  cotal-host version --json", Args: cli.NoArgs}
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *asJSON {
			return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{
				"version": version, "commit": commit, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
			})
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
		return err
	}
	return cmd
}

// bundled are the plugins that are built with this host, without their versions.
func bundled() []manifest.BundleSpec {
	return []manifest.BundleSpec{
		{Name: "pty", Kind: sdk.KindRuntime, Command: "cotal-runtime-pty", Helpers: map[string]string{"seat_sha256": "cotal-seat"}},
		{Name: "tmux", Kind: sdk.KindRuntime, Command: "cotal-runtime-tmux", Helpers: map[string]string{"holder_sha256": "cotal-tmux-seat"}},
		{Name: "command", Kind: sdk.KindConnector, Command: "cotal-connector-command", Helpers: map[string]string{"bridge_sha256": "cotal-bridge"}},
		{Name: "claude", Kind: sdk.KindConnector, Command: "cotal-connector-claude", Helpers: map[string]string{"bridge_sha256": "cotal-bridge"}},
		{Name: "codex", Kind: sdk.KindConnector, Command: "cotal-connector-codex", Helpers: map[string]string{"launcher_sha256": "cotal-codex-seat"}},
		{Name: "opencode", Kind: sdk.KindConnector, Command: "cotal-connector-opencode", Helpers: map[string]string{"launcher_sha256": "cotal-opencode-seat"}},
		{Name: "pi", Kind: sdk.KindConnector, Command: "cotal-connector-pi", Helpers: map[string]string{"bridge_sha256": "cotal-bridge"}},
		{Name: "qwen", Kind: sdk.KindConnector, Command: "cotal-connector-qwen", Helpers: map[string]string{"bridge_sha256": "cotal-bridge"}},
	}
}

// describe asks a plugin binary what it is.
func describe(path string) (sdk.Info, error) {
	var info sdk.Info
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--cotal-describe").Output()
	if err == nil {
		err = json.Unmarshal(out, &info)
	}
	if err != nil {
		return info, fmt.Errorf("describe plugin %s: %w", path, err)
	}
	return info, nil
}

// bundleCmd is a step of the build: it writes plugins.toml beside the binaries, with their digests.
func bundleCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "bundle <dir>",
		Short:  "Write plugins.toml for the binaries of a directory",
		Hidden: true,
		Args:   cli.Arg("<dir>", false, "<dir>"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("bundle %s: %w", args[0], err)
			}
			specs := bundled()
			for i := range specs {
				info, err := describe(filepath.Join(dir, specs[i].Command))
				if err != nil {
					return err
				}
				specs[i].Version = info.Version
			}
			return manifest.Bundle(dir, specs)
		},
	}
}
