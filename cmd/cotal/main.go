// Command cotal is the command line of a mesh of coding agents: it starts seats, lists them, attaches
// to them, types into them and stops them, through a running cotal-host.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

// version and commit are set by the build.
var version, commit = "dev", ""

// app is what every command works with.
type app struct {
	target  cli.Target
	in      *os.File
	out     *cli.Output
	errw    io.Writer
	outFile *os.File // the terminal that an attach takes
}

func main() {
	// Few short-lived allocations: a collection would cost more than it frees.
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	errw := newLastWords(os.Stderr)
	a := &app{in: os.Stdin, out: cli.NewOutput(os.Stdout), errw: errw, outFile: os.Stdout}
	code := cli.Main(ctx, newRoot(a), os.Args[1:], errw)
	stop()
	os.Exit(code)
}

func newRoot(a *app) *cobra.Command {
	a.target.Name = "cotal"
	root := &cobra.Command{
		Use:   "cotal",
		Short: "Run coding agents in seats: start, list, attach, type, stop",
		Long: `cotal drives a cotal-host: it runs coding agents (or any program) in seats, each on a terminal of its
own. A seat goes on running when you detach, when the host stops, and when the host is killed.

The host is found by --server, else COTAL_SERVER, else the nearest .cotal/host/endpoint.json in this
directory or one above. A seat is named by its alias, its custody id (8 digits or more) or its lifecycle uid.

Exit codes: 0 done, 1 refused, 2 usage, 3 host unreachable, 4 no such seat, persona or connector, 5 partly
done, 75 uncertain, 130 interrupted.`,
		Example: `  cotal spawn --agent command --name top -- top     run a program in a seat and attach to it
  cotal spawn reviewer --detach                     start the persona .cotal/agents/reviewer.md
  cotal ps                                          what runs
  cotal attach top                                  Ctrl-] detaches
  cotal stop top                                    end it, with proof`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	a.target.Flags(root)
	a.target.OnFlag(root)
	_ = root.RegisterFlagCompletionFunc("on", a.instanceIDs) // fails for a flag that does not exist
	root.Version = versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(a.out)
	root.SetErr(a.errw)
	root.AddCommand(spawnCmd(a), goalCmd(a), psCmd(a), attachCmd(a), logsCmd(a), inputCmd(a), stopCmd(a), inspectCmd(a), statusCmd(a), slotsCmd(a), modelsCmd(a), personasCmd(a), rosterCmd(a), sendCmd(a), historyCmd(a), purgeCmd(a), describeCmd(a), invokeCmd(a), extCmd(a), authCmd(a), versionCmd(a))
	return root
}

func versionLine() string {
	line := "cotal " + version
	if commit != "" {
		line += " (" + commit + ")"
	}
	return line
}

// jsonFlag declares --json.
func jsonFlag(cmd *cobra.Command, what string) *bool {
	return cmd.Flags().Bool("json", false, what)
}
