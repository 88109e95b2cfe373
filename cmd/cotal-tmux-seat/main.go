// Command cotal-tmux-seat is the first process of a tmux pane that is a seat. See docs/architecture.md.
package main

import (
	"os"

	"github.com/cotal-ai/cotal-host/runtimes/tmux/holder"
)

func main() { os.Exit(holder.Main(os.Args)) }
