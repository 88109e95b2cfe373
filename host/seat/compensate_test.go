package seat_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/goal"
	"github.com/cotal-ai/cotal-host/host/journal"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// edit changes the journal between two hosts.
func (w *world) edit(change func(*journal.Tx) error) {
	w.t.Helper()
	j, err := journal.Open(filepath.Join(w.dir, "journal.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := j.Update(context.Background(), change); err != nil {
		w.t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// A journal that cannot be written for a moment at boot does not leave the spawn of an earlier host without an end, nor
// its name and its place taken.
func TestAnInterruptedSpawnIsFailedWhenTheJournalTakesItAgain(t *testing.T) {
	w := newWorld(t)
	w.crash()
	id, now := wire.NewID(), time.Now()
	key := goal.KeyOf(w.caller, id)
	row := journal.SeatRow{
		SeatID: wire.NewCustodyID(), UID: wire.NewUID(), Alias: "cut", Principal: "local.cut", Nonce: wire.NewNonce(), RequestID: string(key),
		Agent: "command", Runtime: "pty", Cwd: w.root, State: journal.StateIntent, Created: now,
	}
	w.edit(func(tx *journal.Tx) error {
		if err := tx.PutSeat(row); err != nil {
			return err
		}
		acc := wire.Acceptance{Name: row.Alias, Owner: "local", Actor: "cut", UID: row.UID, GoalID: id}
		return goal.NewStore(nil, nil).Accept(tx, key, wire.CmdSpawn, row.SeatID, acc, now.Add(time.Minute))
	})
	if err := failpoint.Arm("host.journal.commit=1*error(no room)"); err != nil {
		t.Fatal(err)
	}
	defer failpoint.Disarm()
	w.boot()
	if r := w.result(id); r.Result != nil {
		t.Fatalf("its end is told while the journal has it not: %+v", r.Result)
	}
	if r := w.terminal(id); r.State != wire.GoalFailed || r.Error == nil || r.Error.Outcome != wire.OutcomeNotExecuted {
		t.Errorf("terminal %s %+v", r.State, r.Error)
	}
	w.eventually("its place is free", func() (bool, string) { return w.set.Occupancy().Live == 0, "" })
	if n := w.events.terminals(id); n != 1 {
		t.Errorf("%d terminals were told", n)
	}
}

// The same journal leaves no seat that runs in a state in which nothing can be done with it.
func TestASeatThatRunsIsTakenBackWhenTheJournalTakesItAgain(t *testing.T) {
	w := newWorld(t)
	acc := w.run("late", `[{"hang": true}]`)
	w.crash()
	w.edit(func(tx *journal.Tx) error { // as a host leaves it that dies behind the commit
		return tx.Seats(func(r journal.SeatRow) error {
			r.State, r.Started, r.Ready = journal.StatePrepared, time.Time{}, time.Time{}
			return tx.PutSeat(r)
		})
	})
	if err := failpoint.Arm("host.journal.commit=1*error(no room)"); err != nil {
		t.Fatal(err)
	}
	defer failpoint.Disarm()
	w.boot()
	w.awaitStatus("late", "running")
	if _, err := w.set.Input(t.Context(), targetOf(acc), wire.InputArgs{Text: "x"}); err != nil {
		t.Errorf("typing into it: %v", err)
	}
}

// A runtime that cannot be asked for its seats is named in the log, once for each reason: a seat that only its directory
// knows is not seen meanwhile.
func TestARuntimeThatDoesNotListItsSeatsIsNamedInTheLog(t *testing.T) {
	w := newWorld(t)
	w.crash()
	w.plugins.also("mux", errors.New("its program is missing"))
	w.boot()
	named := func() []string { return w.logs("list seats; it is tried again") }
	w.eventually("it is named", func() (bool, string) { return len(named()) > 0, "" })
	if line := named()[0]; !strings.Contains(line, "plugin=mux") || !strings.Contains(line, "its program is missing") {
		t.Errorf("the log says %s", line)
	}
	w.plugins.also("mux", errors.New("it was killed"))
	w.eventually("the next reason is told", func() (bool, string) { return len(w.logs("it was killed")) > 0, "" })
	if lines := named(); len(lines) != 2 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}
