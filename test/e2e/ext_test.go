//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/diskfull"
	"github.com/cotal-ai/cotal-host/test/failpoints"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/seatview"
)

// extWorld is a world with plugins that are installed under a running host.
type extWorld struct {
	*harness.World
	program string // see testdata/named
	made    int
}

func newExtWorld(t *testing.T, w *harness.World) *extWorld {
	t.Helper()
	program := filepath.Join(w.Dir, "named")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "./testdata/named")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build ./testdata/named: %v\n%s", err, out)
	}
	return &extWorld{World: w, program: program}
}

// source is something to install: no two have the same digest.
type source struct{ path, digest, version string }

func (w *extWorld) source(t *testing.T, name, version string) source {
	t.Helper()
	w.made++
	text, err := os.ReadFile(w.program)
	if err != nil {
		t.Fatal(err)
	}
	path := w.Path("src", fmt.Sprint(w.made), fmt.Sprintf("cotal-connector-%s+%s", name, version))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fmt.Append(text, w.made), 0o700); err != nil {
		t.Fatal(err)
	}
	digest, err := manifest.HashFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return source{path, digest, version}
}

func (w *extWorld) install(t *testing.T, s source) {
	t.Helper()
	w.CLI("ext", "install", s.path, "--sha256", s.digest).OK()
}

// installed is what cotal ext info says of a plugin.
func (w *extWorld) installed(t *testing.T, name string) (version, digest string) {
	t.Helper()
	var info struct {
		Version, SHA256 string
		Sound           bool
	}
	w.CLI("ext", "info", name, "--json").OK().JSON(&info)
	if !info.Sound {
		t.Fatalf("%+v", info)
	}
	return info.Version, info.SHA256
}

// plugin is what the host says of one.
func (w *extWorld) plugin(t *testing.T, name string) wire.PluginStatus {
	t.Helper()
	for _, p := range w.Status().Plugins {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("the host has no plugin %s", name)
	return wire.PluginStatus{}
}

// storeDir is the store of the user of the world.
func (w *extWorld) storeDir() string {
	return filepath.Join(w.Home, ".local", "share", "cotal", "store")
}

// tidy fails when the store holds what nobody needs: binaries are what is installed and what was before.
func (w *extWorld) tidy(t *testing.T, binaries int) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(w.storeDir(), ".staging", "*")); len(left) > 0 {
		t.Errorf("left in staging: %v", left)
	}
	if kept, _ := filepath.Glob(filepath.Join(w.storeDir(), "sha256", "*")); len(kept) != binaries {
		t.Errorf("%d binaries in the store, want %d: %v", len(kept), binaries, kept)
	}
}

// struck runs an upgrade that is killed, after a time or at a failpoint, and returns whether it was.
func (w *extWorld) struck(t *testing.T, s source, after time.Duration, point string) bool {
	t.Helper()
	cmd := exec.Command(filepath.Join(w.Bin, "cotal"), "ext", "upgrade", "one", s.path, "--sha256", s.digest)
	cmd.Dir, cmd.Env = w.Root, w.Environ()
	if point != "" {
		cmd.Env = append(cmd.Env, failpoint.EnvVar+"="+point+"=crash")
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if point == "" {
		timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL) {
		t.Fatalf("upgrade: %v", err)
	}
	return err != nil
}

// A killed upgrade leaves the old plugin or the new one, installed whole and served by the host, whose seats of an old
// version know nothing of it.
//
// proves: CONN-5
func TestExt_AnUpgradeThatIsKilledLeavesTheOldPluginOrTheNewOne(t *testing.T) {
	t.Parallel()
	w := newExtWorld(t, harness.New(t))
	h := w.Start(harness.HostOptions{})
	w.install(t, w.source(t, "one", "1"))
	w.CLI("spawn", "--agent", "one", "--name", "worker", "--detach", "--", "sleep", "600").OK()
	seat := w.AwaitStatus("worker", "running")
	_, was := w.installed(t, "one")
	check := func(what string, next source, killed bool) {
		t.Helper()
		_, now := w.installed(t, "one")
		if now != was && now != next.digest || !killed && now != next.digest {
			t.Fatalf("%s: %s is installed, want %s or %s", what, now, was, next.digest)
		}
		was = now
		if p := w.plugin(t, "one"); p.State != "ready" || p.PID == 0 {
			t.Errorf("%s: %+v", what, p)
		}
		if row := w.Inspect("worker"); row.PID != seat.PID || row.Status != "running" || !h.Running() {
			t.Fatalf("%s: the seat: %+v", what, row)
		}
	}
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	begin := time.Now()
	next := w.source(t, "one", "2")
	check("not killed", next, w.struck(t, next, time.Hour, ""))
	whole, killed, changed := time.Since(begin), 0, 0
	i := 0
	for ; killed < 30 && i < 200; i++ {
		before, next := was, w.source(t, "one", fmt.Sprint(i+3))
		at := time.Duration(rnd.Int64N(int64(whole)))
		begin := time.Now()
		dead := w.struck(t, next, at, "")
		if took := time.Since(begin); dead {
			killed++
		} else {
			whole = took
		}
		check(fmt.Sprintf("killed after %s (seed %d)", at, seed), next, dead)
		if was != before {
			changed++
		}
	}
	t.Logf("%d of %d were killed within %s; %d times the new version was there", killed, i, whole, changed)
	if killed < 30 {
		t.Errorf("seed %d: only %d of %d were killed", seed, killed, i)
	}
	root, err := harness.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	sites, err := failpoints.Scan(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, site := range sites {
		if site.Process() != "ext" {
			continue
		}
		// Something is there to be swept, and nothing of the next one is in the store.
		next := w.source(t, "one", "40")
		check("not killed", next, w.struck(t, next, time.Hour, ""))
		next = w.source(t, "one", "41")
		if !w.struck(t, next, 0, site.Name) {
			t.Errorf("%s was not reached", site.Name)
		}
		check(site.Name, next, true)
	}
	next = w.source(t, "one", "50")
	w.CLI("ext", "upgrade", "one", next.path, "--sha256", next.digest).OK()
	check("at the end", next, false)
	w.tidy(t, 2)
	w.CLI("spawn", "--agent", "one", "--name", "late", "--detach", "--", "sleep", "600").OK()
	w.CLI("stop", "worker", "late").OK()
}

// A runtime that is replaced takes over the seats of the one before, with its configuration, and so does that when it
// comes back.
func TestExt_ARuntimeIsReplacedUnderItsSeats(t *testing.T) {
	t.Parallel()
	w := &extWorld{World: harness.New(t), program: filepath.Join(harness.Bin(t), "cotal-runtime-pty")}
	h := w.Start(harness.HostOptions{})
	row := w.Spawn("worker", seatview.Working(w.World, 20)...)
	view := seatview.Watch(t, w.World, w.AwaitStatus("worker", "running"))
	same := func(what string, pid int) {
		t.Helper()
		if p := w.plugin(t, "pty"); p.State != "ready" || p.PID == pid {
			t.Fatalf("%s: %+v, was process %d", what, p, pid)
		}
		if got := w.Inspect("worker"); got.PID != row.PID || got.Status != "running" || !h.Running() {
			t.Fatalf("%s: the seat: %+v", what, got)
		}
		view.AwaitMore(t)
		w.CLI("spawn", "--agent", "command", "--name", "new", "--detach", "--", "sleep", "600").OK()
		w.CLI("stop", "new").OK()
	}
	pid := w.plugin(t, "pty").PID
	s := w.source(t, "pty", "0.1.0")
	if r := w.CLI("ext", "install", s.path, "--command", "cotal-runtime-pty", "--sha256", s.digest).Want(1); !strings.Contains(r.Stderr, "--replace") {
		t.Errorf("%v", r)
	}
	w.CLI("ext", "install", s.path, "--command", "cotal-runtime-pty", "--sha256", s.digest, "--replace").OK()
	same("installed", pid)
	pid = w.plugin(t, "pty").PID
	if r := w.CLI("ext", "disable", "pty").Want(1); !strings.Contains(r.Stderr, "seat worker") {
		t.Errorf("%v", r)
	}
	w.CLI("ext", "remove", "pty").OK()
	same("removed", pid)
	w.CLI("stop", "worker").OK()
}

// proves: M10
func TestExt_InstallationsAtOnceAllCount(t *testing.T) {
	t.Parallel()
	w := newExtWorld(t, harness.New(t))
	w.Start(harness.HostOptions{})
	names := []string{"one", "two", "three", "four", "five"}
	var wg sync.WaitGroup
	for _, name := range names {
		s := w.source(t, name, "1")
		for range 2 { // each twice
			wg.Add(1)
			go func() {
				defer wg.Done()
				if r := w.CLI("ext", "install", s.path, "--sha256", s.digest); r.Code != 0 {
					t.Errorf("%v", r)
				}
			}()
		}
	}
	wg.Wait()
	for _, name := range names {
		if p := w.plugin(t, name); p.State != "ready" || p.Version != "1" {
			t.Errorf("%+v", p)
		}
		w.installed(t, name)
	}
	w.tidy(t, len(names))
}

// The second of two waits, says so, and can be interrupted.
func TestExt_TheSecondWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	w := newExtWorld(t, harness.New(t))
	gate := filepath.Join(w.Dir, "gate")
	begin := func(s source, env ...string) (cmd *exec.Cmd, said func() string) {
		cmd = exec.Command(filepath.Join(w.Bin, "cotal"), "ext", "install", s.path, "--sha256", s.digest)
		cmd.Dir, cmd.Env = w.Root, w.Environ(env...)
		out, err := os.Create(filepath.Join(w.Dir, filepath.Base(s.path)+".out"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { out.Close() })
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd, func() string { return read(t, out.Name()) }
	}
	first, _ := begin(w.source(t, "one", "1"), failpoint.EnvVar+"=ext.enter.recorded=pause("+gate+")")
	await(t, harness.DefaultWait, "the first is at work", func() (bool, string) { _, err := os.Stat(gate + ".reached"); return err == nil, "" })
	waits := func(said func() string) {
		await(t, harness.DefaultWait, "it says that it waits", func() (bool, string) { return strings.Contains(said(), "another cotal ext is at work"), said() })
	}
	second, said := begin(w.source(t, "two", "1"))
	waits(said)
	third, said3 := begin(w.source(t, "three", "1"))
	waits(said3)
	if err := third.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _ = third.Wait(); third.ProcessState.ExitCode() != 130 || !strings.Contains(said3(), "interrupted; nothing was changed") {
		t.Errorf("interrupted: exit code %d: %s", third.ProcessState.ExitCode(), said3())
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Wait(), second.Wait()); err != nil {
		t.Errorf("%v: %s", err, said())
	}
	for _, name := range []string{"one", "two"} {
		w.installed(t, name)
	}
	w.CLI("ext", "info", "three").Want(4)
	w.tidy(t, 2)
}

// A host that dies while it takes a plugin leaves the manifest as it is by then, and whoever installs is told so: the next
// host has it.
func TestExt_AHostThatDiesWhileItTakesAPlugin(t *testing.T) {
	t.Parallel()
	w := newExtWorld(t, harness.New(t))
	bundle, err := manifest.Load(filepath.Join(w.Bin, manifest.FileName))
	if err != nil {
		t.Fatal(err)
	}
	gate := filepath.Join(w.Dir, "gate")
	h := w.Start(harness.HostOptions{Failpoints: fmt.Sprintf("supervise.start.verified=%d*off->pause(%s)", len(bundle.Entries), gate)})
	for _, e := range bundle.Entries {
		await(t, harness.DefaultWait, "the plugins of the bundle are ready", func() (bool, string) { p := w.plugin(t, e.Name); return p.State == "ready", fmt.Sprint(p) })
	}
	s := w.source(t, "one", "1")
	done := make(chan harness.Result, 1)
	go func() { done <- w.CLI("ext", "install", s.path, "--sha256", s.digest) }()
	await(t, harness.DefaultWait, "the host takes it", func() (bool, string) { _, err := os.Stat(gate + ".reached"); return err == nil, "" })
	h.Kill()
	r := <-done
	if r.Code != 75 || !strings.Contains(r.Stderr, "stays changed") || !strings.Contains(r.Stderr, "cotal ext list") {
		t.Errorf("%v", r)
	}
	w.Start(harness.HostOptions{})
	await(t, harness.DefaultWait, "the next host has it", func() (bool, string) { p := w.plugin(t, "one"); return p.State == "ready", fmt.Sprint(p) })
	w.installed(t, "one")
	w.CLI("ext", "remove", "one").OK()
}

// proves: M5
func TestExt_OneThatCannotBeUpgradedKeepsNoOtherFromIt(t *testing.T) {
	t.Parallel()
	w := newExtWorld(t, harness.New(t))
	w.Start(harness.HostOptions{})
	index := newIndex(t, w)
	for _, name := range []string{"one", "three", "two"} {
		w.install(t, w.source(t, name, "1"))
	}
	// Two is another file than the index says.
	for _, name := range []string{"one", "two", "three"} {
		index.add(t, name, w.source(t, name, "2"))
	}
	index.write(t)
	tampered := index.file("two")
	if err := os.WriteFile(tampered, append([]byte(read(t, tampered)), 0x21), 0o700); err != nil {
		t.Fatal(err)
	}
	r := w.CLI("ext", "upgrade", "--all", "--json").Want(5)
	var got []string
	for line := range strings.Lines(r.Stdout) {
		var c struct{ Name, Change, Version, Was string }
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got = append(got, fmt.Sprintf("%s %s %s from %s", c.Change, c.Name, c.Version, c.Was))
	}
	if want := "upgraded one 2 from 1, upgraded three 2 from 1"; strings.Join(got, ", ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	if !strings.Contains(r.Stderr, "connector two: ") || !strings.Contains(r.Stderr, "expected sha256 "+index.digest("two")) || !strings.Contains(r.Stderr, "1 of 3 plugins") {
		t.Errorf("%v", r)
	}
	for name, want := range map[string]string{"one": "2", "two": "1", "three": "2"} {
		if p := w.plugin(t, name); p.Version != want || p.State != "ready" {
			t.Errorf("%s: %+v, want version %s", name, p, want)
		}
	}
	// By name, from the index: its signature stands for the digest.
	w.CLI("ext", "remove", "three").OK()
	if r := w.CLI("ext", "install", "three").OK(); !strings.HasPrefix(r.Stdout, "installed connector three 2") {
		t.Errorf("%v", r)
	}
	if r := w.CLI("ext", "upgrade", "--all").Want(1); !strings.Contains(r.Stderr, "connector two: ") {
		t.Errorf("%v", r)
	}
	index.unsign(t)
	if r := w.CLI("ext", "install", "three", "--replace").Want(1); !strings.Contains(r.Stderr, "not signed by") || !strings.Contains(r.Stderr, index.path) {
		t.Errorf("%v", r)
	}
}

// proves: M7
func TestExt_NamesOfOthersAndOtherContractsAreRefused(t *testing.T) {
	t.Parallel()
	w := newExtWorld(t, harness.New(t))
	w.Start(harness.HostOptions{})
	known := func() (names []string) {
		for _, p := range w.Status().Plugins {
			names = append(names, p.Kind+" "+p.Name+" "+p.Version)
		}
		return names
	}
	before := known()
	script := func(name, kind string, protocol int) source {
		text := fmt.Sprintf("#!/bin/sh\necho '{\"name\": %q, \"kind\": %q, \"version\": \"1\", \"protocol\": %d}'\n", name, kind, protocol)
		path := w.Write("src/"+name+"/plugin", text)
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
		digest, err := manifest.HashFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return source{path: path, digest: digest}
	}
	w.install(t, w.source(t, "one", "1"))
	for _, c := range []struct {
		name, want string
		source     source
	}{
		{"a name of the bundle", "come with cotal-host", script("pty", "runtime", sdk.ProtocolVersion)},
		{"another's name", "connector one 1", script("one", "connector", sdk.ProtocolVersion)},
		{"a contract of the future", "upgrade cotal-host", script("late", "connector", 99)},
		{"no plugin at all", "handshake", script("mute", "connector", sdk.ProtocolVersion)},
	} {
		r := w.CLI("ext", "install", c.source.path, "--sha256", c.source.digest).Want(1)
		if !strings.Contains(r.Stderr, c.want) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s: %v, want one line with %q", c.name, r, c.want)
		}
	}
	w.CLI("ext", "remove", "one").OK()
	if after := known(); !slices.Equal(after, before) {
		t.Errorf("the plugins are %v, were %v", after, before)
	}
}

// A full disk refuses an upgrade in one line, and everything goes on as it was.
func TestExt_AFullDiskLeavesTheVersionBefore(t *testing.T) {
	how, here := diskfull.Private(t)
	if !here {
		return
	}
	if how == diskfull.Injected {
		t.Skip("no small disk can be made here")
	}
	w := newExtWorld(t, harness.New(t))
	config := filepath.Join(w.Home, ".config", "cotal")
	for _, dir := range []string{w.storeDir(), config} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	disks := map[string]*diskfull.Disk{"the store": w.SmallDisk(128<<20, w.storeDir()), "the manifest": w.SmallDisk(1<<20, config)}
	w.Start(harness.HostOptions{})
	w.install(t, w.source(t, "one", "1"))
	w.CLI("spawn", "--agent", "one", "--name", "worker", "--detach", "--", "sleep", "600").OK()
	seat := w.AwaitStatus("worker", "running")
	version := 1
	for place, disk := range disks {
		if err := disk.Fill(); err != nil {
			t.Fatal(err)
		}
		next := w.source(t, "one", fmt.Sprint(version+1))
		r := w.CLI("ext", "upgrade", "one", next.path, "--sha256", next.digest).Want(1)
		if !strings.Contains(r.Stderr, "no space left on device; nothing was changed") || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s: %v", place, r)
		}
		if v, _ := w.installed(t, "one"); v != fmt.Sprint(version) || w.plugin(t, "one").Version != v {
			t.Errorf("%s: version %s is installed", place, v)
		}
		if err := disk.Free(); err != nil {
			t.Fatal(err)
		}
		version++
		w.CLI("ext", "upgrade", "one", next.path, "--sha256", next.digest).OK()
		if row := w.Inspect("worker"); row.PID != seat.PID || row.Status != "running" {
			t.Errorf("%s: the seat: %+v", place, row)
		}
	}
	w.tidy(t, 2)
	w.CLI("stop", "worker").OK()
}
