package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestAnAnswerThatContradictsItselfIsUnknown: a seat never ends on one, and is never taken for another.
func TestAnAnswerThatContradictsItselfIsUnknown(t *testing.T) {
	exit := &Exit{At: time.Now(), Evidence: EvidenceReaped}
	cases := []struct {
		name string
		in   SeatStatus
		want SeatState
		why  string
	}{
		{"exited, with how", SeatStatus{State: SeatExited, Exit: exit}, SeatExited, ""},
		{"exited, and not how", SeatStatus{State: SeatExited}, SeatUnknown, "not how"},
		{"not found, without an exit", SeatStatus{State: SeatNotFound}, SeatNotFound, ""},
		{"not found, and how it exited", SeatStatus{State: SeatNotFound, Exit: exit}, SeatUnknown, "not_found, and how"},
		{"prepared, and how it exited", SeatStatus{State: SeatPrepared, Exit: exit}, SeatUnknown, "prepared, and how"},
		{"running", SeatStatus{State: SeatRunning, Agent: Identity{PID: 7}}, SeatRunning, ""},
		{"an agent with a process id below zero", SeatStatus{State: SeatRunning, Agent: Identity{PID: -1}}, SeatUnknown, "-1"},
		{"a custody with a process id below zero", SeatStatus{State: SeatRunning, Identity: Identity{PID: -5}}, SeatUnknown, "-5"},
		{"about another seat", SeatStatus{SeatID: "other", State: SeatExited, Exit: exit}, SeatUnknown, "another seat (other)"},
		{"it ended a process below zero", SeatStatus{State: SeatExited, Exit: &Exit{Reaped: []Killed{{PID: -1}}}}, SeatUnknown, "process -1"},
		{"a handle that cannot be kept", SeatStatus{State: SeatRunning, Handle: Handle{State: make([]byte, MaxHandleState+1)}}, SeatUnknown, "handle"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.in.SeatID == "" {
				c.in.SeatID = "mine"
			}
			rt := &fakeRuntime{
				adopt: func(context.Context, AdoptRequest) (SeatStatus, error) { return c.in, nil },
				watch: func(_ context.Context, _ WatchRequest, emit func(SeatStatus) error) error { return emit(c.in) },
			}
			client, _, _ := connect(t, rt)
			st, err := client.Runtime().Adopt(t.Context(), AdoptRequest{SeatID: "mine"})
			if err != nil || st.State != c.want || !strings.Contains(st.Reason, c.why) || st.State == SeatUnknown && st.Exit != nil {
				t.Errorf("%+v, %v", st, err)
			}
			if err := client.Runtime().Watch(t.Context(), WatchRequest{SeatID: "mine"}, func(seen SeatStatus) error {
				if seen.State != c.want {
					t.Errorf("watched %+v", seen)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAReapReportThatCannotBeProvesNothing, and so ends no seat.
func TestAReapReportThatCannotBeProvesNothing(t *testing.T) {
	report := ReapReport{Outcome: ReapStopped, Killed: []Killed{{PID: -1, Command: "x"}}}
	client, _, _ := connect(t, &fakeRuntime{reap: func(context.Context, StopRequest) (ReapReport, error) { return report, nil }})
	if _, err := client.Runtime().Reap(t.Context(), StopRequest{}); !errors.Is(err, ErrUnproven) {
		t.Error(err)
	}
}

// TestAnOversizeExitFitsIntoARow: what is cut says so, and a time that JSON cannot hold is left out.
func TestAnOversizeExitFitsIntoARow(t *testing.T) {
	bomb := strings.Repeat("\x01é", 1<<17)
	exit := &Exit{Signal: bomb[:9000], At: time.Now(), Evidence: Evidence(bomb[:9000]), Detail: bomb, Last: bomb}
	for range 20_000 { // below MaxMessageBytes all together
		exit.Reaped = append(exit.Reaped, Killed{PID: 5, Command: bomb[:30], Signal: "SIGKILL"})
	}
	st := SeatStatus{SeatID: "mine", State: SeatExited, Exit: exit, Reason: bomb, Owner: SeatOwner{Alias: bomb[:9000], RequestID: bomb[:9000]}}
	rt := &fakeRuntime{
		adopt: func(context.Context, AdoptRequest) (SeatStatus, error) { return st, nil },
		reap: func(context.Context, StopRequest) (ReapReport, error) {
			return ReapReport{Outcome: ReapExited, Exit: exit, Killed: exit.Reaped, Evidence: []string{bomb[:100_000]}, Removed: make([]string, 5000)}, nil
		},
	}
	client, _, _ := connect(t, rt)
	got, err := client.Runtime().Adopt(t.Context(), AdoptRequest{SeatID: "mine"})
	if err != nil || got.State != SeatExited {
		t.Fatalf("%v, %v", got.State, err)
	}
	report, err := client.Runtime().Reap(t.Context(), StopRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for what, v := range map[string]any{"status": got, "exit": got.Exit} {
		raw, err := json.Marshal(v)
		if err != nil || len(raw) > 128<<10 {
			t.Errorf("%s: %d bytes of JSON, %v", what, len(raw), err)
		}
	}
	if !strings.HasSuffix(got.Exit.Last, cutMark) || !strings.Contains(got.Exit.Detail, "19872 of the processes") || !utf8.ValidString(got.Exit.Last) {
		t.Errorf("last %q, detail ends %q", got.Exit.Last[len(got.Exit.Last)-20:], got.Exit.Detail[len(got.Exit.Detail)-80:])
	}
	if n := len(report.Removed); n != maxSentences || !strings.HasPrefix(report.Removed[n-1], "and 4745 more") || len(report.Killed) != maxKilled {
		t.Errorf("%d removed, %d killed", n, len(report.Killed))
	}
	exit.At, exit.Reaped = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC), nil
	if got, err = client.Runtime().Adopt(t.Context(), AdoptRequest{SeatID: "mine"}); err != nil || !got.Exit.At.IsZero() {
		t.Errorf("at %v, %v", got.Exit, err)
	}
}

// TestAConnectorCannotHaveTheHostMintWithoutLimit: refused as soon as it says what it wants.
func TestAConnectorCannotHaveTheHostMintWithoutLimit(t *testing.T) {
	for _, m := range []MintCounts{{Secrets: 6_000_000}, {SessionIDs: MaxMintSessionIDs + 1}, {Ports: MaxMintPorts + 1}, {Ports: -1}} {
		if err := m.Check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	if err := (MintCounts{Ports: MaxMintPorts, Secrets: MaxMintSecrets, SessionIDs: MaxMintSessionIDs}).Check(); err != nil {
		t.Error(err)
	}
}

// TestAListWithoutEndIsGivenUp before it fills the host's memory.
func TestAListWithoutEndIsGivenUp(t *testing.T) {
	many := make([]SeatListing, MaxListed+1)
	for i := range many {
		many[i].SeatID = "x"
	}
	client, _, _ := connect(t, &fakeRuntime{list: func(context.Context, ListRequest) ([]SeatListing, error) { return many, nil }})
	if _, err := client.Runtime().List(t.Context(), ListRequest{}); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	many = many[:MaxListed]
	if got, err := client.Runtime().List(t.Context(), ListRequest{}); err != nil || len(got) != MaxListed {
		t.Errorf("%d, %v", len(got), err)
	}
}
