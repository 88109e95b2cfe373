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

// begunBy is the parent at the start: a program may be gone by the time that somebody looks.
var begunBy = os.Getppid()

// Tell takes in an event as from a hook, for what follows an agent program in the bridge's own process.
func (b *Bridge) Tell(e Event) { b.onFrame(frame{Event: e}) }

// WithParent is a context that ends within a second or so when the parent of this process is another one than at its
// start: the agent program is gone, whoever holds the other end of a pipe. cancel gives it up.
func WithParent(ctx context.Context) (parented context.Context, cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(ctx)
	go func() {
		defer cancel()
		tick := time.NewTicker(parentEvery)
		defer tick.Stop()
		for os.Getppid() == begunBy {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

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
	ctx, gone := WithParent(ctx)
	defer gone()
	if first != nil {
		first(ctx)
	}
	err := b.Server(version).Run(ctx, &mcp.StdioTransport{})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
