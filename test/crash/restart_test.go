package crash

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestKillWhileASeatIsStartedAgain kills the host at each step between the end of a process and the proof of the
// one that follows: there is one life, and of it one process, started once for each end.
//
// proves: EXIT-3, F12
func TestKillWhileASeatIsStartedAgain(t *testing.T) {
	points := []string{
		"host.restart.recorded", "host.restart.reaped", "host.restart.followed", "host.restart.proved",
		"host.spawn.built", "host.spawn.handle-persisted", "host.spawn.committed",
	}
	if os.Getenv("COTAL_LONG") != "" {
		points = append(points, "host.exit.seen", "host.spawn.building", "host.spawn.spawning", "host.spawn.spawned", "host.spawn.running-persisted")
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.marker = filepath.Join(w.Dir, "killed")
			rule := "crash(" + w.marker + ")"
			if len(point) > 11 && point[:11] == "host.spawn." { // the first process passes it unharmed
				rule = "1*off->" + rule
			}
			w.armed.Failpoints = point + "=" + rule
			w.host = w.Launch(w.armed)
			w.ready()

			args := wire.SpawnArgs{
				Name: "again", Identity: "again", Agent: "command", Supervise: &wire.Supervise{Restarts: 5, WindowMs: 600_000},
				LaunchOptions: map[string]any{"argv": w.FakeAgent(w.starts("again", `{"hang": true}`))},
			}
			var acc wire.Acceptance
			if err := w.call(mesh.Call{Command: wire.CmdSpawn, Args: args}, &acc); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, w.wait, "the first process runs", func() (bool, string) { return w.executions("again") == 1, "" })
			old := w.AwaitStatus("again", "running")
			if err := w.TrySignal(old.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if _, ended := w.host.WaitExit(w.wait); !ended {
				t.Fatalf("the host does not die at %s", point)
			}
			w.ready()
			harness.Eventually(t, w.wait, "the next process runs and is taken for what it is", func() (bool, string) {
				row := w.AwaitStatus("again", "running")
				return row.PID != old.PID && row.PID != 0 && row.Reason == "" && w.executions("again") >= 2, fmt.Sprintf("%+v", row)
			})
			row := w.AwaitStatus("again", "running")
			if row.LifecycleUID != acc.UID || row.SeatID == old.SeatID {
				t.Errorf("it is %+v after %+v", row, old)
			}
			if n := w.executions("again"); n != 2 {
				t.Errorf("it was started %d times", n)
			}
			if procs := w.ProcsLike(w.startsFile("again")); len(procs) != 1 {
				t.Errorf("its processes: %v", procs)
			}
			if entries, err := os.ReadDir(w.SeatRoot); err != nil || len(entries) != 1 {
				t.Errorf("%d seat directories, %v", len(entries), err)
			}
		})
	}
}
