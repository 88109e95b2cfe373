package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func versionCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  cotal version --json",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.RunE = func(*cobra.Command, []string) error {
		if *asJSON {
			return cli.PrintJSON(a.out, versionInfo{version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH})
		}
		_, err := fmt.Fprintln(a.out, versionLine())
		return err
	}
	return cmd
}

// versionInfo is the JSON form of the version.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func statusCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Say how the host is",
		Long:    "Say how the host is: version, instance, seats, plugins. Exit code 3 when no host answers.",
		Example: "  cotal status --json | jq .plugins",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.target.Connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		var s wire.StatusReply
		host, err := c.ReadAny(cmd.Context(), wire.CmdStatus, nil, &s)
		if err != nil {
			return err
		}
		a.noteHost(cmd.Context(), c, host)
		if *asJSON {
			return cli.PrintJSON(a.out, s)
		}
		cli.PrintStatus(a.out, s)
		return nil
	}
	return cmd
}

// noteHost says which of several hosts answered.
func (a *app) noteHost(ctx context.Context, c *cli.Client, host string) {
	if note := c.OneOf(ctx, host); note != "" {
		fmt.Fprintf(a.errw, "note: %s\n", cli.OneLine(note))
	}
}

const seatArg = "<seat>"

func inspectCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "inspect " + seatArg,
		Short:   "Show everything the host knows of one seat",
		Long:    "Show everything the host knows of one seat, freshly verified. What is not shown is not known.",
		Example: "  cotal inspect reviewer\n  cotal inspect reviewer --json | jq .exit.code",
		Args:    cli.Arg(seatArg, false, seatArg),
	}
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.ValidArgsFunction = a.seatNames(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		row, err := inspect(cmd.Context(), a, args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return cli.PrintJSON(a.out, inspected{AgentRow: row, Program: program(row)})
		}
		printRow(a.out, row, program(row))
		return nil
	}
	return cmd
}

// inspected is the JSON form of inspect: what the host says, and what is seen here.
type inspected struct {
	wire.AgentRow
	Program []string `json:"program,omitempty"` // command line of the process now, on this machine
}

// meshInFull is the state on the mesh with its reason, and how it is known.
func meshInFull(r wire.AgentRow) string {
	text := meshWords(r)
	if !strings.HasPrefix(text, r.Mesh) || r.Mesh == "" { // it is not known, or not there
		return text
	}
	if c := r.Condition; c != nil && (c.Message != "" || c.Source != "") {
		text += ": " + strings.Trim(c.Message+", "+c.Source, ", ")
	}
	if by, ok := knownBy[r.MeshBy]; ok {
		text += "; known by " + by
	}
	return text
}

// knownBy says how a state on the mesh is known.
var knownBy = map[string]string{
	"hook": "a hook of its program", "program": "its program's server or plugin", "file": "its program's status file",
	"process": "its process", "agent": "what the agent says", "silence": "the silence of its program",
}

// printRow shows one row in full. A fact that is absent is not shown: it is not known.
func printRow(w io.Writer, r wire.AgentRow, argv []string) {
	line := func(name, format string, args ...any) {
		text := cli.OneLine(fmt.Sprintf(format, args...))
		if text != "" {
			fmt.Fprintf(w, "%-12s %s\n", name, text)
		}
	}
	num := func(name string, n int) {
		if n > 0 {
			line(name, "%d", n)
		}
	}
	line("name", "%s", r.Name)
	line("role", "%s", r.Role)
	line("agent", "%s", r.Agent)
	line("runtime", "%s", r.Mode)
	line("status", "%s", processWords(r))
	line("reason", "%s", r.Reason)
	if r.MeshView != "unpopulated" {
		line("mesh", "%s", meshInFull(r))
		line("activity", "%s", r.Activity)
	}
	if r.ActiveAt > 0 { // a process that runs and is on the mesh may do nothing all the same
		line("last work", "%s ago", cli.Age(time.Since(time.UnixMilli(r.ActiveAt))))
	}
	line("model", "%s", strings.TrimSuffix(r.Model+" / "+r.Variant, " / "))
	line("program", "%s", programWords(argv))
	line("directory", "%s", r.Cwd)
	line("principal", "%s", r.ID)
	line("uid", "%s", r.LifecycleUID)
	line("custody id", "%s", r.SeatID)
	num("pid", r.PID)
	num("seat pid", r.SeatPID)
	num("attached", r.Attached)
	if r.Output > 0 {
		line("output", "%d bytes so far", r.Output)
	}
	if r.StartedAt > 0 {
		line("started", "%s", time.UnixMilli(r.StartedAt).UTC().Format(time.RFC3339))
	}
	line("spawned by", "%s", r.Spawner)
	line("goal", "%s", r.GoalID)
	line("instance", "%s", r.InstanceID)
	line("machine", "%s", r.Host)
	if x := r.Exit; x != nil {
		line("ended", "%s, %s", time.UnixMilli(x.At).UTC().Format(time.RFC3339), cli.HowEnded(x))
		line("cause", "%s", x.Cause)
		line("evidence", "%s", x.Evidence)
		line("last line", "%s", x.Last)
		for _, k := range x.Reaped {
			line("reaped", "%d %s %s", k.PID, k.Command, k.Signal)
		}
	}
}
