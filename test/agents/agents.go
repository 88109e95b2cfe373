// Package agents installs the real agent programs that the end-to-end tests run: exact versions from the
// npm registry, into the user's cache directory, once. A program that cannot be installed fails the test
// that needs it; nothing is ever skipped for lack of it.
package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Agent is one program at one version.
type Agent struct {
	Name    string // short name, as the connector's
	Package string // npm package
	Version string // exact
	Binary  string // executable, relative to the install directory
}

// OpenCode is the version that the opencode connector is tested with.
var OpenCode = Agent{
	Name: "opencode", Package: "opencode-ai", Version: "1.18.33",
	Binary: "node_modules/opencode-ai/bin/opencode.exe", // so named on every system
}

// Claude is the version that the claude connector is tested with. Its package asks for a newer Node than the program
// needs, which is none: it is one executable.
var Claude = Agent{
	Name: "claude", Package: "@anthropic-ai/claude-code", Version: "2.1.332",
	Binary: "node_modules/@anthropic-ai/claude-code/bin/claude.exe", // so named on every system
}

// Codex is the version that the codex connector is tested with. Binary is the vendor's executable: the command of the
// package is a Node process in front of it that signals do not pass.
var Codex = Agent{
	Name: "codex", Package: "@openai/codex", Version: "0.171.0",
	Binary: filepath.Join("node_modules/@openai/codex-"+codexPlatform(), "vendor", codexTriple(), "bin", "codex"),
}

// Pi is the version that the pi connector is tested with; it runs on Node.
var Pi = Agent{
	Name: "pi", Package: "@mariozechner/pi-coding-agent", Version: "0.73.1",
	Binary: "node_modules/@mariozechner/pi-coding-agent/dist/cli.js",
}

// Qwen is the version that the qwen connector is tested with; it runs on Node.
var Qwen = Agent{
	Name: "qwen", Package: "@qwen-code/qwen-code", Version: "0.24.4",
	Binary: "node_modules/@qwen-code/qwen-code/cli-entry.js",
}

// All lists every agent the tests need.
var All = []Agent{OpenCode, Claude, Codex, Pi, Qwen}

// codexPlatform is how npm packages name this system.
func codexPlatform() string {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	return runtime.GOOS + "-" + arch
}

// codexTriple is how compilers name this system.
func codexTriple() string {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if runtime.GOOS == "darwin" {
		return arch + "-apple-darwin"
	}
	return arch + "-unknown-linux-musl"
}

const (
	// installTimeout bounds one npm install: 11 s for 354 MB here, and minutes on a slow line.
	installTimeout = 10 * time.Minute
	// versionTimeout bounds the check that an install works; the program takes half a second.
	versionTimeout = 60 * time.Second
)

// Need returns the path of the agent's executable, installing it when the cache does not have it.
func Need(t testing.TB, a Agent) string {
	t.Helper()
	path, err := Install(context.Background(), a, testWriter{t})
	if err != nil {
		t.Fatalf("the test needs %s@%s: %v", a.Package, a.Version, err)
	}
	return path
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimRight(p, "\n"))
	return len(p), nil
}

// CacheDir is where agents are installed: outside any clone, kept between runs.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	return filepath.Join(dir, "cotal-host-agents"), nil
}

// Install returns the path of the agent's executable. It installs the agent if it is not in the cache or
// does not run there; two processes that need the same agent at once install it once. It says on out what
// it installs.
func Install(ctx context.Context, a Agent, out io.Writer) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	return installInto(ctx, cache, a, out)
}

func installInto(ctx context.Context, cache string, a Agent, out io.Writer) (string, error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make cache directory: %w", err)
	}
	final := filepath.Join(cache, a.Name+"-"+a.Version)
	unlock, err := lock(ctx, final+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	path := filepath.Join(final, a.Binary)
	if checkVersion(ctx, path, a.Version) == nil {
		return path, nil
	}
	// A directory without a working program is what an interrupted or older installer left.
	if err := os.RemoveAll(final); err != nil {
		return "", fmt.Errorf("remove broken install: %w", err)
	}
	if err := needNpm(ctx, out); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, ".installing-"+a.Name+"-")
	if err != nil {
		return "", fmt.Errorf("make install directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, "package.json"), []byte("{\"private\":true}\n"), 0o644); err != nil {
		return "", fmt.Errorf("write package.json: %w", err)
	}
	fmt.Fprintf(out, "installing %s@%s from the npm registry into %s\n", a.Package, a.Version, final)
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	if err := run(ctx, tmp, "npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact", a.Package+"@"+a.Version); err != nil {
		return "", err
	}
	if err := checkVersion(ctx, filepath.Join(tmp, a.Binary), a.Version); err != nil {
		return "", fmt.Errorf("the installed program does not work: %w", err)
	}
	if err := os.Rename(tmp, final); err != nil {
		return "", fmt.Errorf("move install into place: %w", err)
	}
	return path, nil
}

// checkVersion runs the program: a file in place proves nothing about one that was half written.
func checkVersion(ctx context.Context, path, want string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	tmp, err := os.MkdirTemp("", "agent-version-") // see the connector: the program leaves libraries behind
	if err != nil {
		return fmt.Errorf("make temporary directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	cmd := command(ctx, tmp, path, "--version")
	cmd.Env = append(os.Environ(), "HOME="+tmp, "BUN_TMPDIR="+tmp, "OPENCODE_DISABLE_AUTOUPDATE=1",
		"CLAUDE_CONFIG_DIR="+tmp, "DISABLE_AUTOUPDATER=1", "CODEX_HOME="+tmp)
	var stderr bytes.Buffer // where some say it
	cmd.Stderr = &stderr
	got, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("run %s --version: %w", path, err)
	}
	// "1.2.3", "1.2.3 (Program)", "program-cli 1.2.3"
	if len(got) == 0 {
		got = stderr.Bytes()
	}
	if v := strings.TrimSpace(string(got)); !slices.Contains(strings.Fields(v), want) {
		return fmt.Errorf("%s says it is version %q, not %q", path, v, want)
	}
	return nil
}

// needNpm installs Node and npm with apt-get where they are missing.
func needNpm(ctx context.Context, out io.Writer) error {
	var missing []string
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s not found, and no apt-get to install nodejs and npm with: install them by hand", strings.Join(missing, " and "))
	}
	var prefix []string
	if os.Geteuid() != 0 {
		if run(ctx, "", "sudo", "-n", "true") != nil {
			return fmt.Errorf("%s not found; they need root to install: sudo apt-get install nodejs npm", strings.Join(missing, " and "))
		}
		prefix = []string{"sudo", "-n"}
	}
	fmt.Fprintf(out, "%s not found: installing the packages nodejs, npm and ca-certificates with apt-get\n", strings.Join(missing, " and "))
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	for _, args := range [][]string{
		{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "update"},
		{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "--no-install-recommends", "install", "nodejs", "npm", "ca-certificates"},
	} {
		args = append(append([]string(nil), prefix...), args...)
		if err := run(ctx, "", args[0], args[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command to its end; its output stands in the error.
func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := command(ctx, dir, name, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		text := output.String()
		return fmt.Errorf("run %s %s: %w\n%s", name, strings.Join(args, " "), err, text[max(0, len(text)-4000):])
	}
	return nil
}

// command is in a process group of its own, which ends with ctx; a child that keeps a pipe open does not
// hold up the wait.
func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// lock takes a file lock that ends with the process, so a killed installer blocks nobody.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		wait := time.NewTimer(100 * time.Millisecond)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			_ = f.Close()
			return nil, fmt.Errorf("wait for another installer (lock %s): %w", path, ctx.Err())
		}
	}
}
