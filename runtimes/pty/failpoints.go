package pty

import "github.com/cotal-ai/cotal-host/sdk/failpoint"

// The places where a test may stop, fail or kill the runtime. The order here is the order of the steps.
var (
	fpSpawnDir      = failpoint.New("pty.spawn.dir")      // the directory is ours, nothing is in it yet
	fpSpawnToken    = failpoint.New("pty.spawn.token")    // the token is written
	fpSpawnStarted  = failpoint.New("pty.spawn.started")  // custody runs and knows nothing yet
	fpSpawnLaunched = failpoint.New("pty.spawn.launched") // custody has its launch record
	fpSpawnPrepared = failpoint.New("pty.spawn.prepared") // custody said prepared, nobody was told
	fpSpawnUndo     = failpoint.New("pty.spawn.undo")     // a step failed, nothing is undone yet

	fpAdoptBegin     = failpoint.New("pty.adopt.begin")     // nothing looked at yet
	fpAdoptWelcomed  = failpoint.New("pty.adopt.welcomed")  // the seat answered
	fpAdoptCommit    = failpoint.New("pty.adopt.commit")    // about to start the agent
	fpAdoptCommitted = failpoint.New("pty.adopt.committed") // the agent runs, nobody was told
	fpAdoptLost      = failpoint.New("pty.adopt.lost")      // custody is dead, survivors may live
	fpAdoptSwept     = failpoint.New("pty.adopt.swept")     // survivors are dead, no exit record yet
	fpAdoptRecorded  = failpoint.New("pty.adopt.recorded")  // the exit record of a lost seat is durable

	fpReapBegin   = failpoint.New("pty.reap.begin")        // nothing looked at yet
	fpReapTerm    = failpoint.New("pty.reap.term")         // the polite signal was sent
	fpReapKill    = failpoint.New("pty.reap.kill")         // about to send SIGKILL to the tree
	fpReapExited  = failpoint.New("pty.reap.exited")       // the exit record was read
	fpReapAcked   = failpoint.New("pty.reap.acked")        // custody was told to go
	fpReapGone    = failpoint.New("pty.reap.custody-gone") // custody is dead
	fpReapScanned = failpoint.New("pty.reap.scanned")      // nothing of the seat lives
	fpReapSocket  = failpoint.New("pty.reap.socket")       // the socket is removed
	fpReapRenamed = failpoint.New("pty.reap.renamed")      // the directory has its hidden name
	fpReapRemoved = failpoint.New("pty.reap.removed")      // nothing is left on disk
)
