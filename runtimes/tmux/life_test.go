//go:build linux

package tmux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/custodied"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/seat"
	"github.com/cotal-ai/cotal-host/sdk/seat/record"
	"github.com/cotal-ai/cotal-host/test/busy"
)

// proves: RT-2, RT-3
func TestLifeOfASeat(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"append":{"file":"{work}/started","text":"x"}},{"print":"hello\n"},{"hang":true}]`)
	h := r.spawn(q)
	if again := r.spawn(q); string(again.State) != string(h.State) {
		t.Errorf("a second spawn: %s, and the first %s", again.State, h.State)
	}
	if st := r.adopt(q, false); st.State != sdk.SeatPrepared || st.Identity.PID == 0 {
		t.Fatalf("before the commit: %s (%s)", st.State, st.Reason)
	}
	if r.read("started") != "" {
		t.Fatal("something was executed before the commit")
	}
	for range 3 {
		st := r.adopt(q, true)
		if st.State != sdk.SeatRunning || st.Agent.PID == 0 || st.Rows != 32 || st.Cols != 120 || st.Reason != "" {
			t.Fatalf("after the commit: %+v", st)
		}
	}
	r.shows(q, "hello")
	if r.read("started") != "x" {
		t.Errorf("started %d times", len(r.read("started")))
	}
	rep := r.reap(q, sdk.StopGraceful)
	if rep.Outcome != sdk.ReapStopped || rep.Exit == nil || rep.Exit.Last != "hello" || rep.Exit.Signal != "SIGTERM" || !rep.Exit.Asked {
		t.Errorf("%+v; stop: %+v", rep.Exit, rep)
	}
	if again := r.reap(q, sdk.StopGraceful); again.Outcome != sdk.ReapAbsent {
		t.Errorf("a second stop: %+v", again)
	}
	if st := r.adopt(q, false); st.State != sdk.SeatNotFound {
		t.Errorf("after it: %s (%s)", st.State, st.Reason)
	}
}

// How the agent ends is recorded, and the dead pane says the same, however tmux lost the signal of it.
func TestFieldB22_TheEndIsReadAndNeverGuessed(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		code   int
		signal string
	}{
		"it exits 0":              {"exit 0", 0, ""},
		"it exits 7":              {"exit 7", 7, ""},
		"it exits 255":            {"exit 255", 255, ""},
		"it dies by SIGKILL":      {"kill -9 $$", 137, "SIGKILL"},
		"it dies by SIGTERM":      {"kill -15 $$", 143, "SIGTERM"},
		"it dies by SIGSEGV":      {"kill -11 $$", 139, "SIGSEGV"},
		"it dies by SIGHUP":       {"kill -1 $$", 129, "SIGHUP"},
		"it exits like a signal":  {"exit 137", 137, ""},
		"a keep-alive shell ends": {"sh -c 'exit 3'", 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.shell("echo last words; " + tc.script)
			r.start(q)
			var st sdk.SeatStatus
			eventually(t, "it has exited", func() bool { st = r.adopt(q, false); return st.State == sdk.SeatExited })
			x := st.Exit
			if x.Code == nil || *x.Code != tc.code || x.Signal != tc.signal || x.Evidence != sdk.EvidenceReaped || x.Asked {
				t.Errorf("exit %+v", x)
			}
			if x.Detail != "" {
				t.Errorf("the dead pane says something else: %s", x.Detail)
			}
			if x.Last != "last words" {
				t.Errorf("last line %q", x.Last)
			}
			var p pane
			eventually(t, "the dead pane tells", func() bool {
				r.adopt(q, false) // has it look, every time
				pl, err := r.place(q), error(nil)
				if p, err = (server{program: "tmux", socket: pl.Socket}).look(t.Context(), pl.Pane); err != nil {
					t.Fatalf("the dead pane: %v", err)
				}
				return p.dead && p.told()
			})
			if tc.signal != "" && 128+p.signal != tc.code || tc.signal == "" && (p.status == nil || *p.status != tc.code) {
				t.Errorf("the dead pane: %+v", p)
			}
			if rep := r.reap(q, sdk.StopGraceful); rep.Outcome != sdk.ReapExited || rep.Exit == nil || *rep.Exit.Code != tc.code {
				t.Errorf("stop: %+v", rep)
			}
		})
	}
}

// What a tmux says of a dead pane changes nothing of the record: where it differs that is told, and where it
// says nothing there is nothing to tell, least of all a code 0.
func TestFieldB22_ThePaneIsAWitnessAndNoMore(t *testing.T) {
	for name, tc := range map[string]struct {
		dead, status, signal, want string
	}{
		"it agrees":                   {"1", "7", "", ""},
		"it says code 0":              {"1", "0", "", "code 0"},
		"it says a signal":            {"1", "", "9", "SIGKILL"},
		"it is dead and says nothing": {"1", "", "", ""},
		"it lives, as far as it says": {"0", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.shell("exit 7")
			r.start(q)
			eventually(t, "it has exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
			// The server speaks through its own program as long as it lives.
			server := seatIdentity(r.place(q).Server)
			if err := seat.SignalExact(server, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			r.dead(server)
			r.rt = r.configured(fake(t, "echo 'pane|"+tc.dead+"|"+tc.status+"|"+tc.signal+"|0|32|120|4|5|0|1|0|0|0|1|0|0|0|0|1|0|'; echo scripted words"))
			st := r.adopt(q, false)
			if st.State != sdk.SeatExited || st.Exit.Code == nil || *st.Exit.Code != 7 || st.Exit.Signal != "" || st.Exit.Evidence != sdk.EvidenceReaped {
				t.Fatalf("%s (%s) %+v", st.State, st.Reason, st.Exit)
			}
			if tc.want == "" && st.Exit.Detail != "" || !strings.Contains(st.Exit.Detail, tc.want) {
				t.Errorf("detail %q, want %q", st.Exit.Detail, tc.want)
			}
			if want := map[string]string{"1": "scripted words", "0": ""}[tc.dead]; st.Exit.Last != want {
				t.Errorf("last line %q, want %q", st.Exit.Last, want)
			}
			r.rt = r.fresh()
			if rep := r.reap(q, sdk.StopGraceful); rep.Exit == nil || rep.Exit.Code == nil || *rep.Exit.Code != 7 {
				t.Errorf("stop: %+v", rep)
			}
		})
	}
}

// A record that is gone with a dead custody process is no exit code, whatever the pane says.
func TestFieldB22_CustodyKilledIsUnknown(t *testing.T) {
	r := newRig(t)
	q := r.shell(`trap '' HUP TERM; echo $$ > {work}/agent; setsid sh -c 'echo $$ > {work}/far; sleep 600' & while :; do sleep 600; done`)
	st := r.start(q)
	agent, far := r.pid("agent"), r.pid("far")
	r.killCustody(q)
	got := r.adopt(q, false)
	if got.State != sdk.SeatExited || got.Exit.Evidence != sdk.EvidenceCustodyLost || got.Exit.Code != nil || got.Exit.Signal != "" {
		t.Fatalf("%s (%s) %+v", got.State, got.Reason, got.Exit)
	}
	if !strings.Contains(got.Exit.Detail, "tmux says by SIGKILL") {
		t.Errorf("detail %q", got.Exit.Detail)
	}
	for _, pid := range []int{agent, far, st.Agent.PID} {
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	}
	if again := r.adopt(q, true); again.State != sdk.SeatExited || again.Exit.At != got.Exit.At {
		t.Errorf("asked again: %+v", again)
	}
	if rep := r.reap(q, sdk.StopNow); rep.Exit == nil || rep.Exit.Code != nil {
		t.Errorf("stop: %+v", rep)
	}
}

// The tmux server is killed: the agent lost its terminal, custody ends it and knows how it ended.
func TestServerKilled(t *testing.T) {
	for name, script := range map[string]string{
		"an agent that ends with its terminal": `echo $$ > {work}/agent; while :; do sleep 600; done`,
		"an agent that is deaf":                `trap '' HUP TERM INT; echo $$ > {work}/agent; while :; do sleep 600; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			q := r.shell(script)
			r.start(q)
			agent := r.pid("agent")
			if err := seat.SignalExact(seatIdentity(r.place(q).Server), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			var st sdk.SeatStatus
			eventually(t, "its end is told", func() bool { st = r.adopt(q, false); return st.State == sdk.SeatExited })
			if st.Exit.Evidence != sdk.EvidenceReaped || !strings.Contains(st.Exit.Detail, "terminal was taken away") || st.Exit.Code == nil || *st.Exit.Code == 0 {
				t.Errorf("exit %+v", st.Exit)
			}
			if alive(agent) {
				t.Error("the agent lives")
			}
			eventually(t, "there is nothing to attach to", func() bool { // once the server is proven dead
				_, err := r.rt.Attach(t.Context(), sdk.AttachRequest{SeatID: q.SeatID, InstanceID: r.instance})
				return errors.Is(err, sdk.ErrGone)
			})
			r.reap(q, sdk.StopGraceful)
		})
	}
}

// Server and custody are both killed: what is left is proven by the hunt, and nothing is guessed.
func TestServerAndCustodyKilled(t *testing.T) {
	r := newRig(t)
	q := r.shell(`trap '' HUP; (setsid sh -c 'echo $$ > {work}/far; exec sleep 600' &) ; while :; do sleep 600; done`)
	r.start(q)
	far := r.pid("far")
	custody := r.custody(q)
	// Custody first: it would write how its agent ended, and to stop it is no use, tmux has it go on.
	if err := errors.Join(seat.SignalExact(custody, syscall.SIGKILL), seat.SignalExact(seatIdentity(r.place(q).Server), syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	rep := r.reap(q, sdk.StopGraceful)
	if rep.Exit == nil || rep.Exit.Code != nil || rep.Exit.Evidence != sdk.EvidenceCustodyLost {
		t.Errorf("%+v %+v", rep, rep.Exit)
	}
	if alive(far) {
		t.Error("a process of the seat lives")
	}
}

// Stop takes the whole tree: jobs, double forks into sessions of their own, and who is deaf.
// proves: RT-5
func TestFieldB1_B3_B4_StopTakesTheTree(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.shell(`sleep 600 & echo $! > {work}/job
(setsid sh -c 'trap "" HUP TERM INT; echo $$ > {work}/far; while :; do sleep 600; done' &)
env -i setsid sh -c 'echo $$ > {work}/bare; exec sleep 600' &
wait`)
	r.start(q)
	pids := []int{r.pid("job"), r.pid("far"), r.pid("bare")}
	began := time.Now()
	req := stopOf(q, sdk.StopGraceful)
	req.GraceMs = 1000
	rep, err := r.rt.Reap(t.Context(), req)
	if err != nil {
		t.Fatalf("%v %q", err, rep.Evidence)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d lives after the stop", pid)
		}
	}
	if took := time.Since(began); took > busy.Limit(15*time.Second) {
		t.Errorf("took %s", took)
	}
	r.gone(q)
}

// What the agent started ends with it, also when it exits by itself with status 0.
func TestFieldB2_LeftoversOfANaturalEnd(t *testing.T) {
	r := newRig(t)
	q := r.shell(`i=0; while [ $i -lt 20 ]; do nohup sleep 600 >/dev/null 2>&1 & i=$((i+1)); done; exit 0`)
	r.start(q)
	var st sdk.SeatStatus
	eventually(t, "it has exited", func() bool { st = r.adopt(q, false); return st.State == sdk.SeatExited })
	if st.Exit.Code == nil || *st.Exit.Code != 0 || len(st.Exit.Reaped) != 20 {
		t.Errorf("exit %+v", st.Exit)
	}
	r.nothingRunsBut(q)
}

// nothingRunsBut fails the test when a process of an ended seat lives.
func (r *rig) nothingRunsBut(q sdk.SpawnRequest) {
	r.t.Helper()
	custody := r.custody(q)
	eventually(r.t, "custody has ended", func() bool { live, _ := seat.Check(custody); return live == seat.Dead })
	r.nothingRuns(q)
}

// A deaf agent is killed at the end of its grace; a second stop without grace hastens the first.
func TestStopOfADeafAgent(t *testing.T) {
	r := newRig(t)
	q := r.shell(`trap '' HUP TERM INT; echo $$ > {work}/agent; while :; do sleep 600; done`)
	r.start(q)
	r.pid("agent")
	first := make(chan sdk.ReapReport, 1)
	go func() {
		req := stopOf(q, sdk.StopGraceful)
		req.GraceMs = 600_000
		rep, err := r.rt.Reap(context.Background(), req)
		if err != nil {
			t.Errorf("the first stop: %v", err)
		}
		first <- rep
	}()
	eventually(t, "the first stop holds the lock", func() bool { return r.rt.locks.InUse(q.SeatID) })
	r.reap(q, sdk.StopNow)
	if rep := <-first; rep.Outcome == sdk.ReapStopped && rep.Exit.Signal != "SIGKILL" {
		t.Errorf("%+v", rep.Exit)
	}
}

// Another plugin process finds the seat by its id alone; another instance and an older host have no say.
// proves: RT-7
func TestAdoptByIDAlone(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	q.Fence = 5
	st := r.start(q)
	r.rt = r.fresh()
	if got := r.adopt(q, true); got.State != sdk.SeatRunning || got.Agent != st.Agent || string(got.Handle.State) != string(st.Handle.State) {
		t.Errorf("%+v", got)
	}
	other := adoptOf(q, false)
	other.InstanceID = "another"
	if _, err := r.rt.Adopt(t.Context(), other); !errors.Is(err, sdk.ErrNotOurs) {
		t.Errorf("another instance: %v", err)
	}
	old := adoptOf(q, false)
	old.Fence = 4
	if _, err := r.rt.Adopt(t.Context(), old); !errors.Is(err, sdk.ErrStaleFence) {
		t.Errorf("an older host: %v", err)
	}
	newer := adoptOf(q, false)
	newer.Fence = 9
	if _, err := r.rt.Adopt(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	if _, err := r.rt.Adopt(t.Context(), adoptOf(q, false)); !errors.Is(err, sdk.ErrStaleFence) {
		t.Errorf("the host that was superseded: %v", err)
	}
	if _, err := r.rt.Write(t.Context(), writeOf(q, "x", false)); !errors.Is(err, sdk.ErrStaleFence) {
		t.Errorf("typing by the host that was superseded: %v", err)
	}
	stop := stopOf(q, sdk.StopNow)
	if _, err := r.rt.Reap(t.Context(), stop); !errors.Is(err, sdk.ErrStaleFence) {
		t.Errorf("stop by the host that was superseded: %v", err)
	}
}

// The directory is gone and only the nonce and the handle are left.
func TestSeatWhoseDirectoryIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.shell(`echo $$ > {work}/agent; while :; do sleep 600; done`)
	h := r.spawn(q)
	r.adopt(q, true)
	agent := r.pid("agent")
	if err := os.RemoveAll(r.dir(q)); err != nil {
		t.Fatal(err)
	}
	if st := r.adopt(q, false); st.State != sdk.SeatUnknown {
		t.Errorf("by the nonce alone: %s (%s)", st.State, st.Reason)
	}
	req := stopOf(q, sdk.StopGraceful)
	req.Handle = h
	rep, err := r.rt.Reap(t.Context(), req)
	if err != nil {
		t.Fatalf("%v %q", err, rep.Evidence)
	}
	if alive(agent) {
		t.Error("the agent lives")
	}
	r.gone(q)
}

func TestUncommittedSeatEndsItself(t *testing.T) {
	if os.Getenv("COTAL_LONG") == "" {
		t.Skip("30 s; set COTAL_LONG=1")
	}
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	r.spawn(q)
	var st sdk.SeatStatus
	for deadline := time.Now().Add(60 * time.Second); st.State != sdk.SeatExited; st = r.adopt(q, false) {
		if time.Now().After(deadline) {
			t.Fatalf("still %s", st.State)
		}
		<-time.After(100 * time.Millisecond)
	}
	if st.Exit.Evidence != sdk.EvidenceUncommitted || st.Exit.Code != nil {
		t.Errorf("%+v", st.Exit)
	}
}

func TestExecFailureKeepsTheSeatPrepared(t *testing.T) {
	r := newRig(t)
	q := r.spec("")
	q.Launch.Path = "/nonexistent/program"
	r.spawn(q)
	for range 2 {
		if _, err := r.rt.Adopt(t.Context(), adoptOf(q, true)); !errors.Is(err, sdk.ErrExecFailed) || !strings.Contains(err.Error(), "/nonexistent/program") {
			t.Errorf("commit: %v", err)
		}
	}
	if st := r.adopt(q, false); st.State != sdk.SeatPrepared {
		t.Errorf("%s (%s)", st.State, st.Reason)
	}
}

// A custody process and a tmux server that were stopped: nobody calls the seat gone meanwhile, custody is
// woken for a stop, and the server that does not answer is ended as the process it is.
// proves: RT-10
func TestFieldB23_StoppedServerAndCustody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	st := r.start(q)
	signalTo(t, seatIdentity(r.place(q).Server), syscall.SIGSTOP)
	// Custody answers: what it says is true whatever tmux does.
	began := time.Now()
	if got := r.adopt(q, true); got.State != sdk.SeatRunning || got.Agent != st.Agent || !strings.Contains(got.Reason, "no answer in time") {
		t.Errorf("with a stopped server: %s (%s)", got.State, got.Reason)
	}
	if took := time.Since(began); took > busy.Limit(custodied.AdoptBudget) {
		t.Errorf("took %s", took)
	}
	var calls sync.WaitGroup // each waits for the server as long as it may
	for what, call := range map[string]func() error{
		"write": func() error { _, err := r.rt.Write(t.Context(), writeOf(q, "x", false)); return err },
		"snapshot": func() error {
			_, err := r.rt.Snapshot(t.Context(), sdk.SnapshotRequest{SeatID: q.SeatID, InstanceID: r.instance})
			return err
		},
		"attach": func() error {
			_, err := r.rt.Attach(t.Context(), sdk.AttachRequest{SeatID: q.SeatID, InstanceID: r.instance})
			return err
		},
	} {
		calls.Go(func() {
			began := time.Now()
			var e *sdk.Error
			if err := call(); !errors.Is(err, sdk.ErrUnavailable) || !errors.As(err, &e) || what == "write" && e.Outcome != sdk.OutcomeUnknown {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took > busy.Limit(2*callTimeout+2*time.Second) {
				t.Errorf("%s took %s", what, took)
			}
		})
	}
	calls.Wait()
	r.signalCustody(q, syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if st, err := r.rt.Adopt(ctx, adoptOf(q, false)); err != nil || st.State != sdk.SeatUnknown {
		t.Errorf("%v %s (%s)", err, st.State, st.Reason)
	}
	if rep := r.reap(q, sdk.StopGraceful); rep.Outcome != sdk.ReapStopped {
		t.Errorf("%+v", rep)
	}
}

// The records of a stop with Keep stay, and everything else is gone.
func TestStopThatKeepsItsRecords(t *testing.T) {
	r := newRig(t)
	q := r.shell("exit 4")
	r.start(q)
	eventually(t, "it has exited", func() bool { return r.adopt(q, false).State == sdk.SeatExited })
	req := stopOf(q, sdk.StopGraceful)
	req.Keep = true
	if rep, err := r.rt.Reap(t.Context(), req); err != nil || rep.Exit == nil || *rep.Exit.Code != 4 {
		t.Fatalf("%v %+v", err, rep)
	}
	if x, err := record.ReadExit(r.dir(q)); err != nil || *x.Code != 4 {
		t.Errorf("%+v %v", x, err)
	}
	r.nothingServes()
	r.reap(q, sdk.StopGraceful)
}

// A watch tells every state in order and ends with the seat.
func TestWatch(t *testing.T) {
	r := newRig(t)
	q := r.shell("read x; exit 6")
	r.spawn(q)
	var states []string
	done := make(chan error, 1)
	told := make(chan string, 16)
	go func() {
		done <- r.rt.Watch(context.Background(), sdk.WatchRequest{SeatID: q.SeatID, InstanceID: r.instance, Fence: 1}, func(st sdk.SeatStatus) error {
			told <- string(st.State)
			return nil
		})
	}()
	next := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-told:
				states = append(states, got)
				if got == want {
					return
				}
			case <-time.After(patience):
				t.Fatalf("told %q, and not %s", states, want)
			}
		}
	}
	next("prepared")
	r.adopt(q, true)
	next("running")
	r.write(q, "\r", false)
	next("exited")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A runtime touches only seats that were made for it.
func TestSeatsOfOtherRuntimesAreLeftAlone(t *testing.T) {
	r := newRig(t)
	q := r.spec(`[{"hang":true}]`)
	r.start(q)
	foreign := randomHex(t, 16)
	dir := r.cfg.SeatRoot + "/" + foreign
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := record.Intent{CustodyID: foreign, Nonce: randomHex(t, 16), Fence: 1, Owner: record.Owner{InstanceID: r.instance}, Runtime: "pty"}
	if err := record.WriteIntent(dir, in); err != nil {
		t.Fatal(err)
	}
	list, err := r.rt.List(t.Context(), sdk.ListRequest{InstanceID: r.instance})
	if err != nil || len(list) != 1 || list[0].SeatID != q.SeatID || !list[0].Ours {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := r.rt.Reap(t.Context(), sdk.StopRequest{SeatID: foreign, InstanceID: r.instance, Fence: 1, Mode: sdk.StopNow}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("stop of a pty seat: %v", err)
	}
	if _, err := os.Stat(dir + "/intent.json"); err != nil {
		t.Error(err)
	}
}

// Nothing secret of a launch is in a command line, in tmux's environment, or on disk.
//
// proves: G9
func TestSecretsOfALaunchAreNowhere(t *testing.T) {
	r := newRig(t)
	q := r.shell(`printf %s "$SECRET" > {work}/got; while :; do sleep 600; done`)
	secret := "s3cr3t-" + randomHex(t, 8)
	q.Launch.Env = append(q.Launch.Env, "SECRET="+secret)
	r.start(q)
	eventually(t, "the agent has it", func() bool { return r.read("got") == secret })
	pl := r.place(q)
	for _, pid := range []int{pl.Server.PID, pl.PanePID} {
		for _, name := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), secret) {
				t.Errorf("/proc/%d/%s has the secret", pid, name)
			}
		}
	}
	for _, args := range [][]string{{"show-environment", "-g"}, {"show-environment"}, {"show-options", "-g"}, {"list-panes", "-a", "-F", "#{pane_start_command}"}} {
		if out, err := r.tmux(q, args...); err != nil || strings.Contains(out, secret) || strings.Contains(out, q.Nonce) {
			t.Errorf("tmux %q: %v %s", args, err, out)
		}
	}
	if out, err := exec.Command("grep", "-rl", secret, r.cfg.SeatRoot, r.cfg.SocketDir, r.cfg.StateDir).Output(); err == nil {
		t.Errorf("on disk: %s", out)
	}
}
