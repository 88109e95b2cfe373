//go:build linux

package custody_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// proves: RT-7
func TestAPreparedSeatHasARecordAndExecutesNothing(t *testing.T) {
	h := prepared(t, script("touch executed"))
	rec, err := record.ReadSeat(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Identity() != h.self || rec.Nonce != h.launch.Nonce || rec.Socket != h.launch.Socket || rec.Record.Owner.Alias != "tester" {
		t.Errorf("record %+v does not name the seat %+v", rec, h.self)
	}
	st := h.dial(seat.RoleOutput).Welcome()
	if st.State != seat.StatePrepared || st.Agent.PID != 0 || st.Next != 0 || st.Rows != 32 || st.Cols != 120 {
		t.Errorf("status %+v", st)
	}
	if _, err := os.Stat(filepath.Join(h.launch.Cwd, "executed")); err == nil {
		t.Error("the agent was executed before the commit")
	}
	if got := h.running(); len(got) != 0 {
		t.Errorf("processes before the commit: %+v", got)
	}
	h.eventually("no inherited pipe", func() error {
		for _, name := range []string{"0", "1", "2"} {
			target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", h.self.PID, name))
			if strings.HasPrefix(target, "pipe:") {
				return fmt.Errorf("descriptor %s still is %s", name, target)
			}
		}
		return nil
	})
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.self.PID))
	if string(comm) != "cotal-seat\n" {
		t.Errorf("comm %q", comm)
	}
}

// proves: RT-7, EXIT-1
func TestACommitStartsOnceAndIsAnsweredTheSameAgain(t *testing.T) {
	h := prepared(t, script("echo ran >> ran; exec cat"))
	first := h.commit()
	second := h.commit()
	if first.State != seat.StateRunning || second.Agent != first.Agent || first.Agent.PID == 0 {
		t.Errorf("first %+v second %+v", first, second)
	}
	h.eventually("the agent ran", func() error {
		p, err := os.ReadFile(filepath.Join(h.launch.Cwd, "ran"))
		if len(p) == 0 && err == nil {
			err = errors.New("the file is empty")
		}
		return err
	})
	h.act(seat.ActionKill)
	h.awaitExit()
	h.eventually("exited", func() error {
		if st := h.commit(); st.State != seat.StateExited || st.Agent != first.Agent {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	if p, _ := os.ReadFile(filepath.Join(h.launch.Cwd, "ran")); string(p) != "ran\n" {
		t.Errorf("the agent ran %q", p)
	}
}

func TestAFailedExecutionLeavesTheSeatPrepared(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*seat.Launch)
		want string
	}{
		{"a program that does not exist is named", func(l *seat.Launch) { l.Path = "/nonexistent/agent" }, "/nonexistent/agent"},
		{"a directory that does not exist is named", func(l *seat.Launch) { l.Cwd = "/nonexistent/dir" }, "/nonexistent/dir"},
		{"a file that is no program is named", func(l *seat.Launch) { l.Path = "/etc/hostname" }, "/etc/hostname"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := prepared(t, c.edit)
			conn := h.dial(seat.RoleControl)
			for range 2 { // it can be tried again
				_, err := conn.Commit(testContext(t))
				var e *seat.Error
				if !errors.Is(err, seat.ErrExec) || !errors.As(err, &e) || e.Outcome != seat.OutcomeNotExecuted || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("commit: %v", err)
				}
			}
			if st, err := conn.Get(testContext(t)); err != nil || st.State != seat.StatePrepared {
				t.Fatalf("%+v %v", st, err)
			}
			if err := conn.Signal(testContext(t), seat.ActionTerm); err != nil {
				t.Fatal(err)
			}
			if x := h.awaitExit(); x.Evidence != seat.EvidenceExecFailed || !strings.Contains(x.Detail, c.want) || !x.Asked {
				t.Errorf("%+v", x)
			}
			h.ack()
			h.awaitEnd()
		})
	}
}

func TestAProgramThatAppearsAfterAFailedExecutionCanBeCommitted(t *testing.T) {
	h := prepared(t, func(l *seat.Launch) { l.Path, l.Args = filepath.Join(l.Cwd, "late"), nil })
	conn := h.dial(seat.RoleControl)
	late := h.launch.Path
	if err := os.WriteFile(late, []byte("\x7fELF broken"), 0o700); err != nil { // forks, then fails to execute
		t.Fatal(err)
	}
	if _, err := conn.Commit(testContext(t)); !errors.Is(err, seat.ErrExec) {
		t.Fatalf("commit: %v", err)
	}
	if err := os.WriteFile(late, []byte("#!/bin/sh\necho works on $(tty)\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	v := h.view(0)
	h.commit()
	if x := v.awaitExit(); x.Code != 0 || !strings.Contains(v.text(), "works on /dev/pts/") {
		t.Errorf("%+v %q", x, v.text())
	}
}

// proves: EXIT-1, EXIT-2
func TestFieldB11_TheExitRecordTellsTheTruth(t *testing.T) {
	for _, c := range []struct {
		script, signal string
		code           int
	}{
		{"exit 0", "", 0},
		{"exit 3", "", 3},
		{"exit 7", "", 7},
		{"kill -KILL $$", "SIGKILL", 137},
		{"kill -TERM $$", "SIGTERM", 143},
		{"exit 137", "", 137},
	} {
		t.Run(c.script, func(t *testing.T) {
			h := prepared(t, script("printf 'last \\033[31mwords\\033[0m\\n'; "+c.script))
			v := h.view(0)
			before := time.Now()
			h.commit()
			told := v.awaitExit()
			x, err := record.ReadExit(h.dir) // it was durable before anyone was told
			if err != nil {
				t.Fatal(err)
			}
			if x.Code == nil || *x.Code != c.code || x.Signal != c.signal || x.Asked || x.Evidence != seat.EvidenceReaped || x.Last != "last words" {
				t.Errorf("%+v", x)
			}
			if x.At.Before(before.Add(-time.Second)) || x.At.After(time.Now()) {
				t.Errorf("at %v", x.At)
			}
			if got := record.FromFrame(told); *got.Code != *x.Code || !got.At.Equal(x.At) || got.Last != x.Last {
				t.Errorf("told %+v, recorded %+v", got, x)
			}
			// It serves until a host takes the record over, then leaves nothing running.
			if late := h.view(0); late.awaitExit().Code != c.code {
				t.Error("a late viewer was told another code")
			}
			h.ack()
			h.awaitEnd()
			if _, err := os.Lstat(h.launch.Socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("socket is still there: %v", err)
			}
		})
	}
}

func TestAnExitNobodyAcknowledgesEndsAfterTheLingerAndStaysOnDisk(t *testing.T) {
	h := prepared(t, script("exit 5"), func(l *seat.Launch) { l.ExitLingerMs = 50 })
	h.commit()
	h.awaitEnd()
	if x, err := record.ReadExit(h.dir); err != nil || *x.Code != 5 {
		t.Errorf("%+v %v", x, err)
	}
}

func TestAnAcknowledgementBeforeTheExitIsRefused(t *testing.T) {
	h := prepared(t)
	h.commit()
	if err := h.dial(seat.RoleControl).AckExit(testContext(t)); !errors.Is(err, seat.ErrNotExited) {
		t.Errorf("ack: %v", err)
	}
}

// proves: RT-5
func TestFieldB1_StopTakesTheWholeGroup(t *testing.T) {
	h := prepared(t, script("sleep 600 & sleep 600 & echo up; wait"))
	v := h.view(0)
	h.commit()
	v.awaitText("up")
	h.act(seat.ActionTerm)
	x := v.awaitExit()
	if x.Signal != "SIGTERM" || x.Code != 143 || !x.Asked {
		t.Errorf("%+v", x)
	}
	if left := h.running(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestFieldB2_HelpersOfAnAgentThatEndsAreReaped(t *testing.T) {
	h := prepared(t, script("setsid sleep 600 & read x; exit 0"))
	v := h.view(seat.RoleInput)
	h.commit()
	h.eventually("the helper runs", func() error {
		for _, p := range h.running() {
			if p.Comm == "sleep" {
				return nil
			}
		}
		return errors.New("not yet")
	})
	v.press("\n")
	x := v.awaitExit()
	if x.Code != 0 || x.Asked || len(x.Reaped) != 1 || x.Reaped[0].Command != "sleep" {
		t.Fatalf("%+v", x)
	}
	if left := h.running(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	if want := fmt.Sprintf("reaped leftover pid %d", x.Reaped[0].PID); !strings.Contains(h.log(), want) {
		t.Errorf("no %q in the log:\n%s", want, h.log())
	}
}

func TestFieldB3_AnAgentThatIgnoresTermIsKilled(t *testing.T) {
	h := prepared(t, script("trap '' HUP TERM INT; (trap '' HUP TERM; while :; do sleep 1; done) & echo up; while :; do sleep 1; done"))
	v := h.view(0)
	h.commit()
	v.awaitText("up")
	h.act(seat.ActionTerm)
	h.act(seat.ActionHangup)
	if st := h.dial(seat.RoleOutput).Welcome(); st.State != seat.StateRunning {
		t.Fatalf("state %v", st.State)
	}
	start := time.Now()
	h.act(seat.ActionKill)
	x := v.awaitExit()
	if x.Signal != "SIGKILL" || x.Code != 137 || !x.Asked {
		t.Errorf("%+v", x)
	}
	if d := time.Since(start); d > busy.Limit(time.Second) {
		t.Errorf("took %v although no grace was asked for", d)
	}
	if left := h.running(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestLeftoversThatIgnoreTermAreKilledAfterAGrace(t *testing.T) {
	h := prepared(t, script("(trap '' HUP TERM; while :; do sleep 1; done) & sleep 0.1; exit 4"))
	v := h.view(0)
	h.commit()
	if x := v.awaitExit(); x.Code != 4 || len(x.Reaped) == 0 || x.Reaped[0].Signal != "SIGKILL" {
		t.Errorf("%+v", x)
	}
	if left := h.running(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// The listener is this test binary: it holds a port and ignores every polite signal.
func listenForEver() {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("port", l.Addr().(*net.TCPAddr).Port, "open")
	select {}
}

func TestFieldB8_AnExitIsToldWhenThePortIsFree(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := prepared(t, script("COTAL_TEST_LISTEN=1 "+self+" & wait"))
	v := h.view(0)
	h.commit()
	v.awaitText("open")
	var port int
	if _, err := fmt.Sscanf(v.text(), "port %d", &port); err != nil {
		t.Fatal(err)
	}
	h.act(seat.ActionTerm)
	v.awaitExit()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatalf("bind %d after the exit was told: %v", port, err)
	}
	_ = l.Close()
}

func TestFieldB15_AWrapperThatExitsTakesTheRealProgramWithIt(t *testing.T) {
	h := prepared(t, script("sleep 600 & exit 0"))
	v := h.view(0)
	h.commit()
	if x := v.awaitExit(); x.Code != 0 || len(x.Reaped) != 1 || x.Reaped[0].Signal == "" {
		t.Errorf("%+v", x)
	}
	if left := h.running(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestFieldB18_OrphansBecomeNoZombies(t *testing.T) {
	h := prepared(t, script("i=0; while [ $i -lt 200 ]; do (setsid true &) ; i=$((i+1)); done; echo made; read x; exit 9"))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("made")
	h.eventually("no zombies", func() error {
		pids, err := seat.Processes()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if st, err := seat.ReadProc(pid); err == nil && st.PPID == h.self.PID && st.State == 'Z' {
				return fmt.Errorf("zombie %d %s", pid, st.Comm)
			}
		}
		return nil
	})
	if _, err := v.conn.Input(testContext(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	if x := v.awaitExit(); x.Code != 9 {
		t.Errorf("%+v", x)
	}
}

func TestTwentyDoubleForkedGrandchildrenAreFoundAndEnded(t *testing.T) {
	h := prepared(t, script("i=0; while [ $i -lt 20 ]; do (setsid sh -c 'setsid sleep 600 & exit 0' &) ; i=$((i+1)); done; sleep 0.5; echo made; exec cat"))
	v := h.view(0)
	h.commit()
	v.awaitText("made")
	h.eventually("20 sleeps", func() error {
		n := 0
		for _, p := range h.running() {
			if p.Comm == "sleep" && p.PPID == h.self.PID {
				n++
			}
		}
		if n != 20 {
			return fmt.Errorf("%d orphans came to the seat", n)
		}
		return nil
	})
	h.act(seat.ActionKill)
	if x := v.awaitExit(); x.Code != 137 {
		t.Errorf("%+v", x)
	}
	if left := h.running(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestAKilledSeatHangsItsAgentUp(t *testing.T) {
	h := prepared(t, script("trap 'echo hup > hup; exit 1' HUP; echo up; while :; do sleep 0.05; done"))
	v := h.view(0)
	st := h.commit()
	v.awaitText("up")
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-h.done
	h.eventually("agent ends", func() error {
		if live, why := seat.Check(st.Agent); live != seat.Dead {
			return errors.New(why)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(h.launch.Cwd, "hup")); err != nil {
		t.Error("the agent got no HUP")
	}
	if _, err := record.ReadExit(h.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("exit record of a seat that could not write one: %v", err)
	}
	<-v.done
	if !errors.Is(v.err, seat.ErrClosed) {
		t.Errorf("viewer: %v", v.err)
	}
}

func TestSignalsToTheSeatHaveNoEffect(t *testing.T) {
	h := prepared(t, script("echo up; exec cat"))
	v := h.view(seat.RoleInput)
	h.commit()
	v.awaitText("up")
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT, syscall.SIGPIPE, syscall.SIGQUIT} {
		if err := seat.SignalExact(h.self, sig); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := v.conn.Input(testContext(t), []byte("still here\n")); err != nil {
		t.Fatal(err)
	}
	v.awaitText("still here\r\nstill here")
	if live, why := seat.Check(h.self); live != seat.Alive {
		t.Error(why)
	}
}

// The host is the parent of the plugin, the plugin of the seat: neither's death may reach the agent.
func TestFieldA5_TheAgentSurvivesWhoeverStartedItsSeat(t *testing.T) {
	h := prepared(t, script("echo up; read x; i=0; while [ $i -lt 20000 ]; do echo line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; i=$((i+1)); done; read x; exit 0"))
	ctx, cancel := context.WithCancel(context.Background())
	c := h.dial(seat.RoleOutput | seat.RoleInput)
	gone := make(chan error, 1)
	var at uint64
	go func() {
		gone <- c.Run(ctx, seat.Handler{Output: func(seq uint64, p []byte) error {
			at = seq + uint64(len(p))
			return nil
		}})
	}()
	st := h.commit()
	if _, err := c.Input(testContext(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-gone
	_ = c.Close()
	v := h.view(seat.RoleInput, func(c *seat.DialConfig) { c.From = at })
	v.awaitText("line 19999 ")
	if live, why := seat.Check(st.Agent); live != seat.Alive {
		t.Error(why)
	}
	if len(v.gaps) != 0 {
		t.Errorf("gaps %v", v.gaps)
	}
	if _, err := v.conn.Input(testContext(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	if x := v.awaitExit(); x.Code != 0 {
		t.Errorf("%+v", x)
	}
}

func TestASecondCustodyProcessForTheSameSeatIsRefused(t *testing.T) {
	h := prepared(t)
	again := &held{t: t, id: h.id, dir: h.dir, launch: h.launch, done: make(chan struct{})}
	again.start(nil)
	<-again.done
	if !strings.HasPrefix(again.line, "error exists ") {
		t.Errorf("said %q", again.line)
	}
	if st := h.dial(seat.RoleOutput).Welcome(); st.State != seat.StatePrepared {
		t.Errorf("the first seat is %v", st.State)
	}
}

func TestFieldL11_ASocketPathThatIsTooLongIsNamed(t *testing.T) {
	h := launchSeat(t, nil, func(l *seat.Launch) { l.Socket = "/tmp/" + strings.Repeat("x", 120) + ".sock" })
	if !strings.HasPrefix(h.line, "error invalid ") || !strings.Contains(h.line, "socket") {
		t.Errorf("said %q", h.line)
	}
	h.awaitEnd()
}

func TestADirectoryThatIsMissingIsNamed(t *testing.T) {
	h := launchSeat(t, nil, func(l *seat.Launch) { l.Dir = "/nonexistent/seat" })
	if !strings.HasPrefix(h.line, "error directory ") || !strings.Contains(h.line, "/nonexistent/seat") {
		t.Errorf("said %q", h.line)
	}
	h.awaitEnd()
}

func TestACrashAtEveryFailpointLeavesTheTruthBehind(t *testing.T) {
	cases := []struct {
		point  string
		record bool // seat.json is durable
		exit   bool // exit.json is durable
	}{
		{"seat.prepare.before-bind", false, false},
		{"seat.prepare.before-record", false, false},
		{"seat.prepare.after-record", true, false},
		{"seat.prepare.before-print", true, false},
		{"seat.commit.before-exec", true, false},
		{"seat.commit.after-exec", true, false},
		{"seat.exit.before-fsync", true, false},
		{"seat.exit.after-fsync", true, true},
		{"seat.exit.before-ack", true, true},
	}
	var tested, declared []string
	for _, c := range cases {
		tested = append(tested, c.point)
	}
	for _, name := range failpoint.Names() {
		if strings.HasPrefix(name, "seat.") {
			declared = append(declared, name)
		}
	}
	slices.Sort(tested)
	if !slices.Equal(tested, declared) {
		t.Errorf("tested %v, declared %v", tested, declared)
	}
	for _, c := range cases {
		t.Run(c.point, func(t *testing.T) {
			h := launchSeat(t, []string{"COTAL_FAILPOINTS=" + c.point + "=crash"}, script("exit 6"))
			if strings.HasPrefix(h.line, "prepared") {
				ctx := testContext(t)
				conn, err := seat.Dial(ctx, h.config(seat.RoleControl))
				if err == nil {
					_, _ = conn.Commit(ctx)
					_ = conn.Run(ctx, seat.Handler{}) // nil after EXIT
					_ = conn.AckExit(ctx)
				}
			}
			h.awaitEnd()
			if h.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("ended with %v, not at the failpoint", h.cmd.ProcessState)
			}
			if _, err := record.ReadSeat(h.dir); (err == nil) != c.record {
				t.Errorf("seat.json: %v", err)
			}
			if x, err := record.ReadExit(h.dir); (err == nil) != c.exit || err == nil && *x.Code != 6 {
				t.Errorf("exit.json: %+v %v", x, err)
			}
		})
	}
}

func TestACustodyProcessStartedByHandSaysWhatItIs(t *testing.T) {
	var said strings.Builder
	cmd := exec.Command(seatBinary)
	cmd.Stderr = &said
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(said.String(), "not by hand") {
		t.Errorf("%v %q", err, said.String())
	}
}

// A verified binary is executed from a sealed memory file; the seat must neither need its path nor keep the file.
func TestASeatExecutedFromAMemoryFileKeepsNothingOfIt(t *testing.T) {
	image, err := os.ReadFile(seatBinary)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("cotal-seat", 0) // not closed on exec, as a careless parent would
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	defer f.Close()
	if _, err := f.Write(image); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	old := seatBinary
	seatBinary = path
	h := prepared(t, script("ls -l /proc/$$/fd; exit 0"))
	seatBinary = old
	v := h.view(0)
	h.commit()
	v.awaitExit()
	if strings.Contains(v.text(), "memfd") {
		t.Errorf("the agent holds the image:\n%s", v.text())
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.self.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		if target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", h.self.PID, e.Name())); strings.HasPrefix(target, "/memfd:") {
			t.Errorf("descriptor %s is %s", e.Name(), target)
		}
	}
	if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.self.PID)); string(comm) != "cotal-seat\n" {
		t.Errorf("comm %q", comm)
	}
}
