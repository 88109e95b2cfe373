package wire

import (
	"fmt"
	"strings"
)

// Caller is who sent a request, as the broker authenticated it: principal and lifecycle UID.
type Caller struct {
	Owner string `json:"owner"`
	Actor string `json:"actor"`
	UID   string `json:"uid"`
}

// Principal is the dot form, owner.actor.
func (c Caller) Principal() string { return c.Owner + "." + c.Actor }

// IsZero reports whether no field is set.
func (c Caller) IsZero() bool { return c == Caller{} }

// Check returns an error that names the field that breaks its grammar.
func (c Caller) Check() error {
	switch {
	case !ValidOwner(c.Owner):
		return fmt.Errorf("check caller: owner %s", tokenProblem(c.Owner, whyOwner))
	case !ValidActor(c.Actor):
		return fmt.Errorf("check caller: actor %s", tokenProblem(c.Actor, whyActor))
	case !ValidUID(c.UID):
		return fmt.Errorf("check caller: uid %s", tokenProblem(c.UID, whyUID))
	}
	return nil
}

// Dash is the dash form, owner-actor, of durable names.
func (c Caller) Dash() string { return c.Owner + "-" + c.Actor }

// Identity is the caller as facts and records carry it.
func (c Caller) Identity() Identity { return Identity{ID: c.Principal(), LifecycleUID: c.UID} }

// Principal is a wire identity. It has two forms: the dot form owner.actor (cards, from.id, presence
// keys, subjects) and the dash form owner-actor (names of durables). Neither half may hold a dot or
// a dash, so each form is taken apart again without loss. An alias is no principal.
type Principal struct {
	Owner string
	Actor string
}

// String is the dot form.
func (p Principal) String() string { return p.Owner + "." + p.Actor }

// Dash is the dash form.
func (p Principal) Dash() string { return p.Owner + "-" + p.Actor }

// Valid reports whether both halves fit their grammar.
func (p Principal) Valid() bool { return ValidOwner(p.Owner) && ValidActor(p.Actor) }

// PrincipalOf takes the dot form apart.
func PrincipalOf(dot string) (Principal, error) {
	owner, actor, err := ParsePrincipal(dot)
	return Principal{owner, actor}, err
}

// ParseDashForm takes the dash form apart.
func ParseDashForm(s string) (Principal, error) {
	owner, actor, ok := strings.Cut(s, "-")
	if p := (Principal{owner, actor}); ok && p.Valid() {
		return p, nil
	}
	return Principal{}, fmt.Errorf("parse principal %s", tokenProblem(s, "is not owner-actor"))
}

func validPrincipal(s string) bool { _, _, err := ParsePrincipal(s); return err == nil }

// Identity is one life of a principal in facts and records.
type Identity struct {
	ID           string `json:"id"` // dot form
	LifecycleUID string `json:"lifecycleUid"`
}

func (f *fields) identity(name string, required bool) *Identity {
	s := f.object(name, required)
	if s == nil {
		return nil
	}
	var id Identity
	s.closed("id", "lifecycleUid")
	s.str("id", true, validPrincipal, whyPrincipal, &id.ID)
	s.str("lifecycleUid", true, ValidUID, whyUID, &id.LifecycleUID)
	f.done(s)
	return &id
}

// ParsePrincipal splits the dot form owner.actor.
func ParsePrincipal(s string) (owner, actor string, err error) {
	owner, actor, ok := strings.Cut(s, ".")
	if !ok || !ValidOwner(owner) || !ValidActor(actor) {
		return "", "", fmt.Errorf("parse principal %s", tokenProblem(s, whyPrincipal))
	}
	return owner, actor, nil
}
