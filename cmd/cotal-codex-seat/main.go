// Command cotal-codex-seat runs Codex as server and terminal program inside a seat, and is the seat's bridge to
// the mesh; the codex connector starts it.
package main

import (
	"os"
	"runtime"

	"github.com/cotal-ai/cotal-host/connectors/codex/launcher"
)

// Written by the linker.
var version = "dev"

func init() { runtime.LockOSThread() } // see launcher.Main

func main() { os.Exit(launcher.Main(os.Args[1:], version, os.Stderr)) }
