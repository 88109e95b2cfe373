// Package broker builds a NATS server that is a process of its own, so that a test can kill it, stop
// it and start it again on the same store and port, which no test can do to the server inside a host.
//
// The program is cmd/test-broker: JetStream, loopback only, one token or the credentials of a workspace, the limits of the
// embedded server. test/harness runs it (World.StartBroker).
package broker

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/test/gobuild"
)

var build struct {
	once sync.Once
	path string
	err  error
}

// Program returns the path of the server program. It is built once per test process, from the module
// in dir, into the user's cache directory; the test processes of several packages take turns.
func Program(t testing.TB, dir string) string {
	t.Helper()
	build.once.Do(func() { build.path, build.err = buildProgram(dir) })
	if build.err != nil {
		t.Fatalf("build test-broker: %v", build.err)
	}
	return build.path
}

func buildProgram(mod string) (string, error) {
	dir, err := gobuild.Locked(mod, "broker-", func(dir string) error {
		return gobuild.Run(mod, "-s -w", filepath.Join(dir, "test-broker"), "./test/broker/cmd/test-broker")
	})
	return filepath.Join(dir, "test-broker"), err
}
