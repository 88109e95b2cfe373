// Command cotal-seat holds the terminal of one agent. See docs/seat-protocol.md.
package main

import (
	"os"

	"github.com/cotal-ai/cotal-host/runtimes/pty/custody"
)

func main() { os.Exit(custody.Main(os.Args)) }
