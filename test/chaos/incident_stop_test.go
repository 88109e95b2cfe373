//go:build linux

package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// TestIncident_AStopEndsNoProcessThatOnlyHasTheNumberOfAHost: a host that was killed leaves its number, which another
// process may have by now. A stop that finds it there says that no host runs, and leaves that process alone.
func TestIncident_AStopEndsNoProcessThatOnlyHasTheNumberOfAHost(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{}).Kill()
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	t.Cleanup(func() {
		_ = other.Process.Kill()
		<-ended
	})
	path := w.Path(".cotal", "host", "endpoint.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var e map[string]any
	if err := json.Unmarshal(text, &e); err != nil || e["pid"] == nil {
		t.Fatalf("the endpoint file is %s, %v", text, err)
	}
	e["pid"] = other.Process.Pid
	if text, err = json.Marshal(e); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--with-agents"}} {
		if r := w.Host("stop", args...); strings.Contains(r.Stdout, "stopped") || strings.Contains(r.Stdout+r.Stderr, fmt.Sprintf("pid %d", other.Process.Pid)) {
			t.Errorf("stop %v takes process %d for a host: %v", args, other.Process.Pid, r)
		}
	}
	select {
	case err := <-ended:
		ended <- err
		t.Errorf("a stop ended a process that is no host: %v", err)
	default:
		if err := syscall.Kill(other.Process.Pid, 0); err != nil {
			t.Error(err)
		}
	}
	w.Start(harness.HostOptions{}) // which the number keeps from nothing
}

// TestIncident_ASecondSpaceTakesNothingFromTheFirst: a start of another space in the same workspace once overwrote by
// what the first host was found, which nobody could stop then. It is refused, and says why, also when the first one has
// stopped and left seats; what belongs to the first stays as it was.
func TestIncident_ASecondSpaceTakesNothingFromTheFirst(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	seat := w.SpawnFake("worker", `[{"hang": true}]`)
	path := w.Path(".cotal", "host", "endpoint.json")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(why string) {
		t.Helper()
		second := w.Launch(harness.HostOptions{Args: []string{"--space", "other"}})
		if e, ok := second.WaitExit(harness.DefaultWait); !ok || e.Code != 1 || !strings.Contains(second.Stderr(), why) {
			t.Errorf("a start of another space ended %v, %v and said %q; want it to name %s", ok, e, second.Stderr(), why)
		}
	}
	refused(fmt.Sprint(h.PID))
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the endpoint file is %s, %v; was %s", after, err, before)
	}
	if got := w.AwaitStatus("worker", "running"); got.PID != seat.PID {
		t.Errorf("the seat has pid %d, was %d", got.PID, seat.PID)
	}
	w.Host("stop").OK()
	refused("worker")
	w.Start(harness.HostOptions{})
	if got := w.AwaitStatus("worker", "running"); got.PID != seat.PID {
		t.Errorf("behind it the seat has pid %d, was %d", got.PID, seat.PID)
	}
}
