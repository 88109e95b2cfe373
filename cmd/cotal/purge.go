package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// purgeWait bounds the wait for a purge, which takes as long as the store has messages.
const purgeWait = time.Minute

func purgeCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Delete the messages of the space",
		Long: `Delete all messages in the channels of the space, and with --include-dms the direct ones, for everybody. Seats
and what they do are not touched. It asks first; --yes says it beforehand, which is needed where nobody can be
asked. It cannot be undone.`,
		Example: "  cotal purge\n  cotal purge --include-dms --yes",
		Args:    cli.NoArgs,
	}
	var args wire.PurgeArgs
	cmd.Flags().BoolVar(&args.IncludeDMs, "include-dms", false, "direct messages too")
	yes := cmd.Flags().BoolP("yes", "y", false, "do not ask")
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.target.Connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		if !*yes {
			what := "all messages in the channels"
			if args.IncludeDMs {
				what = "all messages, the direct ones too,"
			}
			if err := a.confirm(cmd.Context(), fmt.Sprintf("Delete %s of space %s, for everybody? It cannot be undone.", what, c.Endpoint.Space)); err != nil {
				return err
			}
		}
		var reply wire.PurgeReply
		if err := c.Manager(cmd.Context(), mesh.Call{Command: wire.CmdPurge, Args: args, Deadline: purgeWait}, &reply); err != nil {
			return cli.MayHaveRun(err, "cotal history <channel>")
		}
		a.out.Done("the messages were deleted")
		if *asJSON {
			return cli.PrintJSON(a.out, reply)
		}
		line := "deleted " + cli.Count(int(reply.Chat), "channel message")
		if reply.DM != nil {
			line += " and " + cli.Count(int(*reply.DM), "direct message")
		}
		fmt.Fprintln(a.out, line)
		return nil
	}
	return cmd
}

// noPrompt is the variable that keeps commands from asking.
const noPrompt = "COTAL_NO_PROMPT"

// confirm asks whoever sits at the terminal. Where nobody does, or nobody is to be asked, it is a usage error.
func (a *app) confirm(ctx context.Context, question string) error {
	if os.Getenv(noPrompt) != "" || a.in == nil || !term.IsTerminal(int(a.in.Fd())) {
		return cli.Fail(cli.Usage, "nobody can be asked here; say --yes if it is meant. Nothing was done")
	}
	fmt.Fprintf(a.errw, "%s\nType yes to go on: ", question)
	answer := make(chan string, 1)
	go func() { // ends with the process at the latest
		text, _ := bufio.NewReader(a.in).ReadString('\n') // the end of input is no yes
		answer <- text
	}()
	select {
	case text := <-answer:
		if strings.EqualFold(strings.TrimSpace(text), "yes") {
			return nil
		}
		return cli.Fail(cli.Refused, "not confirmed; nothing was done")
	case <-ctx.Done():
		return cli.Fail(cli.Interrupted, "interrupted; nothing was done")
	}
}
