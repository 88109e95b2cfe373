package e2e

import (
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// The program loads its extensions anew for another session: the seat stays one agent, which gets its messages.
//
// proves: CONN-1
func TestRealPi_AnotherSessionInTheSameProgramIsTheSameSeat(t *testing.T) {
	stub, err := stubmodel.Start(stubmodel.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stub.Close)
	w := harness.New(t)
	w.Setenv("COTAL_PI_BIN", agents.Need(t, agents.Pi))
	piSetUp(t, w, stub)
	w.Persona(realSeat, "---\nname: "+realSeat+"\nagent: pi\nlaunchOptions:\n  permissions: allow\n---\n\n"+realPersona+"\n")
	s := &scenario{T: t, p: realProgram{agent: agents.Pi, connector: "pi"}, w: w, stub: stub, host: w.Start(harness.HostOptions{}), row: wire.AgentRow{Name: realSeat}}
	s.client, s.roster = watchPresence(t, w)
	s.joins()
	s.shown(wire.StatusIdle)
	session := func() string {
		p := awaitPresence(t, s.roster, "the agent says its session", func(p wire.Presence) bool {
			return p.Card.ID == s.row.ID && p.Card.MetaString("sessionId") != ""
		})
		return p.Card.MetaString("sessionId")
	}
	for _, command := range []string{"/new", "/reload"} {
		s.say("say before " + command) // a session of which nothing was said is not left
		s.asked("say before " + command)
		s.shown(wire.StatusIdle)
		session()
		s.say(command)
		if command == "/new" {
			awaitPresence(t, s.roster, "the agent says that it is in another session, in which nothing was said", func(p wire.Presence) bool {
				return p.Card.ID == s.row.ID && p.Card.MetaString("sessionId") == "" && p.Status == wire.StatusIdle
			})
		} else {
			await(t, agentWait, "it has loaded its extensions anew", func() (bool, string) { text := s.screen(); return strings.Contains(text, "Reloaded"), text })
		}
		seq := len(stub.Requests())
		if _, err := s.client.SendDirect(t.Context(), s.row.ID, "the word after "+command+" is zebra"); err != nil {
			t.Fatal(err)
		}
		s.request("is given the message after "+command, func(r stubmodel.Request) bool {
			return r.Seq > seq && r.Done && !r.Side && given(r, "the word after "+command+" is zebra")
		})
		s.shown(wire.StatusIdle)
		if bridges := w.ProcsLike("cotal-bridge mcp"); len(bridges) != 1 {
			t.Errorf("after %s the seat has the bridges %v, want one", command, bridges)
		}
	}
	w.CLI("stop", realSeat).OK()
}
