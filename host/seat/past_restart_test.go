package seat_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// TestADespawnAskedAgainOfTheNextHostIsNotExpired: a host that starts over a journal of thousands of ends knows each of
// the last hour, and tells of it all that the journal has.
func TestADespawnAskedAgainOfTheNextHostIsNotExpired(t *testing.T) {
	const many = 3000
	w := newWorld(t)
	life := func(i int) wire.Target {
		return wire.Target{Owner: wire.OwnerLocal, Actor: "worker", LifecycleUID: fmt.Sprintf("u%025d", i)}
	}
	id := func(i int) string { return fmt.Sprintf("%032x", i*7919%many) } // in the order of ids they are mixed
	now := time.Now()
	err := w.journal.Update(context.Background(), func(tx *journal.Tx) error {
		for i := range many {
			ended := now.Add(-50*time.Minute + time.Duration(i)*time.Second)
			if i == 0 {
				ended = now.Add(-2 * time.Hour)
			}
			code := i % 7
			err := tx.PutSeat(journal.SeatRow{
				SeatID: id(i), UID: life(i).LifecycleUID, Alias: "worker", Principal: wire.OwnerLocal + ".worker", Agent: "command", State: journal.StateExited,
				Reaped: true, Exit: &sdk.Exit{Code: &code, At: ended, Evidence: sdk.EvidenceReaped}, Ended: ended, Cause: "stopped-requested",
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	w.crash()
	w.boot()
	for _, i := range []int{1, 2, many / 2, many - 65, many - 64, many - 1} {
		reply, err := w.set.Despawn(context.Background(), w.caller, life(i), wire.DespawnArgs{WaitForExit: true})
		if err != nil || reply.Report == nil || reply.Report.Exit == nil || *reply.Report.Exit.Code != i%7 {
			t.Errorf("the end at %d: %+v, %v", i, reply, err)
		}
		for _, name := range []string{id(i), life(i).LifecycleUID} {
			if row, err := w.set.Inspect(context.Background(), name); err != nil || row.LifecycleUID != life(i).LifecycleUID || row.Agent != "command" {
				t.Errorf("inspect %s, the end at %d: %+v, %v", name, i, row, err)
			}
		}
	}
	if _, err := w.set.Despawn(context.Background(), w.caller, life(0), wire.DespawnArgs{}); code(err) != wire.CodeExpired {
		t.Errorf("an end of two hours ago: %v", err)
	}
	if n := len(w.set.Rows()); n != 1 {
		t.Errorf("ps tells of %d lives of one name", n)
	}
}
