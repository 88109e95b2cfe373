//go:build linux

package pty

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/proctree"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
)

// settle judges a seat after a crash the way a booting host does, holds the invariants, and stops it.
func (r *rig) settle(t *testing.T, q sdk.SpawnRequest) sdk.SeatState {
	t.Helper()
	st := r.adopt(q, false)
	found, err := seat.FindByNonce(q.Nonce)
	if err != nil {
		t.Fatal(err)
	}
	switch st.State {
	case sdk.SeatPrepared:
		if len(found) != 1 || found[0].PID != st.Identity.PID {
			t.Errorf("prepared, and its processes are %+v", found)
		}
	case sdk.SeatRunning:
		if live, why := seat.Check(seatIdentity(st.Agent)); live != seat.Alive {
			// A polite signal may be under way: then it is not listed as running for long.
			t.Logf("listed running, and the agent is %s: %s", live, why)
			eventually(t, "a dead agent is not listed as running", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
			break
		}
		agents := 0
		for _, p := range found {
			if p.PPID == st.Identity.PID {
				agents++
			}
		}
		if agents > 1 || len(found) > 3 { // the agent has one child
			t.Errorf("not one agent per seat: %+v", found)
		}
	case sdk.SeatExited:
		for _, p := range found {
			if p.PID != st.Identity.PID { // custody may still serve its exit
				t.Errorf("exited, and process %d (%s) lives", p.PID, p.Comm)
			}
		}
	case sdk.SeatNotFound:
		if len(found) != 0 {
			t.Errorf("not found, and processes are %+v", found)
		}
	default:
		t.Errorf("state %s (%s)", st.State, st.Reason)
	}
	if n := len(r.read("started")); n > 1 {
		t.Errorf("the agent was started %d times", n)
	}
	r.reap(q, sdk.StopNow)
	return st.State
}

const crashScript = `[{"append":{"file":"{work}/started","text":"x"}},{"fork":{"steps":[{"ignore":["HUP","TERM"]},{"pidfile":"{work}/child"},{"hang":true}]}},{"print":"up\n"},{"hang":true}]`

// proves: RT-7. SIGKILL of the runtime at every one of its failpoints: another runtime finds the seat
// by its id alone, in a state that is true, never starts it twice, and leaves nothing after the stop.
func TestFieldB9_RuntimeKilledAtEveryStep(t *testing.T) {
	for _, name := range failpoint.Names() {
		if !strings.HasPrefix(name, "pty.") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.spec(crashScript)
			if name == "pty.spawn.undo" {
				crashInUndo(t, r, q)
				return
			}
			m := r.remote(name+"=crash", nil)
			err := m.spawn(q)
			if err == nil {
				if strings.HasPrefix(name, "pty.adopt.lost") || name == "pty.adopt.swept" || name == "pty.adopt.recorded" {
					if _, err := r.rt.Adopt(context.Background(), adoptOf(q, true)); err != nil {
						t.Fatal(err)
					}
					r.killCustody(q)
				}
				_, err = m.adopt(q, true)
			}
			if err == nil {
				r.pid("child")
				mode := sdk.StopGraceful
				if name == "pty.reap.kill" {
					mode = sdk.StopNow
				}
				_, err = m.reap(q, mode)
			}
			if !errors.Is(err, errRemoteDied) {
				t.Fatalf("the runtime did not reach the failpoint: %v", err)
			}
			state := r.settle(t, q)
			t.Logf("found %s", state)
			if want, ok := stateAfter[name]; ok && state != want {
				t.Errorf("found %s, want %s", state, want)
			}
			// The same id can be used as if nothing had been.
			again := q
			r.spawn(again)
			if st := r.adopt(again, false); st.State != sdk.SeatPrepared {
				t.Errorf("spawned again: %s", st.State)
			}
		})
	}
}

// stateAfter is what the next host must find, where only one answer is right.
var stateAfter = map[string]sdk.SeatState{
	"pty.spawn.dir": sdk.SeatNotFound, "pty.spawn.token": sdk.SeatNotFound,
	"pty.spawn.prepared": sdk.SeatPrepared, "pty.adopt.begin": sdk.SeatPrepared,
	"pty.adopt.welcomed": sdk.SeatPrepared, "pty.adopt.commit": sdk.SeatPrepared,
	"pty.adopt.committed": sdk.SeatRunning, "pty.adopt.lost": sdk.SeatExited,
	"pty.adopt.swept": sdk.SeatExited, "pty.adopt.recorded": sdk.SeatExited,
	"pty.reap.begin": sdk.SeatRunning, "pty.reap.exited": sdk.SeatExited,
	"pty.reap.acked": sdk.SeatExited, "pty.reap.custody-gone": sdk.SeatExited,
	"pty.reap.scanned": sdk.SeatExited, "pty.reap.socket": sdk.SeatExited,
	"pty.reap.renamed": sdk.SeatNotFound, "pty.reap.removed": sdk.SeatNotFound,
}

func crashInUndo(t *testing.T, r *rig, q sdk.SpawnRequest) {
	t.Helper()
	m := r.remote("pty.spawn.prepared=error(full);pty.spawn.undo=crash", nil)
	if err := m.spawn(q); !errors.Is(err, errRemoteDied) {
		t.Fatalf("spawn: %v", err)
	}
	if state := r.settle(t, q); state != sdk.SeatPrepared {
		t.Errorf("found %s", state)
	}
}

// The half-removed directory of a killed stop is swept by the next listing.
func TestInterruptedRemovalIsFinished(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	r.spawn(q)
	if _, err := r.remote("pty.reap.renamed=crash", nil).reap(q, sdk.StopNow); !errors.Is(err, errRemoteDied) {
		t.Fatalf("reap: %v", err)
	}
	if list, err := r.rt.List(context.Background(), sdk.ListRequest{InstanceID: r.instance}); err != nil || len(list) != 0 {
		t.Errorf("list %+v, %v", list, err)
	}
	r.nothingOnDisk()
}

// SIGKILL of custody at every one of its failpoints. Each ends in a proven end or in nothing at all.
func TestCustodyKilledAtEveryStep(t *testing.T) {
	points := []string{
		"seat.prepare.before-bind", "seat.prepare.before-record", "seat.prepare.after-record", "seat.prepare.before-print",
		"seat.commit.before-exec", "seat.commit.after-exec",
		"seat.exit.before-fsync", "seat.exit.after-fsync", "seat.exit.before-ack",
	}
	for _, name := range points {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.spec(crashScript)
			// Armed in the runtime process, which forwards it to custody.
			m := r.remote(name+"=crash", nil)
			err := m.spawn(q)
			if strings.HasPrefix(name, "seat.prepare.") {
				if err == nil || errors.Is(err, errRemoteDied) {
					t.Fatalf("spawn: %v", err)
				}
				r.gone(q) // a failed spawn leaves nothing
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			st, err := m.adopt(q, true)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "seat.commit.") {
				if st.State != sdk.SeatExited || st.Exit.Evidence != sdk.EvidenceCustodyLost {
					t.Errorf("commit answered %+v, exit %+v", st, st.Exit)
				}
				r.settle(t, q)
				return
			}
			r.pid("child")
			rep, err := m.reap(q, sdk.StopNow)
			if err != nil {
				t.Fatalf("reap: %v", err)
			}
			if rep.Exit == nil {
				t.Fatalf("report %+v", rep)
			}
			want := map[string]sdk.Evidence{"seat.exit.before-fsync": sdk.EvidenceCustodyLost}[name]
			if want != "" && rep.Exit.Evidence != want {
				t.Errorf("evidence %s, want %s", rep.Exit.Evidence, want)
			}
			r.gone(q)
		})
	}
	// The list above must be all there is: custody is another program, so its source tells.
	text, err := os.ReadFile("custody/failpoints.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "failpoint.New("); n != len(points) {
		t.Errorf("custody has %d failpoints and %d are tested", n, len(points))
	}
	for _, p := range points {
		if !strings.Contains(string(text), `"`+p+`"`) {
			t.Errorf("custody has no failpoint %s", p)
		}
	}
}

// A host that dies, takes its runtime with it, and an agent in the middle of its output: the agent
// neither stops nor skips, and another runtime finds it under the same process id. Custody survives
// without anybody at the other end of its pipes.
func TestFieldA5_AgentSurvivesHostKill(t *testing.T) { testAgentSurvivesHostKill(t) }

func TestAgentSurvivesHostKill(t *testing.T) { testAgentSurvivesHostKill(t) }

func testAgentSurvivesHostKill(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"tick":{"everyMs":1,"count":1500,"text":"tick"}},{"flood":{"mb":1}},{"print":"all told\n"},{"hang":true}]`)
	m := r.remote("", nil)
	if err := m.spawn(q); err != nil {
		t.Fatal(err)
	}
	before, err := m.adopt(q, true)
	if err != nil {
		t.Fatal(err)
	}
	v := r.view(q, 0)
	v.await(t, fmt.Sprintf("tick %012d", 50))
	m.kill()
	killedAt := len(v.text())
	r.rt = r.fresh()
	st := r.adopt(q, true)
	if st.State != sdk.SeatRunning || st.Agent != before.Agent || st.Identity != before.Identity {
		t.Fatalf("adopted %+v, before %+v", st, before)
	}
	v.await(t, "all told")
	if len(v.text()) < killedAt+1<<20 {
		t.Errorf("%d bytes at the kill, %d at the end", killedAt, len(v.text()))
	}
	if v.gaps != 0 {
		t.Errorf("%d gaps", v.gaps)
	}
	lines := strings.Split(strings.ReplaceAll(v.text(), "\r\n", "\n"), "\n")
	for i := range 1500 {
		if want := fmt.Sprintf("tick %012d", i+1); lines[i] != want {
			t.Fatalf("line %d is %.40q, want %q", i, lines[i], want)
		}
	}
	for i := range 1 << 20 / 101 {
		if !strings.HasPrefix(lines[1500+i], fmt.Sprintf("%012d ", i)) {
			t.Fatalf("line %d of the flood is %.40q", i, lines[1500+i])
		}
	}
	if p, err := seat.ReadProc(st.Identity.PID); err != nil || p.State == 'Z' {
		t.Errorf("custody: %+v, %v", p, err)
	}
}

// After a host's death a stop ends the old process, and a second start of the same seat does not make
// a second process.
func TestFieldB5_NeverTwoOfOneSeat(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"append":{"file":"{work}/started","text":"x"}},{"pidfile":"{work}/pid"},{"hang":true}]`)
	m := r.remote("", nil)
	if err := m.spawn(q); err != nil {
		t.Fatal(err)
	}
	if _, err := m.adopt(q, true); err != nil {
		t.Fatal(err)
	}
	pid := r.pid("pid")
	m.kill()
	next := r.remote("", nil)
	if err := next.spawn(q); err != nil {
		t.Fatal(err)
	}
	if st, err := next.adopt(q, true); err != nil || st.Agent.PID != pid {
		t.Errorf("adopted %+v, %v", st, err)
	}
	if got := r.read("started"); got != "x" {
		t.Errorf("started %d times", len(got))
	}
	if _, err := next.reap(q, sdk.StopGraceful); err != nil {
		t.Fatal(err)
	}
	if alive(pid) {
		t.Error("stopped, and the process lives")
	}
	r.gone(q)
}

// The runtime as process 1 of a container: nothing of a seat becomes a zombie, and exit codes stay right.
func TestFieldB18_NoZombiesUnderProcessOne(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a process namespace needs root")
	}
	r := newRig(t)
	m := r.remote("", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}, asInitEnv+"=1")
	script := `[{"daemon":{"count":100,"steps":[{"exit":0}]}},{"write":{"file":"{work}/done","text":"x"}},{"waitFile":"{work}/go"},{"exit":7}]`
	q := r.spec(script)
	r.specs = nil // its processes are seen under other numbers here; the namespace ends with its process 1
	if err := m.spawn(q); err != nil {
		t.Fatal(err)
	}
	if _, err := m.adopt(q, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "100 daemons were started", func() bool { return r.read("done") != "" })
	eventually(t, "no zombies in the namespace", func() bool { return zombiesBelow(t, m.cmd.Process.Pid) == 0 })
	if err := os.WriteFile(r.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var st sdk.SeatStatus
	eventually(t, "exited", func() bool {
		var err error
		st, err = m.adopt(q, false)
		if err != nil {
			t.Fatal(err)
		}
		return st.State == sdk.SeatExited
	})
	if st.Exit.Code == nil || *st.Exit.Code != 7 {
		t.Errorf("exit %+v", st.Exit)
	}
	if _, err := m.reap(q, sdk.StopGraceful); err != nil {
		t.Fatal(err)
	}
	eventually(t, "custody was waited for", func() bool { return zombiesBelow(t, m.cmd.Process.Pid) == 0 })
	r.nothingOnDisk()
}

// zombiesBelow counts dead processes that nobody waited for below a process.
func zombiesBelow(t *testing.T, top int) int {
	t.Helper()
	table, err := proctree.Table()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range table {
		up := p.PPID
		for i := 0; up > 1 && up != top && i < len(table); i++ {
			up = table[up].PPID
		}
		if up == top && p.Dead() {
			n++
		}
	}
	return n
}

// Two runtimes at the same seat, one of them killed: the lock goes with the process.
func TestLockGoesWithTheProcess(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	reached := r.file("reached")
	m := r.remote("pty.spawn.dir=pause("+reached+")", nil)
	died := make(chan error, 1)
	go func() { died <- m.spawn(q) }()
	eventually(t, "the other runtime holds the directory", func() bool { _, err := os.Stat(reached + ".reached"); return err == nil })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.rt.Spawn(ctx, q); !errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), "another runtime process") {
		t.Errorf("spawn beside it: %v", err)
	}
	_ = m.cmd.Process.Kill()
	if err := <-died; !errors.Is(err, errRemoteDied) {
		t.Errorf("killed spawn: %v", err)
	}
	r.spawn(q)
	if _, err := record.ReadSeat(r.dir(q)); err != nil {
		t.Error(err)
	}
}
