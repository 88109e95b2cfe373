package retire

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// What is told of sweeps is a copy in the order of the names, without anything that only the sweeper has; a slot that was
// brought to its end is told of until the next sweep begins, and not longer.
//
// proves: RECON-8
func TestWhatIsToldOfSweepsIsACopyInTheOrderOfTheNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &stage{fail: errors.New("weather")}
		for _, name := range []string{"c", "a", "b"} {
			st.rows = append(st.rows, slotRow(name, own, wire.SlotActive))
		}
		s := st.sweeper()
		defer s.Stop()
		if err := s.Sweep(t.Context(), SweepStartup); err != nil {
			t.Fatal(err)
		}
		order := func() (names, dispositions []string) {
			for _, f := range s.Status().Failures {
				names, dispositions = append(names, f.Alias), append(dispositions, f.Disposition)
			}
			return names, dispositions
		}
		if names, _ := order(); !slices.Equal(names, []string{"a", "b", "c"}) {
			t.Errorf("the failures are of %v", names)
		}
		told := s.Status()
		told.LastSweep.Kind, told.Failures[0].Alias = "spoiled", "spoiled"
		s.Last().Kind = "spoiled"
		if again := s.Status(); again.LastSweep.Kind != SweepStartup || again.LastSweep.Failed != 3 || again.Failures[0].Alias != "a" {
			t.Errorf("whoever was told has changed it: %+v, %+v", again.LastSweep, again.Failures[0])
		}
		for what, c := range map[string]struct {
			value any
			may   []string
		}{
			"a failure":      {s.Status().Failures[0], []string{"actor", "alias", "attempts", "disposition", "lastError", "lifecycleUid", "maxAttempts", "nextRetryAt", "phase"}},
			"the last sweep": {s.Status().LastSweep, []string{"attempted", "completedAt", "failed", "kind", "startedAt", "succeeded"}},
		} {
			p, err := json.Marshal(c.value)
			var members map[string]any
			if err == nil {
				err = json.Unmarshal(p, &members)
			}
			if got := slices.Sorted(maps.Keys(members)); err != nil || !slices.Equal(got, c.may) {
				t.Errorf("%s says %v, want %v (%v)", what, got, c.may, err)
			}
		}

		// The retries bring them to their end, and that is told of for as long as no sweep begins.
		st.set(func() { st.fail = nil })
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, ds := order(); !slices.Equal(ds, []string{Recovered, Recovered, Recovered}) {
			t.Errorf("an hour behind their end they are told of as %v", ds)
		}
		st.set(func() { st.rows = nil })
		if err := s.Sweep(t.Context(), SweepScheduled); err != nil {
			t.Fatal(err)
		}
		if got := s.Status(); len(got.Failures) != 0 || got.LastSweep.Kind != SweepScheduled {
			t.Errorf("behind the next sweep: %+v, %+v", got.Failures, got.LastSweep)
		}
	})
}
