package supervise

import "time"

// Every wait of the plugin host stands here, with its reason. A caller's context is always a second
// bound.
const (
	// StartTimeout covers exec, handshake, TLS, Describe and Configure. A start takes 50 ms; 10 s is
	// a cold disk on a loaded machine. go-plugin's own default is a minute.
	StartTimeout = 10 * time.Second

	// DescribeTimeout: the answer is a constant of the plugin.
	DescribeTimeout = 2 * time.Second

	// ConfigureTimeout: the plugin may look at files.
	ConfigureTimeout = 5 * time.Second

	// stopPolite is how long a plugin may take after its lifeline was closed. The sdk ends calls in
	// flight within 1.5 s and the process within 1.9 s.
	stopPolite = 2 * time.Second

	// stopTerm is for plugins that are not built on the sdk and know only signals.
	stopTerm = time.Second

	// stopKill bounds the wait for the kernel after SIGKILL. A process in uninterruptible sleep
	// takes longer, and is given up with a log line.
	stopKill = 2 * time.Second

	// StopTimeout is what Stop needs at most when its context allows it.
	StopTimeout = stopPolite + stopTerm + stopKill

	// pipeGrace is how long output is still read after the process ended: what it wrote is in the
	// pipe already, only a descendant can hold the pipe open.
	pipeGrace = 200 * time.Millisecond

	// leftoverKill bounds the wait for a process that a connector left behind and that was killed.
	leftoverKill = 500 * time.Millisecond

	// swapDrain is how long calls in flight may take on a process that is being replaced: as long as the
	// longest call that must not be cut, a Spawn. A call that may be repeated is, after that time.
	swapDrain = SpawnTimeout

	// A ready plugin is asked to describe itself every healthEvery; each answer may take
	// healthTimeout, and healthMisses in a row are a process that is stuck. Describe takes 0.3 ms, so
	// two seconds are a machine in trouble, and three times that is patience with it.
	healthEvery   = 10 * time.Second
	healthTimeout = 2 * time.Second
	healthMisses  = 3

	// suspectGrace is how long a process may outlive its connection before it is killed.
	suspectGrace = time.Second

	// backoffMin and backoffMax bound the pause before a restart; with full jitter, so that several
	// plugins that died of one cause do not start in step.
	backoffMin = 100 * time.Millisecond
	backoffMax = 30 * time.Second

	// failedStartMin is the least pause after a failed start that was not the first in a row. The first
	// is tried again quickly, since it may be a binary that is just being replaced; a file that is
	// missing fails within a millisecond, and without this floor five lives were used up in a second.
	failedStartMin = time.Second

	// backoffReset: a plugin that was ready for so long did not die of what the last one died of.
	backoffReset = time.Minute

	// quarantineDeaths within quarantineWindow mean that restarting does not help. From then on the
	// plugin is only tried, and one failure leads back: every quarantineRetry by itself, so that seats
	// are not without their runtime longer than the cause lasts; a start costs 50 ms, so this costs
	// nothing. And at once when somebody needs it and the last try began quarantineDemand ago or
	// longer: a person who repaired the cause should not wait, and a client that asks again and again
	// must not turn it into a loop of starts.
	quarantineDeaths = 5
	quarantineWindow = 5 * time.Minute
	quarantineRetry  = 30 * time.Second
	quarantineDemand = 10 * time.Second
)

// Deadlines of calls, for contexts that have none. Each is far above what the call needs and below
// what a person waits for.
const (
	BuildLaunchTimeout = 5 * time.Second  // pure, reads a few files
	ListModelsTimeout  = 20 * time.Second // may run the agent program, which may ask the network
	SpawnTimeout       = 15 * time.Second // fork, pty, fsync on a busy disk
	AdoptTimeout       = 5 * time.Second  // dial one socket, or prove a process dead
	AttachTimeout      = 3 * time.Second  // reads one record
	ReapTimeout        = 15 * time.Second // what a stop ladder takes beyond its grace
	// ReapOwnGraceTimeout is for a stop with the grace the seat was spawned with, which only the
	// runtime knows.
	ReapOwnGraceTimeout = 2 * time.Minute
	ListTimeout         = 10 * time.Second // reads one directory per seat
	WriteTimeout        = 10 * time.Second // a program that does not read keeps its terminal full
	SnapshotTimeout     = time.Second      // somebody looks at an empty screen; a replay is the other way
)
