// Package seat holds the seats of one host: one actor per seat, the state machine every actor
// follows, names, capacity, the spawn saga, stop, input and recovery.
//
// Every transition goes through Next and is durable in the journal before it is shown to anyone.
//
// Lock order: listing.mu, then Set.mu; neither is held over I/O, and actors never call back into the Set while
// a Set method waits for them.
package seat

import (
	"fmt"

	"github.com/cotal-ai/cotal-host/host/journal"
)

// State is what the host knows of one seat.
type State string

// States. Only Ended frees the name.
const (
	Starting State = "starting" // accepted; the saga runs; nothing of the agent has executed
	Prepared State = "prepared" // custody exists and its handle is durable; nothing has executed
	Running  State = "running"
	Stopping State = "stopping" // an end was asked for and is not yet proved
	Exited   State = "exited"   // the end is proved and recorded; leftovers are being removed
	Unknown  State = "unknown"  // no verdict: the name stays held, nothing is assumed
	Ended    State = "ended"    // nothing of the seat is left; the row stays for ps
	// Restarting: its process ended by itself, and is followed by another one that is not recorded yet.
	Restarting State = "restarting"
)

// Event is a fact that moves a seat.
type Event string

// Events.
const (
	EvPrepared    Event = "prepared"     // the runtime prepared the seat
	EvRunning     Event = "running"      // the runtime says the agent runs
	EvStop        Event = "stop"         // somebody asked for the end
	EvExited      Event = "exited"       // the runtime proved the end
	EvUnknown     Event = "unknown"      // the runtime gave no verdict
	EvStartFailed Event = "start-failed" // the saga failed and everything it made is undone
	EvReaped      Event = "reaped"       // nothing of the seat is left
	EvCrashed     Event = "crashed"      // the process ended by itself, and is to be followed by another
	EvFollowed    Event = "followed"     // the custody id of the next process is recorded; nothing of it exists
	EvUndone      Event = "undone"       // nothing of a process that follows was ever executed
)

// transitions is the whole state machine. An event missing in a row is refused.
var transitions = map[State]map[Event]State{
	Starting: {EvPrepared: Prepared, EvRunning: Running, EvStop: Stopping, EvExited: Exited, EvUnknown: Unknown, EvStartFailed: Ended, EvUndone: Restarting},
	Prepared: {EvPrepared: Prepared, EvRunning: Running, EvStop: Stopping, EvExited: Exited, EvUnknown: Unknown, EvStartFailed: Ended, EvUndone: Restarting},
	Running:  {EvRunning: Running, EvStop: Stopping, EvExited: Exited, EvUnknown: Unknown, EvCrashed: Restarting},
	// The end of the last process is proved: a stop has nothing to kill, and the seat ends with that exit.
	Restarting: {EvFollowed: Starting, EvStop: Stopping, EvExited: Exited, EvUnknown: Restarting},
	// A seat that is being stopped may still be seen prepared or running; that does not undo the stop.
	Stopping: {EvPrepared: Stopping, EvRunning: Stopping, EvStop: Stopping, EvExited: Exited, EvUnknown: Stopping, EvStartFailed: Ended},
	Unknown:  {EvPrepared: Prepared, EvRunning: Running, EvStop: Stopping, EvExited: Exited, EvUnknown: Unknown, EvCrashed: Restarting},
	// The first exit wins: a second one, or a stop that comes late, changes nothing.
	Exited: {EvExited: Exited, EvStop: Exited, EvUnknown: Exited, EvReaped: Ended},
	Ended:  {EvStop: Ended, EvReaped: Ended, EvExited: Ended},
}

// Next returns the state that follows from ev, or an error when ev cannot happen in s.
func Next(s State, ev Event) (State, error) {
	to, ok := transitions[s][ev]
	if !ok {
		return s, fmt.Errorf("seat is %s: event %s cannot happen", s, ev)
	}
	return to, nil
}

// Live reports whether a seat in this state may have a process, and so holds its name and counts
// against the ceiling.
func (s State) Live() bool { return s != Ended }

// Accepts reports whether input may be typed into a seat in this state.
func (s State) Accepts() bool { return s == Running }

// rowState is how a state stands in the journal. Exited and Ended share a word there; Reaped tells
// them apart.
func (s State) rowState() journal.RowState {
	switch s {
	case Starting:
		return journal.StateIntent
	case Ended:
		return journal.StateExited
	default:
		return journal.RowState(s)
	}
}

// stateOf is the state a journal row records.
func stateOf(r journal.SeatRow) State {
	switch {
	case r.State == journal.StateIntent:
		return Starting
	case r.State == journal.StateFailed, r.State == journal.StateExited && r.Reaped:
		return Ended
	default:
		return State(r.State)
	}
}
