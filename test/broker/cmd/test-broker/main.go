// Command test-broker is the NATS server of the tests that need one which can die alone.
//
//	test-broker -store DIR -token-file FILE [-port N]
//
// It listens on 127.0.0.1, says "ready nats://127.0.0.1:N" on standard output, logs to standard error,
// and ends with code 0 on SIGTERM. Port 0 chooses a free one. The store may be one that a killed server
// left.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/cotal-ai/cotal-host/host/broker"
)

func main() {
	store := flag.String("store", "", "directory of JetStream")
	token := flag.String("token-file", "", "file of the token that every client must present")
	port := flag.Int("port", 0, "port on 127.0.0.1; 0 chooses a free one")
	flag.Parse()
	if err := run(*store, *token, *port); err != nil {
		fmt.Fprintln(os.Stderr, "test-broker:", err)
		os.Exit(1)
	}
}

func run(store, tokenFile string, port int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return err
	}
	b, err := broker.Start(ctx, broker.Config{
		StoreDir: store, Port: port, Token: strings.TrimSpace(string(token)), Name: "test-broker",
		Log: hclog.New(&hclog.LoggerOptions{Output: os.Stderr}),
	})
	if err != nil {
		return err
	}
	fmt.Println("ready", b.URL())
	<-ctx.Done()
	b.Shutdown()
	return nil
}
