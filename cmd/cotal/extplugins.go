package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// extWait is how long a restart or reload may take: a start is given 10 s, several start side by side, and
// calls in flight on an old process may finish.
const extWait = 45 * time.Second

func extListCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the plugins of the host",
		Long: `List the plugins of the host with their state. Below one that is not ready stand the reason, what to do, and
the file with the report on its latest death. Exit code 3 when no host answers.`,
		Example: "  cotal ext list\n  cotal ext list --json | jq -r 'select(.state != \"ready\") | .name'",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object a line")
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
			for _, p := range s.Plugins {
				if err := cli.PrintJSON(a.out, p); err != nil {
					return err
				}
			}
			return nil
		}
		return printPlugins(a.out, s.Plugins)
	}
	return cmd
}

func printPlugins(w io.Writer, plugins []wire.PluginStatus) error {
	if len(plugins) == 0 {
		_, err := fmt.Fprintln(w, "the host has no plugins")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tKIND\tVERSION\tSTATE\tPID\tRESTARTS")
	for _, p := range plugins {
		pid := "-"
		if p.PID > 0 {
			pid = fmt.Sprint(p.PID)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\n", cli.OneLine(p.Name), p.Kind, cli.OneLine(p.Version), p.State, pid, p.Restarts)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	for _, p := range plugins {
		cli.PrintPluginTrouble(w, p)
	}
	return nil
}

func extRestartCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restart " + pluginArg,
		Short: "Replace the process of a plugin by a new one",
		Long: `Replace the process of a plugin by a new one, without a gap: the new process is verified, started and ready
before the old one is asked to end, and calls in flight finish. It ends a backoff or a quarantine too. Seats go
on working. When the new process does not start, the old one stays and exit code 1 says why. With --server, in a space of several hosts,
--on says whose plugin it is.`,
		Example: "  cotal ext restart opencode\n  cotal ext restart pty --json | jq .pid",
		Args:    cli.Arg(pluginArg, false, pluginArg),
	}
	kind := cmd.Flags().String("kind", "", "connector or runtime; needed only where both have a plugin of that name")
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.ValidArgsFunction = a.pluginNames
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]cobra.Completion{"connector", "runtime"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *kind != "" && *kind != "connector" && *kind != "runtime" {
			return cli.Fail(cli.Usage, "--kind %q: want connector or runtime", *kind)
		}
		var r wire.PluginRestartReply
		if err := extCall(cmd, a, wire.CmdPluginRestart, wire.PluginRestartArgs{Name: args[0], Kind: *kind}, &r); err != nil {
			return err
		}
		a.out.Done("%s was restarted", r.Name)
		if *asJSON {
			return cli.PrintJSON(a.out, r)
		}
		was := "none was running"
		if r.OldPID > 0 {
			was = fmt.Sprintf("was %d", r.OldPID)
		}
		_, err := fmt.Fprintf(a.out, "restarted %s %s %s: pid %d (%s), ready after %d ms\n", r.Kind, r.Name, cli.OneLine(r.Version), r.PID, was, r.DurMs)
		return err
	}
	return cmd
}

func extReloadCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Read the plugin manifest again and apply what changed",
		Long: `Read plugins.toml again, as the host does when it starts, and apply what changed: new plugins are started,
changed ones replaced without a gap, removed ones ended. The whole file is checked first; with any error in it, or
when a replacement does not start, everything goes on as it was, and exit code 1 names the file and the field. The
file of every plugin must have the digest of the manifest, also of one that did not change. One that is down is
started again. A plugin that seats need is not removed.`,
		Example: "  make build && cotal ext reload\n  cotal ext reload --json | jq -r '.plugins[] | select(.change != \"unchanged\") | .name'",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var r wire.PluginReloadReply
		if err := extCall(cmd, a, wire.CmdPluginReload, nil, &r); err != nil {
			return err
		}
		a.out.Done("the manifest was applied")
		if *asJSON {
			return cli.PrintJSON(a.out, r)
		}
		return printReload(a.out, r)
	}
	return cmd
}

func printReload(w io.Writer, r wire.PluginReloadReply) error {
	changed := 0
	for _, p := range r.Plugins {
		if p.Change == wire.PluginUnchanged && p.Note == "" {
			continue
		}
		if p.Change != wire.PluginUnchanged {
			changed++
		}
		line := fmt.Sprintf("%-9s %s %s", p.Change, p.Kind, p.Name)
		switch {
		case p.OldVersion != "" && p.Version != "" && p.OldVersion != p.Version:
			line += fmt.Sprintf(" %s, was %s", p.Version, p.OldVersion)
		case p.Version != "":
			line += " " + p.Version
		}
		if p.PID > 0 {
			line += fmt.Sprintf(", pid %d", p.PID)
		}
		if p.Note != "" {
			line += " (" + p.Note + ")"
		}
		fmt.Fprintln(w, cli.OneLine(line))
	}
	_, err := fmt.Fprintf(w, "read %s: %d of %d plugins changed\n", cli.OneLine(r.Path), changed, len(r.Plugins))
	return err
}

// extCall calls one of the commands that a host serves for itself alone.
func extCall(cmd *cobra.Command, a *app, command string, args, out any) error {
	ctx := cmd.Context()
	c, err := a.target.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	id, err := c.Only(ctx)
	if err != nil {
		return err
	}
	err = c.Manager(ctx, mesh.Call{Command: command, Instance: id, Deadline: extWait, Args: args}, out)
	var refused *wire.Error
	switch {
	case errors.As(err, &refused) && refused.Code == wire.CodeUnimplemented:
		return cli.Fail(cli.Refused, "this host is too old for that: restart it with cotal-host stop, then serve; its seats go on")
	case errors.As(err, &refused) && refused.Code == wire.CodeNotFound, err == nil:
		return err
	}
	return cli.MayHaveRun(err, "cotal ext list")
}

const pluginArg = "<plugin>"

// pluginNames completes the names of plugins.
func (a *app) pluginNames(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	s := new(wire.StatusReply)
	if len(args) > 0 || !a.ask(cmd, wire.CmdStatus, s) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, p := range s.Plugins {
		if name := offer(p.Name, p.Kind+", "+p.State); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
