package journal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/diskfull"
)

const writerVar = "JOURNAL_TEST_WRITER"

// TestMain doubles as a process that writes rows and says which ones are durable, until it is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv(writerVar); path != "" {
		writeForEver(path)
	}
	os.Exit(m.Run())
}

func writeForEver(path string) {
	j, err := Open(path)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	for w := range 4 {
		go func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("w%d-%06d", w, n)
				err := j.Update(context.Background(), func(tx *Tx) error {
					return tx.PutSeat(SeatRow{SeatID: id, State: StateIntent, Reason: strings.Repeat("x", n%3000)})
				})
				mu.Lock()
				if err == nil {
					fmt.Println(id)
				}
				mu.Unlock()
			}
		}()
	}
	select {}
}

func openTest(t testing.TB) *Journal {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "journal.db"))
}

func openAt(t testing.TB, path string) *Journal {
	t.Helper()
	j, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func update(t testing.TB, j *Journal, fn func(*Tx) error) {
	t.Helper()
	if err := j.Update(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

func seatIDs(t testing.TB, j *Journal) []string {
	t.Helper()
	var ids []string
	err := j.View(func(tx *Tx) error {
		return tx.Seats(func(r SeatRow) error { ids = append(ids, r.SeatID); return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// waitFor polls for a fact.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

func fullRow(id string) SeatRow {
	code := 3
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	return SeatRow{
		SeatID: id, UID: "u", Alias: "reviewer", Principal: "local.abc", Nonce: "n", RequestID: "r", Fingerprint: "f",
		Caller: "local.me", Persona: "reviewer", Agent: "command", Runtime: "pty", Role: "x", Model: "m", Variant: "v",
		Cwd: "/a \"b\"\n", Form: json.RawMessage(`{"version":1}`), Grace: 10, ReadinessMs: 20, State: StateRunning,
		Handle:  sdk.Handle{Version: 1, Ref: "ref", State: []byte{0, 1, 255}},
		Created: at, Started: at, Ended: at, Fence: 9,
		Exit:   &sdk.Exit{Code: &code, At: at, Evidence: sdk.EvidenceReaped, Reaped: []sdk.Killed{{PID: 1, Command: "c", Signal: "SIGKILL"}}},
		Reason: "r", Cause: "c", Reaped: true, LaunchOptions: map[string]any{"argv": []any{"a", 1.5, nil, true}}, Step: "mint",
	}
}

func TestRowsSurviveARestartUnchanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	j := openAt(t, path)
	row := fullRow("s1")
	goal := GoalRow{
		ID: "local.me/u/r", Fingerprint: "f", Acceptance: wire.Acceptance{Name: "reviewer", GoalID: "r"}, SeatID: "s1",
		Accepted: row.Created, Deadline: row.Created,
		Result:  &wire.GoalResult{State: wire.GoalFailed, Error: &wire.Error{Code: wire.CodeInternal, Message: "m"}},
		Settled: row.Created,
	}
	update(t, j, func(tx *Tx) error { return errors.Join(tx.PutSeat(row), tx.PutGoal(goal)) })
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = openAt(t, path)
	err := j.View(func(tx *Tx) error {
		got, err := tx.Seat("s1")
		if err != nil || !reflect.DeepEqual(got, row) {
			t.Errorf("seat %+v, %v", got, err)
		}
		g, err := tx.Goal(goal.ID)
		if err != nil || !reflect.DeepEqual(g, goal) {
			t.Errorf("goal %+v, %v", g, err)
		}
		if _, err := tx.Seat("other"); !errors.Is(err, ErrNotFound) {
			t.Errorf("absent seat: %v", err)
		}
		return tx.PutSeat(row)
	})
	if !errors.Is(err, ErrReadOnly) {
		t.Errorf("write inside View: %v", err)
	}
}

func TestRowsAreBounded(t *testing.T) {
	j := openTest(t)
	for name, fn := range map[string]func(*Tx) error{
		"no id": func(tx *Tx) error { return tx.PutSeat(SeatRow{State: StateIntent}) },
		"a long id": func(tx *Tx) error {
			return tx.PutSeat(SeatRow{SeatID: strings.Repeat("x", MaxKey+1), State: StateIntent})
		},
		"no state": func(tx *Tx) error { return tx.PutSeat(SeatRow{SeatID: "a"}) },
		"a large row": func(tx *Tx) error {
			return tx.PutSeat(SeatRow{SeatID: "a", State: StateIntent, Reason: strings.Repeat("x", MaxRow)})
		},
		"a large goal": func(tx *Tx) error { return tx.PutGoal(GoalRow{ID: "a", Fingerprint: strings.Repeat("x", MaxRow)}) },
		"no terminal":  func(tx *Tx) error { return tx.PutGoal(GoalRow{ID: "a", Result: &wire.GoalResult{State: "done"}}) },
	} {
		if err := j.Update(context.Background(), fn); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if ids := seatIDs(t, j); len(ids) != 0 {
		t.Errorf("rows %v", ids)
	}
}

// stall keeps the writer busy until release is called, so that updates pile up behind it.
func stall(t *testing.T, j *Journal) (release func()) {
	t.Helper()
	started, gate := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- j.Update(context.Background(), func(*Tx) error { close(started); <-gate; return nil })
	}()
	<-started
	var once sync.Once
	release = func() {
		once.Do(func() {
			close(gate)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(release)
	return release
}

func TestConcurrentCallersShareOneCommit(t *testing.T) {
	j := openTest(t)
	release := stall(t, j)
	before := j.commits.Load()
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			update(t, j, func(tx *Tx) error { return tx.PutSeat(SeatRow{SeatID: strconv.Itoa(n), State: StateIntent}) })
		})
	}
	waitFor(t, "20 updates in the queue", func() bool { return len(j.queue) == 20 })
	release()
	wg.Wait()
	if got := j.commits.Load() - before; got != 1 {
		t.Errorf("20 callers took %d commits", got)
	}
	if ids := seatIDs(t, j); len(ids) != 20 {
		t.Errorf("%d rows", len(ids))
	}
}

func TestOneFailingCallerHarmsNoOther(t *testing.T) {
	j := openTest(t)
	release := stall(t, j)
	put := func(id string) func(*Tx) error {
		return func(tx *Tx) error { return tx.PutSeat(SeatRow{SeatID: id, State: StateIntent}) }
	}
	boom := errors.New("boom")
	calls := []func(*Tx) error{
		put("good1"),
		func(tx *Tx) error { return errors.Join(put("bad1")(tx), boom) },
		func(tx *Tx) error { _ = put("bad2")(tx); panic("at the disco") },
		func(tx *Tx) error { // a later caller in the batch sees the earlier one, and nothing of the failed
			if _, err := tx.Seat("good1"); err != nil {
				return err
			}
			if _, err := tx.Seat("bad1"); !errors.Is(err, ErrNotFound) {
				return fmt.Errorf("bad1: %v", err)
			}
			return put("good2")(tx)
		},
	}
	errs := make([]error, len(calls))
	var wg sync.WaitGroup
	for i, fn := range calls {
		wg.Go(func() { errs[i] = j.Update(context.Background(), fn) })
		waitFor(t, "the queue", func() bool { return len(j.queue) == i+1 })
	}
	release()
	wg.Wait()
	var pe *PanicError
	if errs[0] != nil || !errors.Is(errs[1], boom) || !errors.As(errs[2], &pe) || errs[3] != nil {
		t.Fatalf("%v", errs)
	}
	if got := seatIDs(t, j); !reflect.DeepEqual(got, []string{"good1", "good2"}) {
		t.Errorf("rows %v", got)
	}
}

func TestACallerThatGivesUpInTheQueueNeverRuns(t *testing.T) {
	j := openTest(t)
	release := stall(t, j)
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- j.Update(ctx, func(*Tx) error { t.Error("it ran"); return nil })
	}()
	waitFor(t, "the queue", func() bool { return len(j.queue) == 1 })
	why := errors.New("client left")
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Fatalf("got %v", err)
	}
	release()
	update(t, j, func(*Tx) error { return nil }) // the writer has passed it
}

func TestUpdatesWithoutWritesCostNoCommit(t *testing.T) {
	j := openTest(t)
	before := j.commits.Load()
	update(t, j, func(tx *Tx) error { return tx.Seats(func(SeatRow) error { return nil }) })
	if j.commits.Load() != before {
		t.Error("a commit was made for nothing")
	}
}

func TestClosedJournalAnswers(t *testing.T) {
	j := openTest(t)
	release := stall(t, j)
	queued := make(chan error, 1)
	go func() { queued <- j.Update(context.Background(), func(*Tx) error { return nil }) }()
	waitFor(t, "the queue", func() bool { return len(j.queue) == 1 })
	closed := make(chan error, 1)
	go func() { closed <- j.Close() }()
	<-j.stop
	release()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := <-queued; err != nil && !errors.Is(err, ErrClosed) {
		t.Errorf("queued: %v", err)
	}
	if err := j.Update(context.Background(), func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("update: %v", err)
	}
	if err := j.View(func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("view: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// What a transaction reads is what a plain map would give, whatever was pending.
func TestReadsSeePendingWritesInOrder(t *testing.T) {
	j := openTest(t)
	rng := rand.New(rand.NewPCG(1, 2))
	model := map[string]string{}
	for range 60 {
		update(t, j, func(tx *Tx) error {
			for range rng.IntN(12) {
				id := fmt.Sprintf("%02d", rng.IntN(30))
				if rng.IntN(3) == 0 {
					delete(model, id)
					if err := tx.DeleteSeat(id); err != nil {
						return err
					}
				} else {
					model[id] = strconv.Itoa(rng.Int())
					if err := tx.PutSeat(SeatRow{SeatID: id, State: StateIntent, Reason: model[id]}); err != nil {
						return err
					}
				}
				got, last := map[string]string{}, ""
				err := tx.Seats(func(r SeatRow) error {
					if r.SeatID <= last {
						t.Errorf("%s after %s", r.SeatID, last)
					}
					last = r.SeatID
					got[r.SeatID] = r.Reason
					return nil
				})
				if err != nil || !reflect.DeepEqual(got, model) {
					t.Fatalf("got %v, want %v, %v", got, model, err)
				}
				if _, err := tx.Seat(id); (err == nil) != (model[id] != "") {
					t.Fatalf("Seat(%s): %v", id, err)
				}
			}
			return nil
		})
	}
}

func TestTheFirstTerminalOfAGoalWins(t *testing.T) {
	j := openTest(t)
	update(t, j, func(tx *Tx) error { return tx.PutGoal(GoalRow{ID: "g"}) })
	states := []string{wire.GoalSucceeded, wire.GoalFailed, wire.GoalCancelled, wire.GoalExpired, wire.GoalUncertain}
	type answer struct {
		mine, landed string
		first        bool
	}
	answers := make([]answer, len(states))
	var wg sync.WaitGroup
	for i, s := range states {
		wg.Go(func() {
			update(t, j, func(tx *Tx) error {
				landed, first, err := tx.SettleGoal("g", wire.GoalResult{State: s})
				answers[i] = answer{s, landed.State, first}
				return err
			})
		})
	}
	wg.Wait()
	winners, landed := 0, answers[0].landed
	for _, a := range answers {
		if a.first {
			winners++
			if a.mine != a.landed {
				t.Errorf("the first got another's result: %+v", a)
			}
		}
		if a.landed != landed {
			t.Errorf("two terminals: %v", answers)
		}
	}
	if winners != 1 {
		t.Errorf("%d winners: %v", winners, answers)
	}
	for name, fn := range map[string]func(*Tx) error{
		"settle without a goal": func(tx *Tx) error { _, _, err := tx.SettleGoal("none", wire.GoalResult{State: states[0]}); return err },
		"settle with no state": func(tx *Tx) error {
			_ = tx.PutGoal(GoalRow{ID: "h"})
			_, _, err := tx.SettleGoal("h", wire.GoalResult{})
			return err
		},
		"put over a settled one": func(tx *Tx) error { return tx.PutGoal(GoalRow{ID: "g"}) },
	} {
		if err := j.Update(context.Background(), fn); err == nil {
			t.Errorf("%s was allowed", name)
		}
	}
}

func TestPruneKeepsWhatMayBeAskedFor(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	old, young := now.Add(-2*time.Hour), now.Add(-time.Minute)
	res := &wire.GoalResult{State: wire.GoalSucceeded}
	j := openTest(t)
	update(t, j, func(tx *Tx) error {
		return errors.Join(
			tx.PutSeat(SeatRow{SeatID: "running", State: StateRunning, Created: old}),
			tx.PutSeat(SeatRow{SeatID: "unknown", State: StateUnknown, Created: old}),
			tx.PutSeat(SeatRow{SeatID: "ended-not-reaped", State: StateExited, Ended: old}),
			tx.PutSeat(SeatRow{SeatID: "ended-old-1", State: StateExited, Ended: old, Reaped: true}),
			tx.PutSeat(SeatRow{SeatID: "ended-old-2", State: StateFailed, Ended: old.Add(time.Second), Reaped: true}),
			tx.PutSeat(SeatRow{SeatID: "ended-young", State: StateExited, Ended: young, Reaped: true}),
			tx.PutGoal(GoalRow{ID: "open", Accepted: old}),
			tx.PutGoal(GoalRow{ID: "in-outbox", Result: res, Settled: old}), // the mesh does not know of it yet
			tx.PutGoal(GoalRow{ID: "of-running", SeatID: "running", Result: res, Settled: old, Committed: true}),
			tx.PutGoal(GoalRow{ID: "of-gone", SeatID: "ended-old-1", Result: res, Settled: old, Committed: true}),
			tx.PutGoal(GoalRow{ID: "settled-young", Result: res, Settled: young, Local: true}),
		)
	})
	seatAge := time.Hour
	prune := func(keep int) (s, g int) {
		update(t, j, func(tx *Tx) (err error) { s, g, err = tx.Prune(now, keep, seatAge, time.Hour); return err })
		return s, g
	}
	if s, g := prune(64); s != 0 || g != 0 {
		t.Errorf("keep 64: %d seats, %d goals went", s, g)
	}
	if s, g := prune(2); s != 1 || g != 0 { // ended-young and ended-old-2 are the newest two
		t.Errorf("keep 2: %d seats, %d goals went", s, g)
	}
	if s, g := prune(0); s != 1 || g != 1 {
		t.Errorf("keep 0: %d seats, %d goals went", s, g)
	}
	seatAge = time.Second // a goal stays longer than its seat
	if s, g := prune(0); s != 1 || g != 0 {
		t.Errorf("seats of a second: %d seats, %d goals went", s, g)
	}
	want := []string{"ended-not-reaped", "running", "unknown"}
	if got := seatIDs(t, j); !reflect.DeepEqual(got, want) {
		t.Errorf("seats %v", got)
	}
	var goals []string
	_ = j.View(func(tx *Tx) error {
		return tx.Goals(func(r GoalRow) error { goals = append(goals, r.ID); return nil })
	})
	if !reflect.DeepEqual(goals, []string{"in-outbox", "of-running", "open", "settled-young"}) {
		t.Errorf("goals %v", goals)
	}
}

// Whatever Update has confirmed is there after SIGKILL in the middle of writing.
func TestConfirmedWritesSurviveSIGKILL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerVar+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		confirmed := map[string]bool{}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			confirmed[lines.Text()] = true
			if len(confirmed) == 30+round*17 {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		j := openAt(t, path)
		for _, id := range seatIDs(t, j) {
			delete(confirmed, id)
		}
		if len(confirmed) != 0 {
			t.Fatalf("round %d: confirmed and lost: %v", round, confirmed)
		}
		j.Close()
	}
}

func TestARefusedCommitLeavesNothingAndTheJournalGoesOn(t *testing.T) {
	j := openTest(t)
	update(t, j, func(tx *Tx) error { return tx.PutSeat(SeatRow{SeatID: "before", State: StateIntent}) })
	defer failpoint.Disarm()
	if err := failpoint.Arm("host.journal.commit=1*error(disk full)"); err != nil {
		t.Fatal(err)
	}
	put := func(tx *Tx) error { return tx.PutSeat(SeatRow{SeatID: "after", State: StateIntent}) }
	err := j.Update(context.Background(), put)
	var ce *CommitError
	if !errors.As(err, &ce) || !strings.Contains(err.Error(), "disk full") || !strings.Contains(err.Error(), j.path) {
		t.Fatalf("got %v", err)
	}
	if got := seatIDs(t, j); !reflect.DeepEqual(got, []string{"before"}) {
		t.Errorf("rows %v", got)
	}
	update(t, j, put)
	if got := seatIDs(t, j); len(got) != 2 {
		t.Errorf("rows %v", got)
	}
}

// A file size limit makes the disk full for this process alone, at every byte of a commit.
func TestFullDiskLeavesNothingHalfWritten(t *testing.T) {
	if !diskfull.InChild(t) {
		return
	}
	path := filepath.Join(t.TempDir(), "journal.db")
	j := openAt(t, path)
	big := func(n int) func(*Tx) error {
		return func(tx *Tx) error {
			for i := range 40 {
				r := SeatRow{SeatID: fmt.Sprintf("%d-%d", n, i), State: StateIntent, Reason: strings.Repeat("x", 40<<10)}
				if err := tx.PutSeat(r); err != nil {
					return err
				}
			}
			return nil
		}
	}
	update(t, j, big(0))
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	want := seatIDs(t, j)
	restore := diskfull.Limit(t, uint64(st.Size()))
	failed := 0
	var lastErr error
	for n := 1; n < 5; n++ {
		if err := j.Update(context.Background(), big(n)); err != nil {
			lastErr, failed = err, failed+1
		} else {
			want = seatIDs(t, j) // there was room in the file
		}
		if got := seatIDs(t, j); !reflect.DeepEqual(got, want) {
			t.Errorf("rows after %d: %d, want %d", n, len(got), len(want))
		}
	}
	restore()
	var ce *CommitError
	if failed == 0 || !errors.As(lastErr, &ce) {
		t.Fatalf("the limit was never met: %v", lastErr)
	}
	update(t, j, big(9))
	if got := seatIDs(t, j); len(got) != len(want)+40 {
		t.Errorf("%d rows after space returned", len(got))
	}
	j.Close()
	openAt(t, path) // and the file is whole
}
