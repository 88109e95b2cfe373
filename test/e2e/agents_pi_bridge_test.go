package e2e

import (
	"fmt"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// A bridge that is killed takes its agent off the mesh for as long as its program does not start another: nothing
// wakes it, and it has no tools of the mesh. The extension of pi does.
//
// proves: CONN-1
func TestRealPi_ABridgeThatIsKilledIsStartedAgain(t *testing.T) {
	s := newScenario(t, piProgram(), "launchOptions:\n  permissions: allow\n")
	s.serve()
	s.joins()
	s.shown(wire.StatusIdle)
	before := s.w.ProcsLike("cotal-bridge mcp")
	if len(before) != 1 {
		t.Fatalf("the seat has the bridges %v, want one", before)
	}
	s.w.KillPID(before[0].PID)
	await(t, agentWait, "another bridge runs", func() (bool, string) {
		now := s.w.ProcsLike("cotal-bridge mcp")
		return len(now) == 1 && now[0].PID != before[0].PID, fmt.Sprint(now)
	})
	if _, err := s.client.SendDirect(t.Context(), s.row.ID, "the word behind it is zebra"); err != nil {
		t.Fatal(err)
	}
	s.request("is given the message", func(r stubmodel.Request) bool {
		return r.Done && !r.Side && given(r, "the word behind it is zebra")
	})
	s.shown(wire.StatusIdle)
	s.say("TOOLCALL cotal_orientation {}")
	s.request("has the tools of the mesh", func(r stubmodel.Request) bool { return r.Done && !r.Side && given(r, "You are "+realSeat) })
	s.w.CLI("stop", realSeat).OK()
}
