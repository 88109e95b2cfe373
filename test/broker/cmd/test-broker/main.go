// Command test-broker is the NATS server of the tests that need one which can die alone.
//
//	test-broker -store DIR -token-file FILE [-port N]
//	test-broker -store DIR -keys WORKSPACE [-port N]
//
// With -keys it trusts the keys of a workspace, which it makes if there are none, and takes their credentials alone.
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
	"github.com/cotal-ai/cotal-host/host/trust"
)

func main() {
	store := flag.String("store", "", "directory of JetStream")
	token := flag.String("token-file", "", "file of the token that every client must present")
	keys := flag.String("keys", "", "workspace whose credentials every client must present, instead of a token")
	port := flag.Int("port", 0, "port on 127.0.0.1; 0 chooses a free one")
	flag.Parse()
	if err := run(*store, *token, *keys, *port); err != nil {
		fmt.Fprintln(os.Stderr, "test-broker:", err)
		os.Exit(1)
	}
}

func run(store, tokenFile, keys string, port int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg := broker.Config{
		StoreDir: store, Port: port, Name: "test-broker", Log: hclog.New(&hclog.LoggerOptions{Output: os.Stderr}),
	}
	var err error
	if keys != "" {
		cfg.Operator, err = operator(ctx, keys, store+"-accounts")
	} else {
		var token []byte
		token, err = os.ReadFile(tokenFile)
		cfg.Token = strings.TrimSpace(string(token))
	}
	if err != nil {
		return err
	}
	b, err := broker.Start(ctx, cfg)
	if err != nil {
		return err
	}
	fmt.Println("ready", b.URL())
	<-ctx.Done()
	b.Shutdown()
	return nil
}

// space is the one that hosts of tests serve.
const space = "main"

// operator is who a server trusts that has the keys of a workspace; what it is told of accounts it keeps in dir.
func operator(ctx context.Context, root, dir string) (*broker.Operator, error) {
	store, err := trust.OpenFileStore(ctx, root)
	if err != nil {
		return nil, err
	}
	keys, err := trust.MakeKeyring(ctx, store, space)
	if err != nil {
		return nil, err
	}
	b, err := keys.Bundle()
	if err != nil {
		return nil, err
	}
	return &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: dir}, nil
}
