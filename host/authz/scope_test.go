package authz

import (
	"slices"
	"strings"
	"testing"
)

// A seat gets no more than its spawner has, whatever its persona says, and hears of what it did not get.
//
// proves: AUTHZ-23
func TestASeatGetsNoScopeItsSpawnerLacks(t *testing.T) {
	long := "role:" + strings.Repeat("r", 65)
	for _, c := range []struct {
		name                  string
		capabilities, spawner []string
		scope, beyond         []string
	}{
		{"what the spawner holds is given", []string{"spawn", "run"}, []string{"run", "spawn", "admin"}, []string{"spawn", "run"}, nil},
		{"a role goes beside spawn and admin", []string{"spawn", "admin", "role:lead_2-x"}, []string{"spawn", "admin", "role:lead_2-x"}, []string{"spawn", "admin", "role:lead_2-x"}, nil},
		{"each token is judged by itself", []string{"spawn", "role:lead"}, []string{"spawn"}, []string{"spawn"}, []string{"role:lead"}},
		{"another role is another right", []string{"role:lead"}, []string{"role:leader", "role:", "role:Lead"}, nil, []string{"role:lead"}},
		{"admin stands for nothing else", []string{"spawn", "role:lead"}, []string{"admin"}, nil, []string{"spawn", "role:lead"}},
		{"spawn does not make an admin", []string{"admin"}, []string{"spawn"}, nil, []string{"admin"}},
		{"a spawner without a row gives nothing", []string{"spawn"}, nil, nil, []string{"spawn"}},
		{"who asks for nothing gets nothing", nil, []string{"spawn", "admin"}, nil, nil},
		{"a capability that is no scope is dropped, though the spawner has it", []string{"paint", "Spawn", "supervise"}, []string{"paint", "Spawn", "supervise"}, nil, nil},
		{"a role that is no name is none", []string{"role:", "role:a b", "role:a.b", "role:*", "role:é", "role", long}, []string{"role:", "role:a b", "role:a.b", "role:*", "role:é", "role", long}, nil, nil},
		{"asked for twice, it is given once", []string{"spawn", "spawn", "run", "run"}, []string{"spawn"}, []string{"spawn"}, []string{"run"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			scope, beyond := SeatScope(c.capabilities, c.spawner)
			if !slices.Equal(scope, c.scope) || !slices.Equal(beyond, c.beyond) {
				t.Errorf("given %q, beyond %q; want %q and %q", scope, beyond, c.scope, c.beyond)
			}
		})
	}
}
