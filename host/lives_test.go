package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/lease"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/retire"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// replace registers another incarnation of the instance, as a copy of the workspace does that takes over.
func (s *served) replace(ctx context.Context) {
	s.t.Helper()
	contract, err := control.Contract(wire.OwnerLocal)
	if err == nil {
		err = s.h.asRegistrar(ctx, func(ctx context.Context, b *bus.Bus, rec *bus.Records) error {
			_, err := b.Register(ctx, rec, bus.RegisterConfig{
				Endpoint: wire.EndpointManager, InstanceID: s.h.inst.ID, Epoch: s.h.inst.Epoch + 1, Principal: s.h.self.Principal(), Contract: contract,
			})
			return err
		})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// What a host does with lives is fenced by its epoch and by its lease, whatever its connections look like.
func TestAHostThatWasReplacedEndsNoLifeAndSweepsNothing(t *testing.T) {
	s := serve(t, Config{Root: t.TempDir()})
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	draft := func() provision.Life { // there is no trace of it: its end is nothing
		return provision.Life{Alias: "nobody", Caller: wire.Caller{Owner: wire.OwnerLocal, Actor: "nobody", UID: wire.NewUID()}}
	}
	if err := s.h.lives.Discard(ctx, draft()); err != nil {
		t.Fatalf("a host that is the registered one: %v", err)
	}
	if err := s.h.lives.sweeper.Sweep(ctx, retire.SweepScheduled); err != nil {
		t.Fatalf("one that holds its lease: %v", err)
	}
	s.replace(ctx)
	// It finds out by itself before long, and stops.
	if err := s.h.lives.Discard(ctx, draft()); !errors.Is(err, retire.ErrReplaced) && !errors.Is(err, retire.ErrStopped) {
		t.Errorf("an end behind the registration of another one: %v", err)
	}
	s.h.lease.Abandon(ctx)
	if err := s.h.lives.sweeper.Sweep(ctx, retire.SweepScheduled); !errors.Is(err, lease.ErrReleased) && !errors.Is(err, retire.ErrStopped) {
		t.Errorf("a sweep without a lease: %v", err)
	}
}

// A lease that was away between the registration of its host and the connection that looks after it once counted as checked
// without anybody having been asked.
func TestALeaseThatWasAwayWhileItsHostRegisteredIsChecked(t *testing.T) {
	s := serve(t, Config{Root: t.TempDir()})
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	s.h.registration.Store(nil) // as between the two
	if err := s.h.leaseFence(ctx); err != nil {
		t.Errorf("the registered one: %v", err)
	}
	s.replace(ctx)
	if err := s.h.leaseFence(ctx); !superseding(err) {
		t.Errorf("behind the registration of another one: %v", err)
	}
}

// A look once made a store for credentials in a workspace that had lost it.
func TestALookMakesNoStoreOfCredentials(t *testing.T) {
	keys := serve(t, Config{Root: t.TempDir()})
	root, _ := wasServed(t)
	auth := filepath.Join(root, ".cotal", "auth")
	if err := os.RemoveAll(auth); err != nil {
		t.Fatal(err)
	}
	facts := Examine(t.Context(), Config{Root: root, Keys: keys.root, Server: keys.h.url, SeatRoot: t.TempDir()})
	if i := slices.IndexFunc(facts, func(f trust.Fact) bool { return f.Name == "credentials" }); i < 0 || facts[i].Verdict != trust.Wrong {
		t.Errorf("it says %+v", facts)
	}
	if _, err := os.Stat(auth); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a store: %v", err)
	}
}
