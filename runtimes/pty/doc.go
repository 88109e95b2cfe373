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
	// attachBudget is below the 3 s the host allows for Attach.
	attachBudget = 2500 * time.Millisecond
	// snapshotBudget is below the 1 s the host allows for Snapshot: it falls back to a replay.
	snapshotBudget = 900 * time.Millisecond
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
