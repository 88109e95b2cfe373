// Package pty is the runtime that gives every seat a pseudo terminal of its own on this machine.
//
// It holds nothing. The terminal, the agent and its descendants belong to one cotal-seat process a
// seat (custody), which leads its own session and outlives the plugin and the host. This package
// starts custody processes, finds them again, judges what it finds, and removes a seat once its end
// is proven. Every fact it answers with is read from the seat's socket, its directory or the process
// table at the time of the call, so killing the plugin at any instruction loses nothing.
//
// What a seat leaves on disk, below the seat root, is described in docs/writing-a-runtime.md.
//
// Locks: one per seat id within this process (Runtime.lock) and, below it, an advisory lock on the
// seat's directory against another plugin process. Spawn and Reap take both; Adopt, Attach, Watch and
// List take none, so that a stop waiting out its grace never blocks a question.
package pty

import (
	"time"

	"github.com/cotal-ai/cotal-host/runtimes/internal/mirror"
	"github.com/cotal-ai/cotal-host/sdk"
)

// Name and Version of the plugin; they must equal its entry in plugins.toml.
const (
	Name    = "pty"
	Version = "0.1.0"
)

// handleVersion is Handle.Version. Raise it when State changes in a way an older runtime misreads.
const handleVersion = 1

// Every wait of this package, and why it is that long.
const (
	// prepareTimeout bounds the start of one custody process. It takes 3-5 ms; twenty in parallel on
	// two busy cores took 110 ms; a machine that swaps may need seconds. Less than the 15 s of the
	// Spawn call, so that what was made can be undone within it.
	prepareTimeout = 10 * time.Second
	// adoptBudget is what one seat may cost a booting host. It is a second less than the host waits: at
	// five seconds both were over at once, and "deadline exceeded" took the place of the reason.
	adoptBudget = 4 * time.Second
	// dialTimeout bounds connect and WELCOME. A healthy seat answers in under a millisecond; a seat
	// on a machine that is out of memory must not use up the whole budget.
	dialTimeout = 2 * time.Second
	// startingWait is how long Adopt waits for a custody process that exists but has not written its
	// record: the host died in the middle of Spawn a moment ago.
	startingWait = 3 * time.Second
	// attachBudget is below the 3 s the host allows for Attach.
	attachBudget = 2500 * time.Millisecond
	// killWait bounds the time from SIGKILL of the whole tree to the exit record.
	killWait = 4 * time.Second
	// custodyEnd bounds the end of the custody process once its exit is acknowledged.
	custodyEnd = 3 * time.Second
	// survivorWait bounds the death of processes after SIGKILL; a process in an uninterruptible
	// system call may need longer, and then nothing is claimed.
	survivorWait = 3 * time.Second
	// stopReserve is kept of a caller's deadline for the rungs after the grace.
	stopReserve = 3 * time.Second
	// recordWait is how long custody may take to write an exit once its tree is gone. It tries again
	// every second on a disk that was full.
	recordWait = 2 * time.Second
	// drainLook is how often a watch looks at a seat whose agent has ended and whose exit is not told.
	drainLook = time.Second
	// snapshotBudget is below the 1 s the host allows for Snapshot: it falls back to a replay.
	snapshotBudget = 900 * time.Millisecond
	// undoTimeout bounds the clean-up of a failed Spawn, whatever became of its context.
	undoTimeout = 5 * time.Second
	// pollEvery is the distance of two looks at a process or a file: short against every bound here.
	pollEvery = 5 * time.Millisecond
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

// Default terminal size.
const (
	defaultRows = 32
	defaultCols = 120
)

// Mirror is the first statement of the main of a program that serves this runtime: it is started again as
// the process that draws the screens of its seats. Without it there are no screens, and nobody answers an
// agent's terminal queries while no terminal is attached.
func Mirror() { mirror.Main() }

// Info describes the plugin.
func Info() sdk.Info {
	return sdk.Info{
		Name: Name, Kind: sdk.KindRuntime, Version: Version,
		Capabilities: []sdk.Capability{sdk.CapWatch, sdk.CapList, sdk.CapSnapshot},
	}
}

var (
	_ sdk.Runtime    = (*Runtime)(nil)
	_ sdk.Watcher    = (*Runtime)(nil)
	_ sdk.Lister     = (*Runtime)(nil)
	_ sdk.Configurer = (*Runtime)(nil)

	_ sdk.Snapshotter = (*Runtime)(nil)
)
