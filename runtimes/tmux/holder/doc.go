// Package holder is the custody process of a tmux seat: the first process of its pane and the parent of
// its agent. It speaks the seat protocol (sdk/seat) as far as a seat without a terminal of its own can:
// it starts the agent once it is committed, signals it, proves the end of its tree and records that end.
// Output, input and size are tmux's, and asking for them is refused by name.
//
// It is told how to start over a socket of the runtime plugin and needs neither plugin nor host after
// that. It ends the way its agent ended, so that the dead pane says the same as its record. It is linked
// into cotal-tmux-seat alone and, like cotal-seat, uses a small part of the standard library.
package holder

import "github.com/cotal-ai/cotal-host/sdk/failpoint"

// Places where a fault can be injected, in the order a seat passes them.
var (
	fpBeforeBind   = failpoint.New("tmuxseat.prepare.before-bind")
	fpBeforeRecord = failpoint.New("tmuxseat.prepare.before-record")
	fpAfterRecord  = failpoint.New("tmuxseat.prepare.after-record")
	fpBeforeExec   = failpoint.New("tmuxseat.commit.before-exec")
	fpAfterExec    = failpoint.New("tmuxseat.commit.after-exec")
	fpBeforeFsync  = failpoint.New("tmuxseat.exit.before-fsync")
	fpAfterFsync   = failpoint.New("tmuxseat.exit.after-fsync")
)
