package control

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Revision of the contract document. Raise it with every change of a command's arguments, reply, modes or
// class, and with every command that comes or goes: a reader that knows a revision knows all of them.
const Revision = 29

// entry is one command of the manager endpoint. From it come the subscriptions, admission, the contract
// document with its schemas, and docs/commands.md.
type entry struct {
	Name  string
	Doc   string     // what it does: sentences, for describe and docs/commands.md
	Class wire.Class // default ephemeral
	// Targeted commands act on one seat and admit the authorization modes of Modes.
	Targeted   bool
	Modes      []wire.Authz
	Capability string // the class of commands it is granted with
	Read       bool   // changes nothing
	// InstanceOnly commands are not served on the rails of the class and of a scatter. They are the host's
	// own affairs: no fence of work holds them up.
	InstanceOnly bool
	// Observes marks a read that is answered while the host waits for its resume or is preserved too.
	Observes bool
	Ends     bool // ends a seat, and has its turn while other effects are held up
	// Launches marks a command that needs a connector: with none available it leaves the rail of the class.
	Launches bool
	// Args and Reply are the Go types of the payloads; nil for none. Shapes say what the types do not.
	Args, Reply           reflect.Type
	ArgsShape, ReplyShape wire.Shape
	Check                 func(json.RawMessage) *wire.Error
	Handler               bus.Handler
}

// none is the type of absent arguments.
type none = struct{}

// row completes an entry with its types and its handler: arguments are decoded and checked (wire.DecodeArgs)
// before fn sees them. What fn returns as a *wire.Error goes out as it is, any other error as
// failed-precondition with its text and outcome unknown.
func row[A, R any](e entry, fn func(context.Context, *bus.Request, A) (R, error)) entry {
	e.Args, e.Reply = reflect.TypeFor[A](), reflect.TypeFor[R]()
	e.Check = bus.ArgsOf[A]()
	e.Handler = bus.HandlerOf(func(ctx context.Context, r *bus.Request) (any, error) {
		var args A
		if werr := r.Args(&args); werr != nil {
			return nil, werr
		}
		return fn(ctx, r, args)
	})
	return e
}

// targeted are the authorization modes of the commands that act on one seat.
var targeted = []wire.Authz{wire.AuthzOwner, wire.AuthzAny}

// goalID is the grammar of a request id in a schema.
const goalID = `^[A-Za-z0-9_-]{1,64}$`

// named bounds the one member of commands that take the name of something.
var named = wire.Shape{Limits: map[string]wire.Limit{"name": {Min: 1}}}

// spawnShape says what the names of a spawn are: there are four of them.
var spawnShape = wire.Shape{Limits: map[string]wire.Limit{
	"name":         {Min: 1, Doc: "the persona; without one, the name of the seat: then identity says the same, and agent is needed"},
	"identity":     {Doc: "the name of the seat; absent: the persona's name, numbered where that is taken"},
	"agent":        {Doc: "the connector; absent: the persona's, else defaultAgent, else the host's"},
	"defaultAgent": {Doc: "the connector, where neither agent nor the persona says one"},
	"config":       {Doc: "the persona instead of name: one of the workspace, or the path of an agent file"},
	"cwd":          {Doc: "a path, which may be relative to the workspace; absent: the persona's"},
	"resume":       {Doc: "the session to fork from"},
	"runtime":      {Doc: "where it runs; absent: the host's choice"},
}}

// table is every command this host serves, by name. The handlers are bound to d; nothing else depends on it.
func table(d Deps) []entry {
	all := slices.Concat(hostRows(d), seatRows(d), attachRows(d),
		personaRows(d), modelRows(d), resolveRows(d), launchRows(d), stopRows(d), purgeRows(d), slotRows(d))
	slices.SortFunc(all, func(a, b entry) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	for i := range all {
		if all[i].Class == "" {
			all[i].Class = wire.ClassEphemeral
		}
	}
	return all
}

func hostRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdStatus, Capability: wire.CapManagerRead, Read: true, Observes: true,
			Doc: "What this host is, how full it is, and which connectors and plugins it has.",
		}, func(ctx context.Context, r *bus.Request, _ none) (wire.StatusReply, error) {
			return d.status(ctx, r.Caller()), nil
		}),
		row(entry{
			Name: wire.CmdInstances, Capability: wire.CapManagerRead, Read: true, Observes: true,
			Doc: "The registered instances of this endpoint: whom a scatter has to expect.",
		}, func(ctx context.Context, _ *bus.Request, _ none) (wire.InstancesReply, error) {
			all, err := d.Registry.Instances(ctx)
			return wire.InstancesReply{Instances: all}, err
		}),
		row(entry{
			Name: wire.CmdShutdown, Capability: wire.CapManagerAdmin, InstanceOnly: true,
			Doc: "Ends this host, with or without its seats, once every seat has its verdict.",
		}, func(ctx context.Context, _ *bus.Request, args wire.ShutdownArgs) (wire.ShutdownReply, error) {
			return d.Host.Shutdown(ctx, args.WithAgents)
		}),
		row(entry{
			Name: wire.CmdPluginRestart, Capability: wire.CapManagerAdmin, InstanceOnly: true, ArgsShape: named,
			Doc: "Replaces the process of one plugin. Seats are not touched.",
		}, func(ctx context.Context, _ *bus.Request, args wire.PluginRestartArgs) (wire.PluginRestartReply, error) {
			return d.Host.RestartPlugin(ctx, args)
		}),
		row(entry{
			Name: wire.CmdPluginReload, Capability: wire.CapManagerAdmin, InstanceOnly: true,
			Doc: "Applies the plugin manifest as it is now, as a whole or not at all.",
		}, func(ctx context.Context, _ *bus.Request, _ none) (wire.PluginReloadReply, error) {
			return d.Host.ReloadPlugins(ctx)
		}),
	}
}

func seatRows(d Deps) []entry {
	rows := newRowCache()
	return []entry{
		{
			Name: wire.CmdPs, Capability: wire.CapManagerRead, Read: true,
			Doc:  "All seats of this host, and those that ended lately.",
			Args: reflect.TypeFor[none](), Reply: reflect.TypeFor[[]wire.AgentRow](), Check: bus.NoArgs,
			Handler: bus.HandlerOf(func(ctx context.Context, r *bus.Request) (any, error) {
				return rows.list(d.seen(ctx, r.Caller(), d.Seats.Rows()))
			}),
		},
		row(entry{
			Name: wire.CmdInspect, Capability: wire.CapManagerRead, Read: true, ArgsShape: named,
			Doc: "One seat. A name that this host has no seat of and a slot holds is refused as failed-precondition, and says who holds it.",
		}, func(ctx context.Context, r *bus.Request, args wire.NameArgs) (wire.AgentRow, error) {
			return d.inspect(ctx, r.Caller(), args.Name)
		}),
		row(entry{
			Name: wire.CmdGoalResult, Capability: wire.CapManagerRead, Read: true,
			ArgsShape: wire.Shape{Limits: map[string]wire.Limit{"goalId": {Pattern: goalID}}},
			Doc:       "How a goal of the caller ended. No result means nothing: it proves neither that the goal runs nor that it is unknown.",
		}, func(ctx context.Context, r *bus.Request, args wire.GoalResultArgs) (wire.GoalResultReply, error) {
			return d.Goals.Result(ctx, r.Caller(), args.GoalID)
		}),
		row(entry{
			Name: wire.CmdSpawn, Capability: wire.CapManagerSpawn, Launches: true, ArgsShape: spawnShape,
			Doc: "Starts a seat. The answer says that the goal is accepted and durable; how it ends is told by its progress events and by goal-result, under the request's id.",
		}, func(ctx context.Context, r *bus.Request, args wire.SpawnArgs) (wire.Acceptance, error) {
			fp, err := r.Fingerprint()
			if err != nil {
				return wire.Acceptance{}, wire.Refuse(wire.CodeBadRequest, "fingerprint: %v", err)
			}
			return d.Seats.Spawn(ctx, r.Caller(), r.Env.ID, fp, args)
		}),
		row(entry{
			Name: wire.CmdDespawn, Capability: wire.CapManagerLifecycle, Targeted: true, Modes: targeted, Ends: true,
			Doc: "Ends a seat. Without waitForExit the answer does not mean that its end is proved or its name free.",
		}, func(ctx context.Context, r *bus.Request, args wire.DespawnArgs) (wire.DespawnReply, error) {
			return d.Seats.Despawn(ctx, r.Caller(), r.Target(), args)
		}),
		row(entry{
			Name: wire.CmdInput, Capability: wire.CapManagerLifecycle, Targeted: true, Modes: targeted,
			ArgsShape: wire.Shape{
				Limits:     map[string]wire.Limit{"text": {Min: 1, Max: wire.MaxText}, "keys": {Min: 1, Max: wire.MaxKeys}},
				ExactlyOne: []string{"text", "keys"},
			},
			Doc: "Types a text into a seat's terminal, or presses keys there. A reply that is lost means unknown: never type again on your own.",
		}, func(ctx context.Context, r *bus.Request, args wire.InputArgs) (wire.InputReply, error) {
			return d.Seats.Input(ctx, r.Target(), args)
		}),
		row(entry{
			Name: wire.CmdTerminal, Capability: wire.CapManagerLifecycle, Read: true, Targeted: true, Modes: targeted,
			Doc: "Where a seat's terminal is on the host's machine, and its screen as it is.",
		}, func(ctx context.Context, r *bus.Request, args wire.TerminalArgs) (wire.TerminalReply, error) {
			return d.Seats.Terminal(ctx, r.Target(), args)
		}),
	}
}

// schemas are the compiled schemas of every command, made once: they depend on nothing but the types.
var schemas = sync.OnceValues(func() (map[string][2]*wire.Schema, error) {
	out := map[string][2]*wire.Schema{}
	for _, e := range table(Deps{}) {
		in, err := wire.SchemaFor(e.Args, e.ArgsShape)
		if err != nil {
			return nil, fmt.Errorf("command %s: arguments: %w", e.Name, err)
		}
		reply, err := wire.SchemaFor(e.Reply, e.ReplyShape)
		if err != nil {
			return nil, fmt.Errorf("command %s: reply: %w", e.Name, err)
		}
		out[e.Name] = [2]*wire.Schema{in, reply}
	}
	return out, nil
})

// Prepare makes what Commands and Contract need and no host is needed for. It takes milliseconds, and may be
// called ahead of time from anywhere.
func Prepare() { _, _ = localContract() } // an error comes again from Contract

// Commands is the table as the bus serves it. An error is a mistake in the table.
func Commands(d Deps) (map[string]bus.Command, error) {
	compiled, err := schemas()
	if err != nil {
		return nil, fmt.Errorf("make commands: %w", err)
	}
	out := map[string]bus.Command{}
	for _, e := range table(d) {
		s := compiled[e.Name]
		out[e.Name] = bus.Command{
			Handler: e.Handler, Class: e.Class, Targeted: e.Targeted, Modes: e.Modes, Capability: e.Capability,
			Summary: e.Doc, InstanceOnly: e.InstanceOnly, Read: e.Read, Ends: e.Ends, CheckArgs: e.Check, Input: s[0], Output: s[1],
			Admit: d.admit(e),
		}
	}
	return out, nil
}
