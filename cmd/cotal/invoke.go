package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// invokeWait bounds the wait for the answer to a command that nothing else is known of.
const invokeWait = 30 * time.Second

// invoked is one answer, and its JSON form: data or an error.
type invoked struct {
	InstanceID string          `json:"instanceId"`
	Epoch      uint64          `json:"epoch"`
	Data       json.RawMessage `json:"data,omitempty"`
	Error      *wire.Error     `json:"error,omitempty"`
}

func invokeCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "invoke <endpoint> <command>",
		Short: "Call any command of an endpoint",
		Long: `Call any command that an endpoint serves, such as those of the manager, which is the host. What is called is
looked up in the contract that the endpoint publishes (cotal describe), and the arguments are checked against it
before anything is sent. A command that acts on a seat needs --target.

Exit code 2: it does not fit the contract, and nothing was sent. 75: no answer came, and it may have been executed:
look before you repeat it. With --all every instance is asked, and what is missing makes the exit code 5.`,
		Example: "  cotal invoke manager resolve-cwd --args '{\"cwd\":\"/tmp\"}'\n  cotal invoke manager spawn --args '{\"name\":\"reviewer\"}'\n  cotal invoke manager input --target reviewer --args '{\"text\":\"/compact\"}'\n  cotal invoke manager status --all --json | jq .data.agentCount",
	}
	var args, target, id, mode string
	fl := cmd.Flags()
	fl.StringVar(&args, "args", "", "arguments, a JSON object; - reads it from standard input, 256 KiB at most")
	fl.StringVar(&target, "target", "", "seat that a targeted command acts on")
	fl.StringVar(&mode, "mode", "", "authorization mode of a targeted command (default: any, else the first it admits)")
	fl.StringVar(&id, "id", "", "request id, to repeat a request whose answer was lost (default: a fresh one)")
	all := fl.Bool("all", false, "ask every instance")
	asJSON := jsonFlag(cmd, "print one JSON object for each answer: instanceId, epoch, and data or error")
	cmd.MarkFlagsMutuallyExclusive("all", "target")
	cmd.MarkFlagsMutuallyExclusive("all", "id")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 {
			return cli.Fail(cli.Usage, "an endpoint and a command are needed, got %q; usage: %s manager <command> --args '{...}'", strings.Join(args, " "), cmd.CommandPath())
		}
		return nil
	}
	cmd.ValidArgsFunction = a.commandNames(1)
	_ = cmd.RegisterFlagCompletionFunc("target", a.seatFlag) // fails for a flag that does not exist
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		ctx := cmd.Context()
		if *all && a.target.On != "" {
			return cli.Fail(cli.Usage, "--all asks every instance, --on one of them; leave one out")
		}
		if id == "" {
			id = goalID(wire.NewID) // of an action it is the id of its goal
		}
		call := mesh.Call{Endpoint: words[0], Command: words[1], ID: id, Deadline: a.patience(invokeWait)}
		raw, err := a.invokeArgs(ctx, args)
		if err != nil {
			return err
		}
		if raw != nil {
			call.Args = raw
		}
		c, err := a.target.Connect(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := fit(ctx, c, &call, raw, target, mode); err != nil {
			return err
		}
		if *all {
			return a.invokeAll(ctx, c, call, *asJSON)
		}
		if call.Endpoint == wire.EndpointManager && call.Instance == "" {
			call.Instance = c.Instance
		}
		var data json.RawMessage
		who, err := c.Call(ctx, call, &data)
		if err != nil {
			return a.invokeError(ctx, c, call, err)
		}
		return a.printInvoked(invoked{InstanceID: who.InstanceID, Epoch: who.Epoch, Data: data}, *asJSON)
	}
	return cmd
}

// invokeArgs reads --args. None is nil.
func (a *app) invokeArgs(ctx context.Context, text string) (json.RawMessage, error) {
	if text == "-" {
		var err error
		if text, err = readText(ctx, a.in, "--args", "-"); err != nil {
			return nil, err
		}
	}
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return nil, nil
	case !json.Valid([]byte(text)):
		var v any
		return nil, cli.Fail(cli.Usage, "--args is no JSON: %w", json.Unmarshal([]byte(text), &v))
	case text[0] != '{':
		return nil, cli.Fail(cli.Usage, "--args is JSON, but no object: write '{\"name\": ...}'")
	}
	return json.RawMessage(text), nil
}

// fit completes a call from the contract of its endpoint, and refuses one that does not fit it. Nothing was sent
// then, but questions.
func fit(ctx context.Context, c *cli.Client, call *mesh.Call, raw json.RawMessage, target, mode string) error {
	asking, cancel := context.WithTimeout(ctx, call.Deadline)
	defer cancel()
	contract, err := contractOf(asking, c, call.Endpoint)
	if err != nil {
		return err
	}
	decl, ok := contract.Command(call.Command)
	switch {
	case !ok:
		return cli.Fail(cli.Usage, "%s serves no command %q; it serves %s", call.Endpoint, call.Command, strings.Join(contract.Commands(), ", "))
	case decl.Targeted && target == "":
		return cli.Fail(cli.Usage, "%s acts on a seat: name it with --target", call.Command)
	case !decl.Targeted && target+mode != "":
		return cli.Fail(cli.Usage, "%s acts on no seat: leave out --target and --mode", call.Command)
	}
	in, _, err := c.Schemas(asking, contract, call.Command)
	if err != nil {
		return schemaError(ctx, err)
	}
	if err := in.Check(raw); err != nil {
		return cli.Fail(cli.Usage, "--args does not fit %s: %w; see cotal describe %s. Nothing was sent", call.Command, err, call.Command)
	}
	if !decl.Targeted {
		return nil
	}
	switch call.Authz = wire.Authz(mode); {
	case mode == "" && slices.Contains(decl.Modes, wire.AuthzAny):
		call.Authz = wire.AuthzAny
	case mode == "":
		call.Authz = decl.Modes[0]
	case !slices.Contains(decl.Modes, call.Authz):
		return cli.Fail(cli.Usage, "%s admits %s, not mode %s", call.Command, modesOf(decl), mode)
	}
	if call.Authz == wire.AuthzSelf && target != c.Caller().UID {
		return cli.Fail(cli.Usage, "%s", selfText(call.Command, target))
	}
	row, err := c.Locate(ctx, target) // it has a bound of its own, and says who has not answered
	if err != nil {
		return err
	}
	if row.Exit != nil {
		return cli.Fail(cli.NotFound, "%s has ended %s", row.Name, cli.HowEnded(row.Exit))
	}
	call.Instance = row.InstanceID
	call.Target, err = cli.TargetOf(row)
	return err
}

// selfText is the error of a command in mode self that names somebody else.
func selfText(command, target string) string {
	text := fmt.Sprintf("%s in mode self acts on its caller alone, and that is you and no seat", command)
	if command == wire.CmdStop {
		text += fmt.Sprintf("; to end %s: cotal stop %s, or cotal invoke manager %s --target %s", target, target, wire.CmdDespawn, target)
	}
	return text + ". Nothing was sent"
}

// invokeError says what is known of a call that was not answered, or was refused.
func (a *app) invokeError(ctx context.Context, c *cli.Client, call mesh.Call, err error) error {
	again := fmt.Sprintf("cotal invoke %s %s with the same --id is safe only where the command says so", call.Endpoint, call.Command)
	var refused *wire.Error
	switch {
	case errors.As(err, &refused):
		return cli.MayHaveRun(refused, "cotal ps, cotal goal")
	case ctx.Err() != nil && mesh.OutcomeOf(err) == wire.OutcomeUnknown:
		return cli.Fail(cli.Interrupted, "interrupted; it may have been executed. Look before you repeat it")
	case ctx.Err() != nil:
		return cli.Fail(cli.Interrupted, "interrupted; nothing was executed")
	case errors.Is(err, mesh.ErrNoResponder) && call.Instance == "":
		return forOne(call)
	case mesh.OutcomeOf(err) == wire.OutcomeUnknown:
		return cli.Fail(cli.Uncertain, "it may have been executed: %w; look before you repeat it (%s)", err, again)
	}
	return c.Unanswered(err)
}

// forOne is the error of a command that an endpoint describes, and that nobody serves to whoever asks all or any.
func forOne(call mesh.Call) error {
	return cli.Fail(cli.Usage, "%s is for one instance, which is to be named: choose it with --on (without --all); nothing was executed", call.Command)
}

// invokeAll calls a command on every instance.
func (a *app) invokeAll(ctx context.Context, c *cli.Client, call mesh.Call, asJSON bool) error {
	answers, missing, err := c.Everybody(ctx, call)
	switch {
	case errors.Is(err, context.Canceled):
		return cli.Fail(cli.Interrupted, "interrupted; any of the instances may have executed it. Look before you repeat it")
	case errors.Is(err, mesh.ErrNoResponder): // it was described just now: somebody is there
		return forOne(call)
	case err != nil:
		return err
	}
	failed := len(missing)
	for _, ans := range answers {
		if ans.Err != nil {
			failed++
		}
		if ans.Err != nil && !asJSON {
			fmt.Fprintf(a.errw, "cotal: instance %s refuses: %s\n", ans.InstanceID, cli.OneLine(ans.Err.Message))
			continue
		}
		if !asJSON {
			fmt.Fprintf(a.out, "instance %s, epoch %d\n", ans.InstanceID, ans.Epoch)
		}
		if err := a.printInvoked(invoked{InstanceID: ans.InstanceID, Epoch: ans.Epoch, Data: ans.Data, Error: ans.Err}, asJSON); err != nil {
			return err
		}
	}
	for _, m := range missing {
		fmt.Fprintf(a.errw, "cotal: %s\n", m)
	}
	if failed > 0 {
		return cli.Fail(cli.Partial, "%d of %s did not do it", failed, cli.Count(len(answers)+len(missing), "instance"))
	}
	return nil
}

func (a *app) printInvoked(v invoked, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(a.out, v)
	}
	if len(v.Data) == 0 {
		v.Data = json.RawMessage("null")
	}
	var b bytes.Buffer
	if err := json.Indent(&b, v.Data, "", "  "); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	for line := range strings.Lines(b.String()) { // JSON may hold what a terminal acts on
		if _, err := fmt.Fprintln(a.out, cli.OneLine(line)); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
	}
	return nil
}
