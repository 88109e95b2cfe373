package seat_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

func code(err error) string {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprintf("%T", err)
}

func outcome(err error) wire.Outcome {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Outcome
	}
	return ""
}

func lines(t *testing.T, path string) int {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(p), "\n")
}

// proves: EXIT-1, RT-3, GOAL-1, SEAT-7
func TestSpawnRunsAndStopLeavesNothing(t *testing.T) {
	w := newWorld(t)
	acc := w.run("worker", `[{"print": "hello\n"}, {"hang": true}]`)
	row := w.row("worker")
	if row.Status != "running" || row.PID == 0 || row.ID != acc.Owner+"."+acc.Actor || row.LifecycleUID != acc.UID {
		t.Fatalf("row of a running seat: %+v", row)
	}
	reply, err := w.stop(acc, true)
	if err != nil {
		t.Fatal(err)
	}
	if reply.Report == nil || reply.Report.Exit == nil || !reply.Report.Exit.Asked || len(reply.Report.Evidence) == 0 {
		t.Errorf("a stop must say what proves it: %+v", reply.Report)
	}
	if err := syscall.Kill(row.PID, 0); err == nil {
		t.Errorf("agent %d still exists after the stop", row.PID)
	}
	if _, err := os.Stat(filepath.Join(w.seatRoot, row.SeatID)); !os.IsNotExist(err) {
		t.Errorf("seat directory is left: %v", err)
	}
	if again := w.run("worker", `[{"hang": true}]`); again.UID == acc.UID {
		t.Error("the next life has the uid of the last one")
	}
}

// The exit code is recorded exactly, and the row stays to be read.
//
// proves: EXIT-9
func TestExitByItselfIsRecordedExactly(t *testing.T) {
	w := newWorld(t)
	w.run("seven", `[{"waitMs": 20}, {"print": "last words\n"}, {"exit": 7}]`)
	row := w.awaitStatus("seven", "exited")
	if row.Exit == nil || row.Exit.Code == nil || *row.Exit.Code != 7 || row.Exit.Asked || row.Exit.Cause != "process-exit" {
		t.Errorf("exit %+v", row.Exit)
	}
	if row.Exit != nil && row.Exit.Last != "last words" {
		t.Errorf("last line %q", row.Exit.Last)
	}
	w.run("killed", `[{"waitMs": 20}, {"die": "KILL"}]`)
	row = w.awaitStatus("killed", "exited")
	if row.Exit == nil || row.Exit.Signal != "SIGKILL" {
		t.Errorf("exit %+v", row.Exit)
	}
}

// One request id is one seat, however often and however concurrently it is sent; another request under the
// same id is refused without effect.
//
// proves: GOAL-3, GOAL-5, GOAL-31
func TestOneRequestStartsOneSeat(t *testing.T) {
	w := newWorld(t)
	starts := filepath.Join(w.dir, "starts")
	args := w.args("only", fmt.Sprintf(`[{"append": {"file": %q, "text": "x\n"}}, {"hang": true}]`, starts))
	id := wire.NewID()
	uids := map[string]bool{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 10 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			acc, err := w.spawn(id, args)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			uids[acc.UID] = true
		}()
	}
	wg.Wait()
	if len(uids) != 1 {
		t.Fatalf("one request was accepted as %d lives", len(uids))
	}
	w.awaitStatus("only", "running")
	w.eventually("the agent was executed", func() (bool, string) { return lines(t, starts) == 1, "" })
	other := w.args("only", `[{"exit": 0}]`)
	if _, err := w.spawn(id, other); code(err) != wire.CodeFailedPrecondition || outcome(err) != wire.OutcomeNotExecuted {
		t.Errorf("the same id for another request: %v", err)
	}
}

// proves: SPAWN-9, GOAL-11, OUT-7, NAME-8
func TestRefusalsLeaveNoTrace(t *testing.T) {
	w := newWorld(t)
	prompt, blank := "hi", " "
	cases := []struct {
		name string
		args wire.SpawnArgs
		code string
		says string
	}{
		{"a persona that does not exist", wire.SpawnArgs{Name: "nobody"}, wire.CodeNotFound, "no persona"},
		{"a connector that is not installed", wire.SpawnArgs{Name: "x", Identity: "x", Agent: "nope"}, wire.CodeNotFound, "nope"},
		{"a name that is no token", wire.SpawnArgs{Name: "a b", Identity: "a b", Agent: "command"}, wire.CodeBadRequest, ""},
		{"a reserved name", wire.SpawnArgs{Name: "chat_x", Identity: "chat_x", Agent: "command"}, wire.CodeBadRequest, "chat_"},
		{"a directory that does not exist", wire.SpawnArgs{Name: "x", Identity: "x", Agent: "command", Cwd: "nowhere"}, wire.CodeFailedPrecondition, "cwd"},
		{"a prompt for a program that takes none", wire.SpawnArgs{Name: "x", Identity: "x", Agent: "command", Prompt: &prompt}, wire.CodeFailedPrecondition, "prompt"},
		{"a blank resume", wire.SpawnArgs{Name: "x", Identity: "x", Agent: "command", Resume: &blank}, wire.CodeBadRequest, "resume"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.spawn(wire.NewID(), c.args)
			if code(err) != c.code || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("got %s %s %v; want %s, not-executed, a text with %q", code(err), outcome(err), err, c.code, c.says)
			}
		})
	}
	if rows := w.set.Rows(); len(rows) != 0 {
		t.Errorf("refused spawns left rows: %+v", rows)
	}
	if entries, _ := os.ReadDir(w.seatRoot); len(entries) != 0 {
		t.Errorf("refused spawns left %d seat directories", len(entries))
	}
	if occ := w.set.Occupancy(); occ.Live+occ.Pending+occ.Cooling != 0 {
		t.Errorf("refused spawns hold places: %+v", occ)
	}
}

// TestFieldC6_AFailedStartLeavesNothingAndItsErrorIsTheHeadline: the step that failed speaks first.
//
// proves: GOAL-16, CAP-4
func TestFieldC6_AFailedStartLeavesNothingAndItsErrorIsTheHeadline(t *testing.T) {
	w := newWorld(t)
	for name, args := range map[string]wire.SpawnArgs{
		"connector refuses": {Name: "a", Identity: "a", Agent: "command", LaunchOptions: map[string]any{"argv": []any{}}},
		"program missing":   {Name: "a", Identity: "a", Agent: "command", LaunchOptions: map[string]any{"argv": []any{"/no/such/program"}}},
	} {
		t.Run(name, func(t *testing.T) {
			id := wire.NewID()
			if _, err := w.spawn(id, args); err != nil {
				t.Fatalf("accept: %v", err)
			}
			r := w.terminal(id)
			if r.State != wire.GoalFailed || r.Error == nil || r.Error.Outcome != wire.OutcomeNotExecuted {
				t.Fatalf("terminal %s %+v", r.State, r.Error)
			}
			if name == "program missing" && !strings.Contains(r.Error.Message, "/no/such/program") {
				t.Errorf("the error does not name the program: %s", r.Error.Message)
			}
			w.eventually("the name is free", func() (bool, string) { return len(w.set.Rows()) == 0, fmt.Sprint(w.set.Rows()) })
			if entries, _ := os.ReadDir(w.seatRoot); len(entries) != 0 {
				t.Errorf("a failed start left %d seat directories", len(entries))
			}
		})
	}
}

// proves: EXIT-8, READY-9, GOAL-14, GOAL-15
func TestStopDuringTheLaunchCancelsIt(t *testing.T) {
	for _, point := range []string{"host.spawn.building", "host.spawn.spawned", "host.spawn.committed"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			gate := filepath.Join(w.dir, "gate")
			if err := failpoint.Arm(point + "=1*pause(" + gate + ")"); err != nil {
				t.Fatal(err)
			}
			defer failpoint.Disarm()
			id := wire.NewID()
			acc, err := w.spawn(id, w.args("late", `[{"hang": true}]`))
			if err != nil {
				t.Fatal(err)
			}
			w.eventually("the launch waits at "+point, func() (bool, string) { _, err := os.Stat(gate + ".reached"); return err == nil, "" })
			stopped := make(chan error, 1)
			go func() { _, err := w.stop(acc, false); stopped <- err }()
			w.awaitStatus("late", "stopping")
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := <-stopped; err != nil {
				t.Fatalf("stop: %v", err)
			}
			if r := w.terminal(id); point != "host.spawn.committed" && r.State != wire.GoalCancelled {
				t.Errorf("terminal %s %+v, want cancelled", r.State, r.Error)
			}
			if n := w.events.terminals(id); n != 1 {
				t.Errorf("%d terminals were told", n)
			}
		})
	}
}

// proves: CAP-1, CAP-6
func TestConcurrentSpawnsNeverPassTheCeiling(t *testing.T) {
	w := newWorld(t)
	w.crash()
	w.max = 3
	w.boot()
	var mu sync.Mutex
	accepted, full := 0, 0
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := w.spawn(wire.NewID(), w.args(fmt.Sprintf("n%d", i), `[{"hang": true}]`))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				accepted++
			case code(err) == wire.CodeResourceExhausted && outcome(err) == wire.OutcomeNotExecuted:
				full++
			default:
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if accepted != 3 || full != 7 {
		t.Errorf("%d accepted, %d refused as full; want 3 and 7", accepted, full)
	}
}

// proves: NAME-9, NAME-1
func TestPinnedNamesAreRefusedAndPersonaNamesAreNumbered(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.root, ".cotal", "agents")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("---\nname: socrates\nagent: command\nlaunchOptions:\n  argv: [%q, '[{\"hang\": true}]']\n---\n", filepath.Join(bundle, "cotal-fakeagent"))
	if err := os.WriteFile(filepath.Join(dir, "socrates.md"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"socrates", "socrates_2"} {
		acc, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "socrates"})
		if err != nil || acc.Name != want {
			t.Fatalf("got %q, %v; want %q", acc.Name, err, want)
		}
	}
	_, err := w.spawn(wire.NewID(), wire.SpawnArgs{Name: "socrates", Identity: "socrates"})
	if code(err) != wire.CodeFailedPrecondition || outcome(err) != wire.OutcomeNotExecuted {
		t.Errorf("a pinned name that is held: %v", err)
	}
}

// proves: RT-7, RT-8
func TestASeatOutlivesItsHostAndIsTakenBack(t *testing.T) {
	w := newWorld(t)
	acc := w.run("steady", `[{"tick": {"everyMs": 10, "text": "t"}}]`)
	pid := w.row("steady").PID
	w.crash()
	verdicts := w.boot()
	if len(verdicts) != 1 || verdicts[0].PID != pid || verdicts[0].State != "running" {
		t.Fatalf("verdicts %+v; want running with pid %d", verdicts, pid)
	}
	if _, err := w.stop(acc, true); err != nil {
		t.Errorf("stop after the restart: %v", err)
	}
}

// A host that goes down right behind the success of a spawn must not undo it: the saga's last step had
// not returned yet, and its undo once killed the agent that had just been promised.
func TestASpawnThatJustSucceededIsNotUndoneByTheEndOfTheHost(t *testing.T) {
	w := newWorld(t)
	for i := range 10 {
		name := fmt.Sprintf("fresh%d", i)
		if i >= w.max-1 {
			break
		}
		w.run(name, `[{"hang": true}]`)
		w.crash()
		w.boot()
		if row := w.row(name); row.Status != "running" {
			t.Fatalf("%s is %s after the restart: %+v", name, row.Status, row.Exit)
		}
	}
}

// TestFieldB11_AnExitWhileTheHostIsAwayIsRead: the true code, and the custody process is gone after.
func TestFieldB11_AnExitWhileTheHostIsAwayIsRead(t *testing.T) {
	w := newWorld(t)
	gate := filepath.Join(w.dir, "go")
	w.run("away", fmt.Sprintf(`[{"waitFile": %q}, {"exit": 7}]`, gate))
	row := w.row("away")
	w.crash()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.eventually("the agent has ended", func() (bool, string) {
		_, err := os.Stat(filepath.Join(w.seatRoot, row.SeatID, "exit.json"))
		return err == nil, ""
	})
	w.boot()
	got := w.awaitStatus("away", "exited")
	if got.Exit == nil || got.Exit.Code == nil || *got.Exit.Code != 7 {
		t.Errorf("exit %+v, want code 7", got.Exit)
	}
	w.eventually("the custody process is gone", func() (bool, string) {
		return syscall.Kill(row.SeatPID, 0) != nil, fmt.Sprint(row.SeatPID)
	})
}

// TestFieldB16_AFinishedSeatIsNeverRunAgain by any number of recoveries.
func TestFieldB16_AFinishedSeatIsNeverRunAgain(t *testing.T) {
	w := newWorld(t)
	starts := filepath.Join(w.dir, "starts")
	w.run("once", fmt.Sprintf(`[{"append": {"file": %q, "text": "x\n"}}, {"exit": 0}]`, starts))
	w.awaitStatus("once", "exited")
	for range 3 {
		w.crash()
		w.boot()
	}
	if n := lines(t, starts); n != 1 {
		t.Errorf("executed %d times", n)
	}
	w.eventually("nothing of it is left", func() (bool, string) { return w.set.Occupancy().Live == 0, "" })
	row := w.row("once")
	owner, actor, err := wire.ParsePrincipal(row.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.set.Input(t.Context(), wire.Target{Owner: owner, Actor: actor, LifecycleUID: row.LifecycleUID}, wire.InputArgs{Text: "x"})
	if code(err) != wire.CodeExpired || !strings.Contains(err.Error(), "once has ended with code 0") || !strings.Contains(err.Error(), "cotal logs once") {
		t.Errorf("what is typed into it: %v", err)
	}
	if row.Status != "exited" || row.Exit == nil || row.Exit.Code == nil || *row.Exit.Code != 0 || row.StartedAt > row.Exit.At {
		t.Errorf("row after restarts: %+v", row)
	}
}

// Of the lives a name had, ps shows the last one, also after a restart, and none while the name is held.
func TestPsShowsTheLastLifeOfAName(t *testing.T) {
	w := newWorld(t)
	for code := range 4 {
		w.run("again", fmt.Sprintf(`[{"exit": %d}]`, code))
		w.eventually("the life has ended", func() (bool, string) {
			r := w.row("again")
			return r.Exit != nil && r.Exit.Code != nil && *r.Exit.Code == code && w.set.Occupancy().Live == 0, fmt.Sprint(r.Status)
		})
	}
	check := func(when string, want int) {
		t.Helper()
		rows := w.set.Rows()
		if len(rows) != 1 || rows[0].Exit == nil || *rows[0].Exit.Code != want {
			t.Errorf("%s: rows %+v, want the life with code %d", when, rows, want)
		}
	}
	check("before the restart", 3)
	w.crash()
	w.boot()
	check("after the restart", 3)
	w.run("again", `[{"hang": true}]`)
	if rows := w.set.Rows(); len(rows) != 1 || rows[0].Status != "running" {
		t.Errorf("while the name is held: %+v", rows)
	}
}

// The journal is deleted: every live seat is found by its directory, and a retried request finds its
// acceptance instead of starting a second agent.
func TestSeatsAreFoundWithoutTheJournal(t *testing.T) {
	w := newWorld(t)
	starts := filepath.Join(w.dir, "starts")
	args := w.args("found", fmt.Sprintf(`[{"append": {"file": %q, "text": "x\n"}}, {"hang": true}]`, starts))
	id := wire.NewID()
	acc, err := w.spawn(id, args)
	if err != nil {
		t.Fatal(err)
	}
	w.terminal(id)
	pid := w.awaitStatus("found", "running").PID
	w.crash()
	if err := os.Remove(filepath.Join(w.dir, "journal.db")); err != nil {
		t.Fatal(err)
	}
	w.boot()
	row := w.row("found")
	if row.Status != "running" || row.PID != pid || row.LifecycleUID != acc.UID || row.Agent != "command" {
		t.Fatalf("found %+v; want pid %d and uid %s", row, pid, acc.UID)
	}
	again, err := w.spawn(id, args)
	if err != nil || again.UID != acc.UID || again.Name != acc.Name {
		t.Errorf("the retried request got %+v, %v; want the life %s", again, err, acc.UID)
	}
	if r := w.terminal(id); r.State != wire.GoalSucceeded {
		t.Errorf("its goal ended %s", r.State)
	}
	w.eventually("the agent was executed once", func() (bool, string) { n := lines(t, starts); return n == 1, fmt.Sprint(n) })
}

// A runtime that cannot answer makes seats unknown: the name stays held, nothing is assumed, and the
// seat is taken back once the runtime answers.
func TestASeatWhoseRuntimeIsAwayIsUnknownAndKeepsItsName(t *testing.T) {
	w := newWorld(t)
	acc := w.run("held", `[{"hang": true}]`)
	pid := w.row("held").PID
	w.crash()
	w.plugins.setDown(sdk.Errorf(sdk.ErrUnavailable, "the runtime is away"))
	w.boot()
	row := w.row("held")
	if row.Status != "unknown" || row.Reason == "" || row.Exit != nil {
		t.Fatalf("row %+v; want unknown, with a reason and no exit", row)
	}
	_, err := w.spawn(wire.NewID(), w.args("held", `[{"exit": 0}]`))
	if err == nil || outcome(err) != wire.OutcomeNotExecuted {
		t.Errorf("the name of an unknown seat was given out: %v", err)
	}
	w.plugins.setDown(nil)
	if row := w.awaitStatus("held", "running"); row.PID != pid {
		t.Errorf("taken back with pid %d, was %d", row.PID, pid)
	}
	if _, err := w.stop(acc, true); err != nil {
		t.Error(err)
	}
}

// A journal that is lost while the runtime is away: it is not known which seats run, so none is started
// under a name that one of them may hold; once the runtime answers they are taken back.
func TestNoSeatIsStartedWhileItIsNotKnownWhichOnesRun(t *testing.T) {
	w := newWorld(t)
	acc := w.run("hidden", `[{"hang": true}]`)
	pid := w.row("hidden").PID
	w.crash()
	if err := os.Remove(filepath.Join(w.dir, "journal.db")); err != nil {
		t.Fatal(err)
	}
	w.plugins.setDown(sdk.Errorf(sdk.ErrUnavailable, "the runtime is away"))
	w.boot()
	_, err := w.spawn(wire.NewID(), w.args("hidden", `[{"exit": 0}]`))
	if code(err) != wire.CodeUnavailable || outcome(err) != wire.OutcomeNotExecuted {
		t.Fatalf("a spawn while the seats are not known: %v", err)
	}
	w.plugins.setDown(nil)
	if row := w.awaitStatus("hidden", "running"); row.PID != pid || row.LifecycleUID != acc.UID {
		t.Errorf("taken back as %+v", row)
	}
	w.eventually("spawns are accepted again", func() (bool, string) {
		_, err := w.spawn(wire.NewID(), w.args("next", `[{"exit": 0}]`))
		return err == nil, fmt.Sprint(err)
	})
}

// A stop whose runtime failed once goes on by itself: its cause is durable, and nobody has to ask again.
//
// proves: STOP-12
func TestAStopThatFailedIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	acc := w.run("later", `[{"hang": true}]`)
	w.plugins.setDown(sdk.Errorf(sdk.ErrUnavailable, "the runtime is away"))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if stopped, left := w.set.StopAll(ctx); len(stopped) != 0 || len(left) != 1 || left[0].LifecycleUID != acc.UID {
		t.Fatalf("a stop without a runtime: %+v, left %+v", stopped, left)
	}
	if row := w.row("later"); row.Status != "stopping" || row.Reason == "" {
		t.Errorf("row %+v; want stopping, with the reason", row)
	}
	w.plugins.setDown(nil)
	w.awaitStatus("later", "exited")
}

// A host that was superseded cannot stop a seat of its successor.
func TestAStaleHostCannotDriveASeat(t *testing.T) {
	w := newWorld(t)
	acc := w.run("fenced", `[{"hang": true}]`)
	stale := w.epoch
	w.crash()
	w.boot()
	w.crash()
	w.epoch = stale - 1 // boot raises it to the stale one
	w.boot()
	if _, err := w.stop(acc, false); err == nil {
		t.Error("a host with an older epoch ended the seat")
	}
	w.crash()
	w.epoch = stale + 1
	w.boot()
	if row := w.row("fenced"); row.Status != "running" && row.Status != "stopping" {
		t.Errorf("row %+v", row)
	}
	if _, err := w.stop(acc, false); err != nil {
		t.Errorf("the current host cannot stop its seat: %v", err)
	}
}

// proves: READY-5
func TestAProbeThatNeverAnswersIsUncertainAndKeepsTheSeat(t *testing.T) {
	w := newWorld(t)
	info := w.plugins.facts["command"]
	info.Connector.ReadinessTimeoutMs = 300
	w.plugins.facts["command"] = info
	args := w.args("slow", `[{"hang": true}]`)
	args.LaunchOptions["probe"] = "127.0.0.1:1"
	id := wire.NewID()
	if _, err := w.spawn(id, args); err != nil {
		t.Fatal(err)
	}
	r := w.terminal(id)
	if r.State != wire.GoalUncertain || !strings.Contains(r.Error.Message, "do not spawn it again") {
		t.Errorf("terminal %s %+v", r.State, r.Error)
	}
	if row := w.row("slow"); row.Status != "running" {
		t.Errorf("an uncertain seat is %s", row.Status)
	}
}

// A spawn that arrives while the host stops is refused, and accepted ones finish.
func TestFencedSetRefusesSpawns(t *testing.T) {
	w := newWorld(t)
	w.set.Fence("this host is stopping")
	_, err := w.spawn(wire.NewID(), w.args("late", `[{"exit": 0}]`))
	if code(err) != wire.CodeUnavailable || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("got %v", err)
	}
	if err := w.set.Drain(context.Background()); err != nil {
		t.Error(err)
	}
}
