package seat

import (
	"context"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// A seat that types into itself, so that its idle agent looks at its messages, comes behind everybody who sits at its
// terminal: such a line can wait, and what is half typed there would go with it.
const (
	nudgeQuiet = 30 * time.Second // since the last key of an attached terminal
	nudgeDraft = 5 * time.Minute  // the same, where the agent has done nothing since: the key may belong to a draft
)

// Nudge types what a seat asks for itself: Input, but never while somebody at an attached terminal types, or may have
// begun to, or where it cannot be told whether.
//
// Errors: those of Input; unavailable, not-executed, while a person comes first: ask again later.
func (s *Set) Nudge(ctx context.Context, target wire.Target, args wire.InputArgs) (wire.InputReply, error) {
	return s.typeInto(ctx, target, args, true)
}

// sinceActive is how long ago the agent last told of its work, as the mesh knows; never is for ever.
func (a *actor) sinceActive() time.Duration {
	row := a.snapshot().Row
	view := a.set.view()
	p, ok := view.Row(row.Principal)
	if !ok || p.LifecycleUID != row.UID || p.ActiveAt == 0 {
		return never
	}
	return time.Since(time.UnixMilli(p.ActiveAt))
}

const never = 1<<63 - 1

// yields returns why a nudge has to wait for whoever is at the terminal, or nil.
func yields(now terminalNow, sinceActive time.Duration) error {
	switch {
	case now.attached == 0:
		return nil
	case !now.typedKnown:
		return fmt.Errorf("a terminal is attached, and this runtime cannot tell whether somebody types there; try again later")
	case now.typed == 0:
		return nil
	case now.typed < nudgeQuiet, now.typed < sinceActive && now.typed < nudgeDraft:
		return fmt.Errorf("somebody is at its terminal (the last key %s ago); try again later", now.typed.Round(time.Second))
	}
	return nil
}
