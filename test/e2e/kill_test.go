package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// ticker is an agent that prints a numbered line every 5 ms for ever.
const ticker = `[{"tick": {"everyMs": 5, "text": "tick"}}]`

// ticks checks that the log of a seat counts up without a gap and returns the last number.
func ticks(t *testing.T, w *harness.World, seat string) int {
	t.Helper()
	out := w.CLI("logs", seat, "--raw", "--bytes", "8388608").OK().Stdout
	last := 0
	all := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	for i, line := range all {
		var n int
		if _, err := fmt.Sscanf(strings.TrimSpace(line), "tick %d", &n); err != nil {
			if i == len(all)-1 {
				break // a line that is being written
			}
			t.Fatalf("line %d of the log is %q", i, line)
		}
		if n != last+1 && last != 0 {
			t.Fatalf("line %d follows line %d", n, last)
		}
		if last == 0 && n != 1 {
			t.Fatalf("the log begins with line %d", n)
		}
		last = n
	}
	return last
}

func more(t *testing.T, w *harness.World, seat string, than int) {
	t.Helper()
	await(t, harness.DefaultWait, "the agent goes on", func() (bool, string) {
		n := ticks(t, w, seat)
		return n > than+10, fmt.Sprint(n)
	})
}

// TestAgentSurvivesHostKill: kill -9 of the host, of the runtime plugin, of both at once, and of the
// host with its journal deleted. The agent is the same process and no line of output is lost.
//
// proves: RT-1, RT-7
func TestAgentSurvivesHostKill(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	row := w.SpawnFake("steady", ticker)
	w.SpawnFake("echo", `[{"lines": {"count": 0, "reply": "got {line}\n"}}]`)
	same := func(when string) {
		t.Helper()
		if got := w.AwaitStatus("steady", "running"); got.PID != row.PID || got.SeatID != row.SeatID || got.LifecycleUID != row.LifecycleUID {
			t.Fatalf("%s: %+v, was pid %d seat %s", when, got, row.PID, row.SeatID)
		}
		more(t, w, "steady", ticks(t, w, "steady"))
	}
	h.Kill()
	h = w.Start(harness.HostOptions{})
	same("after kill -9 of the host")

	before := w.PluginPID("pty")
	w.KillPID(before)
	await(t, harness.DefaultWait, "the runtime plugin is another process", func() (bool, string) {
		return w.PluginPID("pty") != before, "it is the one that was killed"
	})
	same("after kill -9 of the runtime plugin")
	w.CLI("input", "echo", "--text", "typed after the plugin's death").OK()
	await(t, harness.DefaultWait, "input arrives", func() (bool, string) {
		out := w.CLI("logs", "echo").OK().Stdout
		return strings.Contains(out, "got typed after the plugin's death"), out
	})

	pty := w.PluginPID("pty")
	h.Kill()
	w.KillRest(pty) // it ends with its host
	h = w.Start(harness.HostOptions{})
	same("after kill -9 of both")

	h.Kill()
	if err := os.Remove(w.Path(".cotal", "host", "journal.db")); err != nil {
		t.Fatal(err)
	}
	w.Start(harness.HostOptions{})
	same("after the loss of the journal")

	w.CLI("stop", "steady").OK()
	if _, err := os.Stat(filepath.Join(w.SeatRoot, row.SeatID)); !os.IsNotExist(err) {
		t.Errorf("seat directory is left: %v", err)
	}
	if w.Alive(row.PID) || w.Alive(row.SeatPID) {
		t.Error("a process of the seat is left")
	}
}

// A killed custody process takes the terminal with it: the seat ends as custody-lost, with no code, and
// nothing of it runs on.
func TestAKilledSeatEndsAsCustodyLost(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	row := w.SpawnFake("doomed", `[{"ignore": ["HUP", "TERM"]}, {"daemon": {"steps": [{"hang": true}]}}, {"hang": true}]`)
	w.KillPID(row.SeatPID)
	got := w.AwaitStatus("doomed", "exited")
	if got.Exit == nil || got.Exit.Code != nil || got.Exit.Evidence != "custody-lost" {
		t.Errorf("exit %+v; want custody-lost without a code", got.Exit)
	}
	if left := w.ProcsLike("cotal-fakeagent"); len(left) > 0 {
		t.Errorf("left alive: %v", left)
	}
	await(t, harness.DefaultWait, "the name is free", func() (bool, string) {
		r := w.CLI(append([]string{"spawn", "--agent", "command", "--name", "doomed", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)...)
		return r.Code == 0, r.String()
	})
}

// 32 seats are taken back after kill -9 of host and plugin, every one the same process.
func TestManySeatsAreTakenBackAtOnce(t *testing.T) {
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	pids := map[string]int{}
	for i := range 32 {
		name := fmt.Sprintf("s%02d", i)
		pids[name] = w.SpawnFake(name, `[{"hang": true}]`).PID
	}
	pty := w.PluginPID("pty")
	h.Kill()
	w.KillRest(pty) // it ends with its host
	h = w.Start(harness.HostOptions{})
	rows := w.Ps()
	if len(rows) != 32 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		if r.Status != "running" || r.PID != pids[r.Name] {
			t.Errorf("%s is %s with pid %d, was %d", r.Name, r.Status, r.PID, pids[r.Name])
		}
	}
	if n := strings.Count(h.Stderr(), "took back"); n != 32 {
		t.Errorf("%d verdicts were told before ready", n)
	}
	w.Host("stop", "--with-agents").OK()
	w.AssertNothingLeft()
}
