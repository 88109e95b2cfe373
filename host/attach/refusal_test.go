package attach

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// shown are seats whose terminals are shown by a program.
type shown struct{ *seats }

func (shown) Terminal(context.Context, wire.Target, wire.TerminalArgs) (wire.TerminalReply, error) {
	return wire.TerminalReply{Runtime: "mux", Argv: []string{"/usr/bin/mux"}}, nil
}

// Whatever refuses an attach before its session is there, the refusal says that nothing was done, and nothing was: no
// place, no rail and no entry for the next incarnation is left.
//
// proves: OUT-6, ATTACH-4
func TestARefusedAttachHasDoneNothing(t *testing.T) {
	one := []wire.AgentRow{{Name: "x", SeatID: "one"}}
	for name, c := range map[string]struct {
		seats Seats
		spoil func(*Sessions)
		code  string
		taken int // places, by others
	}{
		"a life that is gone": {
			seats: &seats{rows: []wire.AgentRow{{}}, err: wire.Refuse(wire.CodeExpired, "gone")}, code: wire.CodeExpired,
		},
		"a seat that does not run": {
			seats: &seats{rows: []wire.AgentRow{{}}, err: wire.Refuse(wire.CodeFailedPrecondition, "exited")}, code: wire.CodeFailedPrecondition,
		},
		"a host that is full": {
			seats: &seats{rows: one}, spoil: func(s *Sessions) { _, _ = s.claim() }, code: wire.CodeResourceExhausted, taken: 1,
		},
		"a host that stops": {
			seats: &seats{rows: one}, spoil: (*Sessions).Close, code: wire.CodeUnavailable,
		},
		"a mesh that cannot be reached": {
			seats: &seats{rows: one}, code: wire.CodeUnavailable,
			spoil: func(s *Sessions) {
				s.cfg.Dial = func(context.Context, func()) (Rails, error) { return nil, errors.New("nobody is there") }
			},
		},
		"a runtime that has no stream": {
			seats: shown{&seats{rows: one}}, code: wire.CodeFailedPrecondition,
		},
		"a seat that is replaced meanwhile": {
			seats: &seats{rows: []wire.AgentRow{{Name: "x", SeatID: "one"}, {Name: "x", SeatID: "two"}}}, code: wire.CodeFailedPrecondition,
		},
		"a terminal that cannot be reached": {
			seats: &seats{rows: one}, code: wire.CodeUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRails()
			set := sessions(t, c.seats, r, 1)
			if c.spoil != nil {
				c.spoil(set)
			}
			err := attach(set)
			if err == nil || err.Code != c.code || err.Outcome != wire.OutcomeNotExecuted {
				t.Fatalf("%v; want %s, not-executed", err, c.code)
			}
			if n := set.Count(); n != c.taken {
				t.Errorf("%d places are taken, want %d", n, c.taken)
			}
			if len(r.on) != 0 || len(r.sent) != 0 {
				t.Errorf("it listens on %d rails and has sent to %d", len(r.on), len(r.sent))
			}
			if text, err := os.ReadFile(set.cfg.LedgerPath); len(text) != 0 {
				t.Errorf("the ledger holds %q, %v", text, err)
			}
		})
	}
}

// Who has lost the keyboard does not get it back, so an attach that took it claims nothing when it is refused behind
// that.
func TestAnAttachThatTookTheKeyboardDoesNotClaimThatNothingWasDone(t *testing.T) {
	row, late := wire.AgentRow{Name: "worker"}, wire.Refuse(wire.CodeFailedPrecondition, "replaced")
	if err := (&view{writer: true}).refused(row, late); !errors.Is(err, late) {
		t.Errorf("nobody lost anything: %v", err)
	}
	for want, err := range map[string]error{wire.CodeFailedPrecondition: late, wire.CodeUnavailable: errors.New("flush: timeout")} {
		got := wire.ErrorFrom((&view{writer: true, took: true}).refused(row, err))
		if got.Code != want || got.Outcome != wire.OutcomeUnknown || !strings.Contains(got.Message, "keyboard of worker") {
			t.Errorf("%+v; want %s, unknown", got, want)
		}
	}
}
