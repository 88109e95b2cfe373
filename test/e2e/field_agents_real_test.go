package e2e

import (
	"fmt"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/agents"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

// TestFieldF2_AProgramKilledBeforeAnythingWasSaidIsStartedAgain, as it was asked for: it has told that its session
// began and written none down, so there is nothing that the next process could be told to go on with.
func TestFieldF2_AProgramKilledBeforeAnythingWasSaidIsStartedAgain(t *testing.T) {
	t.Parallel()
	for connector, c := range map[string]struct {
		agent agents.Agent
		setUp func(*testing.T, *harness.World, *stubmodel.Server)
	}{
		"claude": {agents.Claude, func(t *testing.T, w *harness.World, stub *stubmodel.Server) { claudeSetUp(t, w, stub) }},
		"pi":     {agents.Pi, func(t *testing.T, w *harness.World, stub *stubmodel.Server) { piSetUp(t, w, stub) }},
	} {
		t.Run(connector, func(t *testing.T) {
			t.Parallel()
			stub, err := stubmodel.Start(stubmodel.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stub.Close)
			w := harness.New(t)
			w.Setenv(map[string]string{"claude": "COTAL_CLAUDE_BIN", "pi": "COTAL_PI_BIN"}[connector], agents.Need(t, c.agent))
			c.setUp(t, w, stub)
			w.Start(harness.HostOptions{})
			_, roster := watchPresence(t, w)
			w.CLI("spawn", "--agent", connector, "--name", "idle", "--restarts", "3", "--detach", "--timeout", "2m").OK()
			row := w.AwaitStatus("idle", "running")
			p := awaitPresence(t, roster, "its program has told that its session began", func(p wire.Presence) bool {
				return p.Card.ID == row.ID && p.Card.MetaString(wire.MetaStateBy) != ""
			})
			if id := p.Card.MetaString("sessionId"); id != "" {
				t.Errorf("it says that it can be reopened in session %s", id)
			}
			w.KillPID(row.PID)
			await(t, agentWait, "the next process is there", func() (bool, string) {
				now, _ := w.Seat("idle")
				return now.Status == "running" && now.PID != row.PID && now.PID != 0 && now.Reason == "" && now.Mesh == wire.StatusIdle, fmt.Sprintf("%+v %+v", now, now.Exit)
			})
			w.CLI("stop", "idle").OK()
		})
	}
}
