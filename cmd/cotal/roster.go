package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// rosterWait is how long a roster may take to know everybody who is there.
const rosterWait = 5 * time.Second

// rosterRow is one participant, and its JSON form.
type rosterRow struct {
	wire.Presence
	View string `json:"view"` // current, stale: how good the view is that this row is of
}

func rosterCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "roster",
		Short: "List who is on the mesh of the space",
		Long: `List who is on the mesh of the space: agents that joined, by what they say of themselves. A seat may run and
not be here, if its program does not join; cotal ps lists seats. Every host of the space is here too, as
manager@<machine>; it reads no messages. Who has just left is shown as offline for a while. With --watch it goes
on, and shows every change.`,
		Example: "  cotal roster\n  cotal roster --watch\n  cotal roster --json | jq -r 'select(.status == \"idle\") | .card.name'",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object a line")
	wide := cmd.Flags().Bool("wide", false, "show ids and descriptions too")
	watch := cmd.Flags().BoolP("watch", "w", false, "go on, and show every change")
	cmd.MarkFlagsMutuallyExclusive("json", "wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		c, err := a.target.Connect(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		r, err := openRoster(ctx, a, c)
		if err != nil {
			return err
		}
		defer r.Close()
		shown := ""
		for {
			changed := r.Changed()
			view := r.View()
			if text := stateOfView(view); text != shown {
				if shown != "" && !*asJSON {
					fmt.Fprintln(a.out)
				}
				shown = text
				if err := a.printRoster(view, *wide, *asJSON); err != nil {
					return err
				}
			}
			if !*watch {
				return nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return nil
			case <-r.Done():
				return cli.Fail(cli.Unreachable, "the server is lost: what was shown is how it was")
			}
		}
	}
	return cmd
}

// openRoster watches the presence of the space and waits until it knows everybody.
func openRoster(ctx context.Context, a *app, c *cli.Client) (*mesh.Roster, error) {
	wait := rosterWait
	if a.target.Timeout > 0 {
		wait = a.target.Timeout
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	r, err := c.WatchPresence(within)
	if err == nil {
		if err = r.Ready(within); err != nil {
			r.Close()
		}
	}
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, mesh.ErrNotSetUp):
		return nil, cli.Fail(cli.Refused, "space %s has no presence: %w", c.Endpoint.Space, err)
	}
	return nil, cli.Fail(cli.Unreachable, "the roster of space %s cannot be read: %w", c.Endpoint.Space, err)
}

func (a *app) printRoster(v mesh.View, wide, asJSON bool) error {
	if asJSON {
		for _, p := range v.Rows {
			if err := cli.PrintJSON(a.out, rosterRow{p, v.State}); err != nil {
				return err
			}
		}
	} else {
		printPresence(a, v.Rows, wide)
		if err := a.out.Err(); err != nil {
			return fmt.Errorf("write roster: %w", err)
		}
	}
	if v.State != mesh.ViewCurrent {
		fmt.Fprintf(a.errw, "note: the view is %s: who is missing or offline in it may be there\n", v.State)
	}
	return nil
}

func printPresence(a *app, rows []wire.Presence, wide bool) {
	if len(rows) == 0 {
		fmt.Fprintln(a.out, "(nobody is there)")
		return
	}
	header := []string{"NAME", "STATUS", "ACTIVITY"}
	if wide {
		header = append(header, "KIND", "ID", "DESCRIPTION")
	}
	table := [][]string{header}
	for _, p := range rows {
		name := p.Card.Name
		if p.Card.Role != "" {
			name += "/" + p.Card.Role
		}
		status := p.Status
		if c := p.Condition; c != nil {
			status += " (" + strings.TrimSuffix(c.Code+": "+c.Message, ": ") + ")"
		}
		cells := []string{name, status, clip(p.Activity, describedMax)}
		if wide {
			cells = append(cells, known(p.Card.Kind), p.Card.ID, clip(p.Card.Description, describedMax))
		}
		table = append(table, cells)
	}
	columns(a.out, table, func(row, col int, text string) string {
		if col != 1 || !a.colour() {
			return text
		}
		switch rows[row-1].Status {
		case wire.StatusOffline:
			return "\x1b[31m" + text + "\x1b[0m"
		case wire.StatusWorking:
			return "\x1b[32m" + text + "\x1b[0m"
		}
		return text
	})
}

// stateOfView is what of a view counts as a change: heartbeats are none.
func stateOfView(v mesh.View) string {
	var b strings.Builder
	b.WriteString(v.State)
	for _, p := range v.Rows {
		condition := wire.PresenceCondition{}
		if p.Condition != nil {
			condition = *p.Condition
		}
		p.TS, p.ActiveAt, p.Condition = 0, 0, nil
		fmt.Fprintf(&b, "\n%+v %+v", p, condition)
	}
	return b.String()
}
