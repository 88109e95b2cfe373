package seat

import (
	"fmt"
	"strings"

	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// reservedPrefix belongs to chat sessions.
const reservedPrefix = "chat_"

// checkName returns why an alias cannot be used, or nil.
func checkName(name string) error {
	if strings.HasPrefix(name, reservedPrefix) {
		return fmt.Errorf("name %q begins with %s, which is reserved", name, reservedPrefix)
	}
	return persona.CheckName(name)
}

// claimKind says how a name is held.
type claimKind string

const (
	claimFree        claimKind = ""
	claimSeat        claimKind = "seat"        // a seat of this host that lives, or is being launched
	claimRetiring    claimKind = "retiring"    // its end is decided, and something of it is still there
	claimReconciling claimKind = "reconciling" // an interrupted spawn is still being undone
	claimElsewhere   claimKind = "elsewhere"   // a participant that is no seat of this host: it is on the mesh under this name
)

// claim is who holds a name now.
type claim struct {
	kind  claimKind
	who   string // in words, for a refusal
	uid   string // of the life that holds it
	cause string // retiring, reconciling: what the last attempt failed with; empty while it goes on
}

// names remembers the numbers that were given out. A numbered name is never issued twice in one process,
// even after its holder ended: readers could not tell the two apart. So it is never pruned. A base name is
// not in it, and reusable for ever.
type names struct {
	numbered map[string]bool
}

// errNameHeld says that a name is taken, and by whom.
type errNameHeld struct {
	name string
	by   claim
}

func (e errNameHeld) Error() string {
	switch e.by.kind {
	case claimRetiring:
		text := fmt.Sprintf("name %q is held by a seat that is %s: what is left of it is being removed", e.name, e.by.who)
		if e.by.cause != "" {
			text += " (" + e.by.cause + ")"
		}
		return text + "; try again in a moment"
	case claimReconciling:
		text := fmt.Sprintf("name %q is held by a spawn that was interrupted and is being undone", e.name)
		if e.by.cause != "" {
			text += " (" + e.by.cause + ")"
		}
		return text + "; try again in a moment"
	case claimElsewhere:
		return fmt.Sprintf("name %q is in use on the mesh by %s; choose another --name", e.name, e.by.who)
	default:
		return fmt.Sprintf("name %q is held by a seat that is %s; stop it first, or choose another --name", e.name, e.by.who)
	}
}

// refusal is the answer to a spawn whose name cannot be had.
func (e errNameHeld) refusal() *wire.Error {
	refused := wire.Refuse(wire.CodeFailedPrecondition, "%v", e)
	op := ""
	switch e.by.kind {
	case claimRetiring:
		op = wire.OpRetirement
	case claimReconciling:
		op = wire.OpActivation
	default:
		return refused
	}
	return blockedBy(refused, op, e.by.uid)
}

// blockedBy says of a refusal which operation on which life is in its way. The id of the operation is derived, so that
// whoever drives it names the same.
func blockedBy(refused *wire.Error, op, uid string) *wire.Error {
	id := wire.RetirementOpID(uid)
	if op == wire.OpActivation {
		id = wire.ActivationOpID(uid)
	}
	return refused.With(wire.DetailLifecycleBlocked, map[string]any{"blockedOp": op, "opId": id, "remedy": "retry"})
}

// giveBack frees a number that nobody was told of: its spawn was refused before it was accepted.
func (n *names) giveBack(name string) { delete(n.numbered, name) }

// allocate returns the alias for a spawn and remembers a number it gave out.
func (n *names) allocate(base string, pinned bool, held func(string) claim) (string, error) {
	name, err := chooseName(base, pinned, func(name string) bool { return n.numbered[name] }, held)
	if err != nil || name == base {
		return name, err
	}
	if n.numbered == nil {
		n.numbered = map[string]bool{}
	}
	n.numbered[name] = true
	return name, nil
}

// chooseName decides the alias of a spawn: base when nobody has it. A name whose holder is on its way out is
// refused, never numbered: the caller means that one. A pinned name that anybody has is refused; one that
// came from a persona is numbered base_2, base_3, …, past numbers that were ever issued and names in use.
func chooseName(base string, pinned bool, issued func(string) bool, held func(string) claim) (string, error) {
	if err := checkName(base); err != nil {
		return "", err
	}
	by := held(base)
	switch {
	case by.kind == claimFree:
		return base, nil
	case pinned || by.kind == claimRetiring || by.kind == claimReconciling:
		return "", errNameHeld{base, by}
	}
	for i := 2; ; i++ {
		name := fmt.Sprintf("%s_%d", base, i)
		if issued(name) || held(name).kind != claimFree {
			continue
		}
		if err := checkName(name); err != nil {
			return "", err
		}
		return name, nil
	}
}

// life is one life under one alias.
type life struct{ alias, principal, uid string }

// retired remembers lives that this host saw to their end, so that their presence does not hold the name for
// the seconds until it drops. It is bounded: presence goes long before.
type retired struct {
	lives map[life]bool
	order []life
}

const keepRetired = 1024

func (r *retired) add(l life) {
	if r.lives == nil {
		r.lives = map[life]bool{}
	}
	if r.lives[l] {
		return
	}
	r.lives[l] = true
	if r.order = append(r.order, l); len(r.order) > keepRetired {
		delete(r.lives, r.order[0])
		r.order = r.order[1:]
	}
}

// onMesh tells which names participants have that are no seats of this host: every row that is not known to
// be offline counts, whatever manager it belongs to, but not the life of a seat that this host retired. A
// view that went stale still knows who had a name; that somebody left it cannot know.
func onMesh(view View, gone func(life) bool) map[string]claim {
	out := map[string]claim{}
	for _, p := range view.Rows {
		if p.Status == wire.StatusOffline {
			continue
		}
		if gone(life{p.Card.Name, p.Card.ID, p.LifecycleUID}) {
			continue
		}
		out[p.Card.Name] = claim{kind: claimElsewhere, who: p.Card.ID, uid: p.LifecycleUID}
	}
	return out
}
