package authz

import (
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Scopes of a ledger row beside ScopeAdmin. A role is a scope of its own, "role:<name>".
const (
	ScopeSpawn = "spawn"
	ScopeRun   = "run"
	scopeRole  = "role:"
)

// SeatScope is what of a new seat's capabilities stands in its ledger row, in regime User: what is a scope at
// all, each once, as far as the row of its spawner holds the very same. Nobody gives what they do not have, and
// no scope stands for another one: admin gives no spawn. beyond is what the spawner lacks, in the order it was
// asked for; it is never given, and whoever asked has to be told.
//
// Other words are dropped without being told of: they are capabilities of the agent's program, and no right of
// its principal.
func SeatScope(capabilities, spawner []string) (scope, beyond []string) {
	for i, c := range capabilities {
		switch {
		case !isScope(c), slices.Contains(capabilities[:i], c):
		case slices.Contains(spawner, c):
			scope = append(scope, c)
		default:
			beyond = append(beyond, c)
		}
	}
	return scope, beyond
}

// isScope reports whether a capability may stand in a ledger row.
func isScope(c string) bool {
	if role, ok := strings.CutPrefix(c, scopeRole); ok {
		return wire.ValidID(role) // the characters of a role are those of an id
	}
	return c == ScopeSpawn || c == ScopeRun || c == ScopeAdmin
}
