package control

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func stopRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdStop, Capability: wire.CapManagerSelf, Targeted: true, Modes: []wire.Authz{wire.AuthzSelf}, Ends: true,
			Doc: "A seat ends itself. The answer means that its end has begun; a caller that is no seat of this host is refused.",
		}, func(ctx context.Context, r *bus.Request, args wire.StopArgs) (wire.DespawnReply, error) {
			return d.Seats.Despawn(ctx, r.Caller(), r.Target(), wire.DespawnArgs{Graceful: args.Graceful})
		}),
	}
}
