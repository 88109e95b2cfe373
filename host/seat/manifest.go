package seat

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Launch accepts one agent of a run, as Spawn accepts a persona. The spec travels with the request and is read
// strictly; it belongs to its owner, who alone may launch it, which is decided before anything is looked at that
// a launch would touch.
//
// Errors beside those of Spawn, all not-executed: bad-request (the spec, naming the member; another run than
// asked for), not-found (no such agent in it), permission-denied (it is another owner's), failed-precondition
// (it is for another space; or there is none, and this host keeps no files of runs).
func (s *Set) Launch(ctx context.Context, caller wire.Caller, id, fingerprint string, args wire.LaunchArgs) (wire.Acceptance, error) {
	profile, err := s.resolveLaunch(caller, args)
	if err != nil {
		return wire.Acceptance{}, err
	}
	return s.start(ctx, id, fingerprint, order{caller: caller, resolved: profile})
}

func (s *Set) resolveLaunch(caller wire.Caller, args wire.LaunchArgs) (*launch.Profile, error) {
	if len(args.Spec) == 0 {
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "this host keeps no files of runs, so it has nothing of run %s; send the spec with the request", args.RunID)
	}
	spec, werr := wire.ParseLaunchSpec(args.Spec)
	if werr != nil {
		return nil, werr
	}
	switch {
	case spec.RunID != args.RunID:
		return nil, wire.Refuse(wire.CodeBadRequest, "spec: runId is %s, the request says %s", spec.RunID, args.RunID)
	case spec.Space != s.cfg.Space:
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "spec: space is %s, this host serves %s", spec.Space, s.cfg.Space)
	}
	if werr := authz.Launch(s.cfg.Policy.Kind(), caller, spec.Owner); werr != nil {
		return nil, werr
	}
	agent, ok := spec.Agent(args.Name)
	if !ok {
		return nil, wire.Refuse(wire.CodeNotFound, "run %s has no agent %s", args.RunID, args.Name)
	}
	profile, err := launch.ResolveLaunch(args.RunID, agent)
	if err != nil {
		return nil, refusal(err)
	}
	return &profile, nil
}
