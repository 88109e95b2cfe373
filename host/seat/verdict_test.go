package seat

import (
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

func TestDecide(t *testing.T) {
	cases := []struct {
		name     string
		recorded State
		answer   sdk.SeatState
		known    bool
		want     verdict
	}{
		{"died after the intent and nothing was prepared: compensate", Starting, sdk.SeatNotFound, true, doCompensate},
		{"died after Spawn, before the handle was durable: commit what is found", Starting, sdk.SeatPrepared, true, doCommit},
		{"died after the handle was durable: commit", Prepared, sdk.SeatPrepared, true, doCommit},
		{"died after commit, before it was recorded: take it back", Prepared, sdk.SeatRunning, true, doRun},
		{"prepared seat ended itself meanwhile: record the exit", Prepared, sdk.SeatExited, true, doExit},
		{"prepared seat is gone without a trace: compensate", Prepared, sdk.SeatNotFound, true, doCompensate},
		{"running and answering: take it back", Running, sdk.SeatRunning, true, doRun},
		{"ended while the host was away: record the exit", Running, sdk.SeatExited, true, doExit},
		{"ran and nothing is left of it: an exit nobody recorded", Running, sdk.SeatNotFound, true, doExit},
		{"ran but is said to be prepared: no verdict", Running, sdk.SeatPrepared, true, doHold},
		{"no answer in time is not an end", Running, sdk.SeatUnknown, true, doHold},
		{"no answer for a starting seat is not an absence", Starting, sdk.SeatUnknown, true, doHold},
		{"a stop that was asked before the crash goes on", Stopping, sdk.SeatRunning, true, doStop},
		{"a stop of a prepared seat goes on", Stopping, sdk.SeatPrepared, true, doStop},
		{"a stop that finished unrecorded is an exit", Stopping, sdk.SeatNotFound, true, doExit},
		{"a recorded exit is never run again, whatever answers", Exited, sdk.SeatRunning, true, doReap},
		{"a recorded exit whose seat is gone is reaped", Exited, sdk.SeatNotFound, true, doReap},
		{"its process had ended and was to be followed: go on with that", Restarting, sdk.SeatExited, true, doRestart},
		{"also when what was left of it is removed", Restarting, sdk.SeatNotFound, true, doRestart},
		{"and when nobody can say", Restarting, sdk.SeatUnknown, true, doRestart},
		{"found without a journal and running: take it back", Running, sdk.SeatRunning, false, doRun},
		{"found without a journal and only prepared: never started by guess", Starting, sdk.SeatPrepared, false, doStop},
		{"found without a journal and nothing alive: clean up", Starting, sdk.SeatNotFound, false, doCompensate},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := decide(c.recorded, c.answer, c.known); got != c.want {
				t.Errorf("decide(%s, %s, known=%v) = %s, want %s", c.recorded, c.answer, c.known, got, c.want)
			}
		})
	}
}
