package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/authmesh"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// subjects are the seats of a host of which nothing runs.
type subjects struct {
	mu    sync.Mutex
	seats []authz.Target
}

func (s *subjects) Stands(c wire.Caller) authz.Standing {
	if _, ok := s.Subject(wire.Target{Owner: c.Owner, Actor: c.Actor, LifecycleUID: c.UID}); ok {
		return authz.Seated
	}
	return authz.Outside
}

func (s *subjects) Subject(t wire.Target) (authz.Target, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.seats, func(x authz.Target) bool {
		return (wire.Target{Owner: x.Owner, Actor: x.Actor, LifecycleUID: x.UID}) == t
	})
	if i < 0 {
		return authz.Target{}, false
	}
	return s.seats[i], true
}

func (s *subjects) add(c wire.Caller, name, spawner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seats = append(s.seats, authz.Target{Name: name, Owner: c.Owner, Actor: c.Actor, UID: c.UID, Spawner: spawner})
}

// argsOf are arguments that the contract admits, of those commands that want some.
var argsOf = map[string]string{
	wire.CmdSpawn: `{"name":"x"}`, wire.CmdInspect: `{"name":"x"}`, wire.CmdShowPersona: `{"name":"x"}`, wire.CmdPluginRestart: `{"name":"x"}`,
	wire.CmdGoalResult: `{"goalId":"x"}`, wire.CmdInput: `{"text":"x"}`, wire.CmdNudge: `{"text":"x"}`, wire.CmdResolveCwd: `{"cwd":"/"}`,
	wire.CmdResolveAgent: `{"name":"x"}`, wire.CmdLaunch: `{"runId":"x","name":"x"}`, wire.CmdDefinePersona: `{"name":"x","persona":"x"}`,
}

// carried is how a handler answers here: the request came through broker, contract and policy.
const carried = "ai.cotal.test.carried"

// Which command is whose stands in the credential and in the policy, and is tried here, command by command and mode
// by mode, with credentials on a broker that enforces them: operators do everything, a seat ends itself, one that may
// spawn also handles what it spawned, and nobody is left waiting for an answer that does not come.
//
// proves: AUTHZ-2, AUTHZ-13, AUTHZ-16, AUTHZ-25, AUTHZ-28
func TestACommandIsCarriedOutForWhomItIs(t *testing.T) {
	m := authmesh.New(t)
	plain := m.Agent(provision.Spec{Alias: "plain"})
	lead := m.Agent(provision.Spec{Alias: "lead", Spawn: true})
	child, other := m.Agent(provision.Spec{Alias: "child"}), m.Agent(provision.Spec{Alias: "other"})
	seats := &subjects{}
	seats.add(plain.Caller, "plain", "local.SOMEBODY")
	seats.add(lead.Caller, "lead", "local.SOMEBODY")
	seats.add(child.Caller, "child", lead.Principal())
	seats.add(other.Caller, "other", "local.SOMEBODY")

	guard := control.NewGuard(authz.Policy{Regime: authz.Static}, seats)
	commands, err := control.Commands(control.Deps{Policy: guard, Authz: guard.Policy, Fence: control.NewFence(guard)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range commands {
		c.Handler = bus.HandlerOf(func(context.Context, *bus.Request) (any, error) {
			return nil, wire.Refuse(carried, "%s", name)
		})
		commands[name] = c
	}
	m.Serve(commands)

	agentSpawn := []string{
		wire.CmdSpawn, wire.CmdResolveCwd, wire.CmdResolveAgent, wire.CmdInspect, wire.CmdGoalResult, wire.CmdListPersonas, wire.CmdShowPersona, wire.CmdDefinePersona,
	}
	type want struct{ code string }
	done, refused := want{carried}, want{wire.CodePermissionDenied}
	expect := map[string]func(command string, mode wire.Authz, target *provision.Life) want{
		"operator": func(_ string, mode wire.Authz, _ *provision.Life) want {
			switch mode {
			case wire.AuthzSelf: // an instrument is no seat
				return want{wire.CodeExpired}
			case wire.AuthzOwner: // it spawned none of these
				return refused
			}
			return done
		},
		"plain": func(_ string, mode wire.Authz, _ *provision.Life) want {
			if mode == wire.AuthzSelf {
				return done
			}
			return refused
		},
		"lead": func(command string, mode wire.Authz, target *provision.Life) want {
			switch {
			case mode == wire.AuthzSelf:
				return done
			case mode == wire.AuthzOwner && target.Alias == "child" && (command == wire.CmdDespawn || command == wire.CmdAttach):
				return done
			case mode == wire.AuthzNone && slices.Contains(agentSpawn, command):
				return done
			}
			return refused
		},
	}
	for who, creds := range map[string]string{"operator": m.Operator(), "plain": plain.Creds, "lead": lead.Creds} {
		t.Run(who, func(t *testing.T) {
			c, err := mesh.Connect(t.Context(), mesh.Config{URL: m.URL(), Space: authmesh.Space, Name: who, CredsFile: creds})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for name, cmd := range commands {
				modes := cmd.Modes
				if !cmd.Targeted {
					modes = []wire.Authz{wire.AuthzNone}
				}
				for _, mode := range modes {
					targets := []*provision.Life{nil}
					if mode == wire.AuthzOwner || mode == wire.AuthzAny {
						targets = []*provision.Life{&child.Life, &other.Life}
					}
					for _, target := range targets {
						tried(t, c, name, mode, target, expect[who](name, mode, target).code)
					}
				}
			}
		})
	}
}

// tried calls a command and holds the refusal that comes against the one that is wanted.
func tried(t *testing.T, c *mesh.Client, command string, mode wire.Authz, target *provision.Life, want string) {
	t.Helper()
	call := mesh.Call{Endpoint: wire.EndpointManager, Command: command, Instance: authmesh.Instance, Authz: mode, Deadline: busy.Limit(10 * time.Second)}
	if a := argsOf[command]; a != "" {
		call.Args = json.RawMessage(a)
	}
	what := command
	if mode != wire.AuthzNone {
		what += " in mode " + string(mode)
	}
	if target != nil {
		call.Target = &wire.Target{Owner: target.Owner, Actor: target.Actor, LifecycleUID: target.UID}
		what += " on " + target.Alias
	}
	_, err := c.Call(t.Context(), call, nil)
	var got *wire.Error
	switch {
	case !errors.As(err, &got):
		t.Fatalf("%s: %v, want %s", what, err, want)
	case got.Code != want:
		t.Errorf("%s: %v, want %s", what, got, want)
	case want != carried && mesh.OutcomeOf(err) != wire.OutcomeNotExecuted:
		t.Errorf("%s: outcome %s", what, mesh.OutcomeOf(err))
	case want == wire.CodePermissionDenied && !strings.Contains(err.Error(), "ep.inst.manager") && !strings.Contains(err.Error(), "may not "+command):
		t.Errorf("%s: the refusal does not say what was missing: %v", what, err)
	}
}
