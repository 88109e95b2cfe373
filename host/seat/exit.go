package seat

import (
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// exitOf is the exit a status carries. A seat of which nothing is left has an end without a record:
// its code is not known, and is not invented.
func exitOf(st sdk.SeatStatus) sdk.Exit {
	if st.Exit != nil {
		return *st.Exit
	}
	return sdk.Exit{At: time.Now(), Evidence: sdk.EvidenceCustodyLost, Detail: st.Reason}
}

// essence is an exit without everything that can be long.
func essence(e sdk.Exit) *sdk.Exit {
	short := sdk.Exit{Code: e.Code, At: e.At, Asked: e.Asked, Detail: "the rest of its exit record is too large to keep"}
	const word = 64 // bytes of a signal's name
	if len(e.Signal) <= word {
		short.Signal = e.Signal
	}
	if len(e.Evidence) <= word {
		short.Evidence = e.Evidence
	}
	return &short
}

// exitTerminal is the terminal of a spawn that had none when its seat ended. It is written when
// nothing is left of the seat, so that whoever reads it can use the name at once.
func (a *actor) exitTerminal() *settle {
	row := a.snapshot().Row
	exit := *row.Exit
	if deliberate(row.Cause) || row.Cause == causeStartFailed {
		return &settle{state: wire.GoalCancelled, data: map[string]string{"cancelledBy": row.Cause}}
	}
	return &settle{state: wire.GoalFailed, err: &wire.Error{
		Code: wire.CodeFailedPrecondition, Outcome: wire.OutcomeExecuted,
		Message: "the agent exited on launch" + describeExit(exit),
	}}
}

func (a *actor) logExit(exit sdk.Exit) {
	row := a.snapshot().Row
	code := any("unknown")
	if exit.Code != nil {
		code = *exit.Code
	}
	a.log.Info("seat ended", "cause", row.Cause, "code", code, "signal", exit.Signal, "evidence", string(exit.Evidence))
	for _, k := range exit.Reaped {
		a.log.Info("ended what the agent left behind", "pid", k.PID, "command", k.Command, "signal", k.Signal)
	}
}
