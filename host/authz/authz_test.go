package authz

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	anna = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	bert = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func caller(owner, actor string) wire.Caller {
	return wire.Caller{Owner: owner, Actor: actor, UID: "aaaaaaaaaaaaaaaaaaaaaaaaaa"}
}

// scopes is a ledger that tells what it was asked.
type scopes struct {
	of    map[string][]string
	err   error
	asked int
}

func (s *scopes) Scope(_ context.Context, principal string) ([]string, error) {
	s.asked++
	return s.of[principal], s.err
}

// standings is what a host knows of callers, by principal; anybody else is outside.
type standings map[string]Standing

func (s standings) Stands(c wire.Caller) Standing {
	if st, ok := s[c.Principal()]; ok {
		return st
	}
	return Outside
}

var lifecycle = []string{wire.CmdDespawn, wire.CmdAttach, wire.CmdInput, wire.CmdTerminal}

// One rule set for every command on a seat; who may end it may see it and type into it.
//
// proves: AUTHZ-3, AUTHZ-21, AUTHZ-28, ATTACH-6, INPUT-5
func TestNamed(t *testing.T) {
	seat := Target{Name: "worker", Owner: "local", Actor: "SEAT", UID: "aaaaaaaaaaaaaaaaaaaaaaaaaa", Spawner: "local.OP"}
	annas := Target{Name: "worker", Owner: anna, Actor: "worker", UID: "aaaaaaaaaaaaaaaaaaaaaaaaaa", Spawner: anna + ".lead"}
	orphan := annas
	orphan.Spawner = ""
	ofBert := annas
	ofBert.Spawner = bert + ".lead"
	const self, owner, anyMode = wire.AuthzSelf, wire.AuthzOwner, wire.AuthzAny
	cases := []struct {
		name   string
		regime Regime
		mode   wire.Authz
		caller wire.Caller
		target Target
		admin  bool
		want   string // part of the refusal; empty: allowed
	}{
		{"open: the spawner reaches its own child in mode owner", Open, owner, caller("local", "OP"), seat, true, ""},
		{"open: a stranger does not in mode owner", Open, owner, caller("local", "OTHER"), seat, true, "mode owner reaches what the caller itself spawned"},
		{"open: an operator's instrument reaches any seat in mode any", Open, anyMode, caller("local", "OTHER"), seat, true, ""},
		{"open: the seat itself in mode self", Open, self, caller("local", "SEAT"), seat, true, ""},
		{"open: another seat in mode self is not it", Open, self, caller("local", "OTHER"), seat, true, "only the seat itself may"},
		{"open: a seat of which the spawner is not known has no spawner", Open, owner, caller("local", "OP"), Target{Name: "worker", Owner: "local", Actor: "SEAT"}, true, "mode owner"},
		{"static: the spawner reaches its own child", Static, owner, caller("local", "OP"), seat, true, ""},
		{"static: an agent does not reach its sister in mode owner, though all share an owner", Static, owner, caller("local", "SISTER"), seat, true, "mode owner"},
		{"static: an agent does not reach itself in mode owner", Static, owner, caller("local", "SEAT"), seat, true, "mode owner"},
		{"static: mode any is in operator credentials alone, and honoured", Static, anyMode, caller("local", "OTHER"), seat, true, ""},
		{"static: another life of the same seat is not it in mode self", Static, self, wire.Caller{Owner: "local", Actor: "SEAT", UID: "bbbbbbbbbbbbbbbbbbbbbbbbbb"}, seat, true, "only the seat itself may"},
		{"user: the spawner reaches its own child", User, owner, caller(anna, "lead"), annas, false, ""},
		{"user: the spawner of another owner's seat reaches it", User, owner, caller(bert, "lead"), ofBert, false, ""},
		{"user: everybody under the same owner reaches it", User, owner, caller(anna, "console"), annas, false, ""},
		{"user: under the same owner also when the spawner is not known", User, owner, caller(anna, "console"), orphan, false, ""},
		{"user: another owner does not", User, owner, caller(bert, "console"), annas, false, "another owner's"},
		{"user: another owner with the scope does", User, owner, caller(bert, "console"), annas, true, ""},
		{"user: mode any with the scope", User, anyMode, caller(bert, "console"), annas, true, ""},
		{"user: mode any without the scope is denied to the spawner too, never taken for mode owner", User, anyMode, caller(anna, "lead"), annas, false, "mode any needs the scope admin"},
		{"user: the seat itself in mode self", User, self, caller(anna, "worker"), annas, false, ""},
		{"user: not the owner in mode self", User, self, caller(anna, "console"), annas, true, "only the seat itself may"},
		{"a mode that no command of the manager has", User, wire.AuthzExact, caller(anna, "worker"), annas, true, "not one of the manager's"},
		{"no mode at all", Open, wire.AuthzNone, caller("local", "OP"), seat, true, "not one of the manager's"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, command := range lifecycle {
				check(t, Named(c.regime, Access{Command: command, Capability: wire.CapManagerLifecycle, Mode: c.mode}, c.caller, c.target, c.admin),
					wire.CodePermissionDenied, c.want)
			}
		})
	}
}

// check holds a refusal against part of its text; every one of them says that nothing happened.
func check(t *testing.T, err *wire.Error, code, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want == "":
	case err == nil:
		t.Errorf("allowed, want %q", want)
	case err.Code != code || err.Outcome != wire.OutcomeNotExecuted || !strings.Contains(err.Message, want):
		t.Errorf("got %s %q (%s), want %s %q", err.Code, err.Message, err.Outcome, code, want)
	}
}

// proves: ATTACH-6
func TestASessionIsGrantedToWhoCanUseIt(t *testing.T) {
	for _, c := range []struct {
		name   string
		regime Regime
		mode   wire.Authz
		want   string // part of the refusal; empty: granted
	}{
		{"open: a spawner, since everybody reaches every rail", Open, wire.AuthzOwner, ""},
		{"open: an operator", Open, wire.AuthzAny, ""},
		{"static: an operator, whose credential carries it", Static, wire.AuthzAny, ""},
		{"static: an agent that spawned the seat has no rail to it, and is told", Static, wire.AuthzOwner, "only an operator's credential"},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, Session(c.regime, c.mode), wire.CodePermissionDenied, c.want) })
	}
}

// The whole product of caller, mode and tier, through the part that reads the facts.
//
// proves: AUTHZ-2, AUTHZ-13, AUTHZ-22, AUTHZ-25, FENCE-10, OUT-2
func TestAdmit(t *testing.T) {
	read := Access{Command: wire.CmdPs, Capability: wire.CapManagerRead}
	spawn := Access{Command: wire.CmdSpawn, Capability: wire.CapManagerSpawn}
	persona := Access{Command: wire.CmdDefinePersona, Capability: wire.CapManagerPersona}
	admin := Access{Command: wire.CmdPurge, Capability: wire.CapManagerAdmin}
	run := Access{Command: "run-start", Capability: wire.CapManagerRun}
	launch := Access{Command: wire.CmdLaunch, Capability: wire.CapManagerAdmin}
	self := Access{Command: wire.CmdStop, Capability: wire.CapManagerSelf, Mode: wire.AuthzSelf}
	every := []Access{read, spawn, persona, admin, run, launch, self}
	ledger := &scopes{of: map[string][]string{anna + ".op": {"spawn", "admin"}, anna + ".lead": {"spawn"}}}
	seats := standings{"local.LIVE": Seated, "local.GOING": Retiring, "local.GONE": Retired, anna + ".going": Retiring, anna + ".live": Seated}
	cases := []struct {
		name   string
		regime Regime
		caller wire.Caller
		access []Access
		want   string
	}{
		{"open: an operator's instrument may use every tier", Open, caller("local", "OP"), every, ""},
		{"open: so may a seat, since no right hangs on a principal there", Open, caller("local", "LIVE"), every, ""},
		{"open: a seat that is being ended may nothing", Open, caller("local", "GOING"), every, "retiring"},
		{"open: nor one that is gone", Open, caller("local", "GONE"), every, "retired"},
		{"static: whoever could send it may, since the broker holds the rows", Static, caller("local", "OP"), every, ""},
		{"static: a seat that is being ended may nothing", Static, caller("local", "GOING"), every, "retiring"},
		{"user: a seat of the same owner that is being ended may nothing", User, caller(anna, "going"), every, "retiring"},
		{"user: a live seat may use what the broker lets it send", User, caller(anna, "live"), []Access{read, spawn, persona, run, self}, ""},
		{"user: the tier of admins needs the scope", User, caller(anna, "lead"), []Access{admin}, "needs the scope admin"},
		{"user: and with it is open", User, caller(anna, "op"), every, ""},
		{"user: a stranger has no scope", User, caller(bert, "op"), []Access{admin}, "needs the scope admin"},
		{"user: launch is decided by owner and not by scope", User, caller(bert, "op"), []Access{launch}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := Policy{Regime: c.regime, Ledger: ledger, Seats: seats}
			for _, a := range c.access {
				check(t, p.Admit(context.Background(), c.caller, a), wire.CodePermissionDenied, c.want)
			}
		})
	}
	if err := (Policy{}).Admit(context.Background(), caller("local", "OP"), admin); err != nil {
		t.Errorf("the zero policy is that of an open space: %v", err)
	}
}

// A scope is read for every call and once for a call: taken away, it is gone with the next one.
//
// proves: AUTHZ-4, AUTHZ-9, AUTHZ-26
func TestReachIsReadFreshAndFailsClosed(t *testing.T) {
	ctx := context.Background()
	ledger := &scopes{of: map[string][]string{bert + ".op": {"admin"}}}
	p := Policy{Regime: User, Ledger: ledger}
	c := caller(bert, "op")
	target := Target{Name: "worker", Owner: anna, Actor: "worker", Spawner: anna + ".lead"}
	stop := Access{Command: wire.CmdDespawn, Capability: wire.CapManagerLifecycle, Mode: wire.AuthzAny}
	purge := Access{Command: wire.CmdPurge, Capability: wire.CapManagerAdmin}

	for what, do := range map[string]func() bool{
		"list":  func() bool { return p.Sees(ctx, c) == "" },
		"stop":  func() bool { return p.Admit(ctx, c, stop) == nil && p.Control(ctx, c, stop, target) == nil },
		"purge": func() bool { return p.Admit(ctx, c, purge) == nil },
	} {
		ledger.of, ledger.err, ledger.asked = map[string][]string{bert + ".op": {"admin"}}, nil, 0
		if !do() || ledger.asked != 1 {
			t.Errorf("%s with the scope: denied, or the ledger was read %d times", what, ledger.asked)
		}
		ledger.err = errors.New("the ledger is away")
		if do() {
			t.Errorf("%s: a ledger that cannot be read gave a right", what)
		}
		ledger.of, ledger.err = nil, nil
		if do() {
			t.Errorf("%s: a scope that was taken away still counts", what)
		}
	}
	// A failed read leaves a caller its own owner.
	ledger.err = errors.New("the ledger is away")
	if got := p.Sees(ctx, c); got != bert {
		t.Errorf("sees %q", got)
	}
	if (Policy{Regime: User}).Reach(ctx, c) {
		t.Error("a space of users without a ledger gave a right")
	}
	for _, r := range []Regime{Open, Static} {
		ledger.asked = 0
		if !(Policy{Regime: r, Ledger: ledger}).Reach(ctx, caller("local", "OP")) || ledger.asked != 0 {
			t.Errorf("%s: reach is the broker's to give", r)
		}
	}
}

// proves: AUTHZ-7, AUTHZ-8, AUTHZ-15
func TestSees(t *testing.T) {
	for _, c := range []struct {
		name   string
		regime Regime
		caller wire.Caller
		admin  bool
		want   string
	}{
		{"open: everything", Open, caller("local", "OP"), true, ""},
		{"static: everything", Static, caller("local", "OP"), true, ""},
		{"user: what is under the caller's owner", User, caller(anna, "lead"), false, anna},
		{"user: everything with the scope", User, caller(anna, "op"), true, ""},
		{"user: nothing for a caller whose principal is none", User, wire.Caller{Owner: "u_x", Actor: "a-b"}, false, NoOwner},
	} {
		if got := Sees(c.regime, c.caller, c.admin); got != c.want {
			t.Errorf("%s: got %q", c.name, got)
		}
	}
	if wire.ValidOwner(NoOwner) {
		t.Error("the owner nobody has could be somebody's")
	}
}

// proves: AUTHZ-10, AUTHZ-11, AUTHZ-27, MAN-4
func TestLaunchIsForTheOwnerOfTheSpec(t *testing.T) {
	for _, c := range []struct {
		name   string
		regime Regime
		caller wire.Caller
		owner  string
		code   string
		want   string
	}{
		{"open: a spec without owner", Open, caller("local", "OP"), "", "", ""},
		{"static: a spec without owner", Static, caller("local", "OP"), "", "", ""},
		{"open: a spec of a user is not this caller's", Open, caller("local", "OP"), anna, wire.CodePermissionDenied, "belongs to " + anna},
		{"user: its owner", User, caller(anna, "deployer"), anna, "", ""},
		{"user: a stolen deployer of an admin launches only under its own owner", User, caller(bert, "deployer"), anna, wire.CodePermissionDenied, "only the owner"},
		{"user: a spec without owner", User, caller(anna, "deployer"), "", wire.CodeFailedPrecondition, "log in and apply"},
	} {
		t.Run(c.name, func(t *testing.T) { check(t, Launch(c.regime, c.caller, c.owner), c.code, c.want) })
	}
}

// proves: AUTHZ-12, PERS-6, PERS-9
func TestPersonasBelongToWhoDefinedThem(t *testing.T) {
	mine, other := caller("local", "ME"), caller("local", "OTHER")
	console, lead, stranger := caller(anna, "console"), caller(anna, "lead"), caller(bert, "lead")
	for _, c := range []struct {
		name     string
		regime   Regime
		caller   wire.Caller
		owner    string
		visible  bool
		redefine string // part of the refusal
	}{
		{"open: what the caller defined", Open, mine, OwnerOf(Open, mine), true, ""},
		{"open: what another defined", Open, other, OwnerOf(Open, mine), false, "belongs to local.ME"},
		{"static: what another defined, though all share an owner", Static, other, OwnerOf(Static, mine), false, "belongs to local.ME"},
		{"open: a file of the operator is shared, and the operator's to change", Open, mine, "", true, "edit the file"},
		{"user: one user's instruments share", User, console, OwnerOf(User, lead), true, ""},
		{"user: another user's", User, stranger, OwnerOf(User, lead), false, "belongs to " + anna},
		{"user: a file of the operator", User, lead, "", true, "edit the file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := PersonaVisible(c.regime, c.caller, c.owner); got != c.visible {
				t.Errorf("visible: %v", got)
			}
			if PersonaLaunchable(c.regime, c.caller, c.owner, false) != c.visible || !PersonaLaunchable(c.regime, c.caller, c.owner, true) {
				t.Error("what is launched is what is seen, and with the scope everything")
			}
			check(t, PersonaRedefine(c.regime, c.caller, "rev", c.owner), wire.CodeFailedPrecondition, c.redefine)
		})
	}
}

// proves: AUTHZ-19, AUTHZ-20, SPAWN-6, EVENT-1
func TestEvents(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name                  string
		regime                Regime
		admin, required, able bool
		asked                 *bool
		on                    bool
		notice                bool
		want                  string
	}{
		{"open: armed when the connector can and nothing is said", Open, true, false, true, nil, true, false, ""},
		{"open: off when the connector cannot and nothing is said", Open, true, false, false, nil, false, false, ""},
		{"open: off when told", Open, true, false, true, &no, false, false, ""},
		{"open: asked of a connector that cannot", Open, true, false, false, &yes, false, false, "--no-events"},
		{"static: nothing changes for an agent", Static, true, false, true, &yes, true, false, ""},
		{"user: with the scope as in an open space", User, true, false, true, nil, true, false, ""},
		{"user: asked without the scope", User, false, false, true, &yes, false, false, "needs the scope admin"},
		{"user: not asked without the scope is served without events, and told", User, false, false, true, nil, false, true, ""},
		{"user: refused off without the scope, no notice", User, false, false, true, &no, false, false, ""},
		{"user: nothing to tell where the connector cannot", User, false, false, false, nil, false, false, ""},
		{"required: told off", User, true, true, true, &no, false, false, "this space requires them"},
		{"required: without the scope nobody can have them", User, false, true, true, nil, false, false, "needs the scope admin"},
		{"required: of a connector that cannot", Static, true, true, false, nil, false, false, "no event channel"},
		{"required: armed", User, true, true, true, nil, true, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			on, notice, err := Events(c.regime, c.admin, c.asked, c.required, c.able)
			code := wire.CodeFailedPrecondition
			if strings.Contains(c.want, "scope") {
				code = wire.CodePermissionDenied
			}
			check(t, err, code, c.want)
			if on != c.on || (notice != "") != c.notice {
				t.Errorf("on %v, notice %q", on, notice)
			}
		})
	}
}

// proves: AUTHZ-24
func TestTheOwnerOfASeatIsTheAuthenticatedCallers(t *testing.T) {
	for _, c := range []struct {
		name   string
		regime Regime
		caller wire.Caller
		owner  string
		want   string
	}{
		{"open", Open, caller("local", "OP"), wire.OwnerLocal, ""},
		{"static", Static, caller("local", "OP"), wire.OwnerLocal, ""},
		{"user", User, caller(anna, "lead"), anna, ""},
		{"user: an instrument of the host is no user", User, caller("local", "OP"), "", "log in first"},
	} {
		t.Run(c.name, func(t *testing.T) {
			owner, err := SpawnOwner(c.regime, c.caller)
			check(t, err, wire.CodePermissionDenied, c.want)
			if owner != c.owner {
				t.Errorf("owner %q", owner)
			}
		})
	}
}
