package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A plugin that left the process group it was started in does not hear what is said to the group.
func TestAPluginThatLeavesItsProcessGroupIsEnded(t *testing.T) {
	f := newFixture(t)
	f.env["FAKE_MODE"] = "leaves-group"
	s := f.start(f.entry())
	old := f.ready(s)
	if pgid, err := syscall.Getpgid(old.PID); err != nil || pgid == old.PID {
		t.Fatalf("it is in group %d still, %v", pgid, err)
	}
	suspend(t, old.PID)
	done, err := s.Restart(f.ctx())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, StopTimeout+5*time.Second, "the old process is gone, and that is said", func() bool {
		_, said := f.log.find("replaced process has ended")
		return gone(old.PID) && said
	})
	suspend(t, done.PID)
	if err := s.Stop(context.Background()); err != nil || !gone(done.PID) {
		t.Errorf("%v, gone %v", err, gone(done.PID))
	}
}

// As if the kernel did not let go of it.
func TestAProcessThatDoesNotEndIsNamedByStopAndNotSaidToHaveEnded(t *testing.T) {
	f := newFixture(t)
	s := New(f.config(f.entry()))
	s.Start()
	old := f.ready(s)
	real := killGroup
	t.Cleanup(func() { killGroup = real })
	killGroup = func(pid int, sig syscall.Signal) error {
		if pid == old.PID {
			return nil
		}
		return real(pid, sig)
	}
	suspend(t, old.PID)
	if _, err := s.Restart(f.ctx()); err != nil {
		t.Fatal(err)
	}
	err := s.Stop(context.Background())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d does not end", old.PID)) {
		t.Errorf("stop says %v", err)
	}
	if _, said := f.log.find("replaced process has ended"); said || gone(old.PID) {
		t.Errorf("said %v, gone %v", said, gone(old.PID))
	}
	if err := syscall.Kill(old.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "what it left is cleared away", func() bool {
		left, _ := filepath.Glob(filepath.Join(f.run, "*"))
		_, said := f.log.find("has ended after all")
		return len(left) == 0 && said
	})
	if _, err := os.Stat(f.run); err != nil {
		t.Error(err)
	}
}
