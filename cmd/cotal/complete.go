package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// completeWait bounds what a press of the Tab key may take. A host that is slower completes nothing.
const completeWait = 300 * time.Millisecond

// completePersonas bounds how many personas are offered.
const completePersonas = 1000

// ask calls a command of the host for a completion. It says nothing on failure: there is no place for it.
func (a *app) ask(cmd *cobra.Command, command string, out any) bool {
	ctx, cancel := a.completeContext(cmd)
	defer cancel()
	done := make(chan bool, 1)
	go func() { // a connect that does not heed the deadline is left behind
		c, err := a.target.Connect(ctx)
		if err != nil {
			done <- false
			return
		}
		err = c.Read(ctx, command, nil, out)
		c.Close()
		done <- err == nil
	}()
	select {
	case ok := <-done:
		return ok
	case <-ctx.Done():
		return false
	}
}

func (a *app) completeContext(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	return context.WithTimeout(ctx, completeWait)
}

// seatNames completes the names of seats: of those with one of the states, or all of them.
func (a *app) seatNames(many bool, states ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !many {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		rows := new([]wire.AgentRow)
		if !a.ask(cmd, wire.CmdPs, rows) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, r := range *rows {
			if !slices.Contains(args, r.Name) && (len(states) == 0 || slices.Contains(states, r.Status)) {
				names = append(names, offer(r.Name, r.Agent+", "+processWords(r)))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// offer is one completion with what is said about it.
func offer(value, about string) cobra.Completion {
	return cobra.CompletionWithDesc(cli.OneLine(value), strings.ReplaceAll(cli.OneLine(about), "\t", " "))
}

// agentNames completes --agent with the connectors of the host.
func (a *app) agentNames(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	s := new(wire.StatusReply)
	if !a.ask(cmd, wire.CmdStatus, s) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, c := range s.Connectors {
		names = append(names, offer(c.Agent, c.State))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// runtimeNames completes --runtime with the runtimes of the host.
func (a *app) runtimeNames(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	s := new(wire.StatusReply)
	if !a.ask(cmd, wire.CmdStatus, s) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, p := range s.Plugins {
		if p.Kind == "runtime" {
			names = append(names, offer(p.Name, p.State))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// instanceIDs completes --on with the hosts of the space.
func (a *app) instanceIDs(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := a.completeContext(cmd)
	defer cancel()
	var names []cobra.Completion
	answers := make(chan []mesh.Answer, 1)
	go func() {
		c, err := a.target.Connect(ctx)
		if err != nil {
			answers <- nil
			return
		}
		defer c.Close()
		got, _, _ := c.Everybody(ctx, mesh.Call{Command: wire.CmdStatus, Deadline: completeWait / 2}) // those that answer are offered
		answers <- got
	}()
	select {
	case got := <-answers:
		for _, g := range got {
			var s wire.StatusReply
			if g.Err == nil && json.Unmarshal(g.Data, &s) == nil {
				names = append(names, offer(g.InstanceID, fmt.Sprintf("%s, runtime %s", cli.Count(s.AgentCount, "seat"), s.Runtime)))
			}
		}
	case <-ctx.Done():
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// keyCompletions completes the last key of a list of them.
func keyCompletions(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	var names []cobra.Completion
	for _, k := range keyNames {
		if !strings.Contains(k, " ") {
			names = append(names, before+k)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// personaNames completes the personas of the workspace. The program after -- is the shell's to complete.
func (a *app) personaNames(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if slices.Contains(os.Args, "--") { // cobra puts a -- of its own behind what it lets a completion see
		return nil, cobra.ShellCompDirectiveDefault
	}
	root := a.workspace()
	switch {
	case len(args) > 0, cmd.Flags().Changed("config"):
		return nil, cobra.ShellCompDirectiveNoFileComp
	case root == "", a.target.On != "": // they are elsewhere: their host knows them
		var names offers
		a.within(cmd, func(ctx context.Context, c *cli.Client) {
			var reply wire.ListPersonasReply
			if c.Read(ctx, wire.CmdListPersonas, nil, &reply) == nil {
				for _, p := range reply.Personas {
					names.add(p.Name, orElse(p.Description, p.Role))
				}
			}
		})
		return names.all(), cobra.ShellCompDirectiveNoFileComp
	}
	dir, err := os.Open(filepath.Join(root, ".cotal", "agents"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer dir.Close()
	files, _ := dir.Readdirnames(completePersonas)
	slices.Sort(files)
	var names []cobra.Completion
	for _, f := range files {
		if name, ok := strings.CutSuffix(f, ".md"); ok && name != "" && name[0] != '.' {
			names = append(names, cli.OneLine(name))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// workspace is the root of the workspace whose host is meant, or empty.
func (a *app) workspace() string {
	if ep, _, err := a.target.Endpoint(); err == nil && ep.Root != "" {
		return ep.Root
	}
	return a.target.Workspace()
}

// within runs a read for a completion and gives up on it in time. It says nothing on failure.
func (a *app) within(cmd *cobra.Command, read func(context.Context, *cli.Client)) {
	ctx, cancel := a.completeContext(cmd)
	defer cancel()
	done := make(chan struct{})
	go func() { // a connect that does not heed the deadline is left behind
		defer close(done)
		if c, err := a.target.Connect(ctx); err == nil {
			defer c.Close()
			read(ctx, c)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// offers collects completions that two goroutines may know of: the one that reads, and the one that has given up.
type offers struct {
	mu   sync.Mutex
	list []cobra.Completion
}

func (o *offers) add(value, about string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, offer(value, about))
}

func (o *offers) all() []cobra.Completion {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.list)
}

// channelNames completes a channel.
func (a *app) channelNames(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names offers
	if len(args) == 0 || cmd.Flags().Lookup("subscribe") != nil {
		a.within(cmd, func(ctx context.Context, c *cli.Client) { channelOffers(ctx, c, &names) })
	}
	return names.all(), cobra.ShellCompDirectiveNoFileComp
}

func channelOffers(ctx context.Context, c *cli.Client, names *offers) {
	channels, _ := c.Channels(ctx) // nothing to offer then
	for _, ch := range channels {
		names.add(ch.Name, "channel")
	}
}

// recipients completes whom a message goes to: channels, and with @ seats.
func (a *app) recipients(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names offers
	switch {
	case len(args) > 0:
	case strings.HasPrefix(typed, "@"):
		var rows []wire.AgentRow
		a.within(cmd, func(ctx context.Context, c *cli.Client) {
			if c.Read(ctx, wire.CmdPs, nil, &rows) != nil {
				return
			}
			for _, r := range rows {
				if r.Exit == nil {
					names.add("@"+r.Name, r.Agent+", "+processWords(r))
				}
			}
		})
	default:
		a.within(cmd, func(ctx context.Context, c *cli.Client) { channelOffers(ctx, c, &names) })
	}
	return names.all(), cobra.ShellCompDirectiveNoFileComp
}

// seatFlag completes a flag that takes a seat.
func (a *app) seatFlag(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.seatNames(false, "starting", "running", "stopping", "unknown")(cmd, nil, typed)
}

// goalIDs completes the goals that seats were spawned by.
func (a *app) goalIDs(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names offers
	if len(args) == 0 {
		a.within(cmd, func(ctx context.Context, c *cli.Client) {
			var rows []wire.AgentRow
			if c.Read(ctx, wire.CmdPs, nil, &rows) != nil {
				return
			}
			for _, r := range rows {
				if r.GoalID != "" {
					names.add(r.GoalID, "spawn of "+r.Name+", "+processWords(r))
				}
			}
		})
	}
	return names.all(), cobra.ShellCompDirectiveNoFileComp
}

// commandNames completes the commands of the manager, as argument number at. One before it is the endpoint.
func (a *app) commandNames(at int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var names offers
		switch {
		case len(args) < at:
			names.add(wire.EndpointManager, "the host")
		case len(args) == at:
			a.within(cmd, func(ctx context.Context, c *cli.Client) {
				endpoint := wire.EndpointManager
				if at > 0 {
					endpoint = args[0]
				}
				contract, err := contractOf(ctx, c, endpoint)
				if err != nil {
					return
				}
				for _, name := range contract.Commands() {
					decl, _ := contract.Command(name)
					names.add(name, decl.Capability)
				}
			})
		}
		return names.all(), cobra.ShellCompDirectiveNoFileComp
	}
}
