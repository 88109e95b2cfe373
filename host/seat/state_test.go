package seat

import "testing"

func TestNext(t *testing.T) {
	cases := []struct {
		name string
		from State
		ev   Event
		to   State
		bad  bool
	}{
		{"a starting seat becomes prepared when the runtime says so", Starting, EvPrepared, Prepared, false},
		{"a failed start ends the seat", Starting, EvStartFailed, Ended, false},
		{"a prepared seat that is committed runs", Prepared, EvRunning, Running, false},
		{"a prepared seat that ended itself uncommitted is exited", Prepared, EvExited, Exited, false},
		{"a running seat does not become prepared again", Running, EvPrepared, Running, true},
		{"a running seat cannot fail to start", Running, EvStartFailed, Running, true},
		{"a stop during the start is remembered", Starting, EvStop, Stopping, false},
		{"a stop is not undone by seeing the agent alive", Stopping, EvRunning, Stopping, false},
		{"a stop is not undone by an unreadable seat", Stopping, EvUnknown, Stopping, false},
		{"a stop whose start then failed has ended", Stopping, EvStartFailed, Ended, false},
		{"an unknown seat that answers runs again", Unknown, EvRunning, Running, false},
		{"an unknown seat can be stopped", Unknown, EvStop, Stopping, false},
		{"an unknown seat is never ended without proof", Unknown, EvReaped, Unknown, true},
		{"the first exit wins", Exited, EvExited, Exited, false},
		{"a stop after the exit changes nothing", Exited, EvStop, Exited, false},
		{"an exited seat does not run again", Exited, EvRunning, Exited, true},
		{"an exited seat ends once it is reaped", Exited, EvReaped, Ended, false},
		{"a running seat is not ended without an exit", Running, EvReaped, Running, true},
		{"a seat whose process ended by itself may be followed by another", Running, EvCrashed, Restarting, false},
		{"so may one that did not answer", Unknown, EvCrashed, Restarting, false},
		{"one that is being stopped may not", Stopping, EvCrashed, Stopping, true},
		{"the next process begins as the first one did", Restarting, EvFollowed, Starting, false},
		{"one of which nothing was executed is made again", Starting, EvUndone, Restarting, false},
		{"also when it was prepared", Prepared, EvUndone, Restarting, false},
		{"a process that ran is not made again without its end", Running, EvUndone, Running, true},
		{"a stop between two processes is remembered", Restarting, EvStop, Stopping, false},
		{"a seat that cannot be started again has ended with its last process", Restarting, EvExited, Exited, false},
		{"nothing runs between two processes", Restarting, EvRunning, Restarting, true},
		{"an ended seat stays ended", Ended, EvStop, Ended, false},
		{"an ended seat does not start", Ended, EvPrepared, Ended, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			to, err := Next(c.from, c.ev)
			if to != c.to || (err != nil) != c.bad {
				t.Errorf("Next(%s, %s) = %s, %v; want %s, error %v", c.from, c.ev, to, err, c.to, c.bad)
			}
		})
	}
}

// Only Exited leads to Ended once an agent may have run: an end is always proved first.
func TestOnlyAProvedExitEndsASeatThatRan(t *testing.T) {
	for from, row := range transitions {
		for ev, to := range row {
			if to != Ended || from == Ended {
				continue
			}
			startNeverRan := ev == EvStartFailed && (from == Starting || from == Prepared || from == Stopping)
			if !startNeverRan && from != Exited {
				t.Errorf("%s --%s--> ended skips the proof of exit", from, ev)
			}
		}
	}
}
