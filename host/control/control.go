// Package control is the manager endpoint of a host: thin handlers that decode arguments, call the
// host, and encode replies. Admission (subjects, envelopes, target rules, limits) is done in host/bus
// before a handler runs.
package control

import (
	"context"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Seats is what the handlers need of the host's seats; host/seat implements it.
type Seats interface {
	Rows() []wire.AgentRow
	Inspect(ctx context.Context, name string) (wire.AgentRow, error)
	Spawn(ctx context.Context, c wire.Caller, id, fingerprint string, args wire.SpawnArgs) (wire.Acceptance, error)
	Despawn(ctx context.Context, t wire.Target, args wire.DespawnArgs) (wire.DespawnReply, error)
	Input(ctx context.Context, t wire.Target, args wire.InputArgs) (wire.InputReply, error)
	Terminal(ctx context.Context, t wire.Target, args wire.TerminalArgs) (wire.TerminalReply, error)
}

// Goals answers goal-result; host/goal implements it.
type Goals interface {
	Result(ctx context.Context, c wire.Caller, id string) (wire.GoalResultReply, error)
}

// Host answers for the host itself.
type Host interface {
	Status() wire.StatusReply
	// Shutdown fences new work, ends or spares the seats, and returns the verdicts before the host ends.
	Shutdown(ctx context.Context, withAgents bool) (wire.ShutdownReply, error)
	// RestartPlugin replaces the process of one plugin; ReloadPlugins applies the manifest as it is now.
	RestartPlugin(ctx context.Context, args wire.PluginRestartArgs) (wire.PluginRestartReply, error)
	ReloadPlugins(ctx context.Context) (wire.PluginReloadReply, error)
}

// targeted are the authorization modes of the commands that act on one seat.
var targeted = []wire.Authz{wire.AuthzOwner, wire.AuthzAny}

// Commands returns the command table of the manager endpoint.
func Commands(h Host, s Seats, g Goals) map[string]bus.Command {
	return map[string]bus.Command{
		wire.CmdStatus: {Read: true, CheckArgs: bus.NoArgs, Handler: bus.HandlerOf(
			func(context.Context, *bus.Request) (any, error) { return h.Status(), nil })},
		wire.CmdPs: {Read: true, CheckArgs: bus.NoArgs, Handler: bus.HandlerOf(
			func(context.Context, *bus.Request) (any, error) { return s.Rows(), nil })},
		wire.CmdInspect: {Read: true, CheckArgs: bus.ArgsOf[wire.NameArgs](), Handler: handle(
			func(ctx context.Context, _ *bus.Request, args wire.NameArgs) (any, error) {
				return s.Inspect(ctx, args.Name)
			})},
		wire.CmdGoalResult: {Read: true, CheckArgs: bus.ArgsOf[wire.GoalResultArgs](), Handler: handle(
			func(ctx context.Context, r *bus.Request, args wire.GoalResultArgs) (any, error) {
				return g.Result(ctx, r.Caller(), args.GoalID)
			})},
		wire.CmdSpawn: {CheckArgs: bus.ArgsOf[wire.SpawnArgs](), Handler: handle(
			func(ctx context.Context, r *bus.Request, args wire.SpawnArgs) (any, error) {
				fp, err := r.Fingerprint()
				if err != nil {
					return nil, wire.Refuse(wire.CodeBadRequest, "fingerprint: %v", err)
				}
				return s.Spawn(ctx, r.Caller(), r.Env.ID, fp, args)
			})},
		wire.CmdDespawn: {Targeted: true, Modes: targeted, CheckArgs: bus.ArgsOf[wire.DespawnArgs](), Handler: handle(
			func(ctx context.Context, r *bus.Request, args wire.DespawnArgs) (any, error) {
				return s.Despawn(ctx, r.Target(), args)
			})},
		wire.CmdInput: {Targeted: true, Modes: targeted, CheckArgs: bus.ArgsOf[wire.InputArgs](), Handler: handle(
			func(ctx context.Context, r *bus.Request, args wire.InputArgs) (any, error) {
				return s.Input(ctx, r.Target(), args)
			})},
		wire.CmdTerminal: {Read: true, Targeted: true, Modes: targeted, CheckArgs: bus.ArgsOf[wire.TerminalArgs](), Handler: handle(
			func(ctx context.Context, r *bus.Request, args wire.TerminalArgs) (any, error) {
				return s.Terminal(ctx, r.Target(), args)
			})},
		wire.CmdPluginRestart: {InstanceOnly: true, CheckArgs: bus.ArgsOf[wire.PluginRestartArgs](), Handler: handle(
			func(ctx context.Context, _ *bus.Request, args wire.PluginRestartArgs) (any, error) {
				return h.RestartPlugin(ctx, args)
			})},
		wire.CmdPluginReload: {InstanceOnly: true, CheckArgs: bus.NoArgs, Handler: bus.HandlerOf(
			func(ctx context.Context, _ *bus.Request) (any, error) { return h.ReloadPlugins(ctx) })},
		wire.CmdShutdown: {InstanceOnly: true, CheckArgs: bus.ArgsOf[wire.ShutdownArgs](), Handler: handle(
			func(ctx context.Context, _ *bus.Request, args wire.ShutdownArgs) (any, error) {
				return h.Shutdown(ctx, args.WithAgents)
			})},
	}
}

// handle decodes the arguments a handler wants. CheckArgs has already refused what does not decode.
func handle[T any](fn func(context.Context, *bus.Request, T) (any, error)) bus.Handler {
	return bus.HandlerOf(func(ctx context.Context, r *bus.Request) (any, error) {
		var args T
		if werr := r.Args(&args); werr != nil {
			return nil, werr
		}
		return fn(ctx, r, args)
	})
}

// DrainTimeout bounds how long a stopping host finishes what it already answers.
const DrainTimeout = 5 * time.Second
