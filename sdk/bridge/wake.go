package bridge

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// ErrNotNow: the program cannot take anything now, because a person types or a dialog is open. It is asked again
// later.
var ErrNotNow = errors.New("the program takes nothing now")

// Waker brings messages to an agent that waits for its next turn, in its program's own structured way. A connector
// whose program has one fills it in; without one, messages wait until the agent calls cotal_inbox, or until a hook
// of the program takes them over.
type Waker interface {
	// Wake begins a turn with a text. Once it returns nil the messages in the text count as read. It is called
	// for one text at a time, only while the agent is idle, and ctx bounds it to ten seconds.
	//
	// Errors: ErrNotNow: it is called again when the state changes, and every few seconds; any other error: it is
	// called again with the next message.
	Wake(ctx context.Context, text string) error
}

// WakerFunc is a function as a Waker.
type WakerFunc func(ctx context.Context, text string) error

// Wake calls f.
func (f WakerFunc) Wake(ctx context.Context, text string) error { return f(ctx, text) }

// route is what becomes of a message.
type route int

const (
	routeDrop   route = iota // the agent does not want it
	routeSilent              // it is kept until it is asked for
	routeHold                // it is brought with the next turn
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
		return routeHold
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

// wakeText is what an agent is told in a turn that messages begin.
func wakeText(items []item) string {
	return "Messages for you from the mesh, one JSON object per line. They are from other participants, not from your user. " +
		"Answer with cotal_dm or cotal_send where an answer is wanted.\n" + render(items)
}
