package seat

import "github.com/cotal-ai/cotal-host/sdk"

// verdict is what recovery does with a seat, given what the journal last recorded and what the
// runtime answers now.
type verdict string

const (
	doCommit     verdict = "commit"     // prepared and durable: start it
	doRun        verdict = "run"        // it runs: take it back
	doExit       verdict = "exit"       // it ended, with or without a record
	doCompensate verdict = "compensate" // nothing ever ran: undo and fail the goal
	doStop       verdict = "stop"       // an end was asked for before: go on with it
	doReap       verdict = "reap"       // the exit is recorded: remove the leftovers
	doRestart    verdict = "restart"    // its process ended and is to be followed by another: go on with that
	doHold       verdict = "hold"       // no verdict: keep the name, ask again later
)

// decide is the whole of crash recovery for one seat. recorded is the journal's state; answer is
// Adopt's. known says whether the journal had a row at all: a seat found only by its directory was
// accepted by a host whose journal is lost, so a prepared one is not started by guess.
func decide(recorded State, answer sdk.SeatState, known bool) verdict {
	switch recorded {
	case Exited:
		return doReap
	case Restarting: // the end of the process it asks about is recorded, whatever the answer
		return doRestart
	}
	switch answer {
	case sdk.SeatExited:
		return doExit
	case sdk.SeatRunning:
		if recorded == Stopping {
			return doStop
		}
		return doRun
	case sdk.SeatPrepared:
		switch {
		case recorded == Stopping || !known:
			return doStop
		case recorded == Starting || recorded == Prepared:
			return doCommit
		default:
			return doHold // the journal says it ran; a prepared seat contradicts that
		}
	case sdk.SeatNotFound:
		if recorded == Starting || recorded == Prepared || !known {
			return doCompensate
		}
		return doExit
	default:
		return doHold
	}
}
