package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cotal-ai/cotal-host/test/gobuild"
)

// BinEnv names a directory of binaries that are already built. `make test` sets it to ./bin, so that
// what is tested is what is shipped.
const BinEnv = "COTAL_TEST_BIN"

var build struct {
	once sync.Once
	dir  string
	err  error
}

// Bin returns the directory that holds every binary and plugins.toml. Without COTAL_TEST_BIN it is
// built once per test process into the user's cache directory; the test processes of several
// packages take turns.
func Bin(t testing.TB) string {
	t.Helper()
	dir, err := BinDir()
	if err != nil {
		t.Fatalf("build binaries: %v", err)
	}
	return dir
}

// BinDir is Bin for a TestMain.
func BinDir() (string, error) {
	build.once.Do(func() { build.dir, build.err = buildAll() })
	return build.dir, build.err
}

// ModuleDir returns the directory of go.mod, found upwards from the working directory.
func ModuleDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find working directory: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find go.mod: none in any directory above")
		}
		dir = parent
	}
}

func buildAll() (string, error) {
	if dir := os.Getenv(BinEnv); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "cotal-host")); err != nil {
			return "", fmt.Errorf("%s: %w", BinEnv, err)
		}
		return dir, nil
	}
	mod, err := ModuleDir()
	if err != nil {
		return "", err
	}
	return gobuild.Locked(mod, "", func(dir string) error {
		if err := gobuild.Run(mod, "-s -w -X main.version=0.1.0 -X main.commit=test", dir+"/", "./cmd/..."); err != nil {
			return err
		}
		if out, err := exec.Command(filepath.Join(dir, "cotal-host"), "bundle", dir).CombinedOutput(); err != nil {
			return fmt.Errorf("cotal-host bundle: %w\n%s", err, out)
		}
		return nil
	})
}
