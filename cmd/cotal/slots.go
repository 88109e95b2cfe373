package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func slotsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "slots",
		Short: "List which names of the space are held, and by what",
		Long: `List the slots of the space that are not free: which life holds which name, how far that life is, and why the
name of a seat that has ended is not free yet. Slots of other hosts of the space are shown as such; no host changes
those of another. A space that is served with --open keeps none, which is exit code 1.`,
		Example: "  cotal slots --wide\n  cotal slots --json | jq -r 'select(.held) | .name + \": \" + .held.reason'",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object a line")
	wide := cmd.Flags().Bool("wide", false, "show lives, principals and custody too")
	cmd.MarkFlagsMutuallyExclusive("json", "wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.target.Connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		var rows []wire.SlotRow
		host, err := c.ReadAny(cmd.Context(), wire.CmdSlots, nil, &rows)
		if err != nil {
			return err
		}
		a.noteHost(cmd.Context(), c, host)
		if *asJSON {
			for _, r := range rows {
				if err := cli.PrintJSON(a.out, r); err != nil {
					return err
				}
			}
			return nil
		}
		printSlots(a.out, rows, *wide)
		return nil
	}
	return cmd
}

func printSlots(w io.Writer, rows []wire.SlotRow, wide bool) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "(no name is held)")
		return
	}
	header := []string{"NAME", "PHASE", "SEAT", "HOST"}
	if wide {
		header = append(header, "UID", "ACTOR", "CUSTODY", "HEAD")
	}
	table := [][]string{append(header, "HELD")}
	for _, r := range rows {
		seat, host := "none here", "this one"
		switch {
		case r.Sibling:
			seat, host = "another host's", known(r.ManagerInstanceID)
		case r.Live:
			seat = "here"
		case r.Unreadable != "":
			seat, host = "", ""
		}
		cells := []string{r.Name, known(r.SlotPhase), known(seat), known(host)}
		if wide {
			custody := ""
			if r.Runtime != nil {
				custody = r.Runtime.Kind + " " + r.Runtime.ID
			}
			cells = append(cells, known(r.SlotLifecycleUID), known(r.Actor), known(custody), known(headWords(r)))
		}
		table = append(table, append(cells, holdWords(r)))
	}
	columns(w, table, nil)
}

// headWords is the state of the head, and of which life it is if not of the slot's.
func headWords(r wire.SlotRow) string {
	text := r.HeadState
	if r.HeadLifecycleUID != "" && r.HeadLifecycleUID != r.SlotLifecycleUID {
		text += " of " + r.HeadLifecycleUID
	}
	if r.HeadOp != nil {
		text += ", " + r.HeadOp.Kind + " " + r.HeadOp.OpID
	}
	return text
}

// holdWords says why a name is not free though its seat ends or ended.
func holdWords(r wire.SlotRow) string {
	if r.Unreadable != "" {
		return "the row cannot be read: " + r.Unreadable
	}
	h := r.Held
	if h == nil {
		return ""
	}
	text := "not done: " + strings.Join(h.Missing, ", ")
	if h.Since > 0 {
		text += "; since " + cli.Age(time.Since(time.UnixMilli(h.Since)))
	}
	if h.Attempts > 0 {
		text += ", " + cli.Count(h.Attempts, "attempt")
	}
	if h.Running {
		text += ", one is under way"
	}
	if h.Reason != "" {
		text += "; " + h.Reason
	}
	return text
}
