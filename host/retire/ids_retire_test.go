package retire_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/saga"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// change writes a slot.
func (r *rig) change(l provision.Life, set func(*wire.Slot)) {
	r.t.Helper()
	r.rows(l, func(ctx context.Context, rec *bus.Records) error {
		_, err := provision.ChangeSlot(ctx, rec, l.Slot(), func(s *wire.Slot) (wire.Slot, error) {
			next := *s
			set(&next)
			return next, nil
		})
		return err
	})
}

// A path that was derived from the name once missed the file that the seat had: it was found by nobody, and left.
//
// proves: PROV-19
func TestACredentialIsWhereTheSlotSaysItIs(t *testing.T) {
	r := newRig(t)
	d := r.spawn("reviewer")
	if s := r.slot(d.Life); s.CredentialFile != d.File {
		t.Fatalf("the slot says %q, the file is %q", s.CredentialFile, d.File)
	}
	const elsewhere = "creds/elsewhere.creds"
	text, err := r.host.store.Read(d.File)
	must(t, err)
	must(t, r.host.store.Write(elsewhere, text))
	must(t, r.host.store.Remove(d.File))
	r.change(d.Life, func(s *wire.Slot) { s.CredentialFile = elsewhere })

	next, err := newHost(t.Context(), r.root, r.br.URL(), inst1, 2)
	must(t, err)
	defer next.retire.Close()
	ctx, cancel := limit(t)
	defer cancel()
	again, err := next.prov.Adopt(ctx, d.Life, d.Spec)
	must(t, err)
	if again.File != elsewhere || again.Credential().Current().ID != d.Credential().Current().ID {
		t.Errorf("taken back with %q", again.File)
	}
	must(t, next.retire.Retire(ctx, d.Life))
	if got, err := r.host.store.Read(elsewhere); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of a life that is over: %d bytes, %v", len(got), err)
	}
}

// A spawn whose slot was taken from it while its program was started once made active what was ended.
//
// proves: SLOT-6
func TestASlotIsActivatedByTheSpawnThatTookIt(t *testing.T) {
	r := newRig(t)
	var second *provision.Draft
	for what, c := range map[string]struct {
		meanwhile func(context.Context, *provision.Draft) error
		says      func() string
	}{
		"its end was decided": {
			func(_ context.Context, d *provision.Draft) error {
				r.change(d.Life, func(s *wire.Slot) { s.Phase = wire.SlotTerminalizing })
				return nil
			},
			func() string { return "its slot is terminalizing" },
		},
		"it was retired": {
			func(ctx context.Context, d *provision.Draft) error { return r.host.retire.Discard(ctx, d.Life) },
			func() string { return "its slot is retired" },
		},
		"another life has the alias": {
			func(ctx context.Context, d *provision.Draft) (err error) {
				if err = r.host.retire.Discard(ctx, d.Life); err == nil {
					second, err = r.host.spawn(ctx, spec(d.Life.Alias))
				}
				return err
			},
			func() string { return "its slot is of life " + second.Life.UID + ", which is active" },
		},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := limit(t)
			defer cancel()
			d, err := r.host.prov.Draw(spec(strings.ReplaceAll(what, " ", "-")))
			must(t, err)
			defer d.Close()
			launch := saga.Step{Name: "launch", Do: func(ctx context.Context) error { return c.meanwhile(ctx, d) }}
			err = saga.Run(ctx, "spawn", nil, slices.Concat(r.host.prov.Steps(d), []saga.Step{launch, r.host.prov.Active(d)}))
			if !errors.Is(err, provision.ErrOver) || !strings.Contains(err.Error(), c.says()) {
				t.Errorf("activated: %v; want it to say %q", err, c.says())
			}
			if s := r.slot(d.Life); s.LifecycleUID == d.Life.UID && s.Phase != wire.SlotRetired {
				t.Errorf("the slot of a spawn that was undone: %+v", s)
			}
		})
	}
	if s := r.slot(second.Life); s.LifecycleUID != second.Life.UID || s.Phase != wire.SlotActive {
		t.Errorf("the slot of the life that has the alias: %+v", s)
	}
	must(t, r.retire(second))
}
