package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/plugins/catalog"
	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// registerTimeout bounds the registration at boot: a dozen exchanges with a broker that answered a moment ago.
	registerTimeout = 15 * time.Second
	// againEvery is how often a registration that could not be written is tried again.
	againEvery = time.Second
	// keepEvery is how often the registration is looked after. Every commit is fenced by itself; this is for a
	// host that commits nothing.
	keepEvery = 5 * time.Second
	// offerEvery is how often it is looked whether a connector is available; offerSoon while one starts.
	offerEvery = time.Second
	offerSoon  = 100 * time.Millisecond
	// goodbyeTimeout bounds the last write of a stop.
	goodbyeTimeout = time.Second
)

// register makes this incarnation the registered one, before it touches a seat. Where another one is, it does not
// start. Where the store of the mesh cannot be written, a host of an open space serves what it has: seats that live need
// an owner more than new ones need a registry. It tries again then, and commits no goal before.
//
// Errors: bus.ErrSuperseded, errLater, those of asRegistrar.
func (h *Host) register(ctx context.Context) error {
	if h.registering == nil && h.lease.Status().Verdict == lease.Unheld {
		// Whoever holds the lease is not superseded by one that only could not read it.
		return fmt.Errorf("%w: not registered without a lease", errLater)
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	contract, err := control.Contract(wire.OwnerLocal)
	if err != nil {
		return err
	}
	err = h.asRegistrar(ctx, func(ctx context.Context, b *bus.Bus, rec *bus.Records) error {
		if h.registering != nil {
			h.registering.Through(rec)
			return h.registering.Again(ctx)
		}
		var err error
		h.registering, err = b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: h.inst.ID, Epoch: h.inst.Epoch, Principal: h.self.Principal(),
			Contract: contract, Contain: h.contain(), Log: h.log.Named("registry"),
		})
		return err
	})
	switch {
	case errors.Is(err, bus.ErrSuperseded):
		return err
	case err != nil:
		return fmt.Errorf("%w: not registered: %w", errLater, err)
	}
	h.enrolled.Store(h.registering)
	h.registered(h.registering)
	return nil
}

// fenced says whether this incarnation is the registered one.
func (h *Host) fenced(ctx context.Context) error {
	if r := h.registration.Load(); r != nil {
		return r.Fence(ctx)
	}
	return unregistered()
}

// unregistered: nobody knows of this incarnation, so that it must not begin anything.
func unregistered() error {
	return wire.Refuse(wire.CodeUnavailable, "this host is not registered: the mesh's store cannot be written")
}

// permit says what seats may be started by. A host that is not registered holds its lease all the same, for the seats that
// it has; and its store, which cannot be told of it, may well be told of a goal.
type permit struct {
	seat.Lease
	registered func() bool
}

// Check refuses what is new. What waits to go on waits for the lease alone (Await).
func (p permit) Check() error {
	if err := p.Lease.Check(); err != nil {
		return err
	}
	if !p.registered() {
		return unregistered()
	}
	return nil
}

// instances answers whom a scatter has to expect.
type instances struct{ h *Host }

func (i instances) Instances(ctx context.Context) ([]wire.ExpectedReply, error) {
	r := i.h.registration.Load()
	if r == nil {
		return nil, wire.Refuse(wire.CodeFailedPrecondition, "this host is not registered: the mesh's store cannot be written")
	}
	return r.Instances(ctx)
}

// keepRegistered says that this host is ready, and looks after that until it stops.
func (h *Host) keepRegistered() {
	ctx, cancel := context.WithCancel(context.Background())
	h.keeping.Go(func() {
		<-h.stop.done
		cancel()
	})
	h.keeping.Go(func() {
		for h.registration.Load() == nil {
			select {
			case <-time.After(againEvery):
			case <-ctx.Done():
				return
			}
			switch err := h.register(ctx); {
			case err == nil || ctx.Err() != nil:
			case errors.Is(err, errLater):
				h.log.Error("nothing new is started until the mesh's store can be written; seats are served", "err", err)
			default:
				h.superseded(err)
				return
			}
		}
		r := h.registration.Load()
		state, more := h.serviceState()
		if err := r.SetState(ctx, state, more); err != nil && ctx.Err() == nil {
			h.log.Warn("registered, but others are not told that this host is ready", "err", err)
		}
		r.Keep(ctx, keepEvery, h.serviceState, h.superseded)
	})
	h.keeping.Go(func() { h.watchTakeover(ctx) })
	h.keeping.Go(func() {
		told := ""
		for {
			h.offer()
			_, more := h.serviceState()
			list := string(more["connectors"])
			wait := offerEvery
			if strings.Contains(list, `"state":"`+connectorStarting+`"`) {
				wait = offerSoon
			} else if r := h.registration.Load(); r != nil && list != told {
				// Others are told at once what this host can launch; Keep does it only now and then.
				if err := r.SetState(ctx, wire.ServiceReady, more); err == nil {
					told = list
				}
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
		}
	})
}

// connectorStarting is the state of a connector that was not described yet and is on its way; the others are
// those of the status command.
const connectorStarting = "starting"

// serviceState is what others see of this host.
func (h *Host) serviceState() (string, map[string]json.RawMessage) {
	type connector struct {
		Agent string `json:"agent"`
		State string `json:"state"`
	}
	connectors := []connector{}
	for _, p := range h.catalog.Status() {
		if p.Kind == sdk.KindConnector {
			state := connectorStarting
			if !onItsWay(p) {
				state = h.seats.ConnectorStatus(p.Name, p.Info, p.Reason).State
			}
			connectors = append(connectors, connector{p.Name, state})
		}
	}
	list, err := json.Marshal(connectors)
	if err != nil {
		list = json.RawMessage("[]") // strings do marshal
	}
	class := "false"
	if h.classSpawn.Load() {
		class = "true"
	}
	return wire.ServiceReady, map[string]json.RawMessage{"connectors": list, "classSpawn": json.RawMessage(class)}
}

// takesSpawns decides whether this host takes spawns of the class: it does while a connector is available, or
// is on its way.
func takesSpawns(connectors []catalog.PluginStatus, available func(catalog.PluginStatus) bool) bool {
	for _, p := range connectors {
		if p.Kind != sdk.KindConnector {
			continue
		}
		switch {
		case onItsWay(p):
			return true
		case p.State != supervise.StateQuarantined && available(p):
			return true
		}
	}
	return false
}

// onItsWay reports whether a plugin has not been described yet and is to be.
func onItsWay(p catalog.PluginStatus) bool {
	return p.Info.Name == "" && (p.State == supervise.StateStopped || p.State == supervise.StateStarting)
}

// offer takes spawn and launch on and off the rail of the class.
func (h *Host) offer() {
	on := takesSpawns(h.catalog.Status(), func(p catalog.PluginStatus) bool {
		return h.seats.ConnectorStatus(p.Name, p.Info, p.Reason).State == "available"
	})
	if h.classSpawn.Swap(on) == on {
		return
	}
	for _, name := range []string{wire.CmdSpawn, wire.CmdLaunch} {
		if err := h.service.Offer(name, on); err != nil {
			h.log.Warn("command stays as it was on the rail of the class", "op", name, "err", err)
		}
	}
	if !on {
		h.log.Warn("no connector is available: spawns of the class go to other hosts; a spawn that names this one is still taken")
	}
}

// ErrReplaced: another host has the instance of this one, which ended for it.
var ErrReplaced = errors.New("another host has taken over this instance")

// superseded ends a host whose instance another one has taken over. Its seats are that one's now. Whether the lease or
// the registry was the first to tell is one.
func (h *Host) superseded(err error) {
	err = fmt.Errorf("%w: %v", ErrReplaced, err) // not wrapped: a refusal that a fence met is not how the process ends
	h.stop.mu.Lock()
	told := h.stop.lost != nil
	if !told {
		h.stop.lost = err
	}
	h.stop.mu.Unlock()
	if told {
		return
	}
	h.log.Error("superseded", "err", err)
	_, _ = h.shutdown(false, nil) // sparing the seats; that it is stopping already is as good
}

// lostTo is why this host had to stop: another one has its instance; nil otherwise.
func (h *Host) lostTo() error {
	h.stop.mu.Lock()
	defer h.stop.mu.Unlock()
	return h.stop.lost
}

// leaveRegistry tells others that this host has ended, behind everything else that is told of it. A registration that
// is another host's is left alone, and one is kept as long as it is not proved that every seat is gone.
func (h *Host) leaveRegistry() {
	h.keeping.Wait()
	r := h.registration.Load()
	if r == nil || h.keepsRegistration.Load() || h.lostTo() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	if err := r.SetState(ctx, wire.ServiceExited, nil); err != nil && !errors.Is(err, bus.ErrSuperseded) {
		h.log.Warn("others are not told that this host has ended", "err", err)
	}
}
