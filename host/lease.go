package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// leaseTimeout bounds how long a boot waits for its lease: until one of a process that cannot be asked has aged.
	leaseTimeout = wire.LeaseTTL + 5*time.Second
	// leaseRelease bounds giving it back: a renewal that runs, two looks and a write. A broker that is gone is told
	// of at once.
	leaseRelease = 5 * time.Second
)

// openLease takes the liveness lease of this instance, before it registers. Where another process holds it, this host
// does not start. Where the mesh does not answer, the lease is taken as soon as it does.
//
// Errors: errLater, those of openLeases, lease.ErrHeld, bus.ErrStoreUnfit.
func (h *Host) openLease(ctx context.Context) error {
	s := h.streams()
	var err error
	if h.leases, err = h.openLeases(ctx, s); err != nil {
		return err
	}
	self, err := lease.Self(wire.ManagerLease{
		Holder: h.self.Principal(), InstanceID: h.inst.ID, Runtime: h.runtimeName(), Root: h.cfg.Root, Epoch: h.inst.Epoch,
	})
	if err != nil {
		return err
	}
	h.lease, err = lease.New(lease.Config{
		Store: h.leases, Self: self, Space: h.cfg.Space, Own: h.broker != nil, Up: h.leases.Up(), Log: h.log.Named("lease"),
		Fence: h.leaseFence, Over: superseding, Lost: h.leaseLost, Waiting: h.leaseWaits,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	go func() { // who waits here can be told to stop
		select {
		case <-h.signalled:
			cancel()
		case <-ctx.Done():
		}
	}()
	switch err := s.why(h.lease.Acquire(ctx)); {
	case errors.Is(err, lease.ErrHeld), errors.Is(err, bus.ErrStoreUnfit):
		return err
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped before it served: %w", err)
	case err != nil:
		h.lease.Start()
		return fmt.Errorf("%w: the lease of this instance is not held: %w", errLater, err)
	}
	h.lease.Start()
	return nil
}

// leaseFence says whether this incarnation still is the registered one, if it is registered at all. Until the connection is
// there that looks after a registration, it is asked over one for this step.
func (h *Host) leaseFence(ctx context.Context) error {
	if r := h.registration.Load(); r != nil {
		return r.Fence(ctx)
	}
	if r := h.enrolled.Load(); r != nil {
		return h.asRegistrar(ctx, func(ctx context.Context, _ *bus.Bus, rec *bus.Records) error { return r.FenceOver(ctx, rec) })
	}
	return nil
}

// leaseLost ends this host, once it has booted as far as that there is something to end.
func (h *Host) leaseLost(err error) {
	select {
	case <-h.serving:
		h.superseded(err)
	case <-h.stop.done:
	}
}

// superseding reports whether an error says that another incarnation is registered.
func superseding(err error) bool {
	var over *wire.Error
	return errors.Is(err, bus.ErrSuperseded) || errors.As(err, &over) && over.Code == wire.CodeExpired
}

// leaseWaits tells whoever starts a host why it is not there yet.
func (h *Host) leaseWaits(row wire.ManagerLease, atMost time.Duration) {
	who := "the leases of this space were lost with their bucket, and another host may still count on one"
	if row.Holder != "" {
		who = fmt.Sprintf("process %d, workspace %s, held the lease of this instance, and whether it lives cannot be told from here", row.PID, row.Root)
	}
	fmt.Fprintf(h.cfg.Stderr, "waiting up to %s: %s\n", atMost, who)
	h.log.Info("waits for a lease to age", "limit", atMost.String(), "pid", row.PID)
}

// releaseLease gives the lease back, or leaves it to age where seats could not be proved gone: they may live, and a
// host on another machine must not begin beside them.
func (h *Host) releaseLease() {
	if h.lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaseRelease)
	defer cancel()
	if h.keepsRegistration.Load() {
		h.lease.Abandon(ctx)
	} else {
		h.lease.Release(ctx)
	}
	h.lease.Wait()
	h.leases.Close()
}

// leaseStatus is how this host stands to its lease.
func (h *Host) leaseStatus() *wire.LeaseStatus {
	if h.lease == nil {
		return nil
	}
	st := h.lease.Status()
	out := &wire.LeaseStatus{State: string(st.Verdict), ForMs: st.For.Milliseconds(), Reason: st.Why, Fenced: st.Fenced}
	if st.Renewed >= 0 {
		ms := st.Renewed.Milliseconds()
		out.RenewedMs = &ms
	}
	return out
}
