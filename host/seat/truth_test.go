package seat_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/seat"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// restart ends the host without a word to its seats and boots the next one with a ceiling.
func (w *world) restart(ceiling int) []seat.Verdict {
	w.t.Helper()
	w.crash()
	w.max = ceiling
	return w.boot()
}

// TestFieldB10_ASeatWhoseRecordCannotBeReadIsKept: it is not killed, not replaced, and says why.
func TestFieldB10_ASeatWhoseRecordCannotBeReadIsKept(t *testing.T) {
	w := newWorld(t)
	w.run("held", `[{"hang": true}]`)
	row := w.row("held")
	file := filepath.Join(w.seatRoot, row.SeatID, "seat.json")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // who may read everything
		err = os.WriteFile(file, []byte("{"), 0o600)
	} else {
		err = os.Chmod(file, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.restart(8)
	if err := syscall.Kill(row.PID, 0); err != nil {
		t.Fatalf("the agent was killed: %v", err)
	}
	held := w.row("held") // the record may be doubted, the process that answers at the recorded socket not
	if held.Status != "running" && (held.Status != "unknown" || held.Reason == "") {
		t.Errorf("it is %s: %s", held.Status, held.Reason)
	}
	_, err = w.spawn(wire.NewID(), w.args("held", `[{"hang": true}]`))
	if code(err) != wire.CodeFailedPrecondition || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), `"held" is held by a seat that is `+held.Status) {
		t.Errorf("a second seat of its name: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is taken back once it can be read", func() (bool, string) {
		r, err := w.set.Inspect(context.Background(), "held")
		return err == nil && r.Status == "running" && r.PID == row.PID, r.Status + " " + r.Reason
	})
}

// TestFieldB19_AKillFromOutsideIsNoHostsDoing and no success.
func TestFieldB19_AKillFromOutsideIsNoHostsDoing(t *testing.T) {
	w := newWorld(t)
	w.run("victim", `[{"hang": true}]`)
	if err := syscall.Kill(w.row("victim").PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	row := w.awaitStatus("victim", "exited")
	if x := row.Exit; x == nil || x.Signal != "SIGKILL" || x.Asked || x.Cause != "process-exit" {
		t.Errorf("it ended as %+v", row.Exit)
	}
}

// TestFieldB14_StopOfASeatWhoseDirectoryIsGone: within one look at its health the row says what is missing,
// and it can be stopped.
func TestFieldB14_StopOfASeatWhoseDirectoryIsGone(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.root, "place")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	args := w.args("homeless", `[{"hang": true}]`)
	args.Cwd = dir
	id := wire.NewID()
	acc, err := w.spawn(id, args)
	if err != nil {
		t.Fatal(err)
	}
	w.terminal(id)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	w.eventually("ps says so", func() (bool, string) {
		r := w.row("homeless")
		return r.Status == "running" && strings.Contains(r.Reason, "degraded: its working directory "+dir+" is gone"), r.Reason
	})
	if _, err := w.stop(acc, true); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// TestFieldJ1_ABurstOfSpawnsStopsAtTheCeiling: as many run as may, the others are refused with a reason.
func TestFieldJ1_ABurstOfSpawnsStopsAtTheCeiling(t *testing.T) {
	w := newWorld(t)
	w.restart(5)
	var mu sync.Mutex
	var wg sync.WaitGroup
	accepted, refused := 0, 0
	for i := range 100 {
		wg.Go(func() {
			_, err := w.spawn(wire.NewID(), w.args(fmt.Sprintf("burst%d", i), `[{"hang": true}]`))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				accepted++
			case code(err) == wire.CodeResourceExhausted && outcome(err) == wire.OutcomeNotExecuted && strings.Contains(err.Error(), "all 5 seats are taken"):
				refused++
			default:
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if accepted != 5 || refused != 95 {
		t.Errorf("%d were accepted and %d refused", accepted, refused)
	}
	w.eventually("five run", func() (bool, string) {
		n := 0
		for _, r := range w.set.Rows() {
			if r.Status == "running" {
				n++
			}
		}
		return n == 5, strconv.Itoa(n)
	})
	if entries, err := os.ReadDir(w.seatRoot); err != nil || len(entries) != 5 {
		t.Errorf("%d seat directories, %v", len(entries), err)
	}
}

// TestFieldJ3_TheRefusalCountsWhatPsCounts, also while a seat is being stopped.
func TestFieldJ3_TheRefusalCountsWhatPsCounts(t *testing.T) {
	w := newWorld(t)
	w.restart(3)
	w.run("one", `[{"hang": true}]`)
	w.run("two", `[{"hang": true}]`)
	slow := w.run("slow", `[{"ignore": ["TERM", "HUP", "INT"]}, {"print": "up"}, {"hang": true}]`)
	w.eventually("it ignores signals", func() (bool, string) {
		r, err := w.set.Inspect(context.Background(), "slow")
		return err == nil && r.Output > 0, ""
	})
	done := make(chan error, 1)
	go func() { _, err := w.stop(slow, true); done <- err }()
	w.awaitStatus("slow", "stopping")
	_, err := w.spawn(wire.NewID(), w.args("more", `[{"hang": true}]`))
	if code(err) != wire.CodeResourceExhausted {
		t.Fatalf("%v", err)
	}
	rows := map[string]int{}
	for _, r := range w.set.Rows() {
		rows[r.Status]++
	}
	said := map[string]int{}
	for _, m := range regexp.MustCompile(`(\d+) (running|starting|stopping|unknown|exited|cooling)`).FindAllStringSubmatch(err.Error(), -1) {
		n, _ := strconv.Atoi(m[1])
		said[m[2]] = n
	}
	if rows["stopping"] != 1 || fmt.Sprint(said) != fmt.Sprint(rows) {
		t.Errorf("the refusal says %v, ps %v: %v", said, rows, err)
	}
	if occ := w.set.Occupancy(); occ.Max != 3 || occ.Live+occ.Pending != 3 {
		t.Errorf("status says %+v", occ)
	}
	now := false
	if _, err := w.set.Despawn(context.Background(), w.caller, targetOf(slow), wire.DespawnArgs{Graceful: &now, WaitForExit: true}); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFieldJ10_OneRequestSentTenTimesIsOneSeat, also to the next host.
func TestFieldJ10_OneRequestSentTenTimesIsOneSeat(t *testing.T) {
	w := newWorld(t)
	starts := filepath.Join(w.dir, "starts")
	args := w.args("only", fmt.Sprintf(`[{"append": {"file": %q, "text": "x\n"}}, {"hang": true}]`, starts))
	id := wire.NewID()
	var first wire.Acceptance
	for i := range 10 {
		acc, err := w.spawn(id, args)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = acc
		} else if acc.UID != first.UID || acc.Name != first.Name {
			t.Errorf("request %d was accepted as %s %s, the first as %s %s", i, acc.Name, acc.UID, first.Name, first.UID)
		}
		if i == 5 {
			w.awaitStatus("only", "running")
			w.restart(8)
		}
	}
	w.eventually("the agent was executed", func() (bool, string) { return lines(t, starts) >= 1, "" })
	if n := lines(t, starts); n != 1 || len(w.set.Rows()) != 1 {
		t.Errorf("%d agents were started, %d rows", n, len(w.set.Rows()))
	}
}

// elsewhere is a runtime without processes, lists or watches: what it was asked to run runs until it is reaped.
type elsewhere struct {
	root  string
	proof string // evidence of a reap
	mu    sync.Mutex
	runs  map[string]bool
}

func (e *elsewhere) Spawn(_ context.Context, req sdk.SpawnRequest) (sdk.Handle, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs[req.SeatID] = true
	return sdk.Handle{Version: 1, Ref: req.SeatID}, nil
}

func (e *elsewhere) Adopt(_ context.Context, req sdk.AdoptRequest) (sdk.SeatStatus, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := sdk.SeatStatus{SeatID: req.SeatID, State: sdk.SeatNotFound}
	if e.runs[req.SeatID] {
		st.State, st.Agent, st.Handle = sdk.SeatRunning, sdk.Identity{PID: 1}, sdk.Handle{Version: 1, Ref: req.SeatID}
	}
	return st, nil
}

func (e *elsewhere) Attach(context.Context, sdk.AttachRequest) (sdk.AttachTarget, error) {
	return sdk.AttachTarget{}, sdk.ErrUnsupported
}

func (e *elsewhere) Reap(_ context.Context, req sdk.StopRequest) (sdk.ReapReport, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.runs, req.SeatID)
	report := sdk.ReapReport{Outcome: sdk.ReapStopped}
	if e.proof != "" {
		report.Evidence = []string{e.proof}
	}
	if !req.Keep {
		return report, os.RemoveAll(filepath.Join(e.root, req.SeatID))
	}
	return report, nil
}

// Seats of a runtime that does not start are unknown, found by what the host wrote into their directories,
// and hold their names; all others are taken back, and new ones start.
func TestARuntimeThatDoesNotStartCostsItsOwnSeatsAlone(t *testing.T) {
	w := newWorld(t)
	w.run("mine", `[{"hang": true}]`)
	args := w.args("theirs", `[{"hang": true}]`)
	args.Runtime = "mux"
	id := wire.NewID()
	if _, err := w.spawn(id, args); code(err) != wire.CodeNotFound || !strings.Contains(err.Error(), `no runtime "mux": there are pty`) {
		t.Fatalf("a runtime that is not there: %v", err)
	}
	w.plugins.other = &elsewhere{root: w.seatRoot, runs: map[string]bool{}}
	w.plugins.also("mux", nil)
	acc, err := w.spawn(id, args)
	if err != nil {
		t.Fatal(err)
	}
	w.terminal(id)
	if r := w.row("theirs"); r.Mode != "mux" || r.Status != "running" {
		t.Fatalf("%+v", r)
	}
	w.crash()
	// Neither the journal nor the runtime tells of it any more.
	if err := os.Remove(filepath.Join(w.dir, "journal.db")); err != nil {
		t.Fatal(err)
	}
	w.plugins.also("mux", fmt.Errorf("mux: exit status 1"))
	w.boot()
	if r := w.row("mine"); r.Status != "running" {
		t.Errorf("the other one is %s %s", r.Status, r.Reason)
	}
	if r := w.row("theirs"); r.Status != "unknown" || r.Mode != "mux" || !strings.Contains(r.Reason, "exit status 1") {
		t.Errorf("it is %s on %s: %s", r.Status, r.Mode, r.Reason)
	}
	if _, err := w.spawn(wire.NewID(), w.args("theirs", `[{"hang": true}]`)); code(err) != wire.CodeFailedPrecondition {
		t.Errorf("its name: %v", err)
	}
	w.run("fresh", `[{"hang": true}]`)
	w.plugins.also("mux", nil)
	w.eventually("it is taken back once its runtime starts", func() (bool, string) {
		r, err := w.set.Inspect(context.Background(), "theirs")
		return err == nil && r.Status == "running" && r.LifecycleUID == acc.UID, r.Status + " " + r.Reason
	})
	if _, err := w.stop(acc, false); err != nil {
		t.Errorf("stop: %v", err)
	}
	if _, err := w.set.Input(context.Background(), targetOf(acc), wire.InputArgs{Text: "x"}); code(err) != wire.CodeExpired {
		t.Errorf("input into what was stopped: %v", err)
	}
}

// A stop whose runtime cannot be reached did nothing, and says what to do about it.
func TestAStopWithoutItsRuntimeIsNotExecuted(t *testing.T) {
	w := newWorld(t)
	acc := w.run("kept", `[{"hang": true}]`)
	pid := w.row("kept").PID
	w.plugins.setDown(errQuarantined)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := w.set.Despawn(ctx, w.caller, targetOf(acc), wire.DespawnArgs{WaitForExit: true})
	if code(err) != wire.CodeUnavailable || outcome(err) != wire.OutcomeNotExecuted || !strings.Contains(err.Error(), "cotal ext restart pty") {
		t.Errorf("%v", err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the agent: %v", err)
	}
	w.plugins.setDown(nil)
}
