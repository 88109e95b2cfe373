package trust

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// A takeover once went through a large family one row after the other, until the credential ended that it did so with.
// Hundreds of rows, of as many holders, are ended in a small part of the life of a credential for one step.
func TestIncident_ALargeFamilyIsEndedWithinTheLifeOfOneStep(t *testing.T) {
	const family = 400
	r := newRig(t)
	uid := r.activate()
	exp := time.Now().Add(time.Hour)
	r.rows(Life{UID: uid}, func(ctx context.Context, rec *bus.Records) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(rowsAtOnce)
		for range family {
			g.Go(func() error {
				k, err := r.auth.NewKey()
				if err != nil {
					return err
				}
				row := wire.CredentialRow{
					CredentialID: credentialID(k.Public), HolderPrincipal: r.auth.Principal(k.Public).String(), LifecycleUID: uid,
					SourceChain: []string{wire.SourceRoot}, State: wire.CredentialActive, Exp: exp.UnixMilli(),
				}
				value, err := row.Encode()
				if err != nil {
					return err
				}
				_, err = rec.CreateFor(ctx, row.Key(), value, time.Until(exp))
				return err
			})
		}
		return g.Wait()
	})
	begin := time.Now()
	done, err := r.auth.Revoke(t.Context(), Life{UID: uid})
	must(t, err)
	if done.Credentials != family || len(done.Holders) != family {
		t.Errorf("ended %d credentials of %d holders, want %d", done.Credentials, len(done.Holders), family)
	}
	if took := time.Since(begin); busy.Over(begin, oneShotLife/20) {
		t.Errorf("it took %s; a credential for one step lives %s", took, oneShotLife)
	} else {
		t.Logf("%d rows were ended in %s", family, took)
	}
}
