// Package gobuild builds programs of this module for tests, each set into a directory of its own below
// the user's cache. The test processes of several packages take turns.
package gobuild

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Locked makes the build directory of the module at mod whose name begins with prefix, holds its lock while
// build runs in it, and returns it.
func Locked(mod, prefix string, build func(dir string) error) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	sum := sha256.Sum256([]byte(mod))
	dir = filepath.Join(cache, "cotal-host-test", prefix+hex.EncodeToString(sum[:6]))
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
	return dir, build(dir)
}

// Run builds packages of the module at mod as they are shipped, but for their ldflags, into out: a file, or
// a directory when it ends in a slash.
func Run(mod, ldflags, out, packages string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", out, packages)
	cmd.Dir = mod
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", packages, err, text)
	}
	return nil
}
