// Command cotal-opencode-seat runs OpenCode as server and client inside a seat; the opencode connector
// starts it for launches that the program's own flags cannot do.
package main

import (
	"os"
	"runtime"

	"github.com/cotal-ai/cotal-host/connectors/opencode/launcher"
)

func init() { runtime.LockOSThread() } // see launcher.Main

func main() { os.Exit(launcher.Main(os.Args[1:], os.Stderr)) }
