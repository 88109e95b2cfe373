package seat

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

func TestKnownLivesAreThoseThatMayHaveAProcess(t *testing.T) {
	const mine, other = "aaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbb"
	root := t.TempDir()
	j, err := journal.Open(filepath.Join(t.TempDir(), "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	now := time.Now()
	id := func(n byte) string { return "0123456789abcdef0123456789abcde" + string('0'+n) }
	row := func(n byte, alias string, st journal.RowState, change func(*journal.SeatRow)) journal.SeatRow {
		r := journal.SeatRow{
			SeatID: id(n), UID: "ccccccccccccccccccccccccc" + string('a'+n), Alias: alias, Principal: "local.a" + alias, Nonce: "n", Runtime: "pty", State: st, Created: now, Started: now, Form: []byte(`{"version": 1}`),
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	rows := []journal.SeatRow{
		row(0, "runs", journal.StateRunning, nil),
		row(1, "begins", journal.StateIntent, func(r *journal.SeatRow) { r.Started = time.Time{} }),
		row(2, "prepared", journal.StatePrepared, func(r *journal.SeatRow) { r.Started = time.Time{} }),
		row(3, "exited", journal.StateExited, nil),
		row(4, "over", journal.StateExited, func(r *journal.SeatRow) { r.Reaped = true }),
		row(5, "failed", journal.StateFailed, nil),
		row(6, "odd", journal.StateUnknown, func(r *journal.SeatRow) { r.Principal = "of an older form" }),
	}
	if err := j.Update(t.Context(), func(tx *journal.Tx) error {
		for _, r := range rows {
			if err := tx.PutSeat(r); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for n, owner := range map[byte]string{0: mine, 4: mine, 7: mine, 8: other} {
		dir := filepath.Join(root, id(n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		alias := "found"
		if owner == other {
			alias = "foreign"
		}
		err := record.WriteIntent(dir, record.Intent{
			Version: record.Version, CustodyID: id(n), Nonce: "0123456789abcdef0123456789abcdef", Fence: 1, Created: now, Form: []byte(`{"version": 1}`),
			Owner: record.Owner{InstanceID: owner, Space: "main", Alias: alias, Principal: "local.a", LifecycleUID: "dddddddddddddddddddddddddd", RequestID: "r", Fingerprint: "f"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	known, err := KnownLives(j, root, mine)
	if err != nil {
		t.Fatal(err)
	}
	var names, began []string
	for _, k := range known {
		names = append(names, k.Life.Alias)
		if k.Began {
			began = append(began, k.Life.Alias)
		}
		if (k.Err != nil) != (k.Life.Alias == "odd") {
			t.Errorf("%s: %v", k.Life.Alias, k.Err)
		}
		if k.Err == nil && (k.Spec.Runtime.ID != k.SeatID || k.Spec.Runtime.Kind != "pty" || len(k.Spec.Read) == 0) {
			t.Errorf("%s: %+v", k.Life.Alias, k.Spec)
		}
	}
	if want := []string{"begins", "exited", "found", "odd", "prepared", "runs"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	if want := []string{"exited", "found", "odd", "prepared", "runs"}; !slices.Equal(began, want) {
		t.Errorf("began: %v, want %v", began, want)
	}
	// A host that runs has its journal to itself: then the directories are what there is.
	known, err = KnownLives(nil, root, mine)
	if err != nil || len(known) != 3 {
		t.Errorf("without a journal: %+v, %v", known, err)
	}
	if known, err = KnownLives(nil, filepath.Join(root, "none"), mine); err != nil || len(known) != 0 {
		t.Errorf("without seats: %+v, %v", known, err)
	}
}
