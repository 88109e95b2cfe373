package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/cmd/internal/cli"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

const (
	// goalMargin is how much longer than the host's own readiness window its verdict is waited for.
	goalMargin = 15 * time.Second
	// goalPollMin and goalPollMax bound the pause between two questions for the result; events only
	// make the next question come sooner.
	goalPollMin = 100 * time.Millisecond
	goalPollMax = time.Second
	// defaultWindow is the readiness window of a host that does not say one.
	defaultWindow = 60 * time.Second
)

var (
	// errNotSettled: the wait is over and no result was seen. It says nothing about the goal.
	errNotSettled = errors.New("no result was seen in time")
	// errOtherGoal: there is a result under the id, and it belongs to another submission.
	errOtherGoal = errors.New("the result belongs to another submission")
)

// goalAnswer is what goal-result says, with the members that not every manager gives.
type goalAnswer struct {
	GoalID string        `json:"goalId"`
	Phase  string        `json:"phase,omitempty"`
	Result *goalTerminal `json:"result,omitempty"`
}

// goalTerminal is the end of a goal.
type goalTerminal struct {
	wire.GoalResult
	Fingerprint string          `json:"fingerprint,omitempty"`
	Committer   *wire.Committer `json:"committer,omitempty"`
	TS          int64           `json:"ts,omitempty"` // epoch ms
}

// follower watches one goal of this caller. Make it before the goal is submitted: what is published from then
// on is not missed.
type follower struct {
	c       *cli.Client
	id      string
	events  chan wire.GoalProgress
	unwatch func()
	note    func(string) // told when nobody answers, and when somebody does again; nil: nobody is
	silent  string       // why nobody answers; empty: somebody does
}

// follow begins to watch; the server has confirmed it when follow returns.
func follow(ctx context.Context, c *cli.Client, id string) (*follower, error) {
	f := &follower{c: c, id: id, events: make(chan wire.GoalProgress, 64)}
	var err error
	f.unwatch, err = c.WatchGoal(ctx, wire.EndpointManager, "", id, func(p wire.GoalProgress) {
		select {
		case f.events <- p:
		default: // a lost event is harmless: the result is asked for
		}
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// close ends the watch and the connection under it.
func (f *follower) close() {
	f.unwatch()
	f.c.Close()
}

// ask asks for the result once. A result with another fingerprint is errOtherGoal.
func (f *follower) ask(ctx context.Context, fingerprint string) (goalAnswer, error) {
	var a goalAnswer
	if err := f.c.Read(ctx, wire.CmdGoalResult, wire.GoalResultArgs{GoalID: f.id}, &a); err != nil {
		return a, err
	}
	if r := a.Result; r != nil && fingerprint != "" && r.Fingerprint != "" && r.Fingerprint != fingerprint {
		return a, fmt.Errorf("goal %s: %w", f.id, errOtherGoal)
	}
	return a, nil
}

// await waits for the terminal of the goal. Events are passed to phase and make the next question come sooner;
// only the answer to goal-result is believed. It asks from the beginning, so that a goal whose events were lost
// is settled long before the wait is over; a read that comes back later settles nothing. A limit of zero is
// none. unknown, which may be nil, is called whenever the host answered and knows neither a phase nor a result;
// an error of it ends the wait.
//
// Errors: errNotSettled, errOtherGoal, the context's, that of unknown.
func (f *follower) await(ctx context.Context, limit time.Time, fingerprint string, phase func(string), unknown func() error) (goalTerminal, error) {
	if !limit.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, limit, errNotSettled)
		defer cancel()
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for wait := goalPollMin; ; wait = min(2*wait, goalPollMax) {
		select {
		case <-pause.C:
		case p := <-f.events:
			phase(p.Phase)
			if p.Phase != wire.PhaseTerminal {
				wait /= 2 // an event is no reason to ask more seldom
				continue
			}
		case <-ctx.Done():
			return goalTerminal{}, context.Cause(ctx)
		}
		a, err := f.ask(ctx, fingerprint)
		if ctx.Err() == nil {
			f.heard(err, limit)
		}
		switch {
		case ctx.Err() != nil:
			return goalTerminal{}, context.Cause(ctx)
		case errors.Is(err, errOtherGoal):
			return goalTerminal{}, err
		case err != nil: // a host that does not answer may be restarting; it finds the goal again
		case a.Result != nil:
			return *a.Result, nil
		case a.Phase != "":
			phase(a.Phase)
		case unknown != nil:
			if err := unknown(); err != nil {
				return goalTerminal{}, err
			}
		}
		pause.Reset(wait)
	}
}

// noAnswer is why nobody answers while no more is known: the answer may have been lost with its host.
const noAnswer = "the host does not answer"

// heard notes once that nobody answers, again when it turns out why, and once that somebody does again.
func (f *follower) heard(err error, limit time.Time) {
	var refused *wire.Error
	why := ""
	switch {
	case err == nil, errors.As(err, &refused), errors.Is(err, errOtherGoal): // an answer
	case errors.Is(err, mesh.ErrNoResponder):
		why = "no host serves space " + f.c.Endpoint.Space + " now"
	case !f.c.Connected():
		why = "the mesh is gone: nothing is connected to " + f.c.Endpoint.URL
	default:
		why = noAnswer
		if f.silent != "" {
			why = f.silent // a reason that is known says more
		}
	}
	was := f.silent
	f.silent = why
	switch {
	case f.note == nil || was == why || was != "" && was != noAnswer && why != "":
	case why == "":
		f.note("a host answers again")
	case limit.IsZero():
		f.note(why + "; waiting for a host that says what became of it")
	default:
		f.note(fmt.Sprintf("%s; waiting for a host that says what became of it, %s at most", why, cli.Age(time.Until(limit))))
	}
}

// reasonOf is why a goal ended as it did. Some managers put it into the data.
func (t goalTerminal) reasonOf() string {
	if t.Error != nil && t.Error.Message != "" {
		return t.Error.Message
	}
	var d struct {
		Error     json.RawMessage `json:"error"`
		Message   string          `json:"message"`
		Reason    string          `json:"reason"`
		Diagnosis string          `json:"diagnosis"`
		Cancelled string          `json:"cancelledBy"`
	}
	if json.Unmarshal(t.Data, &d) == nil {
		var text string
		var we wire.Error
		switch {
		case json.Unmarshal(d.Error, &text) == nil && text != "":
			return text
		case json.Unmarshal(d.Error, &we) == nil && we.Message != "":
			return we.Message
		case d.Message != "":
			return d.Message
		case d.Reason != "":
			return d.Reason
		case d.Diagnosis != "":
			return d.Diagnosis
		case d.Cancelled != "":
			return "its seat was ended before it was ready (" + d.Cancelled + ")"
		}
	}
	return "no reason was given"
}

// windowOf is how long the verdict about an accepted goal is waited for: what its host was given, and a margin;
// never less than the caller's own patience for the request.
func windowOf(acc wire.Acceptance, own time.Duration) time.Duration {
	window := time.Duration(acc.ReadinessDeadlineMs) * time.Millisecond
	if window <= 0 {
		window = defaultWindow
	}
	return max(window+goalMargin, own)
}
