package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/test/busy"
	"go.uber.org/goleak"
)

// hostEnv makes the test binary a host that spawns one seat.
const hostEnv = "CATALOG_TEST_HOST"

var fakeBinary, fakeDigest string

func TestMain(m *testing.M) {
	if root := os.Getenv(hostEnv); root != "" {
		runTestHost(root)
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
		out, err := exec.Command("go", "build", "-o", fakeBinary, "../supervise/testdata/fakeplugin").CombinedOutput()
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

type fixture struct {
	t    *testing.T
	root string
	env  map[string]string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	leaks := goleak.IgnoreCurrent()
	root, err := os.MkdirTemp("/tmp", "ct")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, root: root, env: map[string]string{"FAKE_DIR": root}}
	if err := os.Link(fakeBinary, filepath.Join(root, "fakeplugin")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		goleak.VerifyNone(t, leaks)
		os.RemoveAll(root)
	})
	return f
}

func config(root string, env map[string]string, kinds ...sdk.Kind) Config {
	m := &manifest.Manifest{}
	for _, k := range kinds {
		m.Entries = append(m.Entries, manifest.Entry{
			Name: "fake", Kind: k, Command: "fakeplugin", Version: "0.1.0", SHA256: fakeDigest,
			Env: []string{"FAKE_DIR", "FAKE_KIND", "FAKE_MODE"},
		})
	}
	return Config{
		Manifest: m, BundleDir: root, RunDir: filepath.Join(root, "r"),
		Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	}
}

func (f *fixture) catalog(kinds ...sdk.Kind) *Catalog {
	f.t.Helper()
	c := New(config(f.root, f.env, kinds...))
	f.t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			f.t.Error(err)
		}
	})
	return c
}

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *fixture) runtime() (*Catalog, sdk.Runtime) {
	f.t.Helper()
	f.env["FAKE_KIND"] = "runtime"
	c := f.catalog(sdk.KindRuntime)
	if err := c.StartRuntime(f.ctx(), "fake"); err != nil {
		f.t.Fatal(err)
	}
	r, info, err := c.Runtime(f.ctx(), "fake")
	if err != nil || !info.Has(sdk.CapWatch) {
		f.t.Fatalf("%+v, %v", info, err)
	}
	return c, r
}

func (f *fixture) connector() (*Catalog, sdk.Connector) {
	f.t.Helper()
	c := f.catalog(sdk.KindConnector)
	conn, _, err := c.Connector(f.ctx(), "fake")
	if err != nil {
		f.t.Fatal(err)
	}
	return c, conn
}

func (f *fixture) kill(c *Catalog) {
	f.t.Helper()
	var pid int
	f.eventually("the plugin is ready", func() bool {
		pid = c.Status()[0].PID
		return pid != 0
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) records(name string) []string {
	b, _ := os.ReadFile(filepath.Join(f.root, name))
	return strings.Fields(string(b))
}

func (f *fixture) eventually(what string, ok func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			f.t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func request(id, path string) sdk.SpawnRequest {
	return sdk.SpawnRequest{SeatID: id, Launch: sdk.LaunchSpec{Path: path}}
}

func TestUnknownPluginsNameTheKnownOnes(t *testing.T) {
	f := newFixture(t)
	c := f.catalog(sdk.KindConnector)
	_, _, err := c.Connector(f.ctx(), "cluade")
	if !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), `"cluade"`) || !strings.Contains(err.Error(), "fake") {
		t.Errorf("got %v", err)
	}
	if _, _, err := c.Runtime(f.ctx(), "fake"); !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), "enables none") {
		t.Errorf("a connector is no runtime: %v", err)
	}
	if err := c.StartRuntime(f.ctx(), "pty"); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestARuntimeThatDoesNotStartSaysWhy(t *testing.T) {
	f := newFixture(t)
	f.env["FAKE_MODE"] = "hello-first"
	c := f.catalog(sdk.KindRuntime)
	err := c.StartRuntime(f.ctx(), "fake")
	var se *supervise.StartError
	if !errors.As(err, &se) || se.Reason != supervise.ReasonPrinted || !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if st := c.Status(); len(st) != 1 || st[0].Reason == "" || st[0].State == supervise.StateReady {
		t.Errorf("status %+v", st)
	}
}

func TestIdempotentCallsAreMadeAgainAfterADeath(t *testing.T) {
	f := newFixture(t)
	c, conn := f.connector()
	spec, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{LaunchOptions: map[string]any{"do": "exit-once"}})
	if err != nil || spec.Path == "" {
		t.Fatalf("%+v, %v", spec, err)
	}
	if st := c.Status()[0]; st.Restarts != 1 || st.State != supervise.StateReady {
		t.Errorf("status %+v", st)
	}
	// The second death of one call is the caller's to know.
	_, err = conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{LaunchOptions: map[string]any{"do": "exit"}})
	if !errors.Is(err, sdk.ErrPluginDown) {
		t.Errorf("a call that kills every process: %v", err)
	}
	if _, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if n := len(f.records("starts")); n != 4 {
		t.Errorf("%d processes, want 4: each death costs one, each call is repeated once", n)
	}
}

// proves: CONN-6
func TestRefusalsAreNotRepeated(t *testing.T) {
	f := newFixture(t)
	_, conn := f.connector()
	_, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{LaunchOptions: map[string]any{"do": "error", "code": "unavailable"}})
	if !errors.Is(err, sdk.ErrUnavailable) || errors.Is(err, sdk.ErrPluginDown) || !strings.Contains(err.Error(), "as asked") {
		t.Errorf("got %v", err)
	}
	if _, err := conn.ListModels(f.ctx(), sdk.ModelQuery{}); !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("no catalogue: %v", err)
	}
}

func TestCallersDuringADeathAreAllServed(t *testing.T) {
	f := newFixture(t)
	c, conn := f.connector()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	calls := 0
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{})
				mu.Lock()
				calls++
				mu.Unlock()
				if err != nil {
					t.Errorf("a call failed: %v", err)
					return
				}
			}
		}()
	}
	for i := range 3 {
		f.kill(c)
		f.eventually("the next process serves", func() bool {
			st := c.Status()[0]
			return st.Restarts == i+1 && st.State == supervise.StateReady
		})
		mu.Lock()
		seen := calls
		mu.Unlock()
		f.eventually("calls go on", func() bool { mu.Lock(); defer mu.Unlock(); return calls > seen+100 })
	}
	close(stop)
	wg.Wait()
}

func TestASpawnOfUnknownOutcomeIsResolvedByAdopt(t *testing.T) {
	for _, c := range []struct {
		name   string
		path   string
		spawns int
		ok     bool
	}{
		{"a seat that was made is not made again", "/die-after", 1, true},
		{"a seat that was not made is made once", "/die-before", 2, true},
		{"a seat nobody knows about stays unknown", "/die-unknown", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			_, r := f.runtime()
			h, err := r.Spawn(f.ctx(), request("s1", c.path))
			if n := len(f.records("spawns")); n != c.spawns {
				t.Errorf("%d spawns, want %d", n, c.spawns)
			}
			if !c.ok {
				if !errors.Is(err, sdk.ErrPluginDown) || sdk.OutcomeOf(err) != sdk.OutcomeUnknown {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || h.Ref != "s1" {
				t.Errorf("%+v, %v", h, err)
			}
		})
	}
}

func TestAnInterruptedResolutionStaysUnknown(t *testing.T) {
	f := newFixture(t)
	_, r := f.runtime()
	if err := failpoint.Arm("catalog.spawn.unresolved=error(host is busy)"); err != nil {
		t.Fatal(err)
	}
	defer failpoint.Disarm()
	_, err := r.Spawn(f.ctx(), request("s1", "/die-after"))
	if !errors.Is(err, sdk.ErrPluginDown) || sdk.OutcomeOf(err) != sdk.OutcomeUnknown || !strings.Contains(err.Error(), "host is busy") {
		t.Errorf("got %v", err)
	}
}

func runTestHost(root string) {
	var err error
	if fakeDigest, err = manifest.HashFile(filepath.Join(root, "fakeplugin")); err != nil {
		panic(err)
	}
	c := New(config(root, map[string]string{"FAKE_DIR": root, "FAKE_KIND": "runtime"}, sdk.KindRuntime))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, _, err := c.Runtime(ctx, "fake")
	if err != nil {
		panic(err)
	}
	h, err := r.Spawn(ctx, request("s1", "/die-after"))
	out, _ := json.Marshal(h)
	fmt.Println(string(out), err)
	_ = c.Stop(ctx)
}

func TestAHostKilledBeforeTheResolutionFindsTheSeat(t *testing.T) {
	f := newFixture(t)
	host := exec.Command(os.Args[0])
	host.Env = append(os.Environ(), hostEnv+"="+f.root, failpoint.EnvVar+"=catalog.spawn.unresolved=crash")
	out, _ := host.CombinedOutput()
	if got := host.ProcessState.String(); got != "signal: killed" {
		t.Fatalf("host ended with %s\n%s", got, out)
	}
	_, r := f.runtime()
	st, err := r.Adopt(f.ctx(), sdk.AdoptRequest{SeatID: "s1"})
	if err != nil || st.State != sdk.SeatPrepared {
		t.Errorf("the seat is %+v, %v", st, err)
	}
	if n := len(f.records("spawns")); n != 1 {
		t.Errorf("%d spawns", n)
	}
}

func TestWatchOutlivesProcesses(t *testing.T) {
	f := newFixture(t)
	c, r := f.runtime()
	if _, err := r.Spawn(f.ctx(), request("s1", "/x")); err != nil {
		t.Fatal(err)
	}
	states := make(chan sdk.SeatState, 16)
	done := make(chan error, 1)
	go func() {
		done <- r.(sdk.Watcher).Watch(f.ctx(), sdk.WatchRequest{SeatID: "s1"}, func(st sdk.SeatStatus) error {
			states <- st.State
			return nil
		})
	}()
	want := func(s sdk.SeatState) {
		t.Helper()
		select {
		case got := <-states:
			if got != s {
				t.Fatalf("got %s, want %s", got, s)
			}
		case err := <-done:
			t.Fatalf("the watch ended: %v", err)
		case <-time.After(10 * time.Second):
			t.Fatalf("no status, want %s", s)
		}
	}
	want(sdk.SeatPrepared)
	if _, err := r.Adopt(f.ctx(), sdk.AdoptRequest{SeatID: "s1", Commit: true}); err != nil {
		t.Fatal(err)
	}
	want(sdk.SeatRunning)
	f.kill(c)
	want(sdk.SeatRunning) // what the new process says first
	f.kill(c)
	if err := os.WriteFile(filepath.Join(f.root, "seat-s1"), []byte("exited"), 0o600); err != nil {
		t.Fatal(err)
	}
	// It ended while nobody watched; a new process may have seen it still running first.
	for s := <-states; s != sdk.SeatExited; s = <-states {
		if s != sdk.SeatRunning {
			t.Fatalf("got %s", s)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestWatchEndsWithItsReaderAndItsContext(t *testing.T) {
	f := newFixture(t)
	_, r := f.runtime()
	if _, err := r.Spawn(f.ctx(), request("s1", "/x")); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	w := r.(sdk.Watcher)
	if err := w.Watch(f.ctx(), sdk.WatchRequest{SeatID: "s1"}, func(sdk.SeatStatus) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(f.ctx())
	err := w.Watch(ctx, sdk.WatchRequest{SeatID: "s1"}, func(sdk.SeatStatus) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestListCrossesTheMessageLimit(t *testing.T) {
	f := newFixture(t)
	_, r := f.runtime()
	list, err := r.(sdk.Lister).List(f.ctx(), sdk.ListRequest{})
	if err != nil || len(list) != 200 {
		t.Fatalf("%d, %v", len(list), err)
	}
}

func TestAbilitiesAreOnlyThoseAnnounced(t *testing.T) {
	for _, c := range []struct {
		caps        []sdk.Capability
		watch, list bool
	}{
		{nil, false, false},
		{[]sdk.Capability{sdk.CapWatch}, true, false},
		{[]sdk.Capability{sdk.CapList}, false, true},
		{[]sdk.Capability{sdk.CapList, sdk.CapWatch}, true, true},
	} {
		r := newRuntime(caller{}, sdk.Info{Capabilities: c.caps})
		_, watch := r.(sdk.Watcher)
		_, list := r.(sdk.Lister)
		if watch != c.watch || list != c.list {
			t.Errorf("%v: watch %v, list %v", c.caps, watch, list)
		}
	}
}

func TestConnectorsStartInTheBackgroundAndStopTogether(t *testing.T) {
	f := newFixture(t)
	c := f.catalog(sdk.KindConnector)
	c.StartConnectors()
	f.eventually("the connector is ready", func() bool { return c.Status()[0].State == supervise.StateReady })
	if err := c.Stop(f.ctx()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Connector(f.ctx(), "fake"); !errors.Is(err, sdk.ErrUnavailable) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted {
		t.Errorf("after Stop: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(f.root, "r")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStopDoesNotWaitForWatches(t *testing.T) {
	f := newFixture(t)
	c, r := f.runtime()
	if _, err := r.Spawn(f.ctx(), request("s1", "/x")); err != nil {
		t.Fatal(err)
	}
	watching, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- r.(sdk.Watcher).Watch(f.ctx(), sdk.WatchRequest{SeatID: "s1"}, func(sdk.SeatStatus) error {
			close(watching)
			return nil
		})
	}()
	<-watching
	begin := time.Now()
	if err := c.Stop(f.ctx()); err != nil {
		t.Fatal(err)
	}
	// The plugin waits 1.5 s for calls in flight; a watch is none.
	if d := time.Since(begin); d > busy.Limit(1400*time.Millisecond) {
		t.Errorf("stop took %s", d)
	}
	if err := <-ended; !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("the watch ended with %v", err)
	}
}
