package seat

import (
	"context"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// lifeOf finds one life of a principal among the live seats, and among the ended ones that are still known.
func (s *Set) lifeOf(t wire.Target) (snap *Snapshot, live bool) {
	principal := t.Owner + "." + t.Actor
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.byID {
		if snap := a.snapshot(); snap.Row.UID == t.LifecycleUID && snap.Row.Principal == principal {
			return snap, true
		}
	}
	snap, _ = s.overLife(t)
	return snap, false
}

// Stands says how a caller stands among the seats of this host.
func (s *Set) Stands(c wire.Caller) authz.Standing {
	snap, live := s.lifeOf(wire.Target{Owner: c.Owner, Actor: c.Actor, LifecycleUID: c.UID})
	switch {
	case snap == nil:
		return authz.Outside
	case !live || snap.State == Ended:
		return authz.Retired
	case snap.State == Stopping, snap.State == Exited:
		return authz.Retiring
	}
	return authz.Seated
}

// Subject is what decides who may act on a seat: of a live one, and of one that ended and is still told of.
// Whether it is still the same life has to be seen again by whoever acts.
func (s *Set) Subject(t wire.Target) (authz.Target, bool) {
	snap, _ := s.lifeOf(t)
	if snap == nil {
		return authz.Target{}, false
	}
	out := authz.Target{Name: snap.Row.Alias, Owner: t.Owner, Actor: t.Actor, UID: t.LifecycleUID}
	if c, _, ok := goal.Key(snap.Row.RequestID).Split(); ok {
		out.Spawner = c.Principal()
	}
	return out, true
}

// ResolveAgent answers resolve-agent: which connector a spawn of this persona would be for. It starts nothing,
// and does not say that this connector is there.
//
// Errors, not-executed: those of the persona, as Spawn has them.
func (s *Set) ResolveAgent(ctx context.Context, c wire.Caller, args wire.ResolveAgentArgs) (wire.ResolveAgentReply, error) {
	p, err := s.personaFor(c, wire.SpawnArgs{Name: args.Name, Agent: args.Agent, Config: args.Config}, s.cfg.Policy.Reach(ctx, c))
	if err != nil {
		return wire.ResolveAgentReply{}, err
	}
	agent, _ := launch.ChooseAgent(wire.SpawnArgs{Agent: args.Agent, DefaultAgent: args.DefaultAgent}, p, launch.Defaults{Agent: s.cfg.Agent})
	return wire.ResolveAgentReply{Agent: agent}, nil
}

// personaFor loads the persona that a request names, if the caller may start seats from it. Errors are *wire.Error.
func (s *Set) personaFor(c wire.Caller, args wire.SpawnArgs, admin bool) (*persona.Persona, error) {
	p, err := s.persona(args)
	switch {
	case err != nil:
		return nil, launch.PersonaRefusal(err).Wire()
	case p != nil && !authz.PersonaLaunchable(s.cfg.Policy.Kind(), c, p.Owner, admin):
		// One that is not the caller's is answered for like one that does not exist.
		ref := args.Name
		if args.Config != "" {
			ref = args.Config
		}
		return nil, launch.PersonaRefusal(persona.NotFound(s.cfg.Root, ref, p.Path)).Wire()
	}
	return p, nil
}
