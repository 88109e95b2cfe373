package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func psCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the seats of the host",
		Long: `List the seats of the host: name and role, agent and runtime, the state of the process, the state on the
mesh. The two states are two facts; the second has no column while the host sees no roster. Exit code 3 when
the host does not answer: never an empty list then.

With --all, and with --server without --on, every host of the space is asked. One that is registered and is not
heard (--timeout) is named, and makes the exit code 5: the list is not complete then. With --watch the list is shown again whenever it changes,
until Ctrl-C, with --all too; with --json then, every seat that changed is a line, and one that is gone has the status "gone".`,
		Example: "  cotal ps --wide\n  cotal ps --watch\n  cotal ps --json | jq -r 'select(.status == \"running\") | .name'",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object a line; an absent field is not known")
	wide := cmd.Flags().Bool("wide", false, "show ids, process and directory too")
	all := cmd.Flags().Bool("all", false, "list the seats of every host of the space")
	watch := cmd.Flags().BoolP("watch", "w", false, "go on, and show every change")
	cmd.MarkFlagsMutuallyExclusive("json", "wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *all && a.target.On != "" {
			return cli.Fail(cli.Usage, "--all asks every host, --on one of them; leave one out")
		}
		ctx := cmd.Context()
		c, err := a.target.Connect(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		switch {
		case *watch:
			return watchSeats(ctx, a, c, *all, *wide, *asJSON)
		case *all || c.Instance == "":
			return psAll(ctx, a, c, *wide, *asJSON)
		}
		foreign := make(chan int, 1)
		go func() {
			var s wire.StatusReply
			if c.Read(ctx, wire.CmdStatus, nil, &s) != nil {
				s.Foreign = 0 // a note is not worth an error
			}
			foreign <- s.Foreign
		}()
		var rows []wire.AgentRow
		if err := c.Read(ctx, wire.CmdPs, nil, &rows); err != nil {
			return err
		}
		if err := a.listSeats(rows, *wide, *asJSON); err != nil {
			return err
		}
		if n := <-foreign; n > 0 {
			fmt.Fprintf(a.errw, "note: other hosts have %s on this machine\n", cli.Count(n, "more seat"))
		}
		if len(rows) > 0 && !*asJSON && a.colour() {
			fmt.Fprintln(a.errw, "attach: cotal attach <seat>   end: cotal stop <seat> [--now]")
		}
		return nil
	}
	return cmd
}

// listSeats prints seats, as a table or as JSON lines.
func (a *app) listSeats(rows []wire.AgentRow, wide, asJSON bool) error {
	if !asJSON {
		printRows(a.out, rows, wide, a.colour())
		return nil
	}
	for _, r := range rows {
		if err := cli.PrintJSON(a.out, r); err != nil {
			return err
		}
	}
	return nil
}

// hostSeats are the seats of one host of a space.
type hostSeats struct {
	Instance string
	Rows     []wire.AgentRow
}

// everySeat asks every host of the space for its seats. missing has a line about each host whose seats are not
// known, which names it.
func everySeat(ctx context.Context, c *cli.Client) (hosts []hostSeats, missing []string, err error) {
	answers, missing, err := c.Everybody(ctx, mesh.Call{Command: wire.CmdPs})
	if err != nil {
		return nil, nil, err
	}
	for _, ans := range answers {
		var rows []wire.AgentRow
		var err error
		if ans.Err != nil {
			err = ans.Err
		} else {
			err = json.Unmarshal(ans.Data, &rows)
		}
		if err != nil {
			missing = append(missing, fmt.Sprintf("instance %s does not list its seats: %s", ans.InstanceID, cli.Text(err)))
			continue
		}
		hosts = append(hosts, hostSeats{Instance: ans.InstanceID, Rows: rows})
	}
	return hosts, missing, nil
}

// psAll lists the seats of every host of the space, each under its id. A host that is not heard is not taken for
// gone, nor its seats.
func psAll(ctx context.Context, a *app, c *cli.Client, wide, asJSON bool) error {
	hosts, missing, err := everySeat(ctx, c)
	if err != nil {
		return err
	}
	several := len(hosts)+len(missing) > 1
	for _, h := range hosts {
		if asJSON {
			err = a.listSeats(h.Rows, wide, true)
		} else {
			printHost(a.out, h, several, wide, a.colour())
		}
		if err != nil {
			return err
		}
	}
	for _, m := range missing {
		fmt.Fprintf(a.errw, "cotal: %s\n", cli.OneLine(m))
	}
	if len(missing) > 0 {
		return cli.Fail(cli.Partial, "%d of %s did not list its seats: the list is not complete", len(missing), cli.Count(len(hosts)+len(missing), "host"))
	}
	return nil
}

// printHost prints the seats of one host, of several under its id.
func printHost(w io.Writer, h hostSeats, several, wide, colour bool) {
	if several {
		fmt.Fprintf(w, "host %s, %s\n", h.Instance, cli.Count(len(h.Rows), "seat"))
		if len(h.Rows) == 0 {
			return
		}
	}
	printRows(w, h.Rows, wide, colour)
}

// colour says whether standard output is a terminal that wants colours.
func (a *app) colour() bool { return os.Getenv("NO_COLOR") == "" && a.terminal() }

// terminal says whether standard output is one.
func (a *app) terminal() bool { return a.outFile != nil && term.IsTerminal(int(a.outFile.Fd())) }

// printRows prints a header and one line a seat, in columns.
func printRows(w io.Writer, rows []wire.AgentRow, wide, colour bool) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "(no seats)")
		return
	}
	// A host that has no roster says so in every row: a column of "unknown" tells nobody anything.
	mesh := slices.ContainsFunc(rows, func(r wire.AgentRow) bool { return r.MeshView != "unpopulated" })
	header := []string{"NAME", "AGENT", "STATUS"}
	if mesh {
		header = append(header, "MESH")
	}
	if wide {
		header = append(header, "PID", "SEAT", "UID", "MODEL", "DIRECTORY")
	}
	if slices.ContainsFunc(rows, func(r wire.AgentRow) bool { return r.Reason != "" }) {
		header = append(header, "REASON")
	}
	table := make([][]string, 0, len(rows)+1)
	table = append(table, header)
	for _, r := range rows {
		name := r.Name
		if r.Role != "" {
			name += "/" + r.Role
		}
		cells := []string{name, r.Agent + ", " + r.Mode, processWords(r)}
		if mesh {
			cells = append(cells, meshWords(r))
		}
		if wide {
			cells = append(cells, known(pidWords(r)), known(short(r.SeatID)), known(r.LifecycleUID), known(modelWords(r)), known(r.Cwd))
		}
		if r.Reason != "" {
			cells = append(cells, "("+r.Reason+")")
		}
		table = append(table, cells)
	}
	columns(w, table, func(row, col int, text string) string {
		if colour && col == 2 {
			return paint(rows[row-1].Status, text)
		}
		return text
	})
}

func paint(status, text string) string {
	switch status {
	case "running":
		return "\x1b[32m" + text + "\x1b[0m"
	case "exited", "unknown":
		return "\x1b[31m" + text + "\x1b[0m"
	}
	return "\x1b[33m" + text + "\x1b[0m"
}

// processWords is the state of the process, with its age.
func processWords(r wire.AgentRow) string {
	age := cli.Age(time.Duration(r.UptimeMs) * time.Millisecond)
	switch r.Status {
	case "running":
		return "running " + age
	case "exited":
		text := "exited"
		if r.StartedAt > 0 || r.UptimeMs > 0 {
			text += " after " + age
		}
		if r.Exit != nil {
			text += " " + cli.HowEnded(&wire.SeatExit{Code: r.Exit.Code, Signal: r.Exit.Signal, Asked: r.Exit.Asked, Evidence: r.Exit.Evidence})
		}
		return text
	case "":
		return "state not said"
	}
	return r.Status
}

// meshWords is the state on the mesh; what the host cannot see now is said to be unknown.
func meshWords(r wire.AgentRow) string {
	switch {
	case r.MeshView == "stale", r.MeshView == "unpopulated":
		return "mesh unknown"
	case r.Mesh == "absent":
		return "not in roster"
	case r.Mesh == "offline":
		return "mesh offline"
	case r.Mesh == "":
		return "mesh not said"
	}
	return r.Mesh + conditionWords(r.Condition)
}

// conditionWords is what the agent program reported of itself, behind the state.
func conditionWords(c *wire.PresenceCondition) string {
	if c == nil {
		return ""
	}
	return " (" + c.Code + ")"
}

func modelWords(r wire.AgentRow) string {
	if r.Variant == "" {
		return r.Model
	}
	return r.Model + "/" + r.Variant
}

func pidWords(r wire.AgentRow) string {
	if r.PID == 0 {
		return ""
	}
	return strconv.Itoa(r.PID)
}

func short(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}

// known is a cell of the wide list: a dash for what is not known.
func known(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
