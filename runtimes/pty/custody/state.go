package custody

import "github.com/cotal-ai/cotal-host/sdk/seat"

// event is something that may move a seat from one state to the next.
type event uint8

const (
	evCommit         event = iota // a host asks to start the agent
	evExecuted                    // the agent was executed
	evExecFailed                  // it could not be
	evStop                        // a host asks for the end: HUP, TERM or KILL
	evPrepareTimeout              // nobody committed in time
	evReaped                      // the agent was reaped
	evTreeGone                    // its tree is gone and its output complete
	evAckExit                     // a host took the exit record over
	evLinger                      // nobody did, for a day
)

// effect is what the server has to do about an event.
type effect uint8

const (
	doAnswer    effect = iota // nothing but answer
	doExec                    // execute the agent
	doSignal                  // signal it
	doDrain                   // end what is left of the tree, collect output
	doRecord                  // write exit.json, tell everybody, wait for the acknowledgement
	doRecordEnd               // write exit.json and end
	doEnd                     // remove the socket and end
	doRefuse                  // answer with code
)

// step is the state machine of a seat. It is pure: the same state and event always give the same
// answer, whatever else goes on. code is set with doRefuse only.
func step(s seat.State, ev event) (next seat.State, do effect, code seat.Code) {
	switch ev {
	case evCommit:
		if s == seat.StatePrepared {
			return s, doExec, 0
		}
		return s, doAnswer, 0 // idempotent, also when it has ended meanwhile
	case evExecuted:
		if s == seat.StatePrepared {
			return seat.StateRunning, doAnswer, 0
		}
	case evExecFailed:
		return s, doRefuse, seat.CodeExec
	case evStop:
		switch s {
		case seat.StatePrepared:
			return seat.StateExited, doRecord, 0
		case seat.StateRunning, seat.StateDraining:
			return s, doSignal, 0
		}
	case evPrepareTimeout:
		if s == seat.StatePrepared {
			return seat.StateExited, doRecordEnd, 0
		}
	case evReaped:
		if s == seat.StateRunning {
			return seat.StateDraining, doDrain, 0
		}
	case evTreeGone:
		if s == seat.StateDraining {
			return seat.StateExited, doRecord, 0
		}
	case evAckExit:
		if s == seat.StateExited {
			return s, doEnd, 0
		}
		return s, doRefuse, seat.CodeNotExited
	case evLinger:
		if s == seat.StateExited {
			return s, doEnd, 0
		}
	}
	return s, doAnswer, 0
}
