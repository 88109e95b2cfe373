// Package e2e drives the real binaries from the outside: what a person or a machine does to a host, and
// what must then be true.
package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// pluginProcs are the plugin processes of a world, by name. A plugin runs from a sealed copy, so its
// argv names it and its path does not.
func pluginProcs(w *harness.World) map[string][]int {
	found := map[string][]int{}
	for _, p := range w.Procs() {
		for _, name := range []string{"cotal-runtime-pty", "cotal-connector-command", "cotal-connector-opencode"} {
			if strings.Contains(p.Args, name) {
				found[name] = append(found[name], p.PID)
			}
		}
	}
	return found
}

func await(t *testing.T, d time.Duration, what string, check func() (bool, string)) {
	t.Helper()
	harness.Eventually(t, d, what, check)
}

// TestFieldA5_OutputAfterAHostCrashIsReadable: nothing of a seat hangs on a pipe of the host.
func TestFieldA5_OutputAfterAHostCrashIsReadable(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	gate := filepath.Join(w.Dir, "go")
	row := w.SpawnFake("writer", fmt.Sprintf(`[{"print": "before\n"}, {"waitFile": %q}, {"flood": {"mb": 1}}, {"print": "the end\n"}, {"hang": true}]`, gate))
	h.Kill()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The log is read while there is no host at all.
	await(t, harness.DefaultWait, "the flood is over", func() (bool, string) {
		return strings.Contains(w.CLI("logs", "writer").OK().Stdout, "the end"), ""
	})
	w.Start(harness.HostOptions{})
	if again := w.AwaitStatus("writer", "running"); again.PID != row.PID {
		t.Errorf("pid %d, was %d", again.PID, row.PID)
	}
	out := w.CLI("logs", "writer", "--raw", "--bytes", "2097152").OK().Stdout
	if !strings.Contains(out, "before") || !strings.Contains(out, "the end") || len(out) < 1<<20 {
		t.Errorf("%d bytes of output are left, from %q", len(out), out[:min(len(out), 80)])
	}
}

// TestFieldA6_PluginsEndWithTheirHostAndAreNeverDoubled.
func TestFieldA6_PluginsEndWithTheirHostAndAreNeverDoubled(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	for range 3 {
		h := w.Start(harness.HostOptions{})
		w.PluginPID("command")
		for name, pids := range pluginProcs(w) {
			if len(pids) != 1 {
				t.Errorf("%s runs %d times", name, len(pids))
			}
		}
		h.Kill()
		await(t, 5*time.Second, "no plugin is left", func() (bool, string) {
			left := pluginProcs(w)
			return len(left) == 0, fmt.Sprint(left)
		})
	}
}

// TestFieldA13_PluginsAndAgentsSeeAnAllowListOfTheHostsEnvironment.
//
// proves: G11
func TestFieldA13_PluginsAndAgentsSeeAnAllowListOfTheHostsEnvironment(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{Env: []string{"CANARY_SECRET=sing", "COTAL_ENROLLMENT_URL=http://x", "LC_ALL=C.UTF-8"}})
	dump := filepath.Join(w.Dir, "env")
	row := w.SpawnFake("env", fmt.Sprintf(`[{"dumpEnv": %q}, {"hang": true}]`, dump))
	await(t, harness.DefaultWait, "the agent wrote its environment", func() (bool, string) { _, err := os.Stat(dump); return err == nil, "" })
	seen := map[string]string{"agent": read(t, dump)}
	for name, pids := range pluginProcs(w) {
		seen[name] = strings.ReplaceAll(read(t, fmt.Sprintf("/proc/%d/environ", pids[0])), "\x00", "\n")
	}
	seen["seat"] = strings.ReplaceAll(read(t, fmt.Sprintf("/proc/%d/environ", row.SeatPID)), "\x00", "\n")
	if len(seen) < 5 {
		t.Fatalf("looked at %d environments only", len(seen))
	}
	for who, env := range seen {
		if strings.Contains(env, "CANARY") || strings.Contains(env, "ENROLLMENT") {
			t.Errorf("%s sees what is not on the list:\n%s", who, env)
		}
	}
	if !strings.Contains(seen["agent"], "LC_ALL=C.UTF-8\n") || !strings.Contains(seen["agent"], "COTAL_NAME=env\n") {
		t.Errorf("the agent misses what is on the list:\n%s", seen["agent"])
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

// TestFieldB5_AStopAfterARestartReachesTheOldProcess, and its name cannot be taken meanwhile.
func TestFieldB5_AStopAfterARestartReachesTheOldProcess(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	row := w.SpawnFake("old", `[{"hang": true}]`)
	h.Kill()
	w.Start(harness.HostOptions{})
	w.CLI(append([]string{"spawn", "--agent", "command", "--name", "old", "--detach", "--"}, w.FakeAgent(`[{"hang": true}]`)...)...).Want(1)
	if n := len(w.ProcsLike("cotal-fakeagent")); n != 1 {
		t.Errorf("%d agents run, want 1", n)
	}
	w.CLI("stop", "old").OK()
	if w.Alive(row.PID) {
		t.Errorf("stop succeeded and pid %d lives", row.PID)
	}
}

// TestFieldB13_ASeatThatNeverGotReadyIsStillListedAndCanBeStopped.
func TestFieldB13_ASeatThatNeverGotReadyIsStillListedAndCanBeStopped(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	args := append([]string{"spawn", "--agent", "command", "--name", "never", "--detach", "--opt", "probe=127.0.0.1:1", "--"}, w.FakeAgent(`[{"hang": true}]`)...)
	r := w.CLI(args...)
	if r.Code != 75 || !strings.Contains(r.Stderr, "never") {
		t.Errorf("want exit code 75 and advice: %v", r)
	}
	row, ok := w.Seat("never")
	if !ok || row.Status != "running" || !w.Alive(row.PID) {
		t.Fatalf("row %+v, %v", row, ok)
	}
	w.CLI("stop", "never").OK()
	if w.Alive(row.PID) {
		t.Error("the agent survived its stop")
	}
}

// TestFieldB15_AWrapperThatExitsLeavesNoOrphan: the seat follows the tree, not the first process.
func TestFieldB15_AWrapperThatExitsLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	pidfile := filepath.Join(w.Dir, "pid")
	w.CLI("spawn", "--agent", "command", "--name", "wrap", "--detach", "--", "sh", "-c",
		fmt.Sprintf(`sh -c 'echo $$ > %s; exec sleep 600' & while [ ! -s %s ]; do sleep 0.01; done; exit 0`, pidfile, pidfile)).OK()
	row := w.AwaitStatus("wrap", "exited")
	if row.Exit == nil || row.Exit.Code == nil || *row.Exit.Code != 0 {
		t.Errorf("exit %+v; want code 0", row.Exit)
	}
	if left := w.ProcsLike("sleep 600"); len(left) != 0 {
		t.Errorf("orphaned: %v", left)
	}
}

// TestFieldC1_EveryWayOfStoppingTheHostSparesSeatsAndSaysSo, but for the one that is told otherwise.
//
// proves: STOP-3
func TestFieldC1_EveryWayOfStoppingTheHostSparesSeatsAndSaysSo(t *testing.T) {
	routes := map[string]func(w *harness.World, h *harness.Host){
		"SIGTERM":              func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGTERM) },
		"SIGINT":               func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGINT) },
		"SIGHUP":               func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGHUP) },
		"SIGINT twice":         func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGINT); h.Signal(syscall.SIGINT) },
		"cotal-host stop":      func(w *harness.World, _ *harness.Host) { w.Host("stop").OK() },
		"stop --with-agents":   func(w *harness.World, _ *harness.Host) { w.Host("stop", "--with-agents").OK() },
		"SIGTERM, nobody asks": func(_ *harness.World, h *harness.Host) { h.Signal(syscall.SIGTERM) },
	}
	for name, route := range routes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t)
			h := w.Start(harness.HostOptions{})
			a, b := w.SpawnFake("a", `[{"hang": true}]`), w.SpawnFake("b", `[{"hang": true}]`)
			route(w, h)
			e, ok := h.WaitExit(harness.DefaultWait)
			if !ok || e.Code != 0 {
				t.Fatalf("the host ended %v, %v", ok, e)
			}
			spared := name != "stop --with-agents"
			if w.Alive(a.PID) != spared || w.Alive(b.PID) != spared {
				t.Errorf("alive behind the stop: %v %v; want %v", w.Alive(a.PID), w.Alive(b.PID), spared)
			}
			for _, seat := range []string{"a", "b"} {
				want := "left running: " + seat
				if !spared {
					want = "stopped: " + seat
				}
				if !strings.Contains(h.Stderr(), want) {
					t.Errorf("the fate of %s is not told: %s", seat, h.Stderr())
				}
			}
			if spared && !strings.Contains(h.Stderr(), "cotal stop a") {
				t.Errorf("the command that ends a is not told: %s", h.Stderr())
			}
			if _, err := os.Stat(w.Path(".cotal", "host", "endpoint.json")); !os.IsNotExist(err) {
				t.Errorf("endpoint.json is left: %v", err)
			}
		})
	}
}

// TestFieldC2_ATeardownThatReachedNobodyIsNoSuccess and names what is left.
func TestFieldC2_ATeardownThatReachedNobodyIsNoSuccess(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	row := w.SpawnFake("stuck", `[{"hang": true}]`)
	h.Signal(syscall.SIGSTOP)
	r := w.Host("stop", "--with-agents", "--timeout", "2s")
	if r.Code != 5 && r.Code != 3 && r.Code != 75 || !strings.Contains(r.Stdout+r.Stderr, "stuck") {
		t.Errorf("want a failure that names the seat: %v", r)
	}
	h.Signal(syscall.SIGCONT)
	if !w.Alive(row.PID) {
		// The request may have been carried out once the host went on; then nothing may be left of it.
		w.AwaitGone(row.PID)
	}
}

// TestFieldC4_AHostIsFoundWithoutItsEndpointFile.
func TestFieldC4_AHostIsFoundWithoutItsEndpointFile(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{})
	if err := os.Remove(w.Path(".cotal", "host", "endpoint.json")); err != nil {
		t.Fatal(err)
	}
	r := w.Host("status")
	if !strings.Contains(r.Stdout+r.Stderr, fmt.Sprint(h.PID)) || strings.Contains(r.Stdout+r.Stderr, "not running") {
		t.Errorf("status must say that pid %d runs: %v", h.PID, r)
	}
	w.Host("stop").OK()
	if _, ok := h.WaitExit(harness.DefaultWait); !ok {
		t.Error("stop said success and the host runs")
	}
}

// TestFieldC5_AStopWaitsForASlowEndBeforeItJudges.
func TestFieldC5_AStopWaitsForASlowEndBeforeItJudges(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.SpawnFake("slow", `[{"onSignal": {"signal": "TERM", "waitMs": 2000, "exit": 0}}, {"print": "armed\n"}, {"hang": true}]`)
	await(t, harness.DefaultWait, "the handler is set", func() (bool, string) {
		return strings.Contains(w.CLI("logs", "slow").OK().Stdout, "armed"), ""
	})
	r := w.CLI("stop", "slow").OK()
	if r.Took < 1900*time.Millisecond || r.Took > busy.Limit(6*time.Second) {
		t.Errorf("took %v, want about 2 s", r.Took)
	}
}

// An interactive shell ignores SIGTERM; its stop must not take the whole grace and then kill it.
func TestStopOfAnInteractiveShellIsPoliteAndQuick(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	w.Spawn("shell", "bash", "--norc", "-i")
	await(t, harness.DefaultWait, "the prompt", func() (bool, string) {
		out := w.CLI("logs", "shell").OK().Stdout
		return strings.Contains(out, "$") || strings.Contains(out, "#"), out
	})
	r := w.CLI("stop", "shell").OK()
	if r.Took > busy.Limit(3*time.Second) || strings.Contains(r.Stdout, "SIGKILL") || !strings.Contains(r.Stdout, "SIGHUP") {
		t.Errorf("want a quick polite end by SIGHUP: %v", r)
	}
}

// TestFieldL6_SeatsHaveATerminalIdentityWhateverTheHostHas.
func TestFieldL6_SeatsHaveATerminalIdentityWhateverTheHostHas(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Setenv("TERM", "")
	w.Start(harness.HostOptions{})
	w.SpawnFake("term", `[{"printEnv": "TERM"}, {"printEnv": "COLORTERM"}, {"printSize": true}, {"hang": true}]`)
	await(t, harness.DefaultWait, "the agent says its terminal", func() (bool, string) {
		out := w.CLI("logs", "term").OK().Stdout
		return strings.Contains(out, "TERM=xterm-256color") && strings.Contains(out, "COLORTERM=truecolor") && strings.Contains(out, "size 32x120"), out
	})
}

// TestFieldL7_WideCharactersPassAndThereIsAlwaysAUTF8Locale.
func TestFieldL7_WideCharactersPassAndThereIsAlwaysAUTF8Locale(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Setenv("LANG", "")
	w.Start(harness.HostOptions{})
	w.SpawnFake("wide", `[{"printEnv": "LANG"}, {"print": "汉字 ─ 🙂"}, {"hang": true}]`)
	await(t, harness.DefaultWait, "the characters arrive", func() (bool, string) {
		out := w.CLI("logs", "wide", "--raw").OK().Stdout
		return strings.Contains(out, "LANG=C.UTF-8") && strings.Contains(out, "汉字 ─ 🙂"), out
	})
}

// TestFieldL11_ALongHomeOrRuntimeDirectoryWorksOrSaysTheLimit.
func TestFieldL11_ALongHomeOrRuntimeDirectoryWorksOrSaysTheLimit(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	deep := filepath.Join(w.Dir, strings.Repeat("d", 150))
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	w.Setenv("HOME", deep)
	w.Setenv("COTAL_SEAT_ROOT", filepath.Join(deep, "seats"))
	h := w.Start(harness.HostOptions{})
	w.SpawnFake("deep", `[{"hang": true}]`)
	w.CLI("stop", "deep").OK()
	h.Stop()

	w.Setenv("XDG_RUNTIME_DIR", deep)
	w.Setenv("TMPDIR", deep)
	h = w.Launch(harness.HostOptions{})
	e, ok := h.WaitExit(harness.DefaultWait)
	if !ok || e.Code != 2 || !strings.Contains(h.Stderr(), "100 bytes") || !strings.Contains(h.Stderr(), "XDG_RUNTIME_DIR") {
		t.Errorf("ended %v %v, said %q; want exit code 2 and the limit", ok, e, h.Stderr())
	}
}

// TestFieldL12_StrangeDirectoriesAreArgumentsNotShell.
func TestFieldL12_StrangeDirectoriesAreArgumentsNotShell(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	w.Start(harness.HostOptions{})
	for i, name := range []string{"a $(touch pwn) `touch pwn` \"c\" ; touch pwn #", "-rf", "new\nline", " blank "} {
		dir := w.Path(name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(w.Dir, fmt.Sprintf("cwd%d", i))
		seat := fmt.Sprintf("dir%d", i)
		args := append([]string{"spawn", "--agent", "command", "--name", seat, "--cwd=" + dir, "--detach", "--"},
			w.FakeAgent(fmt.Sprintf(`[{"write": {"file": %q, "text": "{cwd}"}}, {"hang": true}]`, out))...)
		w.CLI(args...).OK()
		await(t, harness.DefaultWait, "the agent says where it is", func() (bool, string) { _, err := os.Stat(out); return err == nil, "" })
		if got := read(t, out); got != dir {
			t.Errorf("ran in %q, want %q", got, dir)
		}
	}
	err := filepath.WalkDir(w.Dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "pwn" {
			t.Errorf("a directory name was executed: %s", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFieldO2_SocketsAreInPrivateDirectories and a directory that is not ours is refused.
func TestFieldO2_SocketsAreInPrivateDirectories(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	victim := filepath.Join(w.Dir, "victim")
	if err := os.Mkdir(victim, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(w.RuntimeDir, "cotal")); err != nil {
		t.Fatal(err)
	}
	h := w.Launch(harness.HostOptions{})
	if e, ok := h.WaitExit(harness.DefaultWait); !ok || e.Code != 1 || !strings.Contains(h.Stderr(), "cotal") {
		t.Errorf("a linked socket directory: ended %v %v, said %q", ok, e, h.Stderr())
	}
	if err := os.Remove(filepath.Join(w.RuntimeDir, "cotal")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(w.RuntimeDir, "cotal"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(w.RuntimeDir, "cotal"), 0o777); err != nil {
		t.Fatal(err)
	}
	h = w.Launch(harness.HostOptions{})
	if e, ok := h.WaitExit(harness.DefaultWait); !ok || e.Code != 1 || !strings.Contains(h.Stderr(), "chmod 700") {
		t.Errorf("an open socket directory: ended %v %v, said %q", ok, e, h.Stderr())
	}
	if err := os.Chmod(filepath.Join(w.RuntimeDir, "cotal"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.Start(harness.HostOptions{})
	w.SpawnFake("modes", `[{"hang": true}]`)
	err := filepath.WalkDir(w.RuntimeDir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := os.Lstat(path)
		// A plugin's socket has the mode the library gives it; its directory keeps everyone out.
		if err == nil && st.Mode().Perm()&0o077 != 0 && (st.IsDir() || strings.HasSuffix(path, ".sock")) {
			t.Errorf("%s has mode %v", path, st.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Secrets are in files of mode 0600 only: not in argv, environment, logs, journal or records.
//
// proves: OUT-14
func TestSecretsAreInPrivateFilesOnly(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.Start(harness.HostOptions{Args: []string{"--log-level", "debug"}})
	row := w.SpawnFake("quiet", `[{"print": "x\n"}, {"hang": true}]`)
	w.CLI("input", "quiet", "--text", "hello").OK()
	secrets := map[string]string{}
	tokens := map[string]bool{}
	for what, path := range map[string]string{
		"broker token": w.Endpoint().TokenFile, "seat token": filepath.Join(w.SeatRoot, row.SeatID, "token"),
	} {
		secrets[what] = strings.TrimSpace(read(t, path))
		tokens[path] = true
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
	}
	// What the program of a seat needs to reach the mesh is in a private file of the seat's own.
	material := filepath.Join(w.SeatRoot, row.SeatID, "launch", "material.json")
	tokens[material] = true
	if st, err := os.Stat(material); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v", material, err)
	}
	found := func(where, text string) {
		for what, s := range secrets {
			if strings.Contains(text, s) {
				t.Errorf("the %s is in %s", what, where)
			}
		}
	}
	for _, dir := range []string{w.Root, w.SeatRoot, w.RuntimeDir, w.Home} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || tokens[path] {
				return err
			}
			st, err := d.Info()
			if err == nil && strings.HasPrefix(path, w.Path(".cotal", "host")) && st.Mode().Perm()&0o077 != 0 && !strings.Contains(path, "/nats/") {
				t.Errorf("%s has mode %v", path, st.Mode())
			}
			found(path, read(t, path))
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, p := range w.Procs() {
		found(fmt.Sprintf("argv of %d", p.PID), p.Args)
		if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID)); err == nil {
			found(fmt.Sprintf("environment of %d", p.PID), string(env))
		}
	}
	found("ps", fmt.Sprintf("%+v", w.Ps()))
	found("standard error of the host", h.Stderr())
}

// A host that was started with nohup does not take the end of its terminal for a request to stop.
func TestAHostUnderNohupIgnoresTheEndOfItsTerminal(t *testing.T) {
	t.Parallel()
	w := harness.New(t)
	h := w.LaunchProgram("/bin/sh", []string{"-c", `trap "" HUP; exec "$0" serve --open --root "$1"`, filepath.Join(w.Bin, "cotal-host"), w.Root}, harness.HostOptions{})
	if err := h.WaitReady(harness.DefaultWait); err != nil {
		t.Fatal(err)
	}
	row := w.SpawnFake("kept", `[{"hang": true}]`)
	h.Signal(syscall.SIGHUP)
	w.CLI("inspect", "kept").OK()
	if !h.Running() || !w.Alive(row.PID) {
		t.Error("the hang-up ended the host or its seat")
	}
}
