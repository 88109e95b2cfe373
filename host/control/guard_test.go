package control

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	anna = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	bert = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// house is a host with some seats, of which nothing runs. It notes what its handlers were asked for.
type house struct {
	seats  []authz.Target
	stands map[string]authz.Standing // by principal
	asked  []string
}

func (h *house) Stands(c wire.Caller) authz.Standing {
	if s := h.stands[c.Principal()]; s != "" {
		return s
	}
	return authz.Outside
}

func (h *house) Subject(t wire.Target) (authz.Target, bool) {
	for _, s := range h.seats {
		if (wire.Target{Owner: s.Owner, Actor: s.Actor, LifecycleUID: s.UID}) == t {
			return s, true
		}
	}
	return authz.Target{}, false
}

func (h *house) Rows() (rows []wire.AgentRow) {
	for _, s := range h.seats {
		rows = append(rows, wire.AgentRow{Name: s.Name, ID: s.Owner + "." + s.Actor, LifecycleUID: s.UID, Agent: "a", Space: "main", Mode: "pty", Status: "running", Mesh: "absent"})
	}
	return rows
}

func (h *house) Inspect(_ context.Context, name string) (wire.AgentRow, error) {
	for _, r := range h.Rows() {
		if r.Name == name {
			return r, nil
		}
	}
	return wire.AgentRow{}, wire.Refuse(wire.CodeNotFound, "no seat is called %q; see cotal ps", name)
}

func (h *house) did(what string) error { h.asked = append(h.asked, what); return nil }

func (h *house) Spawn(context.Context, wire.Caller, string, string, wire.SpawnArgs) (wire.Acceptance, error) {
	return wire.Acceptance{}, h.did("spawn")
}

func (h *house) Launch(context.Context, wire.Caller, string, string, wire.LaunchArgs) (wire.Acceptance, error) {
	return wire.Acceptance{}, h.did("launch")
}

func (h *house) ResolveAgent(context.Context, wire.Caller, wire.ResolveAgentArgs) (wire.ResolveAgentReply, error) {
	return wire.ResolveAgentReply{}, h.did("resolve-agent")
}

func (h *house) Despawn(_ context.Context, _ wire.Caller, t wire.Target, _ wire.DespawnArgs) (wire.DespawnReply, error) {
	return wire.DespawnReply{}, h.did("stop " + t.Actor)
}

func (h *house) Input(context.Context, wire.Target, wire.InputArgs) (wire.InputReply, error) {
	return wire.InputReply{}, h.did("input")
}

func (h *house) Nudge(context.Context, wire.Target, wire.InputArgs) (wire.InputReply, error) {
	return wire.InputReply{}, h.did("nudge")
}

func (h *house) Terminal(context.Context, wire.Target, wire.TerminalArgs) (wire.TerminalReply, error) {
	return wire.TerminalReply{}, h.did("terminal")
}

func (h *house) Purge(context.Context, bool) (int64, *int64, error) { return 0, nil, h.did("purge") }

func (h *house) Status() wire.StatusReply {
	return wire.StatusReply{AgentCount: len(h.seats), Occupancy: &wire.Occupancy{}}
}

func (h *house) Shutdown(context.Context, bool) (wire.ShutdownReply, error) {
	return wire.ShutdownReply{}, h.did("shutdown")
}

func (h *house) RestartPlugin(context.Context, wire.PluginRestartArgs) (wire.PluginRestartReply, error) {
	return wire.PluginRestartReply{}, h.did("plugin-restart")
}

func (h *house) ReloadPlugins(context.Context) (wire.PluginReloadReply, error) {
	return wire.PluginReloadReply{}, h.did("plugin-reload")
}

// ledger is the scopes of principals; it can be away.
type ledger struct {
	scopes map[string][]string
	err    error
}

func (l *ledger) Scope(_ context.Context, principal string) ([]string, error) {
	return l.scopes[principal], l.err
}

// guarded is the table of commands behind a policy.
type guarded struct {
	t        *testing.T
	commands map[string]bus.Command
}

func newGuarded(t *testing.T, h *house, p authz.Policy) guarded {
	t.Helper()
	guard := NewGuard(p, h)
	commands, err := Commands(Deps{Host: h, Seats: h, Launch: h, Purger: h, Policy: guard, Authz: guard.Policy, Fence: NewFence(guard)})
	if err != nil {
		t.Fatal(err)
	}
	return guarded{t, commands}
}

// call is what the bus does with an admitted request.
func (g guarded) call(owner, actor, command string, mode wire.Authz, target *authz.Target, args string) (any, *wire.Error) {
	g.t.Helper()
	c, ok := g.commands[command]
	if !ok {
		g.t.Fatalf("no command %s", command)
	}
	r := &bus.Request{Subject: wire.RequestSubject{
		Space: "main", Endpoint: wire.EndpointManager, Command: command, Authz: mode,
		Caller: wire.Caller{Owner: owner, Actor: actor, UID: "aaaaaaaaaaaaaaaaaaaaaaaaaa"},
	}}
	r.Env.Args = json.RawMessage(args)
	if target != nil {
		r.Env.Target = &wire.Target{Owner: target.Owner, Actor: target.Actor, LifecycleUID: target.UID}
	}
	release, werr := c.Admit(g.t.Context(), r)
	if werr != nil {
		return nil, werr
	}
	defer release()
	return c.Handler(g.t.Context(), r)
}

func life(name, owner, actor, spawner string) authz.Target {
	return authz.Target{Name: name, Owner: owner, Actor: actor, UID: "aaaaaaaaaaaaaaaaaaaaaaaaaa", Spawner: spawner}
}

// proves: AUTHZ-3, AUTHZ-16, FENCE-12
func TestWhoMayActOnASeat(t *testing.T) {
	mine, other := life("mine", "local", "MINE", "local.OP"), life("other", "local", "OTHER", "local.ELSE")
	gone := life("gone", "local", "GONE", "local.OP")
	h := &house{seats: []authz.Target{mine, other}, stands: map[string]authz.Standing{
		"local.MINE": authz.Seated, "local.OTHER": authz.Seated, "local.GOING": authz.Retiring, "local.WENT": authz.Retired,
	}}
	g := newGuarded(t, h, authz.Policy{})
	const text = `{"text":"x"}`
	for _, c := range []struct {
		name           string
		actor, command string
		mode           wire.Authz
		target         *authz.Target
		args           string
		code, says     string // empty: done
	}{
		{"the spawner in mode owner", "OP", "despawn", wire.AuthzOwner, &mine, `{}`, "", ""},
		{"somebody else in mode owner", "OP", "despawn", wire.AuthzOwner, &other, `{}`, wire.CodePermissionDenied, "local.OP may not despawn seat other"},
		{"a sister in mode owner", "MINE", "input", wire.AuthzOwner, &other, text, wire.CodePermissionDenied, "may not input seat other"},
		{"anybody in mode any, in an open space", "OP", "input", wire.AuthzAny, &other, text, "", ""},
		{"a terminal like a text", "OP", "terminal", wire.AuthzOwner, &other, `{}`, wire.CodePermissionDenied, "may not terminal seat other"},
		{"a life that is not there", "OP", "despawn", wire.AuthzAny, &gone, `{}`, wire.CodeExpired, "local.GONE with the lifecycle uid aaaaaaaaaaaaaaaaaaaaaaaaaa"},
		{"a life that is not there, in mode owner", "OP", "attach", wire.AuthzOwner, &gone, `{}`, wire.CodeExpired, "local.GONE"},
		{"a seat ends itself", "MINE", "stop", wire.AuthzSelf, nil, `{}`, "", ""},
		{"a caller that is no seat has nothing to end", "OP", "stop", wire.AuthzSelf, nil, `{}`, wire.CodeExpired, "no live seat is local.OP"},
		{"a seat that is being ended", "GOING", "ps", wire.AuthzNone, nil, `{}`, wire.CodePermissionDenied, "retiring"},
		{"a seat that is being ended ends itself again", "GOING", "stop", wire.AuthzSelf, nil, `{}`, wire.CodePermissionDenied, "retiring"},
		{"a seat that is gone", "WENT", "spawn", wire.AuthzNone, nil, `{"name":"x"}`, wire.CodePermissionDenied, "retired"},
		{"a seat that is gone asks for the host's own affairs", "WENT", "shutdown", wire.AuthzNone, nil, `{}`, wire.CodePermissionDenied, "retired"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.asked = nil
			_, err := g.call("local", c.actor, c.command, c.mode, c.target, c.args)
			switch {
			case c.code == "" && (err != nil || len(h.asked) != 1):
				t.Errorf("%v, %q", err, h.asked)
			case c.code != "" && (err == nil || err.Code != c.code || err.Outcome != wire.OutcomeNotExecuted || !strings.Contains(err.Message, c.says) || len(h.asked) != 0):
				t.Errorf("got %v, %q; want %s with %q", err, h.asked, c.code, c.says)
			}
		})
	}
	if h.asked = nil; true {
		if _, err := g.call("local", "MINE", "stop", wire.AuthzSelf, nil, `{}`); err != nil || h.asked[0] != "stop MINE" {
			t.Errorf("ended %q, %v", h.asked, err)
		}
	}
}

// In a space of users the rights of a caller are those of this moment, for lists as for stops.
//
// proves: AUTHZ-4, AUTHZ-7, AUTHZ-9, AUTHZ-13, AUTHZ-15, AUTHZ-25, FENCE-10
func TestRightsInASpaceOfUsersAreThoseOfThisMoment(t *testing.T) {
	annas, berts := life("annas", anna, "worker", anna+".lead"), life("berts", bert, "worker", bert+".lead")
	h := &house{seats: []authz.Target{annas, berts}, stands: map[string]authz.Standing{}}
	l := &ledger{scopes: map[string][]string{anna + ".op": {"spawn", "admin"}, anna + ".lead": {"spawn"}}}
	g := newGuarded(t, h, authz.Policy{Regime: authz.User, Ledger: l})
	type seen struct {
		count        int
		names        string
		inspects     bool
		stops, purge string // code of the refusal
	}
	look := func(owner, actor string) (s seen) {
		t.Helper()
		code := func(err *wire.Error) string {
			if err == nil {
				return ""
			}
			return err.Code
		}
		got, err := g.call(owner, actor, "status", "", nil, `{}`)
		if err != nil {
			t.Fatal(err)
		}
		s.count = got.(wire.StatusReply).AgentCount
		got, err = g.call(owner, actor, "ps", "", nil, `{}`)
		if err != nil {
			t.Fatal(err)
		}
		var rows []wire.AgentRow
		if err := json.Unmarshal(got.(bus.Appender).AppendJSON(nil), &rows); err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			s.names += r.Name + " "
		}
		_, err = g.call(owner, actor, "inspect", "", nil, `{"name":"berts"}`)
		_, nobody := g.call(owner, actor, "inspect", "", nil, `{"name":"nobody"}`)
		s.inspects = err == nil
		if err != nil && strings.Replace(err.Message, "berts", "nobody", 1) != nobody.Message {
			t.Errorf("somebody else's seat is told from one that does not exist: %q, %q", err.Message, nobody.Message)
		}
		_, err = g.call(owner, actor, "despawn", wire.AuthzAny, &berts, `{}`)
		s.stops = code(err)
		_, err = g.call(owner, actor, "purge", "", nil, `{}`)
		s.purge = code(err)
		return s
	}
	all := seen{2, "annas berts ", true, "", ""}
	own := seen{1, "annas ", false, wire.CodePermissionDenied, wire.CodePermissionDenied}
	for _, c := range []struct {
		name         string
		owner, actor string
		change       func()
		want         seen
	}{
		{"with the scope everything", anna, "op", func() {}, all},
		{"without it what is one's own", anna, "lead", func() {}, own},
		{"nothing for a caller whose principal is none", "u_x", "a-b", func() {}, seen{0, "", false, wire.CodePermissionDenied, wire.CodePermissionDenied}},
		{"a scope that is given counts with the next call", anna, "lead", func() { l.scopes[anna+".lead"] = []string{"admin"} }, all},
		{"one that is taken away does not", anna, "op", func() { delete(l.scopes, anna+".op") }, own},
		{"a ledger that is away gives nothing beyond one's own", anna, "lead", func() { l.err = errors.New("away") }, own},
	} {
		c.change()
		if got := look(c.owner, c.actor); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	// Under one owner everybody reaches a seat in mode owner, whatever the ledger says.
	if _, err := g.call(anna, "console", "despawn", wire.AuthzOwner, &annas, `{}`); err != nil {
		t.Error(err)
	}
}

// A command of operators is refused for either reason, and says which.
//
// proves: PURGE-2
func TestPurgeIsForOperatorsAndFenced(t *testing.T) {
	h, l := &house{}, &ledger{scopes: map[string][]string{anna + ".op": {"admin"}}}
	guard := NewGuard(authz.Policy{Regime: authz.User, Ledger: l}, h)
	fence := NewFence(guard)
	commands, err := Commands(Deps{Host: h, Seats: h, Purger: h, Policy: guard, Authz: guard.Policy, Fence: fence})
	if err != nil {
		t.Fatal(err)
	}
	g := guarded{t, commands}
	for _, c := range []struct {
		name  string
		actor string
		state func()
		code  string
	}{
		{"with the scope", "op", func() {}, ""},
		{"without it", "lead", func() {}, wire.CodePermissionDenied},
		{"while the host is preserving", "op", func() { fence.Set(ModePreserving, "") }, wire.CodeUnavailable},
		{"while it waits for a resume", "op", func() { fence.Set(ModeActive, "r1") }, wire.CodeUnavailable},
		{"once it is active again", "op", func() { fence.Set(ModeActive, "") }, ""},
		{"while it stops", "op", fence.Stop, wire.CodeUnavailable},
	} {
		c.state()
		h.asked = nil
		_, err := g.call(anna, c.actor, wire.CmdPurge, wire.AuthzNone, nil, `{}`)
		if c.code == "" && (err != nil || len(h.asked) != 1) || c.code != "" && (err == nil || err.Code != c.code || err.Outcome != wire.OutcomeNotExecuted || len(h.asked) != 0) {
			t.Errorf("%s: %v, %q", c.name, err, h.asked)
		}
	}
}

// Every command asks the policy: a caller that belongs here no more gets none of them, and in a space of users
// nobody without the scope gets one of the operators'.
func TestNoCommandIsWithoutItsGuard(t *testing.T) {
	h := &house{stands: map[string]authz.Standing{"local.WENT": authz.Retired}}
	for _, e := range table(Deps{}) {
		mode := wire.AuthzNone
		if e.Targeted {
			mode = e.Modes[0]
		}
		if _, err := newGuarded(t, h, authz.Policy{}).call("local", "WENT", e.Name, mode, nil, `{}`); err == nil || err.Code != wire.CodePermissionDenied {
			t.Errorf("%s answers a seat that is gone: %v", e.Name, err)
		}
		if e.Capability != wire.CapManagerAdmin || e.Name == wire.CmdLaunch {
			continue
		}
		if _, err := newGuarded(t, h, authz.Policy{Regime: authz.User}).call(anna, "op", e.Name, mode, nil, `{}`); err == nil || err.Code != wire.CodePermissionDenied {
			t.Errorf("%s answers somebody without the scope: %v", e.Name, err)
		}
	}
	if len(h.asked) != 0 {
		t.Errorf("asked for %q", h.asked)
	}
}
