package control

import (
	"context"
	"strings"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Subjects knows the seats that requests are about; host/seat implements it.
type Subjects interface {
	// Stands says how a caller stands among the seats of this host.
	Stands(c wire.Caller) authz.Standing
	// Subject is what decides who may act on a seat; false when there is no such life, nor was one lately.
	Subject(t wire.Target) (authz.Target, bool)
}

// Guard is the policy of a space over the seats of this host: what stands behind the fence and before every
// handler. It implements Policy and Members.
type Guard struct {
	Policy authz.Policy
	Seats  Subjects
}

// NewGuard binds a policy to the seats of this host.
func NewGuard(p authz.Policy, seats Subjects) *Guard {
	p.Seats = seats
	return &Guard{Policy: p, Seats: seats}
}

// Retiring says why a caller is no longer served.
func (g *Guard) Retiring(c wire.Caller) string {
	if err := authz.Member(g.Seats.Stands(c)); err != nil {
		return err.Message
	}
	return ""
}

// Allow decides whether a request goes on to its handler: the caller is a member, has the reach that the command
// and its mode ask for, and of a targeted command may act on that very seat. A target that is not there is
// expired; it comes before the question who may, as there is nobody's seat to ask about.
func (g *Guard) Allow(ctx context.Context, r *bus.Request, capability string) *wire.Error {
	a := authz.Access{Command: r.Subject.Command, Capability: capability, Mode: r.Subject.Authz}
	if err := g.Policy.Admit(ctx, r.Caller(), a); err != nil {
		return err
	}
	if a.Mode == wire.AuthzNone {
		return nil
	}
	t := r.Target()
	seat, ok := g.Seats.Subject(t)
	if !ok {
		return wire.Refuse(wire.CodeExpired, "no live seat is %s.%s with the lifecycle uid %s; look at ps for the current one", t.Owner, t.Actor, t.LifecycleUID)
	}
	return g.Policy.Control(ctx, r.Caller(), a, seat)
}

// seen keeps the rows of the seats that a caller may see. The rows may be the caller's own afterwards.
func (d Deps) seen(ctx context.Context, c wire.Caller, rows []wire.AgentRow) []wire.AgentRow {
	owner := d.Authz.Sees(ctx, c)
	if owner == "" {
		return rows
	}
	kept := rows[:0:0]
	for _, row := range rows {
		if ownedBy(row, owner) {
			kept = append(kept, row)
		}
	}
	return kept
}

func ownedBy(row wire.AgentRow, owner string) bool { return strings.HasPrefix(row.ID, owner+".") }

// inspect is one seat, if the caller may see it; another one is answered for like one that does not exist.
func (d Deps) inspect(ctx context.Context, c wire.Caller, name string) (wire.AgentRow, error) {
	row, err := d.Seats.Inspect(ctx, name)
	if err != nil {
		return wire.AgentRow{}, d.observed(ctx, name, err)
	}
	if owner := d.Authz.Sees(ctx, c); owner != "" && !ownedBy(row, owner) {
		return wire.AgentRow{}, wire.Refuse(wire.CodeNotFound, "no seat is called %q; see cotal ps", name)
	}
	return row, nil
}

// status counts for the caller what ps lists for it.
func (d Deps) status(ctx context.Context, c wire.Caller) wire.StatusReply {
	reply := d.Host.Status()
	if owner := d.Authz.Sees(ctx, c); owner != "" {
		reply.AgentCount, reply.Occupancy = 0, nil
		for _, row := range d.Seats.Rows() {
			if row.Exit == nil && ownedBy(row, owner) {
				reply.AgentCount++
			}
		}
	}
	return reply
}
