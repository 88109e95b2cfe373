// Package authz decides who may do what on the manager endpoint. Every decision is a pure function of
// facts that its caller has read; Policy is the thin part that reads them, fresh for every call.
//
// What a credential may even send is held by the broker. What stands here is what the broker cannot
// know: whose seat a target is, whether a caller's rights were revoked since its credential was made,
// whether the caller is a seat that is being ended. No decision falls back to a weaker one: a call in
// mode any is honoured or denied, and a right that cannot be read is not there.
package authz

import (
	"context"
	"slices"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Regime is how a space tells its callers apart.
type Regime string

// Regimes.
const (
	// Open: the broker asks for a token and nothing else. A principal is what a caller says it is, so no
	// right can hang on it; rules that keep callers from harming each other by mistake still hold.
	Open Regime = "open"
	// Static: every caller has a credential whose grants the broker enforces. Rows of operators (capability
	// manager.admin, mode any) are in operator credentials only.
	Static Regime = "static"
	// User: callers are users and their agents. Scopes stand in a ledger and may be taken back at any time.
	User Regime = "user"
)

// Standing is what a host knows of a caller among its own seats.
type Standing string

// Standings.
const (
	// Outside: no seat of this host. An operator's instrument, a seat of another host, or a stranger; the
	// broker knows which.
	Outside Standing = "outside"
	// Seated: the caller is a live seat of this host.
	Seated Standing = "seated"
	// Retiring: the caller is a seat of this host that is being ended.
	Retiring Standing = "retiring"
	// Retired: the caller was a seat of this host.
	Retired Standing = "retired"
)

// ScopeAdmin is the scope that reaches what belongs to others, in regime User.
const ScopeAdmin = "admin"

// Access is what a request wants to do, apart from its arguments.
type Access struct {
	Command    string
	Capability string     // wire.CapManager…
	Mode       wire.Authz // AuthzNone for an untargeted command
}

// Target is the seat a targeted request is about.
type Target struct {
	Name    string // alias
	Owner   string
	Actor   string
	UID     string // lifecycle UID
	Spawner string // principal of who asked for the seat; empty when that is not known
}

// Member refuses a caller that is no member any more: a seat that is being ended, or was, has no say.
// Everybody else is the broker's to refuse.
func Member(s Standing) *wire.Error {
	switch s {
	case Retiring, Retired:
		return wire.Refuse(wire.CodePermissionDenied, "the caller is a seat that is %s; it may not call anything any more", s)
	}
	return nil
}

// NeedsReach reports whether Tier has to know the caller's reach for this access.
func NeedsReach(r Regime, a Access) bool {
	return r == User && (a.Mode == wire.AuthzAny || a.Capability == wire.CapManagerAdmin && a.Command != wire.CmdLaunch)
}

// Tier decides whether a caller may use a command in a mode at all. admin is its reach (Reach).
//
// In Open and Static there is nothing to add to the broker: whoever could send this may. In User the
// commands of manager.admin and the mode any are for the scope admin as it stands now. The one exception is
// launch, which Launch decides for everybody alike.
func Tier(r Regime, a Access, admin bool) *wire.Error {
	if !NeedsReach(r, a) || admin {
		return nil
	}
	if a.Mode == wire.AuthzAny {
		return wire.Refuse(wire.CodePermissionDenied, "%s in mode any needs the scope %s; it is not tried in another mode", a.Command, ScopeAdmin)
	}
	return wire.Refuse(wire.CodePermissionDenied, "%s needs the scope %s, which %s is for", a.Command, ScopeAdmin, a.Capability)
}

// Named decides whether a caller may act on one seat. The rule is the same for despawn, attach, input and
// terminal. admin is the caller's reach.
//
//   - self: the seat itself, and nobody else.
//   - any: by reach alone. A spawner without it is denied too, who could have asked in mode owner.
//   - owner: the spawner; in User also everybody under the same owner, and the scope admin.
func Named(r Regime, a Access, c wire.Caller, t Target, admin bool) *wire.Error {
	var ok bool
	var missing string
	switch a.Mode {
	case wire.AuthzSelf:
		ok, missing = c == (wire.Caller{Owner: t.Owner, Actor: t.Actor, UID: t.UID}), "only the seat itself may"
	case wire.AuthzAny:
		ok, missing = r != User || admin, "mode any needs the scope "+ScopeAdmin
	case wire.AuthzOwner:
		child := t.Spawner != "" && t.Spawner == c.Principal()
		switch r {
		case User:
			ok, missing = child || t.Owner == c.Owner || admin, "it is another owner's, and reaching it needs the scope "+ScopeAdmin
		default:
			ok, missing = child, "mode owner reaches what the caller itself spawned; an operator asks in mode any"
		}
	default:
		missing = "this mode is not one of the manager's"
	}
	if ok {
		return nil
	}
	return wire.Refuse(wire.CodePermissionDenied, "%s may not %s seat %s (%s.%s): %s", c.Principal(), a.Command, t.Name, t.Owner, t.Actor, missing)
}

// Session decides whether a terminal session may be granted to who asked for it in this mode, and may have the seat
// (Named). In Static the rails of sessions are in operator credentials alone, which ask in mode any: an agent that
// spawned a seat may end it, and is not given a session that its credential cannot use. Typing into a peer is control
// of it.
func Session(r Regime, mode wire.Authz) *wire.Error {
	if r != Static || mode == wire.AuthzAny {
		return nil
	}
	return wire.Refuse(wire.CodePermissionDenied,
		"%s in mode %s: only an operator's credential carries the session of a terminal, and asks in mode any; say to the seat what it is to do", wire.CmdAttach, mode)
}

// NoOwner is the owner whose seats a caller sees that has none. No owner has a dash, so it matches nothing.
const NoOwner = "-no-owner-"

// Sees is the owner whose seats a caller may list and inspect; empty: everybody's. It is the reach by which
// seats are stopped, so that nobody can stop what they cannot list. A seat that is not seen is answered for
// like one that does not exist.
func Sees(r Regime, c wire.Caller, admin bool) string {
	switch {
	case r != User || admin:
		return ""
	case c.Check() != nil:
		return NoOwner
	}
	return c.Owner
}

// Launch decides whether a caller may start an agent of a run: by owner, for every caller. A deployer whose
// credential is stolen launches under its own owner only, whatever scope that owner has. It is asked before
// anything is written.
func Launch(r Regime, c wire.Caller, specOwner string) *wire.Error {
	switch {
	case specOwner == "" && r == User:
		return wire.Refuse(wire.CodeFailedPrecondition, "the launch spec says no owner; log in and apply the manifest again")
	case specOwner != "" && specOwner != c.Owner:
		return wire.Refuse(wire.CodePermissionDenied, "the launch spec belongs to %s, the caller to %s; only the owner of a spec may launch it", specOwner, c.Owner)
	}
	return nil
}

// OwnerOf is the owner of what a caller makes: its owner where that is a user, else its principal, since
// outside User all callers share one owner.
func OwnerOf(r Regime, c wire.Caller) string {
	if r == User {
		return c.Owner
	}
	return c.Principal()
}

// PersonaVisible decides whether a caller may read a persona. One without an owner is the operator's, and
// shared: whoever may spawn it may know what it is. An operator reads the rest on disk; there is no other
// reach over the wire.
func PersonaVisible(r Regime, c wire.Caller, owner string) bool {
	return owner == "" || owner == OwnerOf(r, c)
}

// PersonaLaunchable decides whether a caller may start a seat from a persona: whoever may read it, and who
// reaches what belongs to others.
func PersonaLaunchable(r Regime, c wire.Caller, owner string, admin bool) bool {
	return admin || PersonaVisible(r, c, owner)
}

// PersonaRedefine decides whether a caller may define a persona anew whose file exists. There is no reach
// that overrides the owner, and a file without one is edited by whoever wrote it.
func PersonaRedefine(r Regime, c wire.Caller, name, owner string) *wire.Error {
	switch owner {
	case OwnerOf(r, c):
		return nil
	case "":
		return wire.Refuse(wire.CodeFailedPrecondition, "persona %s belongs to the operator of this host: its file has no owner; choose another name, or edit the file", name)
	}
	return wire.Refuse(wire.CodeFailedPrecondition, "persona %s belongs to %s; only its owner may define it anew; choose another name", name, owner)
}

// EventsNotice is told to a caller whose seat was started without the event plane that it did not ask for.
const EventsNotice = "events are off: arming them for a seat needs the scope " + ScopeAdmin + " in this space"

// Events decides whether the event plane of a new seat is armed. asked is what the request says, nil for
// nothing; required is the space's policy; able is whether the connector has an event channel. The gate is on
// the decision and not on the word: not asking arms it too, for who may. notice is told to the caller.
func Events(r Regime, admin bool, asked *bool, required, able bool) (on bool, notice string, refusal *wire.Error) {
	mayArm := r != User || admin
	wanted := asked == nil || *asked
	switch {
	case required && !wanted:
		return false, "", wire.Refuse(wire.CodeFailedPrecondition, "events: this space requires them; leave out events: false")
	case required && !mayArm, asked != nil && *asked && !mayArm:
		return false, "", wire.Refuse(wire.CodePermissionDenied, "events: arming them for a seat needs the scope %s", ScopeAdmin)
	case required && !able:
		return false, "", wire.Refuse(wire.CodeFailedPrecondition, "events: this space requires them, and the connector has no event channel")
	case asked != nil && *asked && !able:
		return false, "", wire.Refuse(wire.CodeFailedPrecondition, "events: the connector has no event channel; leave events out, or pass --no-events")
	case !wanted || !able:
		return false, "", nil
	case !mayArm:
		return false, EventsNotice, nil
	}
	return true, "", nil
}

// SpawnOwner is the owner a new seat runs under: the authenticated caller's, never one that a request names.
// In User a caller that is no user cannot own a seat.
func SpawnOwner(r Regime, c wire.Caller) (string, *wire.Error) {
	if r != User {
		return wire.OwnerLocal, nil
	}
	if c.Owner == wire.OwnerLocal || !wire.ValidOwner(c.Owner) {
		return "", wire.Refuse(wire.CodePermissionDenied, "%s is no user of this space, so nothing can be spawned for it; log in first", c.Principal())
	}
	return c.Owner, nil
}

// Ledger answers what a principal may do now. A principal without a row has no scope.
type Ledger interface {
	Scope(ctx context.Context, principal string) ([]string, error)
}

// Seats says how a caller stands among the seats of this host.
type Seats interface {
	Stands(c wire.Caller) Standing
}

// Policy reads what decisions need. The zero value is that of an open space without seats.
type Policy struct {
	Regime Regime // empty: Open
	Ledger Ledger // User only; without one nobody has a scope
	Seats  Seats
	// EventsRequired: no seat of this space is started without its event plane.
	EventsRequired bool
}

// Reach reports whether a caller reaches what belongs to others, as of now. Outside User the broker has
// decided that before the call arrived. In User the caller's row is read for every call, so that a scope taken
// away is gone with the next one; a ledger that cannot be read gives nothing.
//
// A call is decided by one reading: whoever needs it twice hands it down.
func (p Policy) Reach(ctx context.Context, c wire.Caller) bool {
	if p.regime() != User {
		return true
	}
	if p.Ledger == nil {
		return false
	}
	scope, err := p.Ledger.Scope(ctx, c.Principal())
	return err == nil && slices.Contains(scope, ScopeAdmin)
}

// Admit decides whether a call goes on to its handler: the caller is a member, and may use this command in
// this mode. Whether it may act on its target is asked with Control.
func (p Policy) Admit(ctx context.Context, c wire.Caller, a Access) *wire.Error {
	if p.Seats != nil {
		if err := Member(p.Seats.Stands(c)); err != nil {
			return err
		}
	}
	if !NeedsReach(p.regime(), a) || a.Mode != wire.AuthzNone {
		return nil // of a targeted call Control decides, with the one reading
	}
	return Tier(p.regime(), a, p.Reach(ctx, c))
}

// Control decides whether a call may act on its target. Reading a ledger takes time: what is done with the
// answer has to find the same life of the target still there.
func (p Policy) Control(ctx context.Context, c wire.Caller, a Access, t Target) *wire.Error {
	admin := p.Reach(ctx, c)
	if err := Tier(p.regime(), a, admin); err != nil {
		return err
	}
	return Named(p.regime(), a, c, t, admin)
}

// Sees is the function Sees with the caller's reach as of now.
func (p Policy) Sees(ctx context.Context, c wire.Caller) string {
	return Sees(p.regime(), c, p.Reach(ctx, c))
}

func (p Policy) regime() Regime {
	if p.Regime == "" {
		return Open
	}
	return p.Regime
}

// Kind is the regime of the space.
func (p Policy) Kind() Regime { return p.regime() }
