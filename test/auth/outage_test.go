//go:build linux

package auth

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// A broker that refuses connections for a minute, which is longer than the lease of a host and the presence of a seat last, costs
// no seat and no credential: when it is back on its store, every seat is the process and the life that it was, is spoken to, and
// can be stopped.
func TestRepair_ALongTimeOfRefusedConnectionsNeedsNone(t *testing.T) {
	t.Parallel()
	away := 6 * time.Second
	if long {
		away = time.Minute
	}
	p := newPatient(t, true)
	seats := map[string]wire.AgentRow{"worker": p.row}
	for _, name := range []string{"second", "third"} {
		args := p.FakeArgs(name, `[{"print": "up\n"}, {"lines": {"reply": "got {line}\n"}}]`)
		args.LaunchOptions["mesh"] = "stdin"
		if _, err := harness.Launch(t.Context(), p.Mesh(), args); err != nil {
			t.Fatal(err)
		}
		seats[name] = p.AwaitStatus(name, "running")
	}
	hostPID := p.Endpoint().PID

	p.broker.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), away)
	defer cancel()
	for ctx.Err() == nil { // all the while, not only at its end
		for name, row := range seats {
			if !p.Alive(row.PID) {
				t.Fatalf("process %d of %s ended while the broker was away", row.PID, name)
			}
		}
		if !p.host.Running() {
			t.Fatalf("the host has ended:\n%s", p.host.Stderr())
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
	p.broker.Restart()
	p.connected()
	p.answers()

	if e := p.Endpoint(); e.PID != hostPID {
		t.Errorf("host %d serves, it was %d", e.PID, hostPID)
	}
	facts := p.doctor(0)
	for name, was := range seats {
		row := p.AwaitStatus(name, "running")
		if row.PID != was.PID || row.LifecycleUID != was.LifecycleUID || row.ID != was.ID || row.SeatID != was.SeatID {
			t.Errorf("%s is %+v, was %+v", name, row, was)
		}
		if s, ok := p.slot(name); !ok || s.Phase != wire.SlotActive || s.LifecycleUID != was.LifecycleUID {
			t.Errorf("the slot of %s is %+v, %v", name, s, ok)
		}
		if f := facts["seat "+name]; f.Verdict != trust.Good {
			t.Errorf("%s: %+v", name, f)
		}
		word := "back-for-" + name
		p.CLI("send", "@"+name, word).OK()
		harness.Eventually(t, patience, name+" reads what it is told", func() (bool, string) {
			out := p.CLI("logs", name).OK().Stdout
			return strings.Contains(out, word), out
		})
	}
	for _, name := range []string{"second", "third"} {
		p.CLI("stop", name).OK()
		p.awaitFree(name)
	}
	p.whole("the broker is back")
}
