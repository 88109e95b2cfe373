package host

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A host has one connection for everything in an open space. In an authenticated one it has a connection for each duty,
// with a credential for just that, and what is stronger is done over a connection for one step. Here is all that differs
// in between.

// startBroker starts the embedded broker, or takes the external server. In an open space it connects, too.
func (h *Host) startBroker(ctx context.Context) (err error) {
	cfg := bus.Config{URL: h.cfg.Server, TokenFile: h.cfg.TokenFile, Log: h.log.Named("bus"), OnState: h.onBus}
	h.tokenFile = h.cfg.TokenFile
	if h.cfg.Server == "" {
		bc := broker.Config{
			StoreDir: filepath.Join(h.inst.Dir, openStore), Port: h.inst.Port, SyncAlways: h.cfg.SyncAlways, Log: h.log.Named("broker"),
		}
		if h.auth != nil {
			bc.StoreDir = filepath.Join(h.inst.Dir, authStore)
			bc.Operator, err = h.auth.operatorOf(bc.StoreDir)
		} else {
			h.tokenFile, bc.Token, err = h.inst.BrokerToken()
		}
		if err != nil {
			return err
		}
		if h.broker, err = broker.Start(ctx, bc); err != nil {
			if h.auth != nil && errors.Is(err, broker.ErrStore) {
				err = h.notBegun(err)
			}
			return err
		}
		if h.inst.Port == 0 {
			if err := h.inst.SetPort(h.broker.Port()); err != nil {
				return err
			}
		}
		cfg.URL, cfg.Token, cfg.InProcess = h.broker.URL(), bc.Token, h.broker.InProcess()
	}
	h.url, h.busConfig = cfg.URL, cfg
	if h.auth != nil {
		if err := h.setMode(ctx); err != nil {
			return err
		}
		return h.openAuthority(cfg)
	}
	h.self = managerCaller(h.inst.ID)
	h.bus, err = bus.Connect(ctx, cfg)
	return err
}

// join makes what is missing of the space, takes the lease of this instance, registers it, and opens the connections it
// serves over.
func (h *Host) join(ctx context.Context) error {
	if h.auth == nil {
		for _, step := range []func(context.Context) error{h.openMessaging, h.openRecords, h.openLease, h.register} {
			err := step(ctx)
			if errors.Is(err, errLater) {
				h.log.Error("nothing new is started until the mesh's store can be written; seats are served", "err", err)
			} else if err != nil {
				return err
			}
		}
		return nil
	}
	for _, step := range []func(context.Context) error{h.setUp, h.openLease, h.register, h.openConnections} {
		err := step(ctx)
		switch {
		case err == nil:
		case errors.Is(err, errLater), errors.Is(err, bus.ErrUnreachable), errors.Is(err, bus.ErrRefused), errors.Is(err, bus.ErrUnavailable), errors.Is(err, bus.ErrControlLine):
			// Without a ledger nobody is minted anything, and there is nothing to serve over.
			return h.notBegun(err)
		default:
			return err
		}
	}
	return nil
}

// errLater: what was to be written at boot could not be. In an open space the host serves what it has, and tries again.
var errLater = errors.New("the mesh's store cannot be written now")

// setUp makes the streams and buckets of the space that are missing, and takes from those that somebody else made what
// would let the holder of one row clear all, over a connection that may do that alone.
func (h *Host) setUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	s := h.streams()
	expect := s.known
	if h.repairing {
		expect = func(string) bool { return false }
	}
	return s.why(h.auth.With(ctx, trust.Request{Profile: trust.SetUp}, func(ctx context.Context, b *bus.Bus) error {
		l, err := b.Leases(bus.LeasesConfig{Space: h.cfg.Space, Known: s.known, Made: s.made(ctx)})
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() error {
			_, err := b.Records(gctx, h.cfg.Space, expect, s.made(ctx))
			return err
		})
		g.Go(func() error { return b.SetUpMessaging(gctx, h.cfg.Space, expect, s.made(ctx)) })
		g.Go(func() error { return l.Open(gctx) })
		err = g.Wait()
		h.remade = l.Remade()
		if err != nil {
			return err
		}
		return b.ForbidRollups(ctx, h.cfg.Space)
	}))
}

// openLeases opens the leases of the space for the one of this instance.
func (h *Host) openLeases(ctx context.Context, s *streams) (*bus.Leases, error) {
	cfg := bus.LeasesConfig{Space: h.cfg.Space, Known: s.known, Made: s.made(ctx), Remade: h.remade}
	if h.auth == nil {
		return h.bus.Leases(cfg)
	}
	b, err := h.auth.connect(ctx, trust.Request{Profile: trust.Leaseholder}, strict)
	if err != nil {
		return nil, err
	}
	return b.Leases(cfg)
}

func strict(cfg *bus.Config) { cfg.Strict = true }

// asRegistrar calls do with records that the registration of this instance can be written in.
func (h *Host) asRegistrar(ctx context.Context, do func(context.Context, *bus.Bus, *bus.Records) error) error {
	if h.auth == nil {
		return do(ctx, h.bus, h.records)
	}
	return h.auth.With(ctx, trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(h.cfg.Space)
		if err != nil {
			return err
		}
		return do(ctx, b, rec)
	})
}

// registered lets others know of a registration; not before it can be looked after, over a connection that stays.
func (h *Host) registered(r *bus.Registration) {
	if h.auth == nil {
		h.registration.Store(r)
	}
}

// watchTakeover looks for another incarnation while this one is not let in. Whoever takes over ends all that this one
// holds, so that it could not see by that who has: it looks over a connection for one step.
func (h *Host) watchTakeover(ctx context.Context) {
	if h.auth == nil {
		return
	}
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		r := h.registration.Load()
		if r == nil || h.bus.Connected() && h.records.Connected() {
			continue
		}
		look, cancel := context.WithTimeout(ctx, registerTimeout)
		err := h.asRegistrar(look, func(ctx context.Context, _ *bus.Bus, rec *bus.Records) error { return r.FenceOver(ctx, rec) })
		cancel()
		if superseding(err) {
			h.superseded(err)
			return
		}
	}
}

// contain ends what earlier incarnations of this instance may still do; nil where nobody has anything that could be
// ended.
func (h *Host) contain() func(context.Context) error {
	if h.auth == nil {
		return nil
	}
	return func(ctx context.Context) error {
		r, err := h.auth.Revoke(ctx, trust.Life{UID: h.inst.ID, Endpoint: wire.EndpointManager})
		if err != nil {
			return fmt.Errorf("end the credentials of the host before this one: %w", err)
		}
		if r.Credentials > 0 {
			h.log.Info("credentials of the host before this one have ended", "credentials", r.Credentials, "connections", r.Ended)
		}
		return nil
	}
}

// openConnections opens what an authenticated host serves over, once it is registered.
func (h *Host) openConnections(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var goals, watch *bus.Bus
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range []struct {
		to   **bus.Bus
		r    trust.Request
		more func(*bus.Config)
	}{
		{&goals, trust.Request{Profile: trust.GoalWriter}, strict},
		{&h.bus, trust.Request{Profile: trust.Supervisor, Key: h.auth.self, Scope: trust.Scope{Epoch: h.inst.Epoch}}, func(cfg *bus.Config) { cfg.OnState = h.onBus }},
		{&watch, trust.Request{Profile: trust.Watcher}, nil},
	} {
		g.Go(func() (err error) {
			*c.to, err = h.auth.connect(gctx, c.r, c.more)
			return err
		})
	}
	g.Go(func() error { return h.auth.openOperator(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	rec, err := goals.Rows(h.cfg.Space)
	if err != nil {
		return err
	}
	rec.EraseBy(func(ctx context.Context) (*bus.Records, func(), error) {
		b, end, err := h.auth.Open(ctx, trust.Request{Profile: trust.Eraser})
		if err != nil {
			return nil, nil, err
		}
		by, err := b.Rows(h.cfg.Space)
		if err != nil {
			end()
			return nil, nil, err
		}
		return by, end, nil
	})
	h.openStore(rec)
	h.registering.Through(rec)
	h.registration.Store(h.registering)
	return h.inhabit(ctx, watch)
}

// purge clears history, over a connection that may do that alone.
func (h *Host) purge(ctx context.Context, directMessages bool) (chat int64, dm *int64, err error) {
	if h.auth == nil {
		return h.bus.Purge(ctx, h.cfg.Space, directMessages)
	}
	err = h.auth.With(ctx, trust.Request{Profile: trust.Purger}, func(ctx context.Context, b *bus.Bus) error {
		chat, dm, err = b.Purge(ctx, h.cfg.Space, directMessages)
		return err
	})
	return chat, dm, err
}

// credsFile is where the person at this machine finds the credential that commands the host; empty in an open space.
func (h *Host) credsFile() string {
	if h.auth == nil {
		return ""
	}
	return filepath.Join(h.auth.store.Dir(), filepath.FromSlash(h.auth.operatorFile))
}

// regime is how the space tells its callers apart.
func (h *Host) regime() authz.Regime {
	if h.auth == nil {
		return authz.Open
	}
	return authz.Static
}
