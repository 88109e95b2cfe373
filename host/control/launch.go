package control

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Launcher starts agents of runs, and says what a spawn would be for; host/seat implements it.
type Launcher interface {
	Launch(ctx context.Context, c wire.Caller, id, fingerprint string, args wire.LaunchArgs) (wire.Acceptance, error)
	ResolveAgent(ctx context.Context, c wire.Caller, args wire.ResolveAgentArgs) (wire.ResolveAgentReply, error)
}

func launchRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdLaunch, Capability: wire.CapManagerAdmin, Launches: true,
			ArgsShape: wire.Shape{Limits: map[string]wire.Limit{
				"runId": {Pattern: goalID}, "name": {Min: 1, Doc: "an agent of the spec"}, "spec": {Type: "object", Doc: "cotal-launch/v1"},
			}},
			Doc: "Starts one agent of a run from its launch spec, which travels with the request and belongs to whoever launches it. The answer is that of spawn.",
		}, func(ctx context.Context, r *bus.Request, args wire.LaunchArgs) (wire.Acceptance, error) {
			fp, err := r.Fingerprint()
			if err != nil {
				return wire.Acceptance{}, wire.Refuse(wire.CodeBadRequest, "fingerprint: %v", err)
			}
			return d.Launch.Launch(ctx, r.Caller(), r.Env.ID, fp, args)
		}),
	}
}
