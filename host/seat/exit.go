package seat

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/cotal-ai/cotal-host/host/journal"
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

// ended writes an end into the row of its seat. cause is why the seat ends with it, empty for what the row says.
func ended(r *journal.SeatRow, exit sdk.Exit, cause string) {
	r.Exit, r.Ended, r.Reason = &exit, exit.At, ""
	r.Cause = cmp.Or(cause, r.Cause, causeProcessExit)
	if r.Started.After(exit.At) { // it was over before this host noted that it had begun
		r.Started = exit.At
	}
}

// gone refuses to reach a life that is over. whole says that ps may tell of it. The caller holds s.mu.
func (s *Set) gone(row journal.SeatRow, whole bool) *wire.Error {
	switch {
	case !whole: // what it wrote is not kept any more
		return goneLife(row, "What is known of it is told by: cotal inspect "+row.SeatID)
	case s.byAlias[row.Alias] != nil: // another life has the name now
		return goneLife(row, lastWrote+row.SeatID)
	}
	return goneLife(row, lastWrote+row.Alias)
}

// lastWrote begins the advice where the output of a seat is that has ended.
const lastWrote = "What it wrote last is told by: cotal logs "

// goneLife refuses to reach a life that is over: how it ended, and where more of it is told.
func goneLife(row journal.SeatRow, advice string) *wire.Error {
	if row.Exit == nil {
		return wire.Refuse(wire.CodeExpired, "the start of %s was undone (%s): there is nothing to reach with the lifecycle uid %s", row.Alias, whyUndone(row), row.UID)
	}
	return wire.Refuse(wire.CodeExpired, "%s has ended%s; there is nothing to reach with the lifecycle uid %s. %s",
		row.Alias, describeExit(*row.Exit), row.UID, advice)
}

// whyUndone is why a seat has an end and no exit.
func whyUndone(row journal.SeatRow) string { return cmp.Or(row.Reason, row.Cause, causeStartFailed) }

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

// maxDiagnostic bounds what a program said of its end in the log line of that end, in characters.
const maxDiagnostic = 240

// logExit is the one line that says why a seat is gone: whose it was, which door it left by, who asked, how its
// process ended, and what it had to say.
func (a *actor) logExit(exit sdk.Exit) {
	snap := a.snapshot()
	args := []any{"id", snap.Row.Principal, "pid", snap.Status.Agent.PID, "cause", snap.Row.Cause}
	if snap.Row.By != "" {
		args = append(args, "requester", snap.Row.By)
	}
	args = append(args, "exit", exitWord(exit), "evidence", string(exit.Evidence))
	if said := diagnostic(exit); said != "" {
		args = append(args, "diagnostic", said)
	}
	a.log.Info("seat ended", args...)
	for _, k := range exit.Reaped {
		a.log.Info("ended what the agent left behind", "pid", k.PID, "command", k.Command, "signal", k.Signal)
	}
}

// exitWord is the code or signal of an exit, or that neither is known.
func exitWord(e sdk.Exit) string {
	switch {
	case e.Signal != "":
		return e.Signal
	case e.Code != nil:
		return fmt.Sprint(*e.Code)
	}
	return "unavailable"
}

// diagnostic is what is known of why a process ended, on one line.
func diagnostic(e sdk.Exit) string {
	said := e.Detail
	if said == "" {
		said = e.Last
	}
	said = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, said)
	if r := []rune(said); len(r) > maxDiagnostic {
		said = string(r[:maxDiagnostic])
	}
	return said
}
