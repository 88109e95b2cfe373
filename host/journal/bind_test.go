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

func TestAHostOfAnotherSpaceIsRefusedWhileSeatsLive(t *testing.T) {
	j, err := Open(filepath.Join(t.TempDir(), "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	ctx := context.Background()
	put := func(state RowState) {
		t.Helper()
		if err := j.Update(ctx, func(tx *Tx) error { return tx.PutSeat(SeatRow{SeatID: "s", Alias: "worker", State: state}) }); err != nil {
			t.Fatal(err)
		}
	}
	put(StateRunning) // of a journal that is older than the record
	for _, c := range []struct {
		what, space string
		state       RowState
		other       string
	}{
		{"the first space is recorded, whatever lives", "main", StateRunning, ""},
		{"the same space again", "main", StateRunning, ""},
		{"another space, with a seat that lives", "other", StateRunning, "main"},
		{"another space, with a seat whose end is not proved", "other", StateStopping, "main"},
		{"another space, once the seat has ended", "other", StateExited, ""},
		{"and that is the space from now on", "main", StateRunning, "other"},
	} {
		put(c.state)
		other, names, err := j.SetSpace(ctx, c.space)
		if err != nil || other != c.other || (c.other != "") != (len(names) == 1 && names[0] == "worker") {
			t.Errorf("%s: %q %v %v", c.what, other, names, err)
		}
	}
}
