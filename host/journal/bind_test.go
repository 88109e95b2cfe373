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
		err = j.Bind(context.Background(), c.id)
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
