package bridge

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/term"
)

// parentEvery is how often it is looked whether the agent program is still the parent.
const parentEvery = time.Second

// Tell takes in an event as from a hook, for what follows an agent program in the bridge's own process.
func (b *Bridge) Tell(e Event) { b.onFrame(frame{Event: e}) }

// ServeStdio is the MCP server of an agent program, on standard input and output, until the program ends: its input
// ends, this process is told to, its parent is another process, or ctx ends. first may be nil; it runs before the
// program is answered, and its ctx ends with the program.
func (b *Bridge) ServeStdio(ctx context.Context, version string, first func(context.Context)) error {
	ctx, cancel := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer cancel()
	if term.IsTerminal(int(os.Stdin.Fd())) {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
	} else {
		signal.Ignore(os.Interrupt) // it is meant for the program, in whose group this is
	}
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	go func() {
		parent := os.Getppid()
		tick := time.NewTicker(parentEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if os.Getppid() != parent {
					gone()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	if first != nil {
		first(ctx)
	}
	err := b.Server(version).Run(ctx, &mcp.StdioTransport{})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
