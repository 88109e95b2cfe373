package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

// proves: GOAL-25
func TestGoalMoves(t *testing.T) {
	if got := strings.Join(GoalTerminals(), " "); got != "succeeded failed cancelled expired uncertain" {
		t.Errorf("the terminals are %s", got)
	}
	open := map[string]string{
		GoalAccepted: "running waiting cancelling", GoalRunning: "waiting cancelling", GoalWaiting: "running cancelling", GoalCancelling: "",
	}
	for _, from := range append(append([]string{}, goalStates...), "", "done") {
		for _, to := range append(append([]string{}, goalStates...), "", "done") {
			want := false
			if next, known := open[from]; known {
				want = IsTerminal(to) || strings.Contains(" "+next+" ", " "+to+" ") && to != ""
			}
			if got := GoalMove(from, to); got != want {
				t.Errorf("%q to %q: %v", from, to, got)
			}
		}
	}
}

// proves: GOAL-2
func TestGoalsOfTwoCallersAreTwo(t *testing.T) {
	other := testGoal
	other.Caller.UID = testUID2
	for _, f := range []func(GoalRef) (string, error){
		func(g GoalRef) (string, error) { return g.Key().Spec().Encode() },
		func(g GoalRef) (string, error) { return g.IndexKey().Encode() },
		func(g GoalRef) (string, error) { return g.Bind("main").Subject() },
		func(g GoalRef) (string, error) { return g.Result("main").Subject() },
	} {
		a, err1 := f(testGoal)
		b, err2 := f(other)
		if err1 != nil || err2 != nil || a == b {
			t.Errorf("%s, %v; %s, %v", a, err1, b, err2)
		}
	}
}

// proves: GOAL-3
func TestGoalReuse(t *testing.T) {
	a, err := Fingerprint(base(), req(func(e *EndpointRequest) { e.Args = json.RawMessage(`{"name":"a"}`) }))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Fingerprint(base(), req(func(e *EndpointRequest) { e.Args = json.RawMessage(`{"name":"b"}`) }))
	if err != nil {
		t.Fatal(err)
	}
	bind := GoalBind{GoalID: "r1", Fingerprint: a}
	if bind.Reuse(a) != GoalSame || bind.Reuse(b) != GoalConflict {
		t.Error("the same id with other arguments is the same goal")
	}
}

// proves: GOAL-6, GOAL-30
func TestGoalIndexKeepsWhatWasAllocated(t *testing.T) {
	g := GoalIndex{
		Endpoint: "manager", Owner: "local", Actor: testNkey, UID: testUID, GoalID: "g1", InstanceID: testInst,
		Allocated: &Allocation{Name: "reviewer_2", Owner: "local", Actor: "bob", UID: testUID2, ReadinessDeadlineMs: 30000},
		Note:      json.RawMessage(`{"payload":"x"}`),
	}
	p, err := g.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeGoalIndex(testGoal, p)
	if err != nil || *back.Allocated != *g.Allocated || string(back.Note) != string(g.Note) || back.Ref() != testGoal {
		t.Fatalf("%+v, %v", back, err)
	}
	for name, f := range map[string]func(*Allocation){
		"no name": func(a *Allocation) { a.Name = "" }, "no owner": func(a *Allocation) { a.Owner = "" },
		"no actor": func(a *Allocation) { a.Actor = "" }, "no uid": func(a *Allocation) { a.UID = "" },
		"a negative deadline": func(a *Allocation) { a.ReadinessDeadlineMs = -1 },
	} {
		bad := g
		a := *g.Allocated
		f(&a)
		bad.Allocated = &a
		if p, err := bad.Encode(); err == nil {
			t.Errorf("%s: %s is written", name, p)
		}
	}
	old := strings.Replace(string(p), `"owner":"local","actor":"bob"`, `"actor":"bob"`, 1)
	if back, err := DecodeGoalIndex(testGoal, []byte(old)); err != nil || back.Allocated.Owner != "" {
		t.Errorf("an old entry without owner: %+v, %v", back.Allocated, err)
	}
}

func TestGoalSpecsAndStatuses(t *testing.T) {
	spec := GoalSpec{GoalID: "g1", Fingerprint: testDigestA, Command: "spawn", Caller: testCaller.Identity(), RequestID: "g1", AcceptedAt: 1000, ReadinessDeadlineMs: 30000}
	if spec.ReadyBy() != 31000 || (GoalSpec{AcceptedAt: 5}).ReadyBy() != 0 {
		t.Error("the readiness deadline is wrong")
	}
	p, err := spec.Encode()
	if err != nil || !strings.Contains(string(p), `"sourceSeq":0`) {
		t.Errorf("an ephemeral goal has sequence 0: %s, %v", p, err)
	}
	for name, s := range map[string]GoalStatus{
		"a checkpoint of a running goal":      {State: GoalRunning, Checkpoint: &GoalCheckpoint{Token: "t"}},
		"a cancel mode of a waiting goal":     {State: GoalWaiting, CancelMode: CancelGraceful},
		"a cancel mode that is none":          {State: GoalCancelling, CancelMode: "soon"},
		"a state that is none":                {State: "done"},
		"a checkpoint with a token of spaces": {State: GoalWaiting, Checkpoint: &GoalCheckpoint{Token: "a b"}},
	} {
		if p, err := s.Encode(); err == nil {
			t.Errorf("%s: %s", name, p)
		}
	}
	if _, err := (GoalStatus{State: GoalCancelling, CancelMode: CancelTerminate}).Encode(); err != nil {
		t.Error(err)
	}
}

func TestGoalResults(t *testing.T) {
	epoch := uint64(7)
	spec := GoalSpec{GoalID: "g1", Fingerprint: testDigestA, AcceptedEpoch: &epoch}
	g, err := NewGoalResult("g1", testDigestA, GoalUncertain, map[string]any{"reason": "no presence in time"}, Committer{testInst, 7}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.Encode()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("data that was changed is no result", func(t *testing.T) {
		bad := strings.Replace(string(p), "no presence", "a presence", 1)
		if r, err := DecodeGoalResult("g1", []byte(bad)); err == nil {
			t.Fatalf("%+v", r)
		}
	})
	t.Run("data that was evicted still says how it ended", func(t *testing.T) {
		e, err := g.Evict().Encode()
		if err != nil {
			t.Fatal(err)
		}
		r, err := DecodeGoalResult("g1", e)
		if err != nil || !r.Evicted() || r.State != GoalUncertain || r.OutcomeDigest != g.OutcomeDigest {
			t.Fatalf("%+v, %v", r, err)
		}
	})
	t.Run("a result without data has the digest of null", func(t *testing.T) {
		r, err := NewGoalResult("g1", testDigestA, GoalCancelled, nil, Committer{testInst, 7}, 1)
		if err != nil || r.OutcomeDigest != Digest([]byte("null")) {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := r.Encode(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a running goal has no result", func(t *testing.T) {
		if r, err := NewGoalResult("g1", testDigestA, GoalRunning, nil, Committer{testInst, 7}, 1); err == nil {
			if p, err := r.Encode(); err == nil {
				t.Fatalf("%s", p)
			}
		}
	})
	for _, c := range []struct {
		name string
		f    func(*GoalResultFact)
		ok   bool
	}{
		{"the accepting epoch may commit", func(*GoalResultFact) {}, true},
		{"a successor may commit", func(g *GoalResultFact) { g.Committer = &Committer{testInst, 9} }, true},
		{"an earlier epoch may not", func(g *GoalResultFact) { g.Committer = &Committer{testInst, 6} }, false},
		{"a result without committer counts", func(g *GoalResultFact) { g.Committer = nil }, true},
		{"a result of another submission does not", func(g *GoalResultFact) { g.Fingerprint = testDigestB }, false},
		{"a result of another goal does not", func(g *GoalResultFact) { g.GoalID = "g2" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := g
			c.f(&r)
			if err := r.Of(spec); (err == nil) != c.ok {
				t.Fatalf("%v", err)
			}
		})
	}
}
