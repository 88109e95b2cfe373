// Command fetch-agents installs the agent programs of the end-to-end tests into the user's cache, so that
// the tests find them there.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cotal-ai/cotal-host/test/agents"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, a := range agents.All {
		path, err := agents.Install(ctx, a, os.Stdout)
		if err != nil {
			fmt.Fprintf(os.Stderr, "fetch-agents: %s@%s: %v\n", a.Package, a.Version, err)
			os.Exit(1)
		}
		fmt.Printf("%s %s: %s\n", a.Name, a.Version, path)
	}
}
