package seat_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Seat directories that could not be read when a host started were once never read again: every life counted as that of one of its
// seats for as long as it ran, so that nothing that was left over was ever ended, and no name of it was free.
func TestSeatDirectoriesThatCouldNotBeReadAreReadAgain(t *testing.T) {
	w := newWorld(t)
	w.crash()
	broken := filepath.Join(w.dir, "broken")
	if err := os.WriteFile(broken, nil, 0o600); err != nil { // it is no directory
		t.Fatal(err)
	}
	w.readsSeats = filepath.Join(w.dir, "link")
	if err := os.Symlink(broken, w.readsSeats); err != nil {
		t.Fatal(err)
	}
	w.boot()
	nobody := provision.Life{Alias: "nobody", Caller: wire.Caller{Owner: "local", Actor: "nobody", UID: wire.NewUID()}}
	if w.set.Listed() || !w.set.HasLife(nobody) {
		t.Error("it is said to be known which seats there are")
	}
	if err := os.Symlink(w.seatRoot, w.readsSeats+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w.readsSeats+".new", w.readsSeats); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is known which seats there are", func() (bool, string) {
		listed, has := w.set.Listed(), w.set.HasLife(nobody)
		return listed && !has, fmt.Sprintf("listed %v, has a life of nobody %v", listed, has)
	})
}
