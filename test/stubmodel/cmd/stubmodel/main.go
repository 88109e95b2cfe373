// Command stubmodel serves the model stub on loopback and prints its request log, for work by hand.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cotal-ai/cotal-host/test/stubmodel"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8901", "loopback address to listen on")
	flag.Parse()
	s, err := stubmodel.Start(stubmodel.Config{Addr: *addr, Log: os.Stdout})
	if err != nil {
		fmt.Fprintln(os.Stderr, "stubmodel:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "stubmodel: serving", s.BaseURL())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	<-ctx.Done()
	stop()
	s.Close()
}
