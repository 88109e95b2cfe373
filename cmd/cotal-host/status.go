package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func statusCmd() *cobra.Command {
	s := &stopper{errw: os.Stderr}
	s.target.Name = "cotal-host"
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether the host runs, and how it is",
		Long: `Say whether the host runs, and how it is. Whether it runs is asked of its lock, which the kernel holds as
long as the process lives: a missing or stale file does not matter. When the lock itself was deleted, the
process that endpoint.json names counts, if it is the very one that wrote it. Exit code 3 when it does not run or answer.`,
		Example: "  cotal-host status --json | jq .pid",
		Args:    cli.NoArgs,
	}
	s.target.Flags(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := s.status(cmd.Context())
		if err != nil {
			return err
		}
		if s.lockGone {
			fmt.Fprintf(s.errw, "note: %s\n", s.noLock())
		}
		if *asJSON {
			return cli.PrintJSON(cmd.OutOrStdout(), st)
		}
		cli.PrintStatus(cmd.OutOrStdout(), st)
		return nil
	}
	return cmd
}

func (s *stopper) status(ctx context.Context) (wire.StatusReply, error) {
	var st wire.StatusReply
	if err := s.find(); err != nil {
		return st, err
	}
	if s.endpoint.URL == "" || s.root != "" && !s.running.Held {
		return st, s.silent("")
	}
	c, err := s.target.Connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return st, ctx.Err()
		}
		return st, s.silent(err.Error())
	}
	defer c.Close()
	if err := c.Read(ctx, wire.CmdStatus, nil, &st); err != nil {
		if cli.CodeOf(err) == cli.Unreachable {
			return st, s.silent(err.Error())
		}
		return st, err
	}
	return st, nil
}

// silent says what is known of a host that does not answer.
func (s *stopper) silent(why string) error {
	switch {
	case s.root == "" && s.endpoint.URL == "":
		return cli.Fail(cli.Unreachable, "not running: there is no .cotal/host here or in a directory above; start one with: cotal-host serve")
	case s.root != "" && !s.running.Held:
		text := fmt.Sprintf("not running: no process holds the lock of %s", s.root)
		rows, err := s.seats()
		if err == nil && cli.GoOn(rows) != "" {
			text += "; " + cli.GoOn(rows)
		}
		return cli.Fail(cli.Unreachable, "%s; start it with: %s", text, cli.ServeCommand(s.root, rows))
	case s.endpoint.URL == "":
		return cli.Fail(cli.Unreachable, "running (%s, known by its lock), but its endpoint.json is missing, so it cannot be asked; cotal-host stop --root %s stops it, and serve writes the file again", s.who(), s.root)
	}
	if s.lockGone {
		return cli.Fail(cli.Unreachable, "%s; and it does not answer: %s", s.noLock(), why)
	}
	return cli.Fail(cli.Unreachable, "running (%s), but it does not answer: %s", s.who(), why)
}
