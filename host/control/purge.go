package control

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Purger clears the history of the space; the host implements it over its bus. An error without outcome is
// unknown: something may be gone.
type Purger interface {
	Purge(ctx context.Context, directMessages bool) (chat int64, dm *int64, err error)
}

func purgeRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdPurge, Capability: wire.CapManagerAdmin,
			Doc: "Clears the history of all channels, with includeDms the direct messages too, and says how many messages went. Live agents and queued work stay. " +
				"A reply that is lost means unknown.",
		}, func(ctx context.Context, _ *bus.Request, args wire.PurgeArgs) (wire.PurgeReply, error) {
			chat, dm, err := d.Purger.Purge(ctx, args.IncludeDMs)
			if err != nil {
				return wire.PurgeReply{}, err
			}
			return wire.PurgeReply{Chat: chat, DM: dm}, nil
		}),
	}
}
