package seat_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// stubborn is a runtime that ends nothing until it is mended.
type stubborn struct {
	elsewhere
	mended atomic.Bool
}

func (s *stubborn) Reap(ctx context.Context, req sdk.StopRequest) (sdk.ReapReport, error) {
	if s.mended.Load() {
		return s.elsewhere.Reap(ctx, req)
	}
	return sdk.ReapReport{}, sdk.Errorf(sdk.ErrUnavailable, "its server does not answer")
}

// One runtime that ended nothing once broke the stop of all seats.
//
// proves: DOWN-2
func TestARuntimeThatEndsNothingDoesNotBreakTheStopOfAll(t *testing.T) {
	w := newWorld(t)
	mux := &stubborn{elsewhere: elsewhere{root: w.seatRoot, runs: map[string]bool{}}}
	w.plugins.other = mux
	w.plugins.also("mux", nil)
	for name, runtime := range map[string]string{"a": "", "b": "mux", "c": ""} {
		args := w.args(name, `[{"hang": true}]`)
		args.Runtime = runtime
		id := wire.NewID()
		if _, err := w.spawn(id, args); err != nil {
			t.Fatal(err)
		}
		if r := w.terminal(id); r.State != wire.GoalSucceeded {
			t.Fatalf("%s: %s %+v", name, r.State, r.Error)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), busy.Limit(30*time.Second))
	defer cancel()
	stopped, left := w.set.StopAll(ctx)
	names := ""
	for _, s := range stopped {
		names += s.Name
	}
	if len(stopped) != 2 || !strings.Contains(names, "a") || !strings.Contains(names, "c") {
		t.Errorf("stopped %+v", stopped)
	}
	if len(left) != 1 || left[0].Name != "b" || !strings.Contains(left[0].Reason, "its server does not answer") {
		t.Errorf("left %+v", left)
	}
	mux.mended.Store(true)
	if stopped, left := w.set.StopAll(ctx); len(stopped) != 1 || len(left) != 0 {
		t.Errorf("once it is mended: stopped %+v, left %+v", stopped, left)
	}
}
