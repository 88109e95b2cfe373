package crash

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cotal-ai/cotal-host/test/harness"
)

// lookalikes starts processes that look like ours and are not: by their names, by what their arguments
// say, by a nonce that no seat has. Each is orphaned, in a session of its own, as survivors are.
func lookalikes(t *testing.T, w *harness.World) []harness.Proc {
	t.Helper()
	dir := filepath.Join(w.Dir, "bystanders")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"opencode", "claude", "cotal-seat", "cotal-runtime-pty", "cotal-connector-command", "cotal-fakeagent", "cotal-bridge"}
	want := 0
	for _, name := range names {
		path := filepath.Join(dir, name)
		script := fmt.Sprintf("#!/bin/sh\n%s 600 & wait\n", sleep)
		if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		w.LaunchProgram("/bin/sh", []string{"-c", `setsid "$0" 0123456789abcdef0123456789abcdef <&- >/dev/null 2>&1 & exit 0`, path}, harness.HostOptions{
			Env: []string{"COTAL_SEAT_NONCE=" + strings.Repeat("5a", 16)},
		})
		want += 2
	}
	var found []harness.Proc
	harness.Eventually(t, harness.DefaultWait, "the bystanders run", func() (bool, string) {
		found = nil
		for _, p := range w.Procs() {
			if strings.Contains(p.Args, dir) && !strings.Contains(p.Args, "setsid") || strings.HasSuffix(p.Args, "sleep 600") {
				found = append(found, p)
			}
		}
		return len(found) == want, fmt.Sprint(found)
	})
	return found
}

func stillThere(t *testing.T, w *harness.World, bystanders []harness.Proc, when string) {
	t.Helper()
	alive := map[int]harness.Proc{}
	for _, p := range w.Procs() {
		alive[p.PID] = p
	}
	for _, b := range bystanders {
		if p := alive[b.PID]; p.Ticks != b.Ticks {
			t.Errorf("%s: bystander %v is gone", when, b)
		} else if p.State == "T" {
			t.Errorf("%s: bystander %v was stopped", when, b)
		}
	}
}

// TestFieldC8_ABootSweepTakesOnlyWhatIsOurs: a host that finds the wreck of a seat at its start ends what
// is left of it, and nothing that only looks like it.
func TestFieldC8_ABootSweepTakesOnlyWhatIsOurs(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	others := lookalikes(t, w)
	h := w.Start(harness.HostOptions{})
	daemon := filepath.Join(w.Dir, "daemon.pid")
	row := w.SpawnFake("wreck", fmt.Sprintf(`[{"daemon": {"steps": [{"ignore": ["HUP", "TERM"]}, {"pidfile": %q}, {"hang": true}]}}, {"hang": true}]`, daemon))
	harness.Eventually(t, harness.DefaultWait, "the daemon of the agent runs", func() (bool, string) {
		text, _ := os.ReadFile(daemon)
		return strings.HasSuffix(string(text), "\n"), string(text)
	})
	h.Kill()
	w.KillPID(row.SeatPID)
	w.Start(harness.HostOptions{})
	if got := w.AwaitStatus("wreck", "exited"); got.Exit == nil || got.Exit.Evidence != "custody-lost" {
		t.Errorf("the wreck is %+v", got)
	}
	if left := w.ProcsLike(daemon); len(left) != 0 {
		t.Errorf("left of the wreck: %v", left)
	}
	stillThere(t, w, others, "after the sweep")
	finish(t, w, others)
}

// TestFieldC12_ATeardownKillsOnlyVerifiedIds: processes with our names and the user's own tmux sessions
// outlive everything that ends the seats beside them.
func TestFieldC12_ATeardownKillsOnlyVerifiedIds(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	others := lookalikes(t, w)
	tmux, err := exec.LookPath("tmux")
	if err == nil {
		w.Setenv("TMUX_TMPDIR", w.Dir)
		for _, name := range []string{"cotal", "worker"} {
			w.LaunchProgram(tmux, []string{"-f", "/dev/null", "new-session", "-d", "-s", name, "cat"}, harness.HostOptions{})
		}
	}
	sessions := func() string {
		if tmux == "" {
			return ""
		}
		out, _ := exec.Command("env", append(w.Environ(), tmux, "list-sessions", "-F", "#{session_name}")...).Output()
		return strings.Join(strings.Fields(string(out)), " ")
	}
	if tmux != "" {
		harness.Eventually(t, harness.DefaultWait, "the user's sessions run", func() (bool, string) {
			return sessions() == "cotal worker", sessions()
		})
	}
	h := w.Start(harness.HostOptions{})
	w.SpawnFake("worker", `[{"hang": true}]`)
	w.SpawnFake("stubborn", `[{"ignore": ["HUP", "TERM", "INT"]}, {"fork": {"count": 3, "steps": [{"hang": true}]}}, {"hang": true}]`)
	w.CLI("stop", "worker").OK()
	stillThere(t, w, others, "after a stop")
	w.Host("stop", "--with-agents").OK()
	if _, ok := h.WaitExit(harness.DefaultWait); !ok {
		t.Fatal("the host still runs")
	}
	stillThere(t, w, others, "after the teardown")
	if tmux != "" {
		if got := sessions(); got != "cotal worker" {
			t.Errorf("the user's sessions are %q after the teardown", got)
		}
		others = append(others, w.ProcsLike(tmux)...)
	}
	finish(t, w, others)
}

// finish ends the bystanders, so that the orphan check speaks of ours alone.
func finish(t *testing.T, w *harness.World, bystanders []harness.Proc) {
	t.Helper()
	for _, b := range bystanders {
		if w.Alive(b.PID) {
			_ = w.TrySignal(b.PID, syscall.SIGKILL)
		}
	}
	for _, b := range bystanders {
		w.AwaitGone(b.PID)
	}
}
