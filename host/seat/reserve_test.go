package seat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// roster is a view of the mesh that a test writes.
type roster struct {
	mu      sync.Mutex
	view    seat.View
	changed chan struct{}
}

func newRoster(state string) *roster {
	return &roster{view: seat.View{State: state, At: time.Now()}, changed: make(chan struct{})}
}

func (r *roster) View() seat.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view
}

func (r *roster) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// set replaces what is seen.
func (r *roster) set(state string, rows ...wire.Presence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view = seat.View{Rows: rows, State: state, At: time.Now()}
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *roster) Await(ctx context.Context, match func(wire.Presence) bool) (wire.Presence, error) {
	for {
		changed := r.Changed()
		for _, p := range r.View().Rows {
			if match(p) {
				return p, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return wire.Presence{}, ctx.Err()
		}
	}
}

func present(name, id, uid string) wire.Presence {
	return wire.Presence{
		Card: wire.AgentCard{ID: id, Name: name, Kind: wire.CardAgent}, Status: wire.StatusIdle, TS: time.Now().UnixMilli(), LifecycleUID: uid,
	}
}

// persona writes a persona of the scripted agent.
func (w *world) persona(name, script string) {
	w.t.Helper()
	dir := filepath.Join(w.root, ".cotal", "agents")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	text := fmt.Sprintf("---\nname: %s\nagent: command\nlaunchOptions:\n  argv: [%q, '%s']\n---\n", name, filepath.Join(bundle, "cotal-fakeagent"), script)
	if err := os.WriteFile(filepath.Join(dir, name+".md"), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// withRoster boots the host again with a view of the mesh.
func (w *world) withRoster(r seat.Roster) {
	w.t.Helper()
	w.crash()
	w.roster = r
	w.boot()
}

// A name that somebody on the mesh has, whoever runs it, is numbered for a persona and refused for a pin;
// the presence that a seat of this host left behind does not hold its name.
//
// proves: NAME-2, NAME-3, NAME-9, SPAWN-20
func TestNamesOfTheMeshAreConsulted(t *testing.T) {
	w := newWorld(t)
	r := newRoster(seat.ViewUnpopulated)
	w.withRoster(r)
	w.persona("ada", `[{"hang": true}]`)
	// The first spawn waits until the mesh was seen, and then sees who is there.
	time.AfterFunc(50*time.Millisecond, func() { r.set(seat.ViewCurrent, present("ada", "local.other", wire.NewUID())) })
	acc, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "ada"})
	if err != nil || acc.Name != "ada_2" || len(acc.Warnings) != 0 {
		t.Fatalf("beside an ada on the mesh: %+v, %v", acc, err)
	}
	if _, err := w.spawn(wire.NewID(), w.args("ada", `[{"hang": true}]`)); code(err) != wire.CodeFailedPrecondition || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), "local.other") {
		t.Errorf("a pin: %v", err)
	}
	r.set(seat.ViewCurrent)
	first, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "ada"})
	if err != nil || first.Name != "ada" {
		t.Fatalf("%+v, %v", first, err)
	}
	w.awaitStatus("ada", "running")
	r.set(seat.ViewCurrent, present("ada", first.Owner+"."+first.Actor, first.UID))
	if _, err := w.stop(first, false); err != nil {
		t.Fatal(err)
	}
	next, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "ada"})
	if err != nil || next.Name != "ada" {
		t.Errorf("its presence is still there: %+v, %v", next, err)
	}
}

// A mesh that cannot be seen holds a spawn up for a bounded time, and says what that means.
//
// proves: SPAWN-20
func TestASpawnDoesNotWaitForEverForTheMesh(t *testing.T) {
	w := newWorld(t)
	w.viewWait = 100 * time.Millisecond
	w.withRoster(newRoster(seat.ViewUnpopulated))
	begin := time.Now()
	acc, err := w.spawn(wire.NewID(), w.args("blind", `[{"hang": true}]`))
	if err != nil || len(acc.Warnings) != 1 || !strings.Contains(acc.Warnings[0], "could not be seen") {
		t.Errorf("%+v, %v", acc, err)
	}
	if d := time.Since(begin); d < w.viewWait {
		t.Errorf("it waited %s", d)
	}
}

// stuck is a runtime that cannot remove what is left of seats.
type stuck struct {
	sdk.Runtime
	mu    sync.Mutex
	fails error
}

func (s *stuck) Reap(ctx context.Context, req sdk.StopRequest) (sdk.ReapReport, error) {
	s.mu.Lock()
	err := s.fails
	s.mu.Unlock()
	if err != nil && !req.Keep {
		return sdk.ReapReport{}, err
	}
	return s.Runtime.Reap(ctx, req)
}

func (s *stuck) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

// A name whose last holder could not be removed is refused, also to a persona, with what the last attempt
// failed with; the refusal drives the removal again, and once that succeeds the name is there at once. As that is an
// effect, the refusal does not say that nothing was done.
//
// proves: NAME-6, OUT-4
func TestANameThatIsStillRetiringIsRefusedAndItsTeardownDrivenAgain(t *testing.T) {
	w := newWorld(t)
	w.plugins.mu.Lock()
	rt := &stuck{Runtime: w.plugins.runtime, fails: sdk.Errorf(sdk.ErrUnproven, "the directory is busy")}
	w.plugins.runtime = rt
	w.plugins.mu.Unlock()
	w.persona("ada", `[{"hang": true}]`)
	first, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	w.awaitStatus("ada", "running")
	if _, err := w.stop(first, false); err == nil {
		t.Fatal("the removal did not fail")
	}
	_, err = w.spawn(wire.NewID(), wire.SpawnArgs{Name: "ada"})
	var refused *wire.Error
	if !errors.As(err, &refused) || refused.Code != wire.CodeFailedPrecondition || refused.Outcome != wire.OutcomeUnknown || !strings.Contains(err.Error(), "the directory is busy") {
		t.Fatalf("%v (%s)", err, outcome(err))
	}
	if d, ok := refused.Detail(wire.DetailLifecycleBlocked); !ok || d.Data["blockedOp"] != wire.OpRetirement || d.Data["opId"] != wire.RetirementOpID(first.UID) || d.Data["remedy"] != "retry" {
		t.Errorf("details %+v", refused.Details)
	}
	rt.set(nil)
	next, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "ada"})
	if err != nil || next.Name != "ada" || next.UID == first.UID {
		t.Errorf("once it can be removed: %+v, %v", next, err)
	}
}

// A spawn that was refused left its name as it was: the next one gets it at once, and no number was used up.
//
// proves: NAME-10
func TestARefusedSpawnReservesNothing(t *testing.T) {
	w := newWorld(t)
	w.persona("ada", `[{"hang": true}]`)
	w.run("ada", `[{"hang": true}]`)
	// The runtime goes away between the choice of the name and the acceptance.
	w.plugins.other = &elsewhere{root: w.seatRoot, runs: map[string]bool{}}
	w.plugins.also("mux", nil)
	w.plugins.mu.Lock()
	w.plugins.leaves = 1
	w.plugins.mu.Unlock()
	if _, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "ada", Runtime: "mux"}); code(err) != wire.CodeUnavailable {
		t.Fatal(err)
	}
	acc, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "ada"})
	if err != nil || acc.Name != "ada_2" {
		t.Errorf("%+v, %v", acc, err)
	}
}
