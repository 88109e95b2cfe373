package e2e

import (
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// The program loads its extensions anew for another session: the seat stays one agent, which gets its messages.
//
// proves: CONN-1
func TestRealPi_AnotherSessionInTheSameProgramIsTheSameSeat(t *testing.T) {
	s := newScenario(t, piProgram(), "launchOptions:\n  permissions: allow\n")
	s.serve()
	s.joins()
	s.shown(wire.StatusIdle)
	for _, command := range []string{"/new", "/reload"} {
		s.takes("say before " + command) // a session of which nothing was said is not left
		s.shown(wire.StatusIdle)
		s.session(s.row.ID)
		s.say(command)
		if command == "/new" {
			awaitPresence(t, s.roster, "the agent says that it is in another session, in which nothing was said", func(p wire.Presence) bool {
				return p.Card.ID == s.row.ID && p.Card.MetaString("sessionId") == "" && p.Status == wire.StatusIdle
			})
		} else {
			await(t, agentWait, "it has loaded its extensions anew", func() (bool, string) { text := s.screen(); return strings.Contains(text, "Reloaded"), text })
		}
		seq := len(s.stub.Requests())
		if _, err := s.client.SendDirect(t.Context(), s.row.ID, "the word after "+command+" is zebra"); err != nil {
			t.Fatal(err)
		}
		s.request("is given the message after "+command, func(r stubmodel.Request) bool {
			return r.Seq > seq && r.Done && !r.Side && given(r, "the word after "+command+" is zebra")
		})
		s.shown(wire.StatusIdle)
		if bridges := s.w.ProcsLike("cotal-bridge mcp"); len(bridges) != 1 {
			t.Errorf("after %s the seat has the bridges %v, want one", command, bridges)
		}
	}
	s.w.CLI("stop", realSeat).OK()
}
