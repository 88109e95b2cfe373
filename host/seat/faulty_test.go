package seat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/persona"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// faulty is the real runtime with one fault.
type faulty struct {
	sdk.Runtime
	mu    sync.Mutex
	spawn func(sdk.Handle) sdk.Handle
	adopt func(*sdk.SeatStatus)
}

func (f *faulty) Spawn(ctx context.Context, req sdk.SpawnRequest) (sdk.Handle, error) {
	h, err := f.Runtime.Spawn(ctx, req)
	if err == nil && f.spawn != nil {
		h = f.spawn(h)
	}
	return h, err
}

func (f *faulty) Adopt(ctx context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	st, err := f.Runtime.Adopt(ctx, req)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.adopt != nil {
		f.adopt(&st)
	}
	return st, err
}

func (w *world) fault(f *faulty) {
	w.plugins.mu.Lock()
	defer w.plugins.mu.Unlock()
	f.Runtime = w.plugins.runtime
	w.plugins.runtime = f
}

// TestASeatWhoseHandleNobodyReadsCanBeStopped, as after a runtime was rolled back.
func TestASeatWhoseHandleNobodyReadsCanBeStopped(t *testing.T) {
	w := newWorld(t)
	w.fault(&faulty{spawn: func(h sdk.Handle) sdk.Handle { h.Version = 1 << 31; return h }})
	acc := w.run("odd", `[{"hang": true}]`)
	if _, err := w.set.Inspect(context.Background(), "odd"); err != nil {
		t.Error(err)
	}
	if r := w.row("odd"); r.Status != "running" {
		t.Errorf("%s: %s", r.Status, r.Reason)
	}
	reply, err := w.stop(acc, false)
	if err != nil || !reply.Stopped {
		t.Errorf("%+v, %v", reply, err)
	}
}

// TestAnExitTooLargeForARowIsRecordedAllTheSame, with what is left of it, and not tried for ever.
func TestAnExitTooLargeForARowIsRecordedAllTheSame(t *testing.T) {
	w := newWorld(t)
	w.fault(&faulty{adopt: func(st *sdk.SeatStatus) {
		if st.Exit != nil {
			exit := *st.Exit
			exit.Last = strings.Repeat("x", 2<<20)
			st.Exit = &exit
		}
	}})
	w.run("loud", `[{"exit": 3}]`)
	w.eventually("its exit is recorded", func() (bool, string) {
		_, _ = w.set.Inspect(context.Background(), "loud")
		r := w.row("loud")
		return r.Exit != nil, r.Status + " " + r.Reason
	})
	if x := w.row("loud").Exit; x.Code == nil || *x.Code != 3 || x.Last != "" || !strings.Contains(x.Detail, "too large") {
		t.Errorf("%+v", x)
	}
}

// TestASpawnTooLargeForARowIsTheCallersToMend: it is refused before anything was done, by the field that is too large
// and the limit, and not as if a later try could help.
func TestASpawnTooLargeForARowIsTheCallersToMend(t *testing.T) {
	w := newWorld(t)
	var channels strings.Builder
	for i := range 70 {
		fmt.Fprintf(&channels, "  - c%d%s\n", i, strings.Repeat(".part", 400))
	}
	text := "---\nname: big\nagent: command\nallowPublish:\n" + channels.String() + "---\nBig.\n"
	if err := errors.Join(os.MkdirAll(persona.Dir(w.root), 0o700), os.WriteFile(filepath.Join(persona.Dir(w.root), "big.md"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	id := wire.NewID()
	args := w.args("big", `[{"hang": true}]`)
	args.Identity = ""
	_, err := w.spawn(id, args)
	if e := wire.ErrorFrom(err); e == nil || e.Code != wire.CodeBadRequest || e.Outcome != wire.OutcomeNotExecuted ||
		!strings.Contains(e.Message, "allowPublish") || !strings.Contains(e.Message, "at most 131072") {
		t.Errorf("%v", err)
	}
	if _, there, err := w.goals.Lookup(goal.KeyOf(w.caller, id)); there || err != nil {
		t.Errorf("its goal is there: %v, %v", there, err)
	}
	if occ := w.set.Occupancy(); occ.Pending+occ.Live != 0 || len(w.set.Rows()) != 0 {
		t.Errorf("%+v, %v", occ, w.set.Rows())
	}
}

// TestASpawnOnARuntimeThatIsBeingRemovedIsRefused, also when it was there a moment ago; its name is free.
func TestASpawnOnARuntimeThatIsBeingRemovedIsRefused(t *testing.T) {
	w := newWorld(t)
	w.plugins.other = &elsewhere{root: w.seatRoot, runs: map[string]bool{}}
	w.plugins.also("mux", nil)
	w.plugins.mu.Lock()
	w.plugins.leaves = 1
	w.plugins.mu.Unlock()
	args := w.args("late", `[{"hang": true}]`)
	args.Runtime = "mux"
	if _, err := w.spawn(wire.NewID(), args); code(err) != wire.CodeUnavailable || !strings.Contains(err.Error(), "mux is being removed") {
		t.Fatal(err)
	}
	if occ := w.set.Occupancy(); occ.Pending+occ.Live != 0 {
		t.Errorf("%+v", occ)
	}
	w.run("late", `[{"hang": true}]`)
}

// TestAStopThatEndedASeatIsAsked, also where nobody but the host saw who asked; and the runtime's proof is told.
func TestAStopThatEndedASeatIsAsked(t *testing.T) {
	w := newWorld(t)
	w.plugins.other = &elsewhere{root: w.seatRoot, runs: map[string]bool{}, proof: "its pane is gone"}
	w.plugins.also("mux", nil)
	args := w.args("pane", `[{"hang": true}]`)
	args.Runtime = "mux"
	id := wire.NewID()
	acc, err := w.spawn(id, args)
	if err != nil {
		t.Fatal(err)
	}
	w.terminal(id)
	reply, err := w.stop(acc, true)
	if err != nil || reply.Report == nil || reply.Report.Exit == nil {
		t.Fatalf("%+v, %v", reply, err)
	}
	if x := w.row("pane").Exit; x == nil || !x.Asked || x.Cause != "stopped-requested" {
		t.Errorf("%+v", x)
	}
	if !slices.Equal(reply.Report.Evidence, []string{"its pane is gone"}) {
		t.Errorf("proof %q", reply.Report.Evidence)
	}
}

// TestAConnectorThatWantsTooMuchMintedIsRefused, and nothing was made for it.
func TestAConnectorThatWantsTooMuchMintedIsRefused(t *testing.T) {
	w := newWorld(t)
	w.plugins.mu.Lock()
	info := w.plugins.facts["command"]
	info.Connector.Mints.Secrets = 6_000_000
	w.plugins.facts["command"] = info
	w.plugins.mu.Unlock()
	begin := time.Now()
	if _, err := w.spawn(wire.NewID(), w.args("many", `[{"hang": true}]`)); code(err) != wire.CodeFailedPrecondition || !strings.Contains(err.Error(), "6000000 secrets") {
		t.Error(err)
	}
	if d := time.Since(begin); d > busy.Limit(5*time.Second) {
		t.Errorf("after %s", d)
	}
}
