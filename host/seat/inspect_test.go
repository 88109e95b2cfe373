package seat_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// slow is the real runtime, which does not say how a seat is while it is held.
type slow struct {
	sdk.Runtime
	sdk.Watcher
	told chan struct{} // takes one for each word of a watch that was delivered

	mu   sync.Mutex
	held chan struct{} // nil: it answers; closed: it answers again
}

func (s *slow) Adopt(ctx context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return sdk.SeatStatus{}, ctx.Err()
		}
	}
	return s.Runtime.Adopt(ctx, req)
}

func (s *slow) Watch(ctx context.Context, req sdk.WatchRequest, emit func(sdk.SeatStatus) error) error {
	return s.Watcher.Watch(ctx, req, func(st sdk.SeatStatus) error {
		err := emit(st)
		select {
		case s.told <- struct{}{}:
		default:
		}
		return err
	})
}

// TestInspectDoesNotWaitForABusyRuntime: a seat that is watched is shown as the watch told it, without what a watch
// does not tell; once the runtime answers, with that too. One that goes on not answering is not trusted for ever.
func TestInspectDoesNotWaitForABusyRuntime(t *testing.T) {
	w := newWorld(t)
	w.plugins.mu.Lock()
	rt := &slow{Runtime: w.plugins.runtime, Watcher: w.plugins.runtime.(sdk.Watcher), told: make(chan struct{}, 1)}
	w.plugins.runtime = rt
	w.plugins.mu.Unlock()
	w.run("busy", `[{"print": "up"}, {"hang": true}]`)
	<-rt.told
	if _, err := w.set.Inspect(context.Background(), "busy"); err != nil { // and so the word of the watch is taken
		t.Fatal(err)
	}
	row := w.row("busy")
	held := make(chan struct{})
	rt.mu.Lock()
	rt.held = held
	rt.mu.Unlock()

	got, err := w.set.Inspect(context.Background(), "busy")
	if err != nil || got.Status != "running" || got.PID != row.PID || got.PID == 0 || got.Reason != "" || got.Output != 0 {
		t.Errorf("while the runtime is busy: %+v, %v", got, err)
	}
	w.eventually("it says so when the runtime hangs", func() (bool, string) {
		got, err = w.set.Inspect(context.Background(), "busy")
		return err == nil && strings.Contains(got.Reason, "not verified now"), got.Reason
	})
	if got.Status != "running" || got.PID != row.PID {
		t.Errorf("of a runtime that hangs: %+v", got)
	}
	// Each of them holds one of the few reads of a host: one question is waited for, by the first of them, and no more.
	begun := time.Now()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 40 {
				if got, err := w.set.Inspect(context.Background(), "busy"); err != nil || !strings.Contains(got.Reason, "not verified now") {
					t.Errorf("of a runtime that hangs: %q, %v", got.Reason, err)
				}
			}
		})
	}
	if wg.Wait(); time.Since(begun) > 20*time.Second {
		t.Errorf("16 callers with 40 questions each waited %s", time.Since(begun))
	}
	close(held)
	w.eventually("it is verified again", func() (bool, string) {
		got, err = w.set.Inspect(context.Background(), "busy")
		return err == nil && got.Reason == "" && got.Output >= 2, got.Reason
	})
}
