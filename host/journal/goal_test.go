package journal

import (
	"errors"
	"strconv"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestTheTerminalOfTheMeshStandsInTheJournalToo(t *testing.T) {
	j := openTest(t)
	update(t, j, func(tx *Tx) error { return tx.PutGoal(GoalRow{ID: "g"}) })
	update(t, j, func(tx *Tx) error {
		_, _, err := tx.SettleGoal("g", wire.GoalResult{State: wire.GoalFailed})
		return err
	})
	get := func() (r GoalRow) {
		_ = j.View(func(tx *Tx) (err error) { r, err = tx.Goal("g"); return err })
		return r
	}
	if r := get(); !r.InOutbox() {
		t.Errorf("decided here and not there: %+v is not in the outbox", r)
	}
	update(t, j, func(tx *Tx) error { return tx.CommitGoal("g", wire.GoalResult{State: wire.GoalUncertain}) })
	r := get()
	if r.InOutbox() || r.Result.State != wire.GoalUncertain || r.Settled.IsZero() {
		t.Errorf("after the commit: %+v", r)
	}
	update(t, j, func(tx *Tx) error {
		landed, first, err := tx.SettleGoal("g", wire.GoalResult{State: wire.GoalSucceeded})
		if first || landed.State != wire.GoalUncertain {
			t.Errorf("a late end landed: %v %s", first, landed.State)
		}
		return err
	})
	if err := j.Update(t.Context(), func(tx *Tx) error { return tx.CommitGoal("h", wire.GoalResult{State: wire.GoalFailed}) }); !errors.Is(err, ErrNotFound) {
		t.Errorf("commit of a goal nobody knows: %v", err)
	}
	update(t, j, func(tx *Tx) error { return errors.Join(tx.DeleteGoal("g"), tx.DeleteGoal("g")) })
}

// A journal of before goals were on the mesh keeps its goals, and nothing of them is pushed there.
func TestGoalsOfAnOlderJournalStayLocal(t *testing.T) {
	path := t.TempDir() + "/journal.db"
	j := openAt(t, path)
	update(t, j, func(tx *Tx) error {
		return errors.Join(
			tx.PutGoal(GoalRow{ID: "open"}),
			tx.PutGoal(GoalRow{ID: "settled", Result: &wire.GoalResult{State: wire.GoalFailed}}),
		)
	})
	j.Close()
	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keySchema, []byte("1")) })
	j = openAt(t, path)
	n := 0
	err := j.View(func(tx *Tx) error {
		if got := string(tx.bolt.Bucket(bucketMeta).Get(keySchema)); got != strconv.Itoa(Schema) {
			t.Errorf("schema %s", got)
		}
		return tx.Goals(func(r GoalRow) error {
			n++
			if !r.Local || r.InOutbox() {
				t.Errorf("%+v", r)
			}
			return nil
		})
	})
	if err != nil || n != 2 {
		t.Errorf("%d goals, %v", n, err)
	}
}

func TestStreamsThatWereUsedAreRemembered(t *testing.T) {
	path := t.TempDir() + "/journal.db"
	j := openAt(t, path)
	if known, err := j.Known("EPF_main"); known || err != nil {
		t.Errorf("a new journal: %v %v", known, err)
	}
	if err := j.SetKnown(t.Context(), "EPF_main", "EPC_main"); err != nil {
		t.Fatal(err)
	}
	j.Close()
	j = openAt(t, path)
	for _, name := range []string{"EPF_main", "EPC_main"} {
		if known, err := j.Known(name); !known || err != nil {
			t.Errorf("%s: %v %v", name, known, err)
		}
	}
	if known, _ := j.Known("EPF_other"); known {
		t.Error("a stream of another space is known")
	}
}
