// Package control is the manager endpoint of a host: one table of commands, thin handlers that call the
// host, the fence of lifecycle work, and what is generated from the table (contract, docs page). Admission
// of subjects, envelopes, target rules, contracts and limits is done in host/bus before a handler runs.
package control

import (
	"context"
	"time"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Seats is what the handlers need of the host's seats; host/seat implements it.
type Seats interface {
	Rows() []wire.AgentRow
	Inspect(ctx context.Context, name string) (wire.AgentRow, error)
	Spawn(ctx context.Context, c wire.Caller, id, fingerprint string, args wire.SpawnArgs) (wire.Acceptance, error)
	Despawn(ctx context.Context, by wire.Caller, t wire.Target, args wire.DespawnArgs) (wire.DespawnReply, error)
	Input(ctx context.Context, t wire.Target, args wire.InputArgs) (wire.InputReply, error)
	// Nudge is Input that yields to whoever is at the terminal.
	Nudge(ctx context.Context, t wire.Target, args wire.InputArgs) (wire.InputReply, error)
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

// Deps is what the handlers are bound to. Fence and Policy may be nil: nothing is fenced, everything that
// was admitted is allowed.
type Deps struct {
	Host     Host
	Seats    Seats
	Goals    Goals
	Launch   Launcher
	Personas Personas
	Models   Models
	Purger   Purger
	Attach   Attacher // nil: attach is unimplemented
	Fence    *Fence
	// Registry knows the instances of this endpoint.
	Registry Registry
	Slots    Slots // nil: an open space
	// Instance is the one that answers.
	Instance string
	Policy   Policy
	Authz    authz.Policy // what a caller may see; the zero value is that of an open space
}

// Registry reads who serves this endpoint in the space.
type Registry interface {
	Instances(ctx context.Context) ([]wire.ExpectedReply, error)
}

// Policy decides whether a caller may have a command carried out. It is asked on every request, behind the
// fence and before the handler.
type Policy interface {
	// Allow returns nil or the refusal, outcome not-executed. capability is the class of the command.
	Allow(ctx context.Context, r *bus.Request, capability string) *wire.Error
}

// DrainTimeout bounds how long a stopping host finishes what it already answers.
const DrainTimeout = 5 * time.Second
