package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func psCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the seats of the host",
		Long: `List the seats of the host: name and role, agent and runtime, the state of the process, the state on the
mesh. The two states are two facts; the second has no column while the host sees no roster. Exit code 3 when
the host does not answer: never an empty list then.`,
		Example: "  cotal ps --wide\n  cotal ps --json | jq -r 'select(.status == \"running\") | .name'",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object a line; an absent field is not known")
	wide := cmd.Flags().Bool("wide", false, "show ids, process and directory too")
	cmd.MarkFlagsMutuallyExclusive("json", "wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		c, err := a.target.Connect(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
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
		if *asJSON {
			for _, r := range rows {
				if err := cli.PrintJSON(a.out, r); err != nil {
					return err
				}
			}
		} else {
			printRows(a.out, rows, *wide, a.colour())
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

// colour says whether standard output is a terminal that wants colours.
func (a *app) colour() bool {
	return os.Getenv("NO_COLOR") == "" && a.outFile != nil && term.IsTerminal(int(a.outFile.Fd()))
}

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
		for i := range cells {
			cells[i] = cli.OneLine(cells[i])
		}
		table = append(table, cells)
	}
	var width []int
	for _, cells := range table {
		for i, cell := range cells {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	for n, cells := range table {
		var b strings.Builder
		for i, cell := range cells {
			text := cell
			if i == 2 && n > 0 && colour {
				text = paint(rows[n-1].Status, cell)
			}
			b.WriteString(text)
			if i < len(cells)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-len([]rune(cell))+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
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
	return r.Mesh
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
