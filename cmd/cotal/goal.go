package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// States of a goal that has no terminal, as far as a reader can tell.
const (
	goalPending = "pending" // its host knows it, and it has not ended
	goalUnknown = "unknown" // nobody that was asked knows it: that proves nothing
)

// goalLost is how long --follow waits for a goal that nobody knows.
const goalLost = 60 * time.Second

// goalReport is what is known of a goal, and its JSON form.
type goalReport struct {
	Event       string          `json:"event"` // phase, goal; goal comes last
	GoalID      string          `json:"goalId"`
	State       string          `json:"state,omitempty"` // with goal: a terminal, pending, unknown
	Phase       string          `json:"phase,omitempty"`
	Data        json.RawMessage `json:"data,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Error       *wire.Error     `json:"error,omitempty"`
	Fingerprint string          `json:"fingerprint,omitempty"`
	Committer   *wire.Committer `json:"committer,omitempty"`
	TS          int64           `json:"ts,omitempty"`
}

func goalCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "goal " + goalArg,
		Short: "Say what became of a goal, such as a spawn",
		Long: `Say what became of a goal: of a spawn, or of any other action that a host accepted. With --follow it waits
for the end. A goal is told only to who submitted it: this user, in this space, on this
machine (the identity is kept in ` + "`~/.local/state/cotal`" + `).

Exit codes: 0 it succeeded, or goes on; 1 it failed, was cancelled or expired; 75 it is uncertain, or nobody
knows it. That nobody knows it proves nothing: it may run, so look with cotal ps before you try again.`,
		Example: "  cotal goal 3kTMd0c2rX9sVq1bYw8ZfA\n  cotal goal 3kTMd0c2rX9sVq1bYw8ZfA --follow --json",
		Args:    cli.Arg(goalArg, false, goalArg),
	}
	wait := cmd.Flags().BoolP("follow", "f", false, "wait until it ends, and show how far it is")
	asJSON := jsonFlag(cmd, "print JSON lines, the last one with what is known")
	cmd.ValidArgsFunction = a.goalIDs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, id := cmd.Context(), args[0]
		if !wire.ValidID(id) {
			return cli.Fail(cli.Usage, "%q is no goal id; cotal spawn says it, and cotal inspect <seat> shows that of a seat", id)
		}
		c, err := a.target.Connect(ctx)
		if err != nil {
			return err
		}
		f, err := follow(ctx, c, id)
		if err != nil {
			c.Close()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return cli.Fail(cli.Unreachable, "%w", err)
		}
		defer f.close()
		r := goalReport{Event: "goal", GoalID: id, State: goalUnknown}
		if *wait {
			err = r.wait(cmd, a, f, *asJSON)
		} else {
			var ans goalAnswer
			if ans, err = f.ask(ctx, ""); err == nil {
				r.take(ans)
			}
		}
		if err != nil {
			return err
		}
		if *asJSON {
			if err := cli.PrintJSON(a.out, r); err != nil {
				return err
			}
		} else {
			r.print(a)
		}
		return r.err()
	}
	return cmd
}

const goalArg = "<goal id>"

// wait follows the goal to its end.
func (r *goalReport) wait(cmd *cobra.Command, a *app, f *follower, asJSON bool) error {
	begun, said := time.Now(), false
	var limit time.Time
	if a.target.Timeout > 0 {
		limit = begun.Add(a.target.Timeout)
	}
	f.note = func(text string) { fmt.Fprintf(a.errw, "note: %s\n", cli.OneLine(text)) }
	end, err := f.await(cmd.Context(), limit, "", func(phase string) {
		if phase == wire.PhaseTerminal || phase == r.Phase {
			return
		}
		r.Phase, r.State = phase, goalPending
		if asJSON {
			_ = cli.PrintJSON(a.out, goalReport{Event: "phase", GoalID: r.GoalID, Phase: phase})
			return
		}
		fmt.Fprintln(a.errw, phaseWord(phase))
	}, func() error {
		switch {
		case r.Phase != "": // an event told of it: it is there
		case time.Since(begun) > goalLost:
			return errNotSettled
		case !said:
			said = true
			fmt.Fprintf(a.errw, "note: the host knows nothing of goal %s yet that it would tell you; waiting\n", r.GoalID)
		}
		return nil
	})
	switch {
	case err == nil:
		r.take(goalAnswer{Result: &end})
	case cmd.Context().Err() != nil && r.Phase == "":
		return cli.Fail(cli.Interrupted, "interrupted; nothing is known of goal %s: it may go on, or have ended, or never have been accepted. Look: cotal goal %s", r.GoalID, r.GoalID)
	case cmd.Context().Err() != nil:
		return cli.Fail(cli.Interrupted, "interrupted; the goal goes on. Follow it: cotal goal %s --follow", r.GoalID)
	case !errors.Is(err, errNotSettled):
		return err
	}
	return nil
}

func (r *goalReport) take(ans goalAnswer) {
	if ans.Phase != "" {
		r.Phase, r.State = ans.Phase, goalPending
	}
	end := ans.Result
	if end == nil {
		return
	}
	r.State, r.Phase = end.State, ""
	r.Data, r.Error, r.Fingerprint, r.Committer, r.TS = end.Data, end.Error, end.Fingerprint, end.Committer, end.TS
	if end.State != wire.GoalSucceeded {
		r.Reason = end.reasonOf()
	}
}

func (r *goalReport) print(a *app) {
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(a.out, "%-12s %s\n", name, cli.OneLine(text))
		}
	}
	line("goal", r.GoalID)
	line("state", r.State)
	if r.Phase != "" {
		line("phase", phaseWord(r.Phase))
	}
	line("reason", r.Reason)
	var s struct {
		wire.SpawnResult
		UID string `json:"uid"` // in an acceptance
	}
	if json.Unmarshal(r.Data, &s) == nil {
		line("name", s.Name)
		line("role", s.Role)
		line("agent", s.Agent)
		line("runtime", s.Mode)
		line("principal", s.ID)
		line("uid", orElse(s.LifecycleUID, s.UID))
		line("custody id", s.SeatID)
		if s.PID > 0 {
			line("pid", fmt.Sprint(s.PID))
		}
	}
	if r.TS > 0 {
		line("ended", time.UnixMilli(r.TS).UTC().Format(time.RFC3339))
	}
	if r.Committer != nil {
		line("recorded by", fmt.Sprintf("instance %s, epoch %d", r.Committer.InstanceID, r.Committer.Epoch))
	}
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

// err gives the exit code.
func (r *goalReport) err() error {
	switch r.State {
	case wire.GoalSucceeded, goalPending:
		return nil
	case wire.GoalUncertain:
		return cli.Fail(cli.Uncertain, "goal %s is uncertain: look at the seat with cotal ps before you try again", r.GoalID)
	case goalUnknown:
		return cli.Fail(cli.Uncertain, "the host knows nothing of goal %s that it would tell you: another user or machine submitted it, or it was never accepted, or it is long over; look with cotal ps before you try again", r.GoalID)
	}
	return cli.Silent(cli.Refused) // the state and the reason are on standard output
}
