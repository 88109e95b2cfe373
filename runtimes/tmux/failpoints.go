package tmux

import "github.com/cotal-ai/cotal-host/sdk/failpoint"

// The places where a test may stop, fail or kill the runtime. The order here is the order of the steps.
var (
	fpSpawnDir      = failpoint.New("tmux.spawn.dir")      // the directory is ours, nothing is in it yet
	fpSpawnToken    = failpoint.New("tmux.spawn.token")    // the token is written, nothing was started
	fpSpawnServer   = failpoint.New("tmux.spawn.server")   // tmux and custody run, nothing is written down
	fpSpawnPlaced   = failpoint.New("tmux.spawn.placed")   // their ids are written, custody knows nothing yet
	fpSpawnLaunched = failpoint.New("tmux.spawn.launched") // custody has its launch record
	fpSpawnPrepared = failpoint.New("tmux.spawn.prepared") // custody said prepared, nobody was told
	fpSpawnUndo     = failpoint.New("tmux.spawn.undo")     // a step failed, nothing is undone yet

	fpAdoptBegin     = failpoint.New("tmux.adopt.begin")     // nothing looked at yet
	fpAdoptCommit    = failpoint.New("tmux.adopt.commit")    // about to start the agent
	fpAdoptCommitted = failpoint.New("tmux.adopt.committed") // the agent runs, nobody was told
	fpAdoptLost      = failpoint.New("tmux.adopt.lost")      // custody is dead, survivors may live
	fpAdoptSwept     = failpoint.New("tmux.adopt.swept")     // survivors are dead, no exit record yet
	fpAdoptRecorded  = failpoint.New("tmux.adopt.recorded")  // the exit record of a lost seat is durable

	fpWriteBegin = failpoint.New("tmux.write.begin") // about to type

	fpReapBegin   = failpoint.New("tmux.reap.begin")        // nothing looked at yet
	fpReapTerm    = failpoint.New("tmux.reap.term")         // the polite signal was sent
	fpReapKill    = failpoint.New("tmux.reap.kill")         // about to send SIGKILL to the tree
	fpReapExited  = failpoint.New("tmux.reap.exited")       // the exit record was read
	fpReapGone    = failpoint.New("tmux.reap.custody-gone") // custody is dead
	fpReapServer  = failpoint.New("tmux.reap.server-gone")  // the tmux server is dead
	fpReapScanned = failpoint.New("tmux.reap.scanned")      // nothing of the seat lives
	fpReapRenamed = failpoint.New("tmux.reap.renamed")      // the directory has its hidden name
	fpReapRemoved = failpoint.New("tmux.reap.removed")      // nothing is left on disk
)
