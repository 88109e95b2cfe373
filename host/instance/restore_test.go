package instance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A lost instance.json is restored from what else remembers the host: a new identity would orphan every
// seat. One that was put back from an old copy gives no epoch that a seat has already seen.
func TestTheIdentityIsRestoredFromItsWitness(t *testing.T) {
	root := t.TempDir()
	open := func(w Witness) (*Instance, error) {
		i, err := OpenWith(context.Background(), root, w)
		if err == nil {
			if cerr := i.Close(); cerr != nil {
				t.Fatal(cerr)
			}
		}
		return i, err
	}
	first, err := open(func(string) (string, uint64, error) { return "", 0, nil })
	if err != nil || first.Epoch != 1 {
		t.Fatalf("%+v, %v", first, err)
	}
	path := filepath.Join(root, ".cotal", "host", "instance.json")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	unreadable := errors.New("the journal is damaged")
	if _, err := open(func(string) (string, uint64, error) { return "", 0, unreadable }); !errors.Is(err, unreadable) {
		t.Errorf("an unreadable witness: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an identity was minted although the witness could not be read")
	}
	again, err := open(func(string) (string, uint64, error) { return first.ID, 1000, nil })
	if err != nil || again.ID != first.ID || again.Epoch != 1001 {
		t.Errorf("restored as %+v, %v; want %s at epoch 1001", again, err, first.ID)
	}
	other, err := open(func(string) (string, uint64, error) { return strings.Repeat("z", 26), 5000, nil })
	if err != nil || other.ID != first.ID || other.Epoch != 1002 {
		t.Errorf("a witness of somebody else changed it: %+v, %v", other, err)
	}
}
