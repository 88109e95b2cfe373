package goal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// lossy is the mesh's store over a connection on which one write is lost: it never arrives, or its answer
// does not. No real server can be made to do that at a chosen write.
type lossy struct {
	goal.Records
	mu      sync.Mutex
	n       int  // writes so far
	at      int  // the write that is lost, from 1
	arrives bool // it is carried out, and only its answer is lost
	dead    bool // nothing gets through after it
	lost    bool
}

var errLost = fmt.Errorf("%w: the connection was lost", bus.ErrUnavailable)

// write reports whether a write is carried out, and whether its answer comes.
func (l *lossy) write() (done, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	switch {
	case l.n == l.at:
		l.lost = true
		return l.arrives, false
	case l.n > l.at && l.dead && l.at > 0:
		return false, false
	}
	return true, true
}

func (l *lossy) gone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead && l.lost
}

func lossyWrite[T any](l *lossy, fn func() (T, error)) (T, error) {
	var zero T
	done, answered := l.write()
	if !done {
		return zero, errLost
	}
	v, err := fn()
	if !answered {
		return zero, errLost
	}
	return v, err
}

func (l *lossy) Create(ctx context.Context, key wire.Key, value []byte) (uint64, error) {
	return lossyWrite(l, func() (uint64, error) { return l.Records.Create(ctx, key, value) })
}

func (l *lossy) Update(ctx context.Context, key wire.Key, value []byte, rev uint64) (uint64, error) {
	return lossyWrite(l, func() (uint64, error) { return l.Records.Update(ctx, key, value, rev) })
}

func (l *lossy) Delete(ctx context.Context, key wire.Key, rev uint64) error {
	_, err := lossyWrite(l, func() (int, error) { return 0, l.Records.Delete(ctx, key, rev) })
	return err
}

func (l *lossy) PutFact(ctx context.Context, f wire.FactSubject, value []byte) (uint64, error) {
	return lossyWrite(l, func() (uint64, error) { return l.Records.PutFact(ctx, f, value) })
}

func (l *lossy) Get(ctx context.Context, key wire.Key) (bus.Entry, error) {
	if l.gone() {
		return bus.Entry{}, errLost
	}
	return l.Records.Get(ctx, key)
}

func (l *lossy) GetFact(ctx context.Context, f wire.FactSubject) ([]byte, error) {
	if l.gone() {
		return nil, errLost
	}
	return l.Records.GetFact(ctx, f)
}

// onMesh counts what a goal has there.
func (h *host) onMesh(k goal.Key) (index, record bool, terminal string) {
	h.t.Helper()
	ref, ctx := refOf(k), h.t.Context()
	there := func(key wire.Key) bool {
		_, err := h.records.Get(ctx, key)
		if err != nil && !errors.Is(err, bus.ErrAbsent) {
			h.t.Fatal(err)
		}
		return err == nil
	}
	index, record = there(ref.IndexKey()), there(ref.Key().Spec())
	p, err := h.records.GetFact(ctx, ref.Result("main"))
	if err == nil {
		f, err := wire.DecodeGoalResult(ref.ID, p)
		if err != nil {
			h.t.Fatal(err)
		}
		terminal = f.State
	} else if !errors.Is(err, bus.ErrAbsent) {
		h.t.Fatal(err)
	}
	return index, record, terminal
}

// writesOfAGoal is how many writes a goal makes: index, bind, spec, status; result, status, index.
const writesOfAGoal = 7

// Whichever write of a goal's life is lost, arrived or not, for a moment or until the next incarnation, with
// its journal or without: a goal that was accepted ends exactly once, one that was refused as not-executed has
// left nothing, and the same submission is answered as before or carried out.
//
// proves: GOAL-12, GOAL-19, GOAL-22
func TestWhicheverWriteIsLostAGoalEndsOnce(t *testing.T) {
	m := newMesh(t)
	for at := 1; at <= writesOfAGoal; at++ {
		for _, arrives := range []bool{false, true} {
			for _, then := range []string{"goes on", "restarts", "restarts without journal"} {
				t.Run(fmt.Sprintf("write %d, arrived %v, %s", at, arrives, then), func(t *testing.T) {
					t.Parallel()
					h := &host{t: t, mesh: m, id: wire.NewUID(), path: filepath.Join(t.TempDir(), "journal.db"), quit: func() {}}
					t.Cleanup(h.crash)
					loseOne(h, &lossy{at: at, arrives: arrives, dead: then != "goes on"}, then)
				})
			}
		}
	}
}

func loseOne(h *host, l *lossy, then string) {
	t := h.t
	h.boot(func(r goal.Records) goal.Records { l.Records = r; return l }).serve()
	k, fp := goal.KeyOf(caller, wire.NewID()), fingerprintOf("a")
	acc, started, err := h.submit(k, fp)
	if started {
		h.end(k, wire.GoalSucceeded)
	} else if werr := wire.ErrorFrom(err); werr == nil {
		t.Fatal("refused without a reason")
	} else if werr.Outcome == wire.OutcomeNotExecuted {
		if index, record, terminal := h.onMesh(k); index || record || terminal != "" {
			t.Errorf("it says not-executed, and left index %v, record %v, terminal %q", index, record, terminal)
		}
	}
	if then != "goes on" {
		h.eventually("the write is lost", func() bool { return l.gone() })
		h.crash()
		if then == "restarts without journal" {
			if err := os.Remove(h.path); err != nil {
				t.Fatal(err)
			}
		}
		h.boot().serve()
	}

	if started { // it was accepted, and everything must end
		r := h.terminal(k)
		want := wire.GoalSucceeded
		if _, _, terminal := h.onMesh(k); then == "restarts without journal" && (l.at == 4 || l.at == 5 && !l.arrives) {
			want = wire.GoalUncertain // nobody knows any more how it ended
		} else if terminal != r.State {
			t.Errorf("told %s, and %s stands", r.State, terminal)
		}
		if r.State != want {
			t.Errorf("it ended %s; want %s", r.State, want)
		}
		h.settledOnMesh(k, want)
	}
	// The same submission again, until it is answered: alike, or for the first time.
	var again wire.Acceptance
	var fresh bool
	h.eventually("the same submission is answered", func() bool {
		again, fresh, err = h.submit(k, fp)
		var werr *wire.Error
		if err != nil && (!errors.As(err, &werr) || werr.Code != wire.CodeUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	switch {
	case started && (fresh || fmt.Sprint(again) != fmt.Sprint(acc)):
		t.Errorf("it was accepted as %+v, and then (anew: %v) as %+v", acc, fresh, again)
	case fresh:
		h.end(k, wire.GoalSucceeded)
	}
	r := h.terminal(k)
	h.settledOnMesh(k, r.State)
	h.eventually("the outbox is empty", func() bool { row, ok, err := h.store.Lookup(k); return err == nil && (!ok || !row.InOutbox()) })
	if index, record, terminal := h.onMesh(k); index || !record || terminal != r.State {
		t.Errorf("at the end: index %v, record %v, terminal %q", index, record, terminal)
	}
}

// A host that looks through the index leaves the goals of a sibling alone, alive or dead.
//
// proves: GOAL-19, MULTI-5
func TestTheGoalsOfASiblingAreNotTouched(t *testing.T) {
	m := newMesh(t)
	a, b := m.host().boot().serve(), m.host().boot().serve()
	live, dead := goal.KeyOf(caller, "live"), goal.KeyOf(caller, "dead")
	for _, k := range []goal.Key{live, dead} {
		if _, started, err := a.submit(k, fingerprintOf("a")); err != nil || !started {
			t.Fatal(started, err)
		}
	}
	a.crash()
	if err := os.Remove(a.path); err != nil { // its goals are past their deadline before it is back
		t.Fatal(err)
	}
	for range 3 {
		b.boot().serve()
	}
	for _, k := range []goal.Key{live, dead} {
		if index, record, terminal := b.onMesh(k); !index || !record || terminal != "" {
			t.Errorf("%s: index %v, record %v, terminal %q", k, index, record, terminal)
		}
	}
	// Their own host settles them, with a reason, and not before their deadline.
	a.boot().serve()
	for _, k := range []goal.Key{live, dead} {
		r := a.terminal(k)
		if r.State != wire.GoalUncertain || r.Error == nil || r.Error.Outcome != wire.OutcomeUnknown {
			t.Errorf("%s: %+v", k, r)
		}
		a.settledOnMesh(k, wire.GoalUncertain)
	}
}

// A seat that is found after its journal row was lost ends its goal itself, also when the goal was found first.
func TestASeatThatIsFoundSettlesItsOwnGoal(t *testing.T) {
	for _, order := range []string{"seat first", "goal first"} {
		t.Run(order, func(t *testing.T) {
			h := newMesh(t).host().boot().serve()
			k := goal.KeyOf(caller, "g1")
			acc, _, err := h.submit(k, fingerprintOf("a"))
			if err != nil {
				t.Fatal(err)
			}
			h.crash()
			if err := os.Remove(h.path); err != nil {
				t.Fatal(err)
			}
			h.boot()
			guess := acc
			guess.ReadinessDeadlineMs, guess.Executor.Epoch = 0, h.epoch // what its directory does not say
			restore := func() {
				if err := h.store.Restore(t.Context(), k, wire.CmdSpawn, "seat", guess); err != nil {
					t.Fatal(err)
				}
			}
			if order == "seat first" {
				restore()
			}
			h.serve()
			if order == "goal first" {
				restore()
			}
			again, started, err := h.submit(k, fingerprintOf("a"))
			if err != nil || started || fmt.Sprint(again) != fmt.Sprint(acc) {
				t.Errorf("the same submission: %+v (started %v, %v)\nwas %+v", again, started, err, acc)
			}
			h.end(k, wire.GoalSucceeded)
			if r := h.terminal(k); r.State != wire.GoalSucceeded {
				t.Errorf("it ended %s", r.State)
			}
			h.settledOnMesh(k, wire.GoalSucceeded)
		})
	}
}

// An entry that is left of a goal at its end goes at the next boot, whatever the journal still has of it.
//
// proves: GOAL-22
func TestAnEntryOfAGoalThatEndedGoesAtTheNextBoot(t *testing.T) {
	h := newMesh(t).host().boot().serve()
	k := goal.KeyOf(caller, "g1")
	if _, _, err := h.submit(k, fingerprintOf("a")); err != nil {
		t.Fatal(err)
	}
	ref := refOf(k)
	e, err := h.records.Get(t.Context(), ref.IndexKey())
	if err != nil {
		t.Fatal(err)
	}
	h.end(k, wire.GoalSucceeded)
	h.settledOnMesh(k, wire.GoalSucceeded)
	h.eventually("the outbox is empty", func() bool { row, _, err := h.store.Lookup(k); return err == nil && row.Committed })
	h.crash()
	if _, err := h.records.Create(t.Context(), ref.IndexKey(), e.Value); err != nil {
		t.Fatal(err)
	}
	h.boot().serve()
	h.settledOnMesh(k, wire.GoalSucceeded)
}
