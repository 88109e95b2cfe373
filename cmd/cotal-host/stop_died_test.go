package main

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/instance"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// A host that is killed while it ends its seats answers no more, and a broker of its own does not say so: the stop waited
// for all of its five minutes.
func TestAStopDoesNotWaitForAHostThatDied(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	id, err := seat.IdentityOf(cmd.Process.Pid)
	if err != nil {
		t.Skipf("processes cannot be told apart here: %v", err)
	}
	s := &stopper{running: instance.Running{Held: true, Verified: true, PID: id.PID, StartTicks: id.StartTicks, BootID: id.BootID}}
	ctx, end := s.whileItLives(t.Context())
	defer end()
	if ctx.Err() != nil {
		t.Fatal("it ended while the host lives")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for begun := time.Now(); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
			if busy.Over(begun, 10*time.Second) {
				t.Fatal("it still waits for a process that is gone")
			}
		}
	}
	if !errors.Is(context.Cause(ctx), errHostDied) {
		t.Errorf("it does not say why: %v", context.Cause(ctx))
	}
}
