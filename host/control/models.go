package control

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Models asks connectors for their catalogues; host/launch implements it.
type Models interface {
	List(ctx context.Context, args wire.ModelsArgs) (wire.ModelsReply, error)
}

func modelRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdModels, Capability: wire.CapManagerRead, Read: true,
			ReplyShape: wire.Shape{Limits: map[string]wire.Limit{"catalogs.*.models.*": {Type: "object"}}},
			Doc: "The models that agent programs offer, a row for each connector. One that fails has a row that says why; " +
				"of a connector that is asked for by name it is a refusal.",
		}, func(ctx context.Context, _ *bus.Request, args wire.ModelsArgs) (wire.ModelsReply, error) {
			return d.Models.List(ctx, args)
		}),
	}
}
