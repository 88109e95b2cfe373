package trust

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// spoil makes the row of a credential unreadable.
func (r *rig) spoil(of Life, c Credential) {
	r.t.Helper()
	key := wire.CredentialRow{CredentialID: c.ID, LifecycleUID: of.UID, Endpoint: of.Endpoint}.Key()
	r.rows(of, func(ctx context.Context, rec *bus.Records) error {
		row, err := rec.Get(ctx, key)
		if err != nil {
			return err
		}
		_, err = rec.Update(ctx, key, []byte("{"), row.Rev)
		return err
	})
}

// A row that cannot be read is an error, and no reason to let anybody in: every other credential of the life is ended, and
// that of the key which the life is known by, too. The same holds beside a holder whom another authority made.
func TestOneRowThatCannotBeReadDoesNotKeepTheOthersFromBeingRevoked(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		spoil func(uid string, first Credential)
		want  error
		says  string
	}{
		"a row is garbled": {func(uid string, first Credential) { r.spoil(Life{UID: uid}, first) }, bus.ErrCorrupt, ""},
		"a row is of another authority": {func(uid string, _ Credential) {
			row := wire.CredentialRow{
				CredentialID: "sha256-x", HolderPrincipal: "local.somebody", LifecycleUID: uid, SourceChain: []string{"root"},
				State: wire.CredentialActive, Exp: time.Now().Add(time.Hour).UnixMilli(),
			}
			p, err := row.Encode()
			must(t, err)
			r.rows(Life{UID: uid}, func(ctx context.Context, rec *bus.Records) error {
				_, err := rec.CreateFor(ctx, row.Key(), p, time.Hour)
				return err
			})
		}, ErrUnverified, "local.somebody"},
	} {
		t.Run(name, func(t *testing.T) {
			uid := r.activate()
			all := []Credential{r.mint(Request{Profile: Agent, UID: uid}), r.mint(Request{Profile: Agent, UID: uid}), r.mint(Request{Profile: Agent, UID: uid})}
			var conns []*client
			for _, c := range all {
				conns = append(conns, r.dial(c))
			}
			c.spoil(uid, all[0])
			_, err := r.auth.Revoke(t.Context(), Life{UID: uid, Actor: all[0].Public})
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			for i, c := range all {
				ends(t, conns[i], 5*time.Second)
				if nc, err := dialAs(r.br.URL(), c); !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) {
					t.Errorf("credential %d works: %v", i, err)
					if err == nil {
						nc.Close()
					}
				}
			}
		})
	}
}

// What the ledger could be told of credentials that nobody holds any more it was told.
func TestOneRowThatCannotBeReadDoesNotKeepOthersFromBeingDropped(t *testing.T) {
	r := newRig(t)
	var all []Credential
	for range 3 * rowsAtOnce {
		all = append(all, r.mint(Request{Profile: Session, Scope: Scope{Epoch: 1, Session: wire.NewSessionID()}}))
	}
	r.spoil(r.auth.own(), all[0])
	if err := r.auth.Drop(t.Context(), all...); !errors.Is(err, bus.ErrCorrupt) {
		t.Errorf("%v", err)
	}
	r.rows(r.auth.own(), func(ctx context.Context, rec *bus.Records) error {
		for i, c := range all[1:] {
			key := wire.CredentialRow{CredentialID: c.ID, LifecycleUID: inst1, Endpoint: wire.EndpointManager}.Key()
			row, err := rec.Get(ctx, key)
			if errors.Is(err, bus.ErrAbsent) {
				continue // it was forgotten already
			}
			if err != nil {
				return err
			}
			if got, err := wire.DecodeCredentialRow(key, row.Value); err != nil || got.State != wire.CredentialRevoked {
				t.Errorf("row %d: %s, %v", i+1, got.State, err)
			}
		}
		return nil
	})
}
