package custody

import "github.com/cotal-ai/cotal-host/sdk/failpoint"

// Places where a fault can be injected, in the order a seat passes them.
var (
	fpBeforeBind   = failpoint.New("seat.prepare.before-bind")
	fpBeforeRecord = failpoint.New("seat.prepare.before-record")
	fpAfterRecord  = failpoint.New("seat.prepare.after-record")
	fpBeforePrint  = failpoint.New("seat.prepare.before-print")
	fpBeforeExec   = failpoint.New("seat.commit.before-exec")
	fpAfterExec    = failpoint.New("seat.commit.after-exec")
	fpBeforeFsync  = failpoint.New("seat.exit.before-fsync")
	fpAfterFsync   = failpoint.New("seat.exit.after-fsync")
	fpBeforeAck    = failpoint.New("seat.exit.before-ack")
)
