package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	personaArg = "<persona>"
	// describedMax is how much of a description the list shows, characters.
	describedMax = 100
	// agentsAtOnce bounds how many questions about the agents of personas are open at once.
	agentsAtOnce = 8
)

// personaRow is a persona, and its JSON form.
type personaRow struct {
	wire.PersonaRow
	Agent string `json:"agent,omitempty"` // connector of a spawn of it, the default where it names none; absent: not known
}

func personasCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "personas",
		Aliases: []string{"persona"},
		Short:   "List, show and define personas",
		Long: `List, show and define the personas of the host: the files .cotal/agents/<persona>.md of its workspace. Of a
persona that belongs to somebody else there is the name only. list and show work while the host is down, too.`,
		Example: "  cotal personas list\n  cotal personas show reviewer\n  cotal personas define reviewer --agent opencode --prompt 'You review changes.'",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(personasListCmd(a), personasShowCmd(a), personasDefineCmd(a))
	return cmd
}

func personasListCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the personas of the host",
		Long:    "List the personas of the host, with the connector that a spawn of each is for. A file that cannot be read has a row\nthat says why.",
		Example: "  cotal personas list\n  cotal personas list --json | jq -r .name",
		Args:    cli.NoArgs,
	}
	asJSON := jsonFlag(cmd, "print one JSON object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rows, err := listPersonas(cmd.Context(), a)
		if err != nil {
			return err
		}
		if *asJSON {
			for _, p := range rows {
				if err := cli.PrintJSON(a.out, p); err != nil {
					return err
				}
			}
			return nil
		}
		printPersonas(a.out, rows)
		return nil
	}
	return cmd
}

func printPersonas(w io.Writer, rows []personaRow) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "(no personas)")
		return
	}
	table := [][]string{{"NAME", "ROLE", "AGENT", "MODEL", "OWNER", "DESCRIPTION"}}
	for _, p := range rows {
		about := clip(p.Description, describedMax)
		if p.Error != "" {
			about = "cannot be read: " + p.Error
		}
		table = append(table, []string{p.Name, known(p.Role), known(p.Agent), known(p.Model), known(p.Owner), about})
	}
	columns(w, table, nil)
}

func personasShowCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show " + personaArg,
		Short:   "Show one persona",
		Long:    "Show one persona of the host, with its instructions and the connector that a spawn of it is for. Its launch options\nare not told over the mesh: they stand in its file.",
		Example: "  cotal personas show reviewer\n  cotal personas show reviewer --json | jq -r .persona",
		Args:    cli.Arg(personaArg, false, personaArg),
	}
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.ValidArgsFunction = a.personaNames
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := showPersona(cmd.Context(), a, args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return cli.PrintJSON(a.out, p)
		}
		line := func(name, text string) {
			if text != "" {
				fmt.Fprintf(a.out, "%-12s %s\n", name, cli.OneLine(text))
			}
		}
		line("name", p.Name)
		line("role", p.Role)
		line("agent", p.Agent)
		line("model", p.Model)
		line("owner", p.Owner)
		line("description", p.Description)
		line("error", p.Error)
		if p.Persona != "" {
			fmt.Fprintln(a.out)
			for l := range strings.Lines(strings.TrimRight(p.Persona, "\n") + "\n") {
				fmt.Fprintln(a.out, cli.OneLine(l))
			}
		}
		return nil
	}
	return cmd
}

// askPersonas asks the host for personas. While no host can be reached, the files of the workspace are read.
func (a *app) askPersonas(ctx context.Context, ask func(*cli.Client) error, read func(root string) error) error {
	c, err := a.target.Connect(ctx)
	if err == nil {
		defer c.Close()
		err = ask(c)
	}
	root := a.target.Workspace()
	if cli.CodeOf(err) != cli.Unreachable || root == "" || a.target.Server != "" || a.target.On != "" {
		return err
	}
	fmt.Fprintf(a.errw, "note: no host answers; read from %s\n", persona.Dir(root))
	return read(root)
}

// personaOf is a persona as a file of this machine says it: who can read the file may see it all.
func personaOf(ref string, p persona.Persona) personaRow {
	return personaRow{PersonaRow: wire.PersonaRow{Name: ref, Role: p.Role, Model: p.Model, Description: p.Description, Owner: p.Owner}, Agent: p.Agent}
}

func listPersonas(ctx context.Context, a *app) (rows []personaRow, err error) {
	err = a.askPersonas(ctx, func(c *cli.Client) error {
		var reply wire.ListPersonasReply
		host, err := c.ReadAny(ctx, wire.CmdListPersonas, nil, &reply)
		if err != nil {
			return err
		}
		a.noteHost(ctx, c, host)
		rows = make([]personaRow, len(reply.Personas))
		for i, p := range reply.Personas {
			rows[i].PersonaRow = p
		}
		agentsOf(ctx, c, host, rows)
		return nil
	}, func(root string) error {
		list, err := persona.List(root)
		for _, e := range list {
			row := personaOf(e.Ref, e.Persona)
			if e.Err != nil {
				row = personaRow{PersonaRow: wire.PersonaRow{Name: e.Ref, Error: e.Err.Error()}}
			}
			rows = append(rows, row)
		}
		return err
	})
	return rows, err
}

// agentsOf asks the host that has named them for the connectors of personas. What is not told stays unknown.
func agentsOf(ctx context.Context, c *cli.Client, host string, rows []personaRow) {
	slots := make(chan struct{}, agentsAtOnce)
	var wg sync.WaitGroup
	for i := range rows {
		if rows[i].Error != "" {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			rows[i].Agent, _ = agentOf(ctx, c, host, rows[i].Name)
		})
	}
	wg.Wait()
}

// agentOf asks a host which connector a spawn of a persona is for.
func agentOf(ctx context.Context, c *cli.Client, host, name string) (string, error) {
	var reply wire.ResolveAgentReply
	err := c.Ask(ctx, mesh.Call{
		Command: wire.CmdResolveAgent, Instance: host, Deadline: 5 * time.Second,
		Args: wire.ResolveAgentArgs{Name: name, DefaultAgent: os.Getenv(defaultAgentEnv)},
	}, &reply)
	return reply.Agent, err
}

// showPersona reads one persona. The reply may hold the row itself, or a list with one row, as other managers
// give it.
func showPersona(ctx context.Context, a *app, name string) (row personaRow, err error) {
	err = a.askPersonas(ctx, func(c *cli.Client) error {
		var reply struct {
			wire.PersonaRow
			wire.ListPersonasReply
		}
		host, err := c.ReadAny(ctx, wire.CmdShowPersona, wire.NameArgs{Name: name}, &reply)
		if host != "" { // a refusal is of one host, too
			a.noteHost(ctx, c, host)
		}
		if err != nil {
			return err
		}
		if row.PersonaRow = reply.PersonaRow; len(reply.Personas) == 1 {
			row.PersonaRow = reply.Personas[0]
		}
		one := []personaRow{row}
		agentsOf(ctx, c, host, one)
		row = one[0]
		return nil
	}, func(root string) error {
		p, err := persona.Load(root, name)
		if errors.Is(err, persona.ErrNotFound) {
			return cli.Fail(cli.NotFound, "%w", err)
		}
		row = personaOf(name, p)
		row.Persona = p.Body
		return err
	})
	return row, err
}

func personasDefineCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "define " + personaArg,
		Short: "Write a persona, or change it",
		Long: `Write a persona of the host, or change one that is yours: its instructions are --prompt, or the text of the
file that --from names (- is standard input). What is not given is left as it is in the file. A persona without --agent
is for the default agent of the host; where that is not there, or no connector is called so, a note says it. Capabilities
cannot be given to a persona here: nobody grants themselves any. With --server, in a space of several hosts, --on says
whose persona it is.`,
		Example: "  cotal personas define reviewer --agent opencode --role review --prompt 'You review changes. You never push.'\n  cotal personas define tester --agent opencode --from tester.txt --model anthropic/claude-sonnet-4-5",
		Args:    cli.Arg(personaArg, false, personaArg),
	}
	var def wire.DefinePersonaArgs
	var prompt, from, model string
	fl := cmd.Flags()
	fl.StringVar(&prompt, "prompt", "", "the instructions")
	fl.StringVar(&from, "from", "", "file with the instructions, 256 KiB at most; - is standard input")
	fl.StringVar(&def.Agent, "agent", "", "connector that knows the agent program")
	fl.StringVar(&def.Role, "role", "", "role shown to others")
	fl.StringVar(&model, "model", "", "model, in the words of the agent program")
	fl.StringSliceVar(&def.Subscribe, "subscribe", nil, "channels it reads, separated by commas")
	fl.StringSliceVar(&def.AllowSubscribe, "allow-subscribe", nil, "channels it may read")
	fl.StringSliceVar(&def.AllowPublish, "allow-publish", nil, "channels it may write to")
	asJSON := jsonFlag(cmd, "print one JSON object")
	cmd.MarkFlagsMutuallyExclusive("prompt", "from")
	cmd.MarkFlagsOneRequired("prompt", "from")
	cmd.ValidArgsFunction = a.personaNames
	_ = cmd.RegisterFlagCompletionFunc("agent", a.agentNames) // these fail for a flag that does not exist
	for _, flag := range []string{"subscribe", "allow-subscribe", "allow-publish"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, a.channelNames)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		def.Name, def.Persona = args[0], prompt
		if fl.Changed("model") {
			def.Model = &model
		}
		if from != "" {
			text, err := readText(cmd.Context(), a.in, "--from", from)
			if err != nil {
				return err
			}
			def.Persona = text
		}
		if err := def.Check(); err != nil {
			return cli.Fail(cli.Usage, "define persona: %w", err)
		}
		c, err := a.target.Connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		host, err := c.Only(cmd.Context())
		if err != nil {
			return err
		}
		var reply wire.DefinePersonaReply
		err = c.Manager(cmd.Context(), mesh.Call{Command: wire.CmdDefinePersona, Instance: host, Args: def, Deadline: 10 * time.Second}, &reply)
		if err != nil {
			return cli.MayHaveRun(err, "cotal personas show "+def.Name)
		}
		a.out.Done("%s was written", reply.Path)
		note, program := "", ""
		if agent, err := agentOf(cmd.Context(), c, host, def.Name); err == nil {
			if agent == commandAgent {
				program = " -- <program> <arg>..." // its own instructions start nothing
			}
			var st wire.StatusReply
			if c.Ask(cmd.Context(), mesh.Call{Command: wire.CmdStatus, Instance: host, Deadline: 5 * time.Second}, &st) == nil {
				note = noAgent(reply.Name, agent, st.Connectors)
			}
		}
		if note != "" {
			fmt.Fprintf(a.errw, "note: %s\n", cli.OneLine(note))
		}
		switch {
		case *asJSON:
			return cli.PrintJSON(a.out, reply)
		case note != "":
			fmt.Fprintf(a.out, "wrote %s (%s)\n", cli.OneLine(reply.Name), cli.OneLine(reply.Path))
			return nil
		}
		fmt.Fprintf(a.out, "wrote %s (%s); start it: cotal spawn %s%s\n", cli.OneLine(reply.Name), cli.OneLine(reply.Path), cli.OneLine(reply.Name), program)
		return nil
	}
	return cmd
}

// noAgent says that a spawn of a persona would be refused, since no connector is called as it wants; empty otherwise.
func noAgent(name, agent string, there []wire.ConnectorStatus) string {
	var names []string
	for _, c := range there {
		if c.Agent == agent {
			return ""
		}
		names = append(names, c.Agent)
	}
	text := fmt.Sprintf("a spawn of %s would be for the agent %q, and this host has no such connector", name, agent)
	if len(names) == 0 {
		return text
	}
	return text + "; say which it is for: cotal personas define " + name + " --agent " + strings.Join(names, " or ") + " ..."
}
