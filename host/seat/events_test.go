package seat_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/host/authz"
	"github.com/cotal-ai/cotal-host/host/launch"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Events that nobody can give, or that a space requires and a request does without, are refused before there is
// anything of a seat, whether it begins anew or with a session. Where nothing was said and nothing is required, a
// connector without events has none (docs/wire-decisions.md).
//
// proves: SPAWN-12, EVENT-1
func TestASeatIsRefusedWithoutTheEventsThatAreWanted(t *testing.T) {
	yes, no := true, false
	const required = "this space requires them"
	for _, c := range []struct {
		name           string
		required, able bool
		events         *bool
		says           string // empty: it is started
	}{
		{"asked for where there are none", false, false, &yes, "the connector has no event channel; leave events out"},
		{"required where there are none", true, false, nil, required + ", and the connector has no event channel"},
		{"required and asked for where there are none", true, false, &yes, required + ", and the connector has no event channel"},
		{"required and declined", true, true, &no, required + "; leave out events: false"},
		{"required and declined where there are none", true, false, &no, required + "; leave out events: false"},
		{"nothing said where there are none", false, false, nil, ""},
		{"required, and nothing said", true, true, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.crash()
			w.policy = authz.Policy{EventsRequired: c.required}
			w.material = func() (wire.LaunchMaterial, error) { return wire.LaunchMaterial{Servers: "nats://127.0.0.1:4222"}, nil }
			w.boot()
			rec := w.record()
			w.plugins.mu.Lock()
			info := w.plugins.facts["recording"]
			info.Connector.EventChannel = c.able
			w.plugins.facts["recording"] = info
			w.plugins.mu.Unlock()
			session := "s1"
			for what, resume := range map[string]*string{"a new session": nil, "a fork": &session} {
				args := w.args(strings.ReplaceAll(what, " ", "-"), `[{"print": "up\n"}, {"hang": true}]`)
				args.Agent, args.Events, args.Resume = "recording", c.events, resume
				id := wire.NewID()
				_, err := w.spawn(id, args)
				if c.says != "" {
					if code(err) != wire.CodeFailedPrecondition || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), c.says) {
						t.Errorf("%s: got %v (%s), want %q", what, err, outcome(err), c.says)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if r := w.terminal(id); r.State != wire.GoalSucceeded {
					t.Fatalf("%s: %+v", what, r)
				}
				m, err := mesh.ReadMaterial(filepath.Join(rec.last(t).Dir, launch.MaterialFile))
				if err != nil || m.EventsRequired != c.required {
					t.Errorf("%s: its program is told %+v, %v", what, m, err)
				}
			}
			if entries, err := os.ReadDir(w.seatRoot); c.says != "" && (err != nil || len(entries) != 0 || w.set.Occupancy().Pending != 0) {
				t.Errorf("refused spawns left %v, %v, %+v", entries, err, w.set.Occupancy())
			}
		})
	}
}
