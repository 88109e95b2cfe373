package bus

import (
	"context"
	"fmt"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func TestAnEndedDeadlineIsToldAsOne(t *testing.T) {
	passed := context.DeadlineExceeded
	for name, c := range map[string]struct {
		ended      error
		werr       *wire.Error
		code, text string
	}{
		"a journal that was not asked in time": {
			passed, wire.Refuse(wire.CodeUnavailable, "record the spawn: %v", passed),
			wire.CodeDeadlineExceeded, "the deadline passed: record the spawn",
		},
		"a store, on two lines": {
			passed, wire.Fail(wire.CodeUnavailable, "accept the goal: %v\n%v", fmt.Errorf("%w: %w", ErrUnavailable, passed), ErrUnavailable),
			wire.CodeDeadlineExceeded, "the deadline passed: accept the goal: the mesh store did not answer; the mesh store did not answer",
		},
		"a store that is away while there is time": {
			nil, wire.Refuse(wire.CodeUnavailable, "accept the goal: %v", ErrUnavailable),
			wire.CodeUnavailable, "accept the goal: the mesh store did not answer",
		},
		"a host that stops": {
			context.Canceled, wire.Refuse(wire.CodeUnavailable, "this host is stopping"), wire.CodeUnavailable, "this host is stopping",
		},
		"what is refused for itself": {
			passed, wire.Refuse(wire.CodeNotFound, "no persona x"), wire.CodeNotFound, "no persona x",
		},
	} {
		got := overtaken(c.ended, c.werr)
		if got.Code != c.code || got.Message != c.text || got.Outcome != c.werr.Outcome {
			t.Errorf("%s: %s %q %s", name, got.Code, got.Message, got.Outcome)
		}
	}
	if overtaken(passed, nil) != nil {
		t.Error("what succeeded late succeeded")
	}
}
