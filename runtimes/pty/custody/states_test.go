//go:build linux

package custody_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/seat"
)

// A seat goes through its states in one direction, and what it answers depends on where it is.
func TestWhatASeatAnswersInEachState(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate") // holds the seat between the end of its agent and the record of it
	h := preparedEnv(t, []string{"COTAL_FAILPOINTS=seat.exit.before-fsync=pause(" + gate + ")"}, script("echo up; read x; exit 4"))
	v := h.view(seat.RoleInput)
	host := h.dial(seat.RoleControl | seat.RoleInput)
	ctx := testContext(t)
	want := func(what string, err, target error) {
		t.Helper()
		if !errors.Is(err, target) {
			t.Errorf("%s: %v, want %v", what, err, target)
		}
	}
	answers := func(state seat.State, commit bool, interrupt, input, ack error) {
		t.Helper()
		if st, err := host.Get(ctx); err != nil || st.State != state {
			t.Fatalf("the seat is %v (%v), want %v", st.State, err, state)
		}
		if commit { // it starts nothing any more
			if st, err := host.Commit(ctx); err != nil || st.State != state {
				t.Errorf("commit of a seat that is %v: %v, %v", state, st.State, err)
			}
		}
		what := fmt.Sprintf(" of a seat that is %v", state)
		if interrupt != nil {
			want("interrupt"+what, host.Signal(ctx, seat.ActionInterrupt), interrupt)
		}
		if input != nil {
			_, err := host.Input(ctx, []byte("x"))
			want("input"+what, err, input)
		}
		if ack != nil {
			want("acknowledgement"+what, host.AckExit(ctx), ack)
		}
	}
	answers(seat.StatePrepared, false, seat.ErrNotRunning, seat.ErrNotRunning, seat.ErrNotExited)
	h.commit()
	v.awaitText("up")
	answers(seat.StateRunning, true, nil, nil, seat.ErrNotExited)
	v.press("\n")
	h.eventually("the agent has ended", func() error {
		_, err := os.Stat(gate + ".reached")
		return err
	})
	answers(seat.StateDraining, true, seat.ErrNotRunning, seat.ErrNotRunning, seat.ErrNotExited)
	want("stop of a draining seat", host.Signal(ctx, seat.ActionKill), nil)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if x := v.awaitExit(); x.Code != 4 || x.Asked {
		t.Errorf("%+v; it was asked to end when it had ended", x)
	}
	answers(seat.StateExited, true, seat.ErrNotRunning, seat.ErrNotRunning, nil)
	want("stop of an exited seat", host.Signal(ctx, seat.ActionTerm), nil)
	want("acknowledgement of an exited seat", host.AckExit(ctx), nil)
	h.awaitEnd()
}
