//go:build linux

package pty

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// shell makes a spawn request whose agent is a shell script.
func (r *rig) shell(script string) sdk.SpawnRequest {
	q := r.spec(`[]`)
	q.Launch.Path, q.Launch.Args = "/bin/sh", []string{"-c", strings.ReplaceAll(script, "{work}", r.work)}
	r.specs[len(r.specs)-1] = q
	return q
}

func (r *rig) start(q sdk.SpawnRequest) sdk.SeatStatus {
	r.t.Helper()
	r.spawn(q)
	return r.adopt(q, true)
}

// An agent that erased its environment and ignores the loss of its terminal is still known by its
// identity: with custody gone it is killed, with its session, before its end is told.
func TestAgentWithoutEnvironmentDoesNotOutliveItsCustody(t *testing.T) {
	for name, judge := range map[string]func(r *rig, q sdk.SpawnRequest) *sdk.Exit{
		"adopt": func(r *rig, q sdk.SpawnRequest) *sdk.Exit { return r.adopt(q, false).Exit },
		"stop":  func(r *rig, q sdk.SpawnRequest) *sdk.Exit { return r.reap(q, sdk.StopGraceful).Exit },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			q := r.shell(`exec env -i /bin/sh -c 'trap "" HUP TERM; (echo $$ > /dev/null; while :; do sleep 600; done) & echo $! > {work}/mate; echo $$ > {work}/agent; while :; do sleep 600; done'`)
			st := r.start(q)
			agent, mate := r.pid("agent"), r.pid("mate")
			if agent != st.Agent.PID {
				t.Fatalf("agent %d, status %+v", agent, st.Agent)
			}
			t.Cleanup(func() { kill9(t, agent); kill9(t, mate) })
			if env, err := os.ReadFile("/proc/" + strconv.Itoa(agent) + "/environ"); err != nil || strings.Contains(string(env), seat.NonceVar) {
				t.Fatalf("environment %q, %v", env, err)
			}
			r.killCustody(q)
			x := judge(r, q)
			if x == nil || x.Evidence != sdk.EvidenceCustodyLost || x.Code != nil {
				t.Errorf("exit %+v", x)
			}
			for _, pid := range []int{agent, mate} {
				if alive(pid) {
					t.Errorf("process %d lives and the seat is called gone", pid)
				}
			}
		})
	}
}

// What is left in the agent's session after the agent, without environment, is not proven to be the
// seat's and is not killed; but nobody calls the seat gone while it lives.
func TestSessionOfADeadAgentIsNotCalledGone(t *testing.T) {
	r := newRig(t)
	q := r.shell(`exec env -i /bin/sh -c '(trap "" HUP TERM; while :; do sleep 600; done) & echo $! > {work}/mate; while :; do sleep 600; done'`)
	st := r.start(q)
	mate := r.pid("mate")
	t.Cleanup(func() { kill9(t, mate) })
	eventually(t, "the mate is deaf", func() bool { return custodied.IgnoresTerm(mate) })
	r.killCustody(q)
	eventually(t, "the agent ended with its terminal", func() bool { return !proctree.Exists(st.Agent.PID, st.Agent.StartTicks) })
	if got := r.adopt(q, false); got.State != sdk.SeatUnknown || !strings.Contains(got.Reason, strconv.Itoa(mate)) {
		t.Errorf("adopt: %s (%s)", got.State, got.Reason)
	}
	if _, err := r.rt.Reap(t.Context(), stopOf(q, sdk.StopNow)); !errors.Is(err, sdk.ErrUnproven) || !strings.Contains(err.Error(), strconv.Itoa(mate)) {
		t.Errorf("stop: %v", err)
	}
	if !alive(mate) {
		t.Error("a process was killed without proof of what it is")
	}
	for _, p := range mateAndChildren(t, mate) {
		kill9(t, p)
	}
	if got := r.adopt(q, false); got.State != sdk.SeatExited || got.Exit.Evidence != sdk.EvidenceCustodyLost {
		t.Errorf("adopt without it: %s (%s)", got.State, got.Reason)
	}
}

func mateAndChildren(t *testing.T, pid int) []int {
	t.Helper()
	table, err := proctree.Table()
	if err != nil {
		t.Fatal(err)
	}
	pids := []int{pid}
	for _, p := range proctree.Descendants(table, map[int]bool{pid: true}) {
		pids = append(pids, p.PID)
	}
	return pids
}

// The identity of the agent is written before anybody is told that it runs, and again when it is missing.
func TestAgentRecordIsThereBeforeTheAnswer(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	m := r.remote("pty.adopt.committed=crash", nil)
	if err := m.spawn(q); err != nil {
		t.Fatal(err)
	}
	if _, err := m.adopt(q, true); !errors.Is(err, errRemoteDied) {
		t.Fatalf("adopt: %v", err)
	}
	path := filepath.Join(r.dir(q), record.AgentFile)
	check := func() {
		t.Helper()
		a, err := record.ReadAgent(r.dir(q))
		if err != nil {
			t.Fatal(err)
		}
		if live, why := seat.Check(a.Identity()); live != seat.Alive || a.TTY == 0 {
			t.Errorf("record %+v: %s", a, why)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
	check()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.adopt(q, false)
	check()
}

// hide is a process that hides its environment and ends only when it is killed.
func hide(pidfile string) {
	signal.Ignore(syscall.SIGHUP, syscall.SIGTERM)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		os.Exit(1)
	}
	if err := errors.Join(os.WriteFile(pidfile+".tmp", []byte(strconv.Itoa(os.Getpid())), 0o600), os.Rename(pidfile+".tmp", pidfile)); err != nil {
		os.Exit(1)
	}
	for {
		time.Sleep(time.Hour)
	}
}

// A process that hides its environment may carry the nonce: with custody gone, the seat is not called
// gone while one lives that may be the seat's. One that cannot be does not matter.
func TestHiddenEnvironmentIsNotCalledGone(t *testing.T) {
	r := newRig(t)
	stranger := exec.Command("/proc/self/exe")
	stranger.Env = []string{hiddenEnv + "=" + r.file("stranger")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// It leaves session and parent, as a daemon does.
	q := r.shell(`(` + hiddenEnv + `={work}/hidden setsid ` + self + ` &) ; while :; do sleep 600; done`)
	r.start(q)
	hidden := r.pid("hidden")
	t.Cleanup(func() { kill9(t, hidden) })
	if err := stranger.Start(); err != nil { // later than the seat, so that only its place speaks for it
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })
	r.pid("stranger")
	r.killCustody(q)
	m := r.remote("", nil, plainEnv+"=1")
	got, err := m.adopt(q, false)
	if err != nil || got.State != sdk.SeatUnknown || !strings.Contains(got.Reason, "process "+strconv.Itoa(hidden)+" ") {
		t.Errorf("adopt: %s (%s), %v", got.State, got.Reason, err)
	}
	if strings.Contains(got.Reason, strconv.Itoa(stranger.Process.Pid)) {
		t.Errorf("a stranger is named: %s", got.Reason)
	}
	if _, err := m.reap(q, sdk.StopNow); err == nil || !strings.Contains(err.Error(), strconv.Itoa(hidden)) {
		t.Errorf("stop: %v", err)
	}
	if !alive(hidden) {
		t.Error("a process was killed without proof of what it is")
	}
	kill9(t, hidden)
	eventually(t, "it is dead", func() bool { return !alive(hidden) })
	if got, err := m.adopt(q, false); err != nil || got.State != sdk.SeatExited || got.Exit.Evidence != sdk.EvidenceCustodyLost {
		t.Errorf("adopt without it: %s (%s), %v", got.State, got.Reason, err)
	}
}
