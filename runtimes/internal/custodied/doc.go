// Package custodied judges and ends seats that a custody process holds: it reads what is left of them in
// their directory, at their socket and in the process table, and says what that proves. It is the same for
// every runtime on this machine, whichever way the terminal is made; what a runtime knows of the terminal
// beside custody it tells through Terminal.
//
// It holds nothing. Every answer is made of facts read at the time of the call.
package custodied

import "time"

// Every wait of this package, and why it is that long.
const (
	// AdoptBudget is what one seat may cost a booting host. It is a second less than the host waits: at
	// five seconds both were over at once, and "deadline exceeded" took the place of the reason.
	AdoptBudget = 4 * time.Second
	// dialTimeout bounds connect and WELCOME. A healthy seat answers in under a millisecond; a seat
	// on a machine that is out of memory must not use up the whole budget.
	dialTimeout = 2 * time.Second
	// startingWait is how long a custody process may exist without a record: the host died in the middle
	// of Spawn a moment ago.
	startingWait = 3 * time.Second
	// killWait bounds the time from SIGKILL of the whole tree to the exit record.
	killWait = 4 * time.Second
	// CustodyEnd bounds the end of the custody process once nothing keeps it.
	CustodyEnd = 3 * time.Second
	// SurvivorWait bounds the death of processes after SIGKILL; a process in an uninterruptible
	// system call may need longer, and then nothing is claimed.
	SurvivorWait = 3 * time.Second
	// StopReserve is kept of a caller's deadline for the rungs after the grace.
	StopReserve = 3 * time.Second
	// recordWait is how long custody may take to write an exit once its tree is gone. It tries again
	// every second on a disk that was full.
	recordWait = 2 * time.Second
	// glanceWait bounds what Adopt asks the terminal for beside the truth it has already.
	glanceWait = time.Second
	// testifyWait is how long a stop waits for the terminal to complete the exit record.
	testifyWait = 2 * time.Second
	// drainLook is how often a watch looks at a seat whose agent has ended and whose exit is not told.
	drainLook = time.Second
	// UndoTimeout bounds the clean-up of a failed Spawn, whatever became of its context.
	UndoTimeout = 5 * time.Second
	// PollEvery is the distance of two looks at a process or a file: short against every bound here.
	PollEvery = 5 * time.Millisecond
	// watchRetry is the pause before a broken watch looks again, doubled up to watchRetryMax.
	watchRetry    = 50 * time.Millisecond
	watchRetryMax = 2 * time.Second
)

// Limits that are checked before anything is made.
const (
	// maxSocketPath: sun_path holds 108 bytes on Linux and 104 on macOS.
	maxSocketPath = 100
	// maxGrace is the longest grace a request may ask for.
	maxGrace = time.Hour
	// maxEnvAndArgs is what Linux accepts for argv and environment together on a default stack.
	maxEnvAndArgs = 2 << 20
)
