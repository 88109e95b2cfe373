// Command cotal-runtime-pty is the plugin that runs every seat on a pseudo terminal of its own.
package main

import (
	"github.com/cotal-ai/cotal-host/runtimes/pty"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() {
	pty.Mirror()
	sdk.ServeRuntime(pty.Info(), pty.New())
}
