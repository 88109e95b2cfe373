package host

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// The family of a host's credentials once grew with every start, since each made identities that nothing ended. What an
// earlier start has held is dead when the next one serves; who lives of the family are those that this one holds, the
// operator among them, who is the same as at first.
func TestIncident_StartsInARowLeaveNoIdentityThatLives(t *testing.T) {
	root := t.TempDir()
	operator := ""
	var s *served
	for range 4 {
		if s != nil {
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
		}
		s = serve(t, Config{Root: root})
		who := s.operator().Caller().Principal()
		if operator != "" && who != operator {
			t.Errorf("the operator is %s, was %s", who, operator)
		}
		operator = who
	}
	a := s.h.auth
	want := map[string]bool{}
	a.mu.Lock()
	for _, c := range a.held {
		want[a.Principal(c.Current().Public).String()] = true
	}
	a.mu.Unlock()
	family, err := wire.KeyFilter(wire.KindEndpointCred, wire.EndpointManager, s.h.inst.ID)
	if err != nil {
		t.Fatal(err)
	}
	living, dead := map[string]bool{}, map[string]bool{}
	err = a.With(t.Context(), trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(s.h.cfg.Space)
		if err != nil {
			return err
		}
		rows, err := rec.Scan(ctx, family)
		for _, row := range rows {
			c, err := wire.DecodeCredentialRow(row.Key, row.Value)
			switch {
			case err != nil:
				return err
			case time.Until(time.UnixMilli(c.Exp)) < trust.Executor.Longest()+time.Minute:
				// It was for one step, and ends by itself before the next start of a person.
			case c.State == wire.CredentialActive:
				living[c.HolderPrincipal] = true
			default:
				dead[c.HolderPrincipal] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(living, want) {
		t.Errorf("of the family live %v, this host holds %v", slices.Sorted(maps.Keys(living)), slices.Sorted(maps.Keys(want)))
	}
	if len(dead) != 3*(len(want)-1) { // each of the three starts before had as many, but for the operator
		t.Errorf("three starts left %d identities that are known to be dead, each of them had %d", len(dead), len(want)-1)
	}
}
