package control

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// stopRows are what a seat may ask for itself.
func stopRows(d Deps) []entry {
	self := []wire.Authz{wire.AuthzSelf}
	return []entry{
		row(entry{
			Name: wire.CmdStop, Capability: wire.CapManagerSelf, Targeted: true, Modes: self, Ends: true,
			Doc: "A seat ends itself. The answer means that its end has begun; a caller that is no seat of this host is refused.",
		}, func(ctx context.Context, r *bus.Request, args wire.StopArgs) (wire.DespawnReply, error) {
			return d.Seats.Despawn(ctx, r.Caller(), r.Target(), wire.DespawnArgs{Graceful: args.Graceful})
		}),
		row(entry{
			Name: wire.CmdNudge, Capability: wire.CapManagerSelf, Targeted: true, Modes: self,
			ArgsShape: wire.Shape{Limits: map[string]wire.Limit{"text": {Min: 1, Max: wire.MaxNudge}}},
			Doc: "A seat has one line typed into its own terminal, for its idle agent to begin a turn. It is refused as unavailable, and may be asked for again later, " +
				"while somebody at an attached terminal types or may have begun to. A reply that is lost means unknown.",
		}, func(ctx context.Context, r *bus.Request, args wire.NudgeArgs) (wire.InputReply, error) {
			return d.Seats.Nudge(ctx, r.Target(), wire.InputArgs{Text: args.Text})
		}),
	}
}
