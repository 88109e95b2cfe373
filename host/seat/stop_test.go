package seat_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// TestFieldB7_StopOfADeadAgentConverges: killed from outside, then stopped five times at once.
func TestFieldB7_StopOfADeadAgentConverges(t *testing.T) {
	w := newWorld(t)
	id := wire.NewID()
	acc, err := w.spawn(id, w.args("dead", `[{"hang": true}]`))
	if err != nil {
		t.Fatal(err)
	}
	w.terminal(id)
	row := w.awaitStatus("dead", "running")
	if err := syscall.Kill(row.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	var wg sync.WaitGroup
	for range 5 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			reply, err := w.stop(acc, true)
			if err != nil {
				t.Error(err)
			} else if r := reply.Report; !reply.Stopped || r == nil || r.Exit == nil || r.Exit.Signal != "SIGKILL" {
				t.Errorf("%+v, report %+v", reply, r)
			}
		}()
	}
	wg.Wait()
	if d := time.Since(begun); d > busy.Limit(2*time.Second) {
		t.Errorf("five stops took %v", d)
	}
	if n := w.events.terminals(id); n != 1 {
		t.Errorf("%d terminals were told, want 1", n)
	}
}

// TestFieldB7_StopOfALifeThatIsOverSaysHowItEnded: a stop that comes when nothing is left, in this host or
// after it was started again, succeeds with how the agent ended; one of a life that never was is expired.
func TestFieldB7_StopOfALifeThatIsOverSaysHowItEnded(t *testing.T) {
	w := newWorld(t)
	id := wire.NewID()
	acc, err := w.spawn(id, w.args("brief", fmt.Sprintf(`[{"waitFile": %q}, {"exit": 3}]`, filepath.Join(w.dir, "go"))))
	if err != nil {
		t.Fatal(err)
	}
	w.terminal(id)
	w.awaitStatus("brief", "running")
	if err := os.WriteFile(filepath.Join(w.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.eventually("it has ended", func() (bool, string) {
		row := w.row("brief")
		return row.Status == "exited", row.Status
	})
	check := func(when string) {
		t.Helper()
		reply, err := w.stop(acc, true)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		r := reply.Report
		if reply.Name != "brief" || !reply.Stopped || r == nil || r.Outcome != "exited" || r.Exit == nil || r.Exit.Code == nil || *r.Exit.Code != 3 || len(r.Evidence) == 0 {
			t.Errorf("%s: %+v, report %+v", when, reply, r)
		}
		target := targetOf(acc)
		target.LifecycleUID = wire.NewUID()
		if _, err := w.set.Despawn(context.Background(), w.caller, target, wire.DespawnArgs{}); code(err) != wire.CodeExpired {
			t.Errorf("%s: another life of the principal: %v", when, err)
		}
	}
	check("the host that saw the end")
	w.crash()
	w.boot()
	check("the next host")
}
