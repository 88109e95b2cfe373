package control

import (
	"context"
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func resolveRows(d Deps) []entry {
	return []entry{
		row(entry{
			Name: wire.CmdResolveCwd, Capability: wire.CapManagerSpawn, Read: true,
			ArgsShape: wire.Shape{Limits: map[string]wire.Limit{"cwd": {Min: 1}}},
			Doc:       "Where a seat would run that is given this directory: its canonical path, and the machine. It has to be absolute and to be there; nothing is created.",
		}, func(_ context.Context, _ *bus.Request, args wire.ResolveCwdArgs) (wire.ResolveCwdReply, error) {
			return resolveCwd(args.Cwd)
		}),
		row(entry{
			Name: wire.CmdResolveAgent, Capability: wire.CapManagerSpawn, Read: true, ArgsShape: named,
			Doc: "Which connector a spawn of this persona would be for. It starts nothing, and does not say that this connector is there.",
		}, func(ctx context.Context, r *bus.Request, args wire.ResolveAgentArgs) (wire.ResolveAgentReply, error) {
			return d.Launch.ResolveAgent(ctx, r.Caller(), args)
		}),
	}
}

// resolveCwd says where a directory is on this machine. A relative one is refused: the caller's working directory
// is somewhere else, and what it is relative to would be guessed.
func resolveCwd(cwd string) (wire.ResolveCwdReply, error) {
	if !filepath.IsAbs(cwd) {
		return wire.ResolveCwdReply{}, wire.Refuse(wire.CodeFailedPrecondition, "cwd %q is not absolute", cwd)
	}
	real, err := launch.ResolveCwd("/", cwd)
	if err != nil {
		return wire.ResolveCwdReply{}, wire.Refuse(wire.CodeFailedPrecondition, "%v", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return wire.ResolveCwdReply{}, wire.Refuse(wire.CodeUnavailable, "name of this machine: %v", err)
	}
	return wire.ResolveCwdReply{Cwd: real, Host: host}, nil
}
