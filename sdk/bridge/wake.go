package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrNotNow: the program cannot take anything now, because a person types or a dialog is open. It is asked again
// later.
var ErrNotNow = errors.New("the program takes nothing now")

// Notice is what an agent is to be told.
type Notice struct {
	Messages []mesh.Message `json:"-"`
	Count    int            `json:"count"`
	// Text has the messages in full: a line that says what they are, and one JSON object a line.
	Text string `json:"text"`
	// Nudge is one line that says that there are messages, with nothing in it that others wrote.
	Nudge string `json:"nudge"`
}

// Waker brings messages to an agent that waits for its next turn, in its program's own structured way. A connector
// whose program has one fills it in; without one, messages wait until the agent calls cotal_inbox, or until a hook
// or Next takes them over.
type Waker interface {
	// Wake begins a turn. read says that the agent was given the messages in full, which then count as read;
	// otherwise it was told that there are some, which is done once for each. It is called for one notice at a
	// time, only while the agent is idle, and ctx bounds it to ten seconds.
	//
	// Errors: ErrNotNow: it is called again when the state changes, and every few seconds; any other error: it is
	// called again with the next message.
	Wake(ctx context.Context, n Notice) (read bool, err error)
}

// WakerFunc is a function as a Waker.
type WakerFunc func(ctx context.Context, n Notice) (read bool, err error)

// Wake calls f.
func (f WakerFunc) Wake(ctx context.Context, n Notice) (bool, error) { return f(ctx, n) }

// hostWaker types a nudge into the agent's terminal through its host, which never does so while a person types there.
// Only the nudge: what others wrote has no place in a terminal.
type hostWaker struct{ b *Bridge }

func (w hostWaker) Wake(ctx context.Context, n Notice) (bool, error) {
	var reply wire.InputReply
	err := w.b.manager(ctx, mesh.Call{Command: wire.CmdNudge, Authz: wire.AuthzSelf, Args: wire.NudgeArgs{Text: n.Nudge}, Deadline: wakeTimeout}, &reply)
	return false, nudgeError(err)
}

// nudgeError is what the host's answer to a nudge means: what was certainly not typed, for a reason that passes, is
// typed later; what may have been typed counts as typed, since a program that took no turn of it is told again.
func nudgeError(err error) error {
	var refused *wire.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNotConnected), errors.Is(err, mesh.ErrNoResponder), errors.Is(err, mesh.ErrUnreachable):
		return fmt.Errorf("%w: %w", ErrNotNow, err)
	case mesh.OutcomeOf(err) == wire.OutcomeUnknown:
		return nil
	case errors.As(err, &refused) && slices.Contains([]string{wire.CodeUnavailable, wire.CodeResourceExhausted}, refused.Code):
		return fmt.Errorf("%w: %w", ErrNotNow, err)
	}
	return err
}

// route is what becomes of a message.
type route int

const (
	routeDrop   route = iota // the agent does not want it
	routeSilent              // it is kept until it is asked for
	routeTurn                // it is brought with the next turn
	routeHold                // it is brought with the next turn, or within this one
	routeWake                // it may begin a turn
)

// arrival is what decides about a message.
type arrival struct {
	kind       wire.MessageKind
	mentioned  bool
	historical bool
	attention  string // wire.Attention*; "" is open
	mode       string // of its channel; "" is normal
}

// routeOf says what becomes of a message.
func routeOf(a arrival) route {
	if a.kind != wire.MessageChat {
		return routeWake // it was sent to this agent, whatever it does
	}
	switch {
	case a.mode == wire.ChannelMuted:
		return routeDrop
	case a.historical:
		return routeSilent
	case a.mentioned:
		return routeWake
	case a.mode == wire.ChannelQuiet, a.attention == wire.AttentionFocus:
		return routeSilent
	case a.attention == wire.AttentionDND:
		return routeTurn
	}
	return routeHold
}

// mentioned reports whether a message calls somebody of that name out.
func mentioned(m mesh.Message, name string) bool {
	return slices.Contains(m.Mentions, strings.ToLower(name))
}

// mayWake says whether a turn may begin now.
func mayWake(s State) bool {
	return s.Status == wire.StatusIdle && !s.Turn && !s.Gone && (s.Condition == nil || s.Condition.Code != "approval" && s.Condition.Code != "input")
}

// noticeOf is what an agent is told of messages.
func noticeOf(items []item) Notice {
	n := Notice{Count: len(items), Text: wakeText(items)}
	for _, it := range items {
		n.Messages = append(n.Messages, it.m)
	}
	if n.Nudge = "There is a message for you on the mesh. Read it with cotal_inbox."; n.Count > 1 {
		n.Nudge = fmt.Sprintf("There are %d messages for you on the mesh. Read them with cotal_inbox.", n.Count)
	}
	return n
}

func wakeText(items []item) string {
	return "Messages for you from the mesh, one JSON object per line. They are from other participants, not from your user. " +
		"Answer with cotal_dm or cotal_send where an answer is wanted.\n" + render(items)
}

// nudged counts that the agent was told of messages.
func nudged(items []item) []item {
	for i := range items {
		items[i].nudges++
	}
	return items
}

// mayBring says whether an idle agent is to be told of a message: once, and again where its program did not take
// the last time for a turn.
func mayBring(it item, unanswered bool) bool {
	return it.urgent && (it.nudges == 0 || unanswered && it.nudges < maxNudges)
}
