package goal_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

var caller = wire.Caller{Owner: "local", Actor: "alice", UID: "abcdefghijklmnopqrstuvwxyz"}

func open(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := journal.Open(filepath.Join(t.TempDir(), "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func accept(t *testing.T, j *journal.Journal, s *goal.Store, k goal.Key) {
	t.Helper()
	err := j.Update(context.Background(), func(tx *journal.Tx) error {
		return s.Accept(tx, k, wire.CmdSpawn, "seat", wire.Acceptance{Name: "n", GoalID: "g", Fingerprint: "f"}, time.Time{})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func settle(j *journal.Journal, s *goal.Store, k goal.Key, state string) (landed string, first bool, err error) {
	err = j.Update(context.Background(), func(tx *journal.Tx) error {
		r, f, err := s.Settle(tx, k, wire.GoalResult{State: state})
		landed, first = r.State, f
		return err
	})
	return landed, first, err
}

// Whatever races to settle a goal, exactly one terminal lands and everybody is told which.
func TestExactlyOneTerminalLands(t *testing.T) {
	j := open(t)
	s := goal.NewStore(j, nil)
	k := goal.KeyOf(caller, "g")
	accept(t, j, s, k)
	states := []string{wire.GoalSucceeded, wire.GoalFailed, wire.GoalCancelled, wire.GoalUncertain, wire.GoalExpired}
	var mu sync.Mutex
	firsts, landed := 0, map[string]int{}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			got, first, err := settle(j, s, k, states[i%len(states)])
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			landed[got]++
			if first {
				firsts++
			}
		}()
	}
	wg.Wait()
	if firsts != 1 || len(landed) != 1 {
		t.Errorf("%d callers were told they were first, terminals seen: %v; want one and one", firsts, landed)
	}
}

// Two callers that choose the same goal id neither see nor settle each other's goal.
//
// proves: GOAL-2
func TestSameGoalIDOfTwoCallersIsTwoGoals(t *testing.T) {
	j := open(t)
	s := goal.NewStore(j, nil)
	other := caller
	other.Actor = "bob"
	a, b := goal.KeyOf(caller, "g"), goal.KeyOf(other, "g")
	accept(t, j, s, a)
	accept(t, j, s, b)
	if _, _, err := settle(j, s, a, wire.GoalFailed); err != nil {
		t.Fatal(err)
	}
	got, err := s.Result(context.Background(), other, "g")
	if err != nil || got.Result != nil {
		t.Errorf("bob sees %+v, %v; alice's terminal must not show", got.Result, err)
	}
	if got, err = s.Result(context.Background(), caller, "g"); err != nil || got.Result == nil || got.Result.State != wire.GoalFailed {
		t.Errorf("alice sees %+v, %v", got.Result, err)
	}
}

func TestUnknownGoalHasNoResultAndIsNotSettled(t *testing.T) {
	j := open(t)
	var published []wire.GoalProgress
	s := goal.NewStore(j, func(_ wire.Caller, _ string, p wire.GoalProgress) { published = append(published, p) })
	k := goal.KeyOf(caller, "never-accepted")
	if _, first, err := settle(j, s, k, wire.GoalFailed); first || err != nil {
		t.Errorf("settle of an unknown goal: first=%v err=%v", first, err)
	}
	got, err := s.Result(context.Background(), caller, "never-accepted")
	if err != nil || got.Result != nil {
		t.Errorf("result of an unknown goal: %+v, %v", got, err)
	}
	s.Phase(k, wire.PhaseHandoff)
	s.Announce(k, wire.GoalResult{State: wire.GoalFailed})
	if len(published) != 2 || published[1].Phase != wire.PhaseTerminal || published[1].State != wire.GoalFailed {
		t.Errorf("published %+v", published)
	}
}

func TestKeySplitsBackIntoCallerAndID(t *testing.T) {
	c, id, ok := goal.KeyOf(caller, "x-y_z").Split()
	if !ok || c != caller || id != "x-y_z" {
		t.Errorf("split gave %+v %q %v", c, id, ok)
	}
	for _, bad := range []goal.Key{"", "a.b/c", "a.b.c", "a.b.c/", "a.b.c.d/e"} {
		if _, _, ok := bad.Split(); ok {
			t.Errorf("malformed key %q was split", bad)
		}
	}
}
