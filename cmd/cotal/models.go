package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// modelsWait bounds the wait for catalogs: a connector may have to ask the agent program, which asks its provider.
const modelsWait = 30 * time.Second

// modelRow is what of a model is shown. Connectors may say more, which --json has.
type modelRow struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Provider string `json:"provider"`
	Variants []struct {
		Name string `json:"name"`
	} `json:"variants"`
}

func modelsCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "models",
		Short: "List the models that the agent programs offer",
		Long: `List the models that the agent programs of the host offer, as their connectors say it: what --model and
--variant of spawn take. One that cannot make its list now has a row that says why; with --agent that is the
error of the command. That a connector has no list at all is no error.`,
		Example: "  cotal models --agent opencode\n  cotal models --json | jq -r '.agent as $a | .models[] | $a + \" \" + .id'",
		Args:    cli.NoArgs,
	}
	var args wire.ModelsArgs
	cmd.Flags().StringVar(&args.Agent, "agent", "", "of this connector alone")
	cmd.Flags().BoolVar(&args.Refresh, "refresh", false, "ask the agent program again instead of showing what is known")
	asJSON := jsonFlag(cmd, "print one JSON object for each connector")
	_ = cmd.RegisterFlagCompletionFunc("agent", a.agentNames) // fails for a flag that does not exist
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if args.Agent == "" && cmd.Flags().Changed("agent") {
			return cli.Fail(cli.Usage, "--agent is empty; leave it out or name a connector")
		}
		c, err := a.target.Connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		var reply wire.ModelsReply
		host, err := c.AskAny(cmd.Context(), mesh.Call{Command: wire.CmdModels, Args: args, Deadline: modelsWait}, &reply)
		if err != nil {
			return err
		}
		a.noteHost(cmd.Context(), c, host)
		for i, cat := range reply.Catalogs {
			if *asJSON {
				if cat.Models == nil {
					cat.Models = []json.RawMessage{}
				}
				if err := cli.PrintJSON(a.out, cat); err != nil {
					return err
				}
				continue
			}
			if i > 0 {
				fmt.Fprintln(a.out)
			}
			a.printCatalog(cat)
		}
		return nil
	}
	return cmd
}

func (a *app) printCatalog(cat wire.ModelCatalog) {
	head := cli.OneLine(cat.Agent)
	if a.colour() {
		head = "\x1b[1m" + head + "\x1b[0m"
	}
	switch {
	case cat.Error != "":
		text := cli.OneLine(cat.Error)
		if a.colour() {
			text = "\x1b[31m" + text + "\x1b[0m"
		}
		fmt.Fprintf(a.out, "%s  %s\n", head, text)
		return
	case !cat.Supported:
		fmt.Fprintf(a.out, "%s  has no list of models\n", head)
		return
	case len(cat.Models) == 0:
		fmt.Fprintf(a.out, "%s  offers no model\n", head)
		return
	}
	fmt.Fprintln(a.out, head)
	table := [][]string{{"  MODEL", "NAME", "VARIANTS"}}
	for _, raw := range cat.Models {
		var m modelRow
		if json.Unmarshal(raw, &m) != nil || m.ID == "" {
			continue // what it is called is all that a person could use of it
		}
		var variants []string
		for _, v := range m.Variants {
			variants = append(variants, v.Name)
		}
		table = append(table, []string{"  " + m.ID, m.Name, strings.Join(variants, ", ")})
	}
	columns(a.out, table, nil)
}
