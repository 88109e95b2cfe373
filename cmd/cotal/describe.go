package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// described is what an endpoint serves, and the JSON form of describe.
type described struct {
	Endpoint   string             `json:"endpoint"`
	Owner      string             `json:"owner"`
	InstanceID string             `json:"instanceId"`
	Epoch      uint64             `json:"epoch"`
	Protocol   int                `json:"protocol"`
	Public     bool               `json:"public"`
	Clusters   []describedCluster `json:"clusters"`
	Commands   []describedCommand `json:"commands"`
}

type describedCluster struct {
	URN      string `json:"urn"`
	Revision int64  `json:"revision"`
}

// describedCommand is one command with its schemas.
type describedCommand struct {
	wire.CommandDecl
	Input  json.RawMessage `json:"input"`
	Output json.RawMessage `json:"output"`
}

func describeCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe [<command>]",
		Short: "Show what the host can be asked, and how",
		Long: `Show the commands that the host serves, from the contract document it publishes; with a command, what it takes
and what it answers. Every document is checked against the digest that names it. cotal invoke calls a command.`,
		Example: "  cotal describe\n  cotal describe spawn\n  cotal describe --json | jq '.commands[] | select(.name == \"input\") | .input'",
	}
	endpoint := cmd.Flags().String("endpoint", wire.EndpointManager, "endpoint to describe")
	asJSON := jsonFlag(cmd, "print one JSON object, with the schemas of every command, or of the one that is named")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return cli.Fail(cli.Usage, "describe takes one command, got %d: %s", len(args), strings.Join(args, " "))
		}
		return nil
	}
	cmd.ValidArgsFunction = a.commandNames(0)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), a.patience(describeWait))
		defer cancel()
		c, err := a.target.Connect(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		contract, err := contractOf(ctx, c, *endpoint)
		if err != nil {
			return err
		}
		names := contract.Commands()
		if len(args) == 1 {
			if _, ok := contract.Command(args[0]); !ok {
				return cli.Fail(cli.NotFound, "%s serves no command %q; it serves %s", *endpoint, args[0], strings.Join(names, ", "))
			}
			names = args
		}
		d := contractShown(contract)
		for _, name := range names {
			decl, _ := contract.Command(name)
			one := describedCommand{CommandDecl: decl}
			if *asJSON || len(args) == 1 { // a list alone needs no schemas
				in, out, err := c.Schemas(ctx, contract, name)
				if err != nil {
					return schemaError(cmd.Context(), err)
				}
				one.Input, one.Output = in.Document(), out.Document()
			}
			d.Commands = append(d.Commands, one)
		}
		switch {
		case *asJSON:
			return cli.PrintJSON(a.out, d)
		case len(args) == 1:
			return printCommand(a.out, *endpoint, d.Commands[0])
		}
		printCommands(a.out, d)
		return nil
	}
	return cmd
}

// describeWait bounds a describe and the reads of its documents.
const describeWait = 15 * time.Second

func contractShown(c *mesh.Contract) described {
	d := described{
		Endpoint: c.Endpoint, Owner: c.Owner, InstanceID: c.Responder.InstanceID, Epoch: c.Responder.Epoch,
		Protocol: c.Protocol, Public: c.Public,
	}
	for _, cluster := range c.Clusters {
		d.Clusters = append(d.Clusters, describedCluster{cluster.URN, cluster.Revision})
	}
	return d
}

// contractOf asks what an endpoint serves. Of the manager it is the host that is meant.
func contractOf(ctx context.Context, c *cli.Client, endpoint string) (*mesh.Contract, error) {
	if !wire.ValidEndpoint(endpoint) {
		return nil, cli.Fail(cli.Usage, "%q is no name of an endpoint", endpoint)
	}
	instance := ""
	if endpoint == wire.EndpointManager {
		instance = c.Instance
	}
	contract, err := c.Describe(ctx, endpoint, instance)
	switch {
	case errors.Is(err, mesh.ErrNoResponder) && endpoint != wire.EndpointManager:
		return nil, cli.Fail(cli.NotFound, "nobody in space %s serves an endpoint %s; the host is the endpoint %s", c.Endpoint.Space, endpoint, wire.EndpointManager)
	case err != nil:
		return nil, c.Unanswered(err)
	}
	return contract, nil
}

// schemaError is the error of a schema that could not be had.
func schemaError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, mesh.ErrNoReply) || errors.Is(err, context.DeadlineExceeded) {
		return cli.Fail(cli.Unreachable, "the contract cannot be read: %w; nothing was sent", err)
	}
	return fmt.Errorf("read the contract: %w", err)
}

func printCommands(w io.Writer, d described) {
	for _, c := range d.Clusters {
		fmt.Fprintf(w, "%s, contract %s revision %d, instance %s epoch %d\n", cli.OneLine(d.Endpoint), cli.OneLine(c.URN), c.Revision, d.InstanceID, d.Epoch)
	}
	table := [][]string{{"COMMAND", "GRANT", "ACTS ON"}}
	for _, c := range d.Commands {
		table = append(table, []string{c.Name, c.Capability, modesOf(c.CommandDecl)})
	}
	columns(w, table, nil)
}

func modesOf(d wire.CommandDecl) string {
	if !d.Targeted {
		return "-"
	}
	var modes []string
	for _, m := range d.Modes {
		modes = append(modes, string(m))
	}
	return "a seat (" + strings.Join(modes, ", ") + ")"
}

func printCommand(w io.Writer, endpoint string, c describedCommand) error {
	fmt.Fprintf(w, "command  %s of %s\n", c.Name, cli.OneLine(endpoint))
	if c.Summary != "" {
		fmt.Fprintf(w, "does     %s\n", cli.OneLine(c.Summary))
	}
	fmt.Fprintf(w, "grant    %s\n", c.Capability)
	if c.Targeted {
		fmt.Fprintf(w, "acts on  %s\n", modesOf(c.CommandDecl))
	}
	for _, p := range []struct {
		name   string
		schema json.RawMessage
	}{{"arguments", c.Input}, {"reply", c.Output}} {
		fmt.Fprintf(w, "\n%s\n", p.name)
		if err := printSchema(w, p.schema); err != nil {
			return fmt.Errorf("read the schema of the %s: %w", p.name, err)
		}
	}
	return nil
}
