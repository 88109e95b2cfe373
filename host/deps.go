package host

import (
	"context"
	"errors"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// deps binds the commands of the manager endpoint to this host.
func (h *Host) deps() control.Deps {
	guard := control.NewGuard(authz.Policy{Regime: h.regime()}, h.seats)
	h.fence = control.NewFence(guard)
	return control.Deps{
		Host: h, Seats: h.seats, Goals: h.goals, Launch: h.seats, Attach: h.sessions, Purger: purger{h},
		Personas: persona.NewStore(h.cfg.Root, guard.Policy.Kind()),
		Models:   &launch.Models{Plugins: plugins{h.catalog}, EnvAllow: h.envAllow},
		Policy:   guard, Authz: guard.Policy, Fence: h.fence, Registry: instances{h},
		Slots: h.slots(), Instance: h.inst.ID,
	}
}

// slots shows the slots of the space; nil in an open one.
func (h *Host) slots() control.Slots {
	if h.lives == nil {
		return nil
	}
	return &retire.Slots{Records: h.records, Instance: h.inst.ID, Live: h.seats.HasLife, Holds: h.lives.Holds}
}

// purger clears the history of this host's space.
type purger struct{ h *Host }

func (p purger) Purge(ctx context.Context, directMessages bool) (chat int64, dm *int64, err error) {
	chat, dm, err = p.h.purge(ctx, directMessages)
	if errors.Is(err, bus.ErrUnavailable) {
		err = wire.Fail(wire.CodeUnavailable, "%v; some of the history may be gone", err)
	}
	return chat, dm, err
}

// Connectors returns the names of the manifest's connectors, sorted.
func (p plugins) Connectors() []string {
	var names []string
	for _, st := range p.Status() {
		if st.Kind == sdk.KindConnector {
			names = append(names, st.Name)
		}
	}
	return names
}
