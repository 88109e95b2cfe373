package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// What a host does with lives is fenced by its epoch and by its lease, whatever its connections look like.
func TestAHostThatWasReplacedEndsNoLifeAndSweepsNothing(t *testing.T) {
	s := serve(t, Config{Root: t.TempDir()})
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	contract, err := control.Contract(wire.OwnerLocal)
	if err != nil {
		t.Fatal(err)
	}
	draft := func() provision.Life { // there is no trace of it: its end is nothing
		return provision.Life{Alias: "nobody", Caller: wire.Caller{Owner: wire.OwnerLocal, Actor: "nobody", UID: wire.NewUID()}}
	}
	if err := s.h.lives.Discard(ctx, draft()); err != nil {
		t.Fatalf("a host that is the registered one: %v", err)
	}
	if err := s.h.lives.sweeper.Sweep(ctx, retire.SweepScheduled); err != nil {
		t.Fatalf("one that holds its lease: %v", err)
	}
	err = s.h.asRegistrar(ctx, func(ctx context.Context, b *bus.Bus, rec *bus.Records) error {
		_, err := b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: s.h.inst.ID, Epoch: s.h.inst.Epoch + 1, Principal: s.h.self.Principal(), Contract: contract,
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// It finds out by itself before long, and stops.
	if err := s.h.lives.Discard(ctx, draft()); !errors.Is(err, retire.ErrReplaced) && !errors.Is(err, retire.ErrStopped) {
		t.Errorf("an end behind the registration of another one: %v", err)
	}
	s.h.lease.Abandon(ctx)
	if err := s.h.lives.sweeper.Sweep(ctx, retire.SweepScheduled); !errors.Is(err, lease.ErrReleased) && !errors.Is(err, retire.ErrStopped) {
		t.Errorf("a sweep without a lease: %v", err)
	}
}
