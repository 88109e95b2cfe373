// Command cotal-runtime-tmux is the plugin that runs every seat in a tmux server of its own.
package main

import (
	"github.com/cotal-ai/cotal-host/runtimes/tmux"
	"github.com/cotal-ai/cotal-host/sdk"
)

func main() { sdk.ServeRuntime(tmux.Info(), tmux.New()) }
