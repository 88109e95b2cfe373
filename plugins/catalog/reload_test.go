package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/hashicorp/go-hclog"
)

func TestDiff(t *testing.T) {
	entry := func(kind sdk.Kind, name, version string) manifest.Entry {
		return manifest.Entry{Kind: kind, Name: name, Version: version, Config: map[string]any{"a": []any{int64(1)}}}
	}
	set := func(entries ...manifest.Entry) map[key]manifest.Entry {
		return enabled(&manifest.Manifest{Entries: entries})
	}
	off := entry(sdk.KindConnector, "a", "1")
	off.Enabled = new(bool)
	moved := entry(sdk.KindConnector, "a", "1")
	moved.Source = "/elsewhere/plugins.toml"
	configured := entry(sdk.KindConnector, "a", "1")
	configured.Config = map[string]any{"a": []any{int64(2)}}
	a := entry(sdk.KindConnector, "a", "1")
	for _, c := range []struct {
		name     string
		old, new map[key]manifest.Entry
		want     string
	}{
		{"nothing and nothing", set(), set(), ""},
		{"the same is unchanged", set(a), set(entry(sdk.KindConnector, "a", "1")), "connector/a unchanged"},
		{"another version is a change", set(a), set(entry(sdk.KindConnector, "a", "2")), "connector/a changed"},
		{"another configuration is a change", set(a), set(configured), "connector/a changed"},
		{"another manifest is a change: its binaries are looked for elsewhere", set(a), set(moved), "connector/a changed"},
		{"the same name of another kind is another plugin", set(a), set(entry(sdk.KindRuntime, "a", "1")), "connector/a removed, runtime/a added"},
		{"disabled is removed", set(a), set(off), "connector/a removed"},
		{"all at once, in order", set(a, entry(sdk.KindConnector, "b", "1")), set(entry(sdk.KindConnector, "b", "2"), entry(sdk.KindConnector, "c", "1")), "connector/a removed, connector/b changed, connector/c added"},
	} {
		var got []string
		for _, s := range diff(c.old, c.new) {
			got = append(got, fmt.Sprintf("%s/%s %s", s.key.kind, s.key.name, s.change))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: got %q, want %q", c.name, text, c.want)
		}
	}
}

// script puts a plugin into the bundle that is the fake one under another digest.
func (f *fixture) script(name, body string) manifest.Entry {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		f.t.Fatal(err)
	}
	sum, err := manifest.HashFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	return manifest.Entry{
		Name: "fake", Kind: sdk.KindConnector, Command: name, Version: "0.1.0", SHA256: sum, Source: filepath.Join(f.root, "plugins.toml"),
		Env: []string{"FAKE_DIR", "FAKE_KIND", "FAKE_MODE"},
	}
}

func changes(list []Reloaded) string {
	var out []string
	for _, r := range list {
		out = append(out, fmt.Sprintf("%s %s %s", r.Kind, r.Name, r.Change))
	}
	return strings.Join(out, ", ")
}

// proves: CONN-5
func TestAReloadReplacesWhatChangedAndNothingElse(t *testing.T) {
	f := newFixture(t)
	c, conn := f.connector()
	same := c.cfg.Manifest
	old := c.Status()[0].PID
	list, err := c.Reload(f.ctx(), same, nil)
	if err != nil || changes(list) != "connector fake unchanged" || c.Status()[0].PID != old {
		t.Fatalf("an unchanged manifest: %s, %v", changes(list), err)
	}
	newer := f.script("newer", "exec "+fakeBinary)
	list, err = c.Reload(f.ctx(), &manifest.Manifest{Entries: []manifest.Entry{newer}}, nil)
	if err != nil || changes(list) != "connector fake changed" || list[0].PID == old || list[0].PID != c.Status()[0].PID {
		t.Fatalf("a changed manifest: %s, %v, status %+v", changes(list), err, c.Status())
	}
	// What was handed out before goes on, by the new process.
	if spec, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{}); err != nil || spec.Args[0] != fmt.Sprint(list[0].PID) {
		t.Errorf("%+v, %v", spec, err)
	}
	list, err = c.Reload(f.ctx(), &manifest.Manifest{}, func(sdk.Kind, string) []string { return nil })
	if err != nil || changes(list) != "connector fake removed" || len(c.Status()) != 0 {
		t.Fatalf("a removal: %s, %v", changes(list), err)
	}
	if _, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{}); !errors.Is(err, sdk.ErrUnavailable) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted {
		t.Errorf("a call to what was removed: %v", err)
	}
	list, err = c.Reload(f.ctx(), same, nil)
	if err != nil || changes(list) != "connector fake added" || list[0].PID == 0 {
		t.Fatalf("an addition: %s, %v", changes(list), err)
	}
	if _, _, err := c.Connector(f.ctx(), "fake"); err != nil {
		t.Error(err)
	}
}

func TestAReloadWithAnErrorChangesNothing(t *testing.T) {
	f := newFixture(t)
	c, conn := f.connector()
	before := c.Status()[0]
	newer := f.script("newer", "exec "+fakeBinary)
	newer.Name = "extra"
	good := f.script("good", "exec "+fakeBinary)
	bad := f.script("bad", "echo broken >&2; exit 3")
	wrong := f.script("wrong", "exec "+fakeBinary)
	wrong.SHA256 = strings.Repeat("0", 64)
	for _, c2 := range []struct {
		name    string
		entries []manifest.Entry
		users   Users
		want    []string
	}{
		{"one that does not start", []manifest.Entry{bad}, nil, []string{`plugins.toml, entry connector "fake"`, "exit status 3", "broken"}},
		{"one with another digest", []manifest.Entry{wrong}, nil, []string{"expected sha256 000", "/wrong"}},
		{"one that describes itself otherwise, beside one that is right", []manifest.Entry{good, newer}, nil, []string{`entry connector "extra"`, `name "extra"`}},
		{"a removal of what seats need", []manifest.Entry{}, func(kind sdk.Kind, name string) []string {
			return []string{"seat reviewer", "seat " + name + " of " + string(kind)}
		}, []string{"connector fake is needed by seat reviewer, seat fake of connector"}},
	} {
		list, err := c.Reload(f.ctx(), &manifest.Manifest{Entries: c2.entries}, c2.users)
		if err == nil || len(list) != 0 || !strings.Contains(err.Error(), "nothing was changed") {
			t.Fatalf("%s: %v, %v", c2.name, list, err)
		}
		for _, want := range c2.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not contain %q", c2.name, err, want)
			}
		}
		if after := c.Status(); len(after) != 1 || after[0].PID != before.PID || after[0].Restarts != 0 {
			t.Errorf("%s: status %+v", c2.name, after)
		}
		if _, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{}); err != nil {
			t.Errorf("%s: afterwards: %v", c2.name, err)
		}
	}
	// What was tried is gone.
	pids := f.records("starts")
	for _, pid := range pids {
		if pid == fmt.Sprint(before.PID) {
			continue
		}
		f.eventually("process "+pid+" is gone", func() bool {
			_, err := os.Stat("/proc/" + pid)
			return err != nil
		})
	}
}

func TestARestartNamesWhatItMeans(t *testing.T) {
	f := newFixture(t)
	c := f.catalog(sdk.KindConnector)
	kind, done, err := c.Restart(f.ctx(), "", "fake")
	if err != nil || kind != sdk.KindConnector || done.PID == 0 || done.Info.Name != "fake" {
		t.Errorf("one that nobody needed yet: %s, %+v, %v", kind, done, err)
	}
	if _, _, err := c.Restart(f.ctx(), "", "fkae"); !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), "fake") {
		t.Errorf("an unknown name: %v", err)
	}
	if _, _, err := c.Restart(f.ctx(), sdk.KindRuntime, "fake"); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("another kind: %v", err)
	}
	both := New(config(f.root, f.env, sdk.KindConnector, sdk.KindRuntime))
	if _, _, err := both.Restart(f.ctx(), "", "fake"); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a name with two meanings: %v", err)
	}
	if err := c.Stop(f.ctx()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Restart(f.ctx(), "", "fake"); !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("after Stop: %v", err)
	}
	if _, err := c.Reload(f.ctx(), c.cfg.Manifest, nil); !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("a reload after Stop: %v", err)
	}
}

// What is in flight finishes on the old process, what comes meanwhile goes to the new one, and a watch goes
// from one to the other without missing the end.
func TestCallsAndWatchesLiveThroughASwap(t *testing.T) {
	f := newFixture(t)
	c, r := f.runtime()
	old := c.Status()[0].PID
	if _, err := r.Spawn(f.ctx(), request("watched", "/x")); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var servedBy []int
	var last sdk.SeatState
	watched := make(chan error, 1)
	go func() {
		watched <- r.(sdk.Watcher).Watch(f.ctx(), sdk.WatchRequest{SeatID: "watched"}, func(st sdk.SeatStatus) error {
			mu.Lock()
			defer mu.Unlock()
			servedBy, last = append(servedBy, st.Identity.PID), st.State
			return nil
		})
	}()
	spawned, written := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := r.Spawn(f.ctx(), request("slow", "/wait"))
		spawned <- err
	}()
	go func() {
		_, err := r.(sdk.Writer).Write(f.ctx(), sdk.WriteRequest{SeatID: "watched", Data: []byte("wait")})
		written <- err
	}()
	f.eventually("spawn, write and watch are in flight", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(f.records("spawning")) == 1 && len(f.records("writing")) == 1 && len(servedBy) == 1
	})
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := r.Adopt(f.ctx(), sdk.AdoptRequest{SeatID: "watched"}); err != nil {
					t.Errorf("a call during the swap: %v", err)
					return
				}
			}
		}()
	}
	var now int
	for range 3 { // the old ones drain side by side
		_, done, err := c.Restart(f.ctx(), sdk.KindRuntime, "fake")
		if err != nil {
			t.Fatal(err)
		}
		now = done.PID
	}
	f.eventually("the watch is served by the new process", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(servedBy, now)
	})
	close(stop)
	callers.Wait()
	if err := os.WriteFile(filepath.Join(f.root, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-spawned; err != nil {
		t.Errorf("the spawn in flight: %v", err)
	}
	if err := <-written; err != nil {
		t.Errorf("the write in flight: %v", err)
	}
	if n := len(f.records("written")); n != 1 {
		t.Errorf("typed %d times", n)
	}
	if spawns := f.records("spawns"); len(spawns) != 2 {
		t.Errorf("spawned %v, want each seat once", spawns)
	}
	if err := os.WriteFile(filepath.Join(f.root, "seat-watched"), []byte("exited"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-watched; err != nil || last != sdk.SeatExited {
		t.Errorf("the watch ended with %v in state %s", err, last)
	}
	f.eventually("the old process has ended", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", old))
		return err != nil
	})
}

func TestSecretsOfALaunchAreHiddenInWhatPluginsPrint(t *testing.T) {
	f := newFixture(t)
	cfg := config(f.root, f.env, sdk.KindConnector)
	cfg.CrashDir = filepath.Join(f.root, "log")
	logPath := filepath.Join(f.root, "host.log")
	logFile, err := os.Create(logPath)
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	cfg.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: logFile})
	c := New(cfg)
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	conn, _, err := c.Connector(f.ctx(), "fake")
	if err != nil {
		t.Fatal(err)
	}
	c.Hide("told-by-the-host-1")
	_, err = conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{
		Secrets: []string{"minted-secret-0001"}, BaseEnv: []string{"API_KEY=secret-of-the-env-2", "HOME=/home/somebody"},
		LaunchOptions: map[string]any{"do": "say", "token": "secret-option-3", "text": "print minted-secret-0001 secret-of-the-env-2 secret-option-3 told-by-the-host-1 /home/somebody"},
	})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := conn.BuildLaunch(f.ctx(), sdk.LaunchRequest{})
	if err != nil || slices.ContainsFunc(spec.Env, func(kv string) bool { return strings.HasPrefix(kv, supervise.NonceEnv) }) {
		t.Errorf("the mark of the plugin's helpers is in a launch: %v, %v", spec.Env, err)
	}
	const want = "print [redacted] [redacted] [redacted] [redacted] /home/somebody"
	f.eventually("what it printed is in the log, without the secrets", func() bool {
		b, err := os.ReadFile(logPath)
		return err == nil && strings.Contains(string(b), want)
	})
	f.kill(c)
	var report string
	f.eventually("there is a report", func() bool {
		path := c.Status()[0].Crash
		if path == "" {
			return false
		}
		b, err := os.ReadFile(path)
		report = string(b)
		return err == nil
	})
	if !strings.Contains(report, want) {
		t.Errorf("report:\n%s", report)
	}
}

func TestStopDuringAReloadIsNotHeldUp(t *testing.T) {
	f := newFixture(t)
	c, _ := f.connector()
	slow := f.script("slow", "sleep 600")
	slow.Name = "slow"
	m := &manifest.Manifest{Entries: append(slices.Clone(c.cfg.Manifest.Entries), slow)}
	done := make(chan error, 1)
	go func() {
		_, err := c.Reload(f.ctx(), m, nil)
		done <- err
	}()
	f.eventually("the reload is on its way", func() bool {
		if c.changing.TryLock() {
			c.changing.Unlock()
			return false
		}
		return true
	})
	begin := time.Now()
	if err := c.Stop(f.ctx()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > busy.Limit(supervise.StopTimeout+time.Second) {
		t.Errorf("took %s", d)
	}
	if err := <-done; err == nil {
		t.Error("the reload says that it succeeded")
	}
}

// A reload once said "0 plugins changed" of a file that no start accepts any more, and its advice was a reload.
func TestAReloadLooksAtTheFileOfEveryPluginAndItsAdviceWorks(t *testing.T) {
	f := newFixture(t)
	e := f.script("own", "exec "+fakeBinary)
	if err := manifest.Write(e.Source, []manifest.Entry{e}); err != nil {
		t.Fatal(err)
	}
	cfg := config(f.root, f.env)
	cfg.Manifest = &manifest.Manifest{Entries: []manifest.Entry{e}}
	c := New(cfg)
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if _, _, err := c.Connector(f.ctx(), "fake"); err != nil {
		t.Fatal(err)
	}
	reload := func() ([]Reloaded, error) {
		m, err := manifest.Load(e.Source)
		if err != nil {
			t.Fatal(err)
		}
		return c.Reload(f.ctx(), m, nil)
	}
	before := c.Status()[0].PID
	newer := f.script("own", "exec "+fakeBinary+" # newer")
	_, err := reload()
	if err == nil || !strings.Contains(err.Error(), e.SHA256) || !strings.Contains(err.Error(), newer.SHA256) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Fatalf("the file is another, the entry and the process are the same: %v", err)
	}
	if strings.Contains(err.Error(), "cotal ext reload") {
		t.Errorf("a reload advises a reload: %v", err)
	}
	if c.Status()[0].PID != before {
		t.Error("the process is another")
	}

	// It dies and cannot be started any more. The first advice: the digest of the file goes into the manifest.
	kill := func(pid int) {
		t.Helper()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		f.eventually("it is down", func() bool { st := c.Status()[0]; return st.PID == 0 && strings.HasSuffix(st.Fix, "cotal ext reload") })
	}
	kill(before)
	if fix := c.Status()[0].Fix; !strings.Contains(fix, "put its digest into "+e.Source) {
		t.Errorf("to do: %q", fix)
	}
	if err := manifest.Write(e.Source, []manifest.Entry{newer}); err != nil {
		t.Fatal(err)
	}
	if list, err := reload(); err != nil || changes(list) != "connector fake changed" || c.Status()[0].State != supervise.StateReady {
		t.Fatalf("after the first advice: %s, %v, %+v", changes(list), err, c.Status())
	}

	// The second: the file is put back.
	f.script("own", "exec "+fakeBinary)
	kill(c.Status()[0].PID)
	f.script("own", "exec "+fakeBinary+" # newer")
	list, err := reload()
	if err != nil || changes(list) != "connector fake unchanged" {
		t.Fatalf("after the second advice: %s, %v, %+v", changes(list), err, c.Status())
	}
	f.eventually("it serves again", func() bool { return c.Status()[0].State == supervise.StateReady })
}
