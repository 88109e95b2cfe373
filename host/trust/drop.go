package trust

import (
	"context"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// droppedRow is how long the row of a dropped credential stays: nobody asks for longer what became of it, and a ledger
// that kept all of them for a day is what a takeover has to go through.
const droppedRow = time.Minute

// Drop marks the rows of credentials that nobody holds any more, over one connection.
func (a *Static) Drop(ctx context.Context, gone ...Credential) error {
	if len(gone) == 0 {
		return nil
	}
	for _, c := range gone {
		if c.Profile.row().agent {
			return fmt.Errorf("drop credential: %w: profile %s is a seat's, and ends with Revoke", ErrRefused, c.Profile)
		}
		clear(c.seed)
	}
	own := a.own()
	err := a.asExecutor(ctx, Scope{}, func(rec *bus.Records) error {
		var all inParallel
		for _, c := range gone {
			row := wire.CredentialRow{CredentialID: c.ID, LifecycleUID: own.UID, Endpoint: own.Endpoint}
			all.Go(func() error { return a.mark(ctx, rec, row.Key(), droppedRow) })
		}
		return all.Wait()
	})
	if err != nil {
		return fmt.Errorf("drop credentials: %w", err)
	}
	return nil
}
