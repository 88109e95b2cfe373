package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
)

func attachCmd(a *app) *cobra.Command {
	var overMesh, observe bool
	cmd := &cobra.Command{
		Use:   "attach " + seatArg,
		Short: "Connect this terminal to a seat",
		Long: `Connect this terminal to a seat. Ctrl-] detaches and leaves the seat running; ` + detachEnv + `=ctrl-<c>
chooses another key. The terminal's modes are restored whichever way it ends. A seat of this machine is reached through
its own socket, so the host may stop, crash and restart meanwhile. A seat of another machine is reached over the
mesh, as is any with --mesh: when the host restarts or the mesh is lost, the attach waits and is made anew.

You see the screen as it is, then what the program prints from there on; without a host that can tell, the
end of its output. One terminal at a time has the keyboard; others watch. What you type while the connection
is lost is dropped. What the program does to the clipboard of a terminal is left out, unless --clipboard.
A runtime that shows its terminals by a program of its own (tmux) has that program attach: in tmux C-b d detaches.
Exit code 0 when you detach and when the agent ends well or because it was asked to, else 1.`,
		Example: "  cotal attach reviewer\n  cotal attach --read-only reviewer\n  cotal attach --take-over reviewer",
		Args:    cli.Arg(seatArg, false, seatArg),
	}
	var opt attachOptions
	cmd.Flags().BoolVar(&opt.ReadOnly, "read-only", false, "only watch; type nothing and leave the size alone")
	cmd.Flags().BoolVar(&opt.TakeOver, "take-over", false, "take the keyboard from the terminal that has it")
	cmd.Flags().BoolVar(&opt.NoNudge, "no-nudge", false, "do not make the program repaint by changing the size for a moment")
	cmd.Flags().BoolVar(&opt.Clipboard, "clipboard", false, "let the program use the clipboard of this terminal (OSC 52)")
	cmd.Flags().BoolVar(&observe, "observe", false, "the same as --read-only")
	cmd.Flags().BoolVar(&overMesh, "mesh", false, "attach over the mesh, also to a seat of this machine")
	cmd.MarkFlagsMutuallyExclusive("read-only", "take-over")
	cmd.MarkFlagsMutuallyExclusive("observe", "take-over")
	cmd.ValidArgsFunction = a.seatNames(false, "starting", "running", "stopping", "unknown")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		con := newConsole(a.in, a.outFile)
		if !con.isTerminal() {
			return cli.Fail(cli.Usage, "attach needs a terminal on standard input and output; to type from a script use `cotal input %s --text ...`, to read use `cotal logs %s`", args[0], args[0])
		}
		if _, err := detachKeyFromEnv(); err != nil {
			return cli.Fail(cli.Usage, "%w", err)
		}
		opt.ReadOnly = opt.ReadOnly || observe
		if overMesh {
			return a.attachMesh(cmd.Context(), con, args[0], opt)
		}
		p, err := locateTerminal(cmd.Context(), a, args[0], true)
		if err != nil {
			return err
		}
		return a.attachPlace(cmd.Context(), con, p, opt)
	}
	return cmd
}

// attachPlace attaches to wherever the terminal of a seat is.
func (a *app) attachPlace(ctx context.Context, con *console, p *place, opt attachOptions) error {
	if p.argv != nil {
		return a.runClient(context.WithoutCancel(ctx), con, p, opt) // it takes signals itself, too
	}
	if p.far {
		return a.attachMesh(ctx, con, p.row.LifecycleUID, opt)
	}
	opt.Screen = p.screen
	return a.attachTo(ctx, con, p.local, opt)
}

// attachTo attaches and says how it ended.
func (a *app) attachTo(ctx context.Context, con *console, s *local, opt attachOptions) error {
	end, err := attach(ctx, con, s, opt)
	switch {
	case err != nil:
		return err
	case end.Detached:
		fmt.Fprintf(a.errw, "detached from %s; it goes on running. Attach again: cotal attach %s   end it: cotal stop %s\n", s.Alias, s.Alias, s.Alias)
		return nil
	case end.Signal != nil:
		return cli.Fail(cli.Interrupted, "detached by signal (%s); %s goes on running", end.Signal, s.Alias)
	case end.Lost != "":
		return cli.Fail(cli.Refused, "%s is lost: %s", s.Alias, end.Lost)
	}
	fmt.Fprintf(a.errw, "%s ended %s\n", s.Alias, cli.HowEnded(end.Exit))
	if !end.Shown && end.Exit != nil && end.Exit.Last != "" { // it was over before its output could be shown
		fmt.Fprintf(a.errw, "its last line was: %s\n", cli.OneLine(end.Exit.Last))
	}
	if !cli.EndedWell(end.Exit) {
		return cli.Silent(cli.Refused)
	}
	return nil
}
