package supervise

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

// hostEnv makes the test binary a host that starts the plugins of a fixture and stays.
const hostEnv = "SUPERVISE_TEST_HOST"

var (
	fakeBinary string
	fakeDigest string
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(hostEnv); spec != "" {
		runTestHost(spec)
		return
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("/tmp", "ct")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		fakeBinary = filepath.Join(dir, "fakeplugin")
		out, err := exec.Command("go", "build", "-o", fakeBinary, "./testdata/fakeplugin").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "build fakeplugin: %v\n%s", err, out)
			return 1
		}
		if fakeDigest, err = manifest.HashFile(fakeBinary); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// fixture is one host's directories, environment and log.
type fixture struct {
	t      *testing.T
	bundle string
	run    string
	dir    string // of the fake plugin's records
	env    map[string]string
	log    *logBuffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	root, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, bundle: filepath.Join(root, "b"), run: filepath.Join(root, "r"), dir: filepath.Join(root, "d"), log: &logBuffer{}}
	for _, d := range []string{f.bundle, f.run, f.dir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(fakeBinary, filepath.Join(f.bundle, "fakeplugin")); err != nil {
		t.Fatal(err)
	}
	f.env = map[string]string{"PATH": os.Getenv("PATH"), "HOME": root, "FAKE_DIR": f.dir}
	t.Cleanup(func() {
		goleak.VerifyNone(t, leaks)
		// Whatever became of the plugins, nothing of them may remain.
		if left, _ := os.ReadDir(f.run); len(left) != 0 {
			t.Errorf("left in the run directory: %v", left)
		}
		if t.Failed() {
			text := f.log.String()
			t.Logf("log:\n%s", text[:min(len(text), 6000)])
		}
		os.RemoveAll(root)
	})
	return f
}

func (f *fixture) entry() manifest.Entry {
	return manifest.Entry{
		Name: "fake", Kind: sdk.KindConnector, Command: "fakeplugin", Version: "0.1.0", SHA256: fakeDigest,
		Env: []string{"FAKE_MODE", "FAKE_DIR", "FAKE_KIND"},
	}
}

// file puts a file into the bundle and returns an entry for it.
func (f *fixture) file(name, text string, mode os.FileMode) manifest.Entry {
	f.t.Helper()
	path := filepath.Join(f.bundle, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		f.t.Fatal(err)
	}
	e := f.entry()
	e.Command = name
	sum, err := manifest.HashFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	e.SHA256 = sum
	return e
}

func (f *fixture) config(e manifest.Entry) Config {
	return Config{
		Entry: e, BundleDir: f.bundle, RunDir: f.run, StateDir: filepath.Join(f.dir, "state"),
		CrashDir: filepath.Join(f.dir, "log"), SeatRoot: "/seats", SocketDir: "/sockets",
		Log: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: f.log, JSONFormat: true}),
		Env: func(name string) (string, bool) { v, ok := f.env[name]; return v, ok },
	}
}

// start runs an entry and stops it at the end of the test.
func (f *fixture) start(e manifest.Entry) *Supervisor {
	f.t.Helper()
	s := New(f.config(e))
	f.t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			f.t.Error(err)
		}
	})
	s.Start()
	return s
}

// ready waits for the process. Beside tests that flood, a start was seen to take longer than it may: the supervisor
// makes the next one by itself.
func (f *fixture) ready(s *Supervisor) (live *Live) {
	f.t.Helper()
	eventually(f.t, 2*time.Minute, "it is ready", func() bool {
		var err error
		var late *StartError
		if live, err = s.Ready(f.ctx()); errors.As(err, &late) && late.Reason == ReasonTimeout {
			f.t.Log(err)
			return false
		}
		if err != nil {
			f.t.Fatal(err)
		}
		return true
	})
	return live
}

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	f.t.Cleanup(cancel)
	return ctx
}

// startError runs an entry that must not start and returns why.
func (f *fixture) startError(e manifest.Entry) *StartError {
	f.t.Helper()
	s := f.start(e)
	_, err := s.Ready(f.ctx())
	var se *StartError
	if !errors.As(err, &se) {
		f.t.Fatalf("got %v, want a StartError", err)
	}
	if !errors.Is(err, sdk.ErrUnavailable) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted {
		f.t.Errorf("%v is not ErrUnavailable, not executed", err)
	}
	return se
}

// records returns the lines the fake plugin wrote to one of its files.
func (f *fixture) records(name string) []string {
	b, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b))
}

func do(live *Live, ctx context.Context, opts map[string]any) (sdk.LaunchSpec, error) {
	return live.Client.Connector().BuildLaunch(ctx, sdk.LaunchRequest{Name: "seat", LaunchOptions: opts})
}

// eventually polls for a fact, as long as it may take on this machine.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if busy.Over(begin, within) {
			t.Fatalf("not within %s: %s", time.Since(begin), what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// suspend stops a process as SIGSTOP does, and returns when it is stopped.
func suspend(t *testing.T, pid int) {
	t.Helper()
	err := syscall.Kill(pid, syscall.SIGSTOP)
	if err == nil {
		err = harness.AwaitStopped(pid)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// gone reports whether a process has ended; a zombie has.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(rest, "Z")
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

type logBuffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	limit int // 0: none
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit > 0 && l.b.Len() > l.limit {
		return len(p), nil
	}
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// find returns the first record whose message contains text.
func (l *logBuffer) find(text string) (map[string]any, bool) {
	for _, line := range strings.Split(l.String(), "\n") {
		var rec map[string]any
		if json.Unmarshal([]byte(line), &rec) != nil {
			continue
		}
		if msg, _ := rec["@message"].(string); strings.Contains(msg, text) {
			return rec, true
		}
	}
	return nil, false
}

// hostSpec is handed to a test host.
type hostSpec struct {
	Bundle, Run, State string
	Entries            []manifest.Entry
	Env                map[string]string
	Ready              string // file that is created when all plugins are ready
}

func runTestHost(text string) {
	var spec hostSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		panic(err)
	}
	for _, e := range spec.Entries {
		s := New(Config{
			Entry: e, BundleDir: spec.Bundle, RunDir: spec.Run, StateDir: spec.State,
			Log: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: os.Stderr}),
			Env: func(name string) (string, bool) { v, ok := spec.Env[name]; return v, ok },
		})
		s.Start()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		live, err := s.Ready(ctx)
		cancel()
		if err != nil {
			panic(err)
		}
		if name := os.Getenv("SUPERVISE_TEST_CALL"); name != "" {
			go func() { _, _ = do(live, context.Background(), map[string]any{"do": name}) }()
		}
	}
	if err := os.WriteFile(spec.Ready, nil, 0o600); err != nil {
		panic(err)
	}
	select {}
}

// host starts a test host as a process of its own. It is killed at the end of the test.
func (f *fixture) host(env []string, entries ...manifest.Entry) *exec.Cmd {
	f.t.Helper()
	spec, err := json.Marshal(hostSpec{
		Bundle: f.bundle, Run: f.run, State: filepath.Join(f.dir, "state"), Entries: entries, Env: f.env,
		Ready: filepath.Join(f.dir, "host-ready"),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	os.Remove(filepath.Join(f.dir, "host-ready"))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), hostEnv+"="+string(spec)), env...)
	cmd.Stderr = f.log
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func (f *fixture) hostReady() {
	f.t.Helper()
	eventually(f.t, 20*time.Second, "the host has its plugins", func() bool {
		_, err := os.Stat(filepath.Join(f.dir, "host-ready"))
		return err == nil
	})
}
