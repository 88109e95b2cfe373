package host

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// presenceStart bounds the set-up of the messaging plane at boot; leaveTimeout the goodbye.
const (
	presenceStart = 10 * time.Second
	leaveTimeout  = time.Second
)

// inhabitant is the host as a participant of its space: it sees who is there, and is seen.
type inhabitant struct {
	roster *mesh.Roster
	self   *mesh.Client

	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	card   *mesh.Presence // nil until the host has appeared
}

// openMessaging makes the messaging plane of the space and begins to watch who is present.
func (h *Host) openMessaging(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, presenceStart)
	defer cancel()
	s := h.streams()
	err := s.why(h.bus.SetUpMessaging(ctx, h.cfg.Space, s.known, s.made(ctx)))
	if err != nil {
		return err
	}
	return h.inhabit(ctx, h.bus)
}

// inhabit makes the host a participant of its space, over its own connection, and begins to watch who is present, over
// watch.
func (h *Host) inhabit(ctx context.Context, watch *bus.Bus) (err error) {
	if h.mesh.self, err = h.bus.Mesh(h.cfg.Space, h.self, "manager"); err != nil {
		return err
	}
	if h.mesh.roster, err = watch.WatchPresence(ctx, h.cfg.Space); err == nil {
		h.background(func(context.Context) { h.logView(h.mesh.roster) }) // until the roster is closed
	}
	return err
}

// logView notes whenever the view of who is present begins or ceases to be worth something.
func (h *Host) logView(r *mesh.Roster) {
	last := mesh.ViewUnpopulated
	for {
		changed := r.Changed()
		if st := r.View().State; st != last {
			h.log.Info("view of presence", "state", st)
			last = st
		}
		select {
		case <-changed:
		case <-r.Done():
			return
		}
	}
}

// managerCaller is who the host is in an open space. It is the same over restarts: the epoch says which incarnation
// serves, and the instance id is the life. In an authenticated space each incarnation is known by its key.
func managerCaller(instanceID string) wire.Caller {
	return wire.Caller{Owner: wire.OwnerLocal, Actor: "manager_" + instanceID, UID: instanceID}
}

// appear publishes the host's own card, as soon as the broker takes it, and keeps it up.
func (h *Host) appear() {
	ctx, cancel := context.WithCancel(context.Background())
	h.mesh.cancel, h.mesh.done = cancel, make(chan struct{})
	go func() {
		defer close(h.mesh.done)
		for {
			p, err := h.mesh.self.Join(ctx, mesh.JoinConfig{Card: h.card()})
			if err == nil {
				h.mesh.mu.Lock()
				h.mesh.card = p
				h.mesh.mu.Unlock()
				return
			}
			if ctx.Err() != nil {
				return
			}
			h.log.Warn("cannot appear on the mesh yet", "err", err)
			t := time.NewTimer(wire.PresenceHeartbeat)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
	}()
}

func (h *Host) card() wire.AgentCard {
	meta := map[string]json.RawMessage{}
	set := func(key, value string) {
		if raw, err := json.Marshal(value); err == nil && value != "" {
			meta[key] = raw
		}
	}
	name, _ := os.Hostname()
	set("host", name)
	set("cwd", h.cfg.Root)
	return wire.AgentCard{
		// No seat can have such a name, so the host takes none away.
		Name: "manager@" + cmp.Or(name, h.inst.ID[:8]), Kind: wire.CardEndpoint, Role: wire.EndpointManager,
		Description: "manager host " + h.inst.ID, Meta: meta,
	}
}

// disappear says goodbye and stops looking.
func (h *Host) disappear() {
	m := &h.mesh
	if m.cancel != nil {
		m.cancel()
		<-m.done
		m.mu.Lock()
		p := m.card
		m.mu.Unlock()
		if p != nil {
			ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
			if err := p.Leave(ctx); err != nil {
				h.log.Debug("goodbye to the mesh", "err", err) // the card ends by itself
			}
			cancel()
		}
		m.cancel = nil
	}
	if m.roster != nil {
		m.roster.Close()
	}
	if m.self != nil {
		m.self.Close()
	}
}

// meshView is the roster as the seats ask for it.
type meshView struct{ *mesh.Roster }

// View returns what is known now.
func (m meshView) View() seat.View {
	return m.Roster.View()
}

// material is what a seat's program needs to reach the mesh: the address, and in an open space the token that everybody
// has. It is read anew for every launch, since a token file may be written anew.
func material(server, tokenFile string) func() (wire.LaunchMaterial, error) {
	return func() (wire.LaunchMaterial, error) {
		m := wire.LaunchMaterial{Servers: server}
		if tokenFile == "" {
			return m, nil
		}
		var err error
		m.Token, err = mesh.ReadToken(tokenFile)
		return m, err
	}
}
