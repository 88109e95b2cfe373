package e2e

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// A supervised agent that is killed comes back on the mesh as the same participant, in a process of its own, and
// counts as back once that process has said so itself; killed once too often it is gone, and its row says why.
func TestASupervisedAgentComesBackOnTheMesh(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.UsePresence(0)
	w.Start(harness.HostOptions{})
	args := w.PresenceArgs("worker", `[{"join": {}}, {"hang": true}]`)
	args.Supervise = &wire.Supervise{Restarts: 1, WindowMs: 600_000}
	l, err := harness.Launch(t.Context(), w.Mesh(), args)
	if err != nil {
		t.Fatal(err)
	}
	first := w.AwaitStatus("worker", "running")
	if err := w.TrySignal(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.DefaultWait, "it is back on the mesh", func() (bool, string) {
		r := w.AwaitStatus("worker", "running")
		return r.PID != first.PID && r.PID != 0 && r.Reason == "" && r.Mesh == wire.StatusIdle, fmt.Sprintf("%s %s %s", r.Status, r.Mesh, r.Reason)
	})
	second := w.AwaitStatus("worker", "running")
	if second.LifecycleUID != l.Acceptance.UID || second.ID != first.ID || second.SeatID == first.SeatID {
		t.Errorf("it is %+v, was %+v", second, first)
	}
	if err := w.TrySignal(second.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone := w.AwaitStatus("worker", "exited")
	if gone.Exit == nil || gone.Exit.Cause != "supervise-crash-loop" || gone.Exit.Signal != "SIGKILL" {
		t.Errorf("%+v", gone.Exit)
	}
}
