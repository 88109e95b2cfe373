// Package broker builds a NATS server that is a process of its own, so that a test can kill it, stop
// it and start it again on the same store and port, which no test can do to the server inside a host.
//
// The program is cmd/test-broker: JetStream, loopback only, one token, the limits of the embedded
// server. test/harness runs it (World.StartBroker).
package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
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
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	sum := sha256.Sum256([]byte(mod))
	dir := filepath.Join(cache, "cotal-host-test", "broker-"+hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create build directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("open build lock: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("take build lock: %w", err)
	}
	path := filepath.Join(dir, "test-broker")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, "./test/broker/cmd/test-broker")
	cmd.Dir = mod
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
}
