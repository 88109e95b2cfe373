// Package tmux is the runtime that gives every seat a pane of tmux on this machine.
//
// Every seat has a tmux server of its own: its socket in the private socket directory, no configuration
// file, its options set by this package. So the user's own server and configuration are never touched,
// a viewer cannot wander from one seat into another, a server that dies takes one seat with it, a new
// tmux serves new seats while the old one goes on with its own, and ending a seat's server is always
// right. It costs one more process a seat.
//
// The first process of the pane is custody (runtimes/tmux/holder, cotal-tmux-seat): parent and subreaper
// of the agent. What it says at its socket, what it wrote into the seat's directory and the process table
// decide what a seat is; tmux is asked only for what it alone knows: the screen, who is attached, and how
// the dead pane ended, as a second witness. Panes are named by the ids tmux gave them, and nothing that a
// person chose (a name, a path, an environment) reaches a tmux command.
//
// Locks: one per seat id within this process and, below it, an advisory lock on the seat's directory
// against another plugin process. Spawn and Reap take both; the rest takes none.
package tmux

import (
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
)

// Name and Version of the plugin; they must equal its entry in plugins.toml.
const (
	Name    = "tmux"
	Version = "0.1.0"
)

// handleVersion is Handle.Version. Raise it when State changes in a way an older runtime misreads.
const handleVersion = 1

// Every wait of this package, and why it is that long.
const (
	// callTimeout bounds one tmux command. A healthy server answers within 10 ms; one that does not
	// within this is stopped or stuck.
	callTimeout = 2 * time.Second
	// startTimeout bounds the command that starts a server: two programs are executed and a fork is waited
	// for, which took 2.3 s on a machine with twenty times more to do than processors.
	startTimeout = 5 * time.Second
	// callWait is how long the pipes of a killed tmux command may stay open in who it left behind.
	callWait = 500 * time.Millisecond
	// prepareTimeout bounds the start of server, pane and custody. Less than the 15 s of the Spawn call,
	// so that what was made can be undone within it.
	prepareTimeout = 8 * time.Second
	// glanceTimeout bounds what Adopt asks tmux for beside the truth it has already.
	glanceTimeout = time.Second
)

// Limits that are checked before anything is made.
const (
	maxSide     = 1000    // rows or columns; tmux itself refuses 10,000
	maxAnswer   = 4 << 20 // bytes of one tmux answer
	maxSnapshot = 512 << 10
)

// Default terminal size.
const (
	defaultRows = 32
	defaultCols = 120
)

// Info describes the plugin. It has no seat socket to dial, no output offsets and no size to set: Attach
// answers with an argv, typing goes through Write, and the screen is had from Snapshot.
func Info() sdk.Info {
	return sdk.Info{
		Name: Name, Kind: sdk.KindRuntime, Version: Version,
		Capabilities: []sdk.Capability{sdk.CapWatch, sdk.CapList, sdk.CapWrite, sdk.CapSnapshot},
	}
}

var (
	_ sdk.Runtime     = (*Runtime)(nil)
	_ sdk.Watcher     = (*Runtime)(nil)
	_ sdk.Lister      = (*Runtime)(nil)
	_ sdk.Writer      = (*Runtime)(nil)
	_ sdk.Snapshotter = (*Runtime)(nil)
	_ sdk.Configurer  = (*Runtime)(nil)
)
