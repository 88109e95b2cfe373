package crash

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestALostJournalCostsNoGoalItsEnd: a host is killed after it decided how a goal ends and before the mesh has
// heard of it, and its journal is gone. The seat is found, the same submission gets the same acceptance, and
// the goal ends once.
//
// proves: GOAL-6, GOAL-10
func TestALostJournalCostsNoGoalItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.marker = filepath.Join(w.Dir, "killed")
	w.host = w.Start(harness.HostOptions{Failpoints: "host.goal.decided=crash(" + w.marker + ")"})
	spawn := mesh.Call{Command: wire.CmdSpawn, ID: wire.NewID(), Args: wire.SpawnArgs{
		Name: "worker", Identity: "worker", Agent: "command",
		LaunchOptions: map[string]any{"argv": w.FakeAgent(w.starts("worker", `{"hang": true}`))},
	}}
	var acc, again wire.Acceptance
	err := w.once(spawn, &acc)
	if err != nil && answered(err) {
		t.Fatal(err)
	}
	w.host.AwaitCrash()
	if err := os.Remove(w.Path(".cotal", "host", "journal.db")); err != nil {
		t.Fatal(err)
	}
	w.hangUp()
	w.host = w.Start(harness.HostOptions{})
	if err := w.call(spawn, &again); err != nil {
		t.Fatalf("the same submission: %v", err)
	}
	if err == nil && !reflect.DeepEqual(again, acc) {
		t.Errorf("it was accepted as %+v\nand then as %+v", acc, again)
	}
	w.accepted[spawn.ID] = again
	if r := w.terminal(spawn.ID); r.State != wire.GoalSucceeded {
		t.Errorf("it ended %s: %v", r.State, r.Error)
	}
	if got := w.AwaitStatus("worker", "running"); got.LifecycleUID != again.UID {
		t.Errorf("the seat has the life %s, the goal %s", got.LifecycleUID, again.UID)
	}
	if n := w.executions("worker"); n != 1 {
		t.Errorf("%d processes were started", n)
	}
	w.checkInvariants("without the journal")
}
