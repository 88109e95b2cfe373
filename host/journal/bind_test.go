package journal

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// A journal whose instance.json was deleted is not taken over by the new identity in silence.
func TestBindRefusesTheJournalOfAnotherInstance(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	for i, c := range []struct {
		id string
		ok bool
	}{{"one", true}, {"one", true}, {"two", false}, {"one", true}} {
		j, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		err = j.Bind(context.Background(), c.id, uint64(i+1))
		if (err == nil) != c.ok {
			t.Errorf("bind %d to %s: %v", i, c.id, err)
		}
		if !c.ok && (!errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "one") || !strings.Contains(err.Error(), "instance.json")) {
			t.Errorf("the refusal does not name what it is about: %v", err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A journal remembers who its host was, and the highest epoch any seat may have seen.
func TestIdentityIsRememberedWithTheHighestEpoch(t *testing.T) {
	j, err := Open(filepath.Join(t.TempDir(), "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if id, epoch, err := j.Identity(); id != "" || epoch != 0 || err != nil {
		t.Errorf("a new journal: %q %d %v", id, epoch, err)
	}
	if err := j.Bind(context.Background(), "one", 7); err != nil {
		t.Fatal(err)
	}
	err = j.Update(context.Background(), func(tx *Tx) error {
		return tx.PutSeat(SeatRow{SeatID: "s", State: StateRunning, Fence: 9})
	})
	if err != nil {
		t.Fatal(err)
	}
	if id, epoch, err := j.Identity(); id != "one" || epoch != 9 || err != nil {
		t.Errorf("got %q %d %v; want one, 9", id, epoch, err)
	}
}
