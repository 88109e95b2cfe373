package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/failpoint"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func TestStartsDescribesConfiguresAndStops(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	if live.Info.Name != "fake" || live.Info.Kind != sdk.KindConnector || live.Info.SDKVersion != sdk.Version {
		t.Errorf("info %+v", live.Info)
	}
	spec, err := do(live, f.ctx(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(spec.Path, f.run+"/plug-fake-") {
		t.Errorf("working directory is %s, want its own below %s", spec.Path, f.run)
	}
	if st, err := os.Stat(spec.Path); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("socket directory: %v, %v, want mode 0700", st, err)
	}
	if st, err := os.Stat(spec.Args[1]); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("state directory %q: %v, want mode 0700", spec.Args[1], err)
	}
	if pgid, err := syscall.Getpgid(live.PID); err != nil || pgid != live.PID {
		t.Errorf("process group %d, %v, want its own", pgid, err)
	}
	if st := s.Status(); st.State != StateReady || st.PID != live.PID {
		t.Errorf("status %+v", st)
	}
	begin := time.Now()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > busy.Limit(stopPolite) {
		t.Errorf("polite stop took %s: the plugin did not go by its lifeline", d)
	}
	if !gone(live.PID) || s.State() != StateStopped {
		t.Errorf("after Stop: gone %v, state %s", gone(live.PID), s.State())
	}
	if _, err := s.Ready(f.ctx()); !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("Ready after Stop: %v", err)
	}
}

func TestFieldA7_LongLogLinesAreCutAndDrained(t *testing.T) {
	f := newFixture(t)
	live := f.ready(f.start(f.entry()))
	// 8 MB in lines of 1 MB: more than any pipe holds, so an unread pipe hangs the call.
	if _, err := do(live, f.ctx(), map[string]any{"do": "log", "bytes": 1 << 20, "lines": 8}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the record after the long lines arrives", func() bool {
		_, ok := f.log.find("a record")
		return ok
	})
	rec, _ := f.log.find("a record")
	if rec["@level"] != "warn" || rec["plugin"] != "fake" || rec["pid"] != float64(live.PID) || rec["attempt"] != float64(1) || rec["n"] != float64(3) {
		t.Errorf("record %v", rec)
	}
	rec, ok := f.log.find("LLLL")
	if msg, _ := rec["@message"].(string); !ok || !strings.HasSuffix(msg, cutMarker) || len(msg) != maxLogLine+len(cutMarker) {
		t.Errorf("long line: found %v, %d bytes", ok, len(msg))
	}
}

func TestFieldA8_StopDoesNotWaitForWhoHoldsThePipe(t *testing.T) {
	f := newFixture(t)
	f.env["FAKE_MODE"] = "stubborn"
	s := f.start(f.entry())
	live := f.ready(s)
	child := atoi(t, f.records("pids")[0])
	begin := time.Now()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > busy.Limit(StopTimeout+time.Second) {
		t.Errorf("stop took %s", d)
	}
	if !gone(live.PID) || !gone(child) {
		t.Errorf("plugin gone %v, its child gone %v", gone(live.PID), gone(child))
	}
}

func TestStopWithAnEndedContextKillsAtOnce(t *testing.T) {
	f := newFixture(t)
	f.env["FAKE_MODE"] = "stubborn"
	s := f.start(f.entry())
	f.ready(s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	begin := time.Now()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > busy.Limit(stopPolite) {
		t.Errorf("took %s", d)
	}
}

// proves: M11
func TestFieldA13_PluginsGetNoHostEnvironment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "x") // in the process, and not looked at
	f := newFixture(t)
	for k, v := range map[string]string{
		"SECRET": "x", "LANG": "C.UTF-8", "COTAL_TOKEN": "x", "COTAL_SEAT_ROOT": "/elsewhere",
		"PLUGIN_UNIX_SOCKET_DIR": "/elsewhere", "COTAL_PLUGIN_COOKIE": "wrong", "WANTED": "w",
		failpoint.EnvVar: "none=off",
	} {
		f.env[k] = v
	}
	e := f.entry()
	e.Env = append(e.Env, "WANTED", "COTAL_PLUGIN_COOKIE") // a manifest cannot say the second; were it to
	spec, err := do(f.ready(f.start(e)), f.ctx(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, kv := range spec.Env {
		k, v, _ := strings.Cut(kv, "=")
		if _, dup := got[k]; dup {
			t.Errorf("%s is set twice", k)
		}
		got[k] = v
	}
	for k, want := range map[string]string{
		"PATH": f.env["PATH"], "HOME": f.env["HOME"], "LANG": "C.UTF-8", "WANTED": "w",
		"COTAL_SEAT_ROOT": "/seats",
		failpoint.EnvVar:  "none=off",
	} {
		if got[k] != want {
			t.Errorf("%s=%q, want %q", k, got[k], want)
		}
		delete(got, k)
	}
	if dir := got["PLUGIN_UNIX_SOCKET_DIR"]; !strings.HasPrefix(dir, f.run) {
		t.Errorf("PLUGIN_UNIX_SOCKET_DIR=%q", dir)
	}
	// That it runs shows that the wrong cookie did not win; what it starts is told nothing of it.
	for k := range got {
		if k != "PLUGIN_UNIX_SOCKET_DIR" && k != "FAKE_DIR" && k != NonceEnv {
			t.Errorf("also got %s", k)
		}
	}
}

func TestFieldA15_MessagesAboveTheLimitAreRefusedAndHarmless(t *testing.T) {
	f := newFixture(t)
	live := f.ready(f.start(f.entry()))
	for _, c := range []struct {
		bytes int
		ok    bool
	}{{3_900_000, true}, {4_300_000, false}, {64 << 20, false}} {
		spec, err := do(live, f.ctx(), map[string]any{"do": "size", "bytes": c.bytes})
		switch {
		case c.ok && (err != nil || len(spec.Path) != c.bytes+1):
			t.Errorf("%d bytes: %v", c.bytes, err)
		case !c.ok && (!errors.Is(err, sdk.ErrTooLarge) || sdk.OutcomeOf(err) != sdk.OutcomeExecuted || !strings.Contains(err.Error(), "4194304")):
			t.Errorf("%d bytes: %v, want ErrTooLarge that names the limit", c.bytes, err)
		}
		_, err = do(live, f.ctx(), map[string]any{"do": "", "fill": strings.Repeat("x", c.bytes)})
		switch {
		case c.ok && err != nil:
			t.Errorf("request of %d bytes: %v", c.bytes, err)
		case !c.ok && (!errors.Is(err, sdk.ErrTooLarge) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted):
			t.Errorf("request of %d bytes: %v, want ErrTooLarge, not executed", c.bytes, err)
		}
	}
	if _, err := do(live, f.ctx(), nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestFieldA6_PluginsEndWithTheirHost(t *testing.T) {
	f := newFixture(t)
	for round := range 2 {
		host := f.host(nil, f.entry(), f.entry())
		f.hostReady()
		starts := f.records("starts")
		if len(starts) != 2*(round+1) {
			t.Fatalf("round %d: %d plugins were started", round, len(starts))
		}
		if err := host.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = host.Wait()
		for _, s := range starts {
			eventually(t, 2*time.Second, "plugin "+s+" is gone", func() bool { return gone(atoi(t, s)) })
		}
	}
	// The next host finds what the last one left.
	if left, _ := os.ReadDir(f.run); len(left) == 0 {
		t.Fatal("a killed host left nothing: the test proves nothing")
	}
	if _, err := Sweep(f.run); err != nil {
		t.Fatal(err)
	}
}

func TestFieldA5_ALostLogPipeDoesNotEndWorkInFlight(t *testing.T) {
	f := newFixture(t)
	host := f.host([]string{"SUPERVISE_TEST_CALL=log-until-done"}, f.entry())
	f.hostReady()
	eventually(t, 5*time.Second, "the call writes", func() bool { return strings.Contains(f.log.String(), "still here") })
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait()
	eventually(t, 3*time.Second, "the call ends by itself", func() bool { return len(f.records("finished")) == 1 })
	if got := strings.Join(f.records("write-error"), " "); got != "broken pipe" {
		t.Errorf("write to the lost pipe: %q, want a broken pipe that is survived", got)
	}
	pid := atoi(t, f.records("starts")[0])
	eventually(t, 2*time.Second, "the plugin is gone", func() bool { return gone(pid) })
	if _, err := Sweep(f.run); err != nil {
		t.Fatal(err)
	}
}

func TestFieldA1_KilledPluginsLeaveNoSocketDirectories(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	keep := filepath.Join(f.run, "plug-somebody-else")
	if err := os.Mkdir(keep, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := s.Restart(f.ctx()); err != nil { // do not wait for backoff and quarantine
			t.Fatal(err)
		}
		live := f.ready(s)
		if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-live.Gone()
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	left, _ := os.ReadDir(f.run)
	if len(left) != 1 || left[0].Name() != filepath.Base(keep) {
		t.Errorf("left: %v", left)
	}
	os.Remove(keep)
}

// proves: M4
func TestInPlaceOverwriteAfterVerificationIsNotExecuted(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.bundle, "copy")
	data, err := os.ReadFile(fakeBinary)
	if err != nil {
		t.Fatal(err)
	}
	e := f.file("copy", string(data), 0o755)
	gate := filepath.Join(f.dir, "gate")
	if err := failpoint.Arm("supervise.start.verified=1*pause(" + gate + ")"); err != nil {
		t.Fatal(err)
	}
	defer failpoint.Disarm()
	s := f.start(e)
	eventually(t, 10*time.Second, "the binary is verified", func() bool {
		_, err := os.Stat(gate + ".reached")
		return err == nil
	})
	evil := "#!/bin/sh\ntouch " + filepath.Join(f.dir, "evil") + "\n"
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(evil); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.ready(s)
	if _, err := os.Stat(filepath.Join(f.dir, "evil")); err == nil {
		t.Fatal("what was written after the check was executed")
	}
	_, err = s.Restart(f.ctx())
	var se *StartError
	if !errors.As(err, &se) || se.Reason != ReasonDigest {
		t.Errorf("the changed file: %v", err)
	}
	if st := s.Status(); st.State != StateReady {
		t.Errorf("the verified process: %+v, want it to go on", st)
	}
}

func TestNoDescriptorOfTheHostReachesAPlugin(t *testing.T) {
	f := newFixture(t)
	spec, err := do(f.ready(f.start(f.entry())), f.ctx(), map[string]any{"do": "fds"})
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range spec.Args {
		// Its own: pipes, sockets, epoll. Foreign: files, and the memory file it was executed from.
		_, target, _ := strings.Cut(fd, " ")
		if strings.HasPrefix(target, "/memfd") || strings.HasPrefix(target, f.run+"/") && strings.HasSuffix(target, lockSuffix) {
			t.Errorf("open in the plugin: %s", fd)
		}
	}
}

func TestCallsInFlightWhenThePluginDiesSayPluginDown(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	const callers = 16
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, errs[i] = do(live, f.ctx(), map[string]any{"do": "wait"})
		}()
	}
	eventually(t, 10*time.Second, "all calls are in flight", func() bool { return len(f.records("waiting")) == callers })
	if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i, err := range errs {
		if !errors.Is(err, sdk.ErrPluginDown) || sdk.OutcomeOf(err) != sdk.OutcomeUnknown {
			t.Errorf("caller %d: %v", i, err)
		}
	}
	next, err := s.After(f.ctx(), live.Attempt)
	if err != nil || next.PID == live.PID {
		t.Fatalf("after its death: %+v, %v", next, err)
	}
	if _, err := do(live, f.ctx(), nil); !errors.Is(err, sdk.ErrPluginDown) {
		t.Errorf("a call to the dead one: %v", err)
	}
	if st := s.Status(); st.Restarts != 1 {
		t.Errorf("restarts %d", st.Restarts)
	}
}

func TestStopLetsCallsInFlightFinish(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	result := make(chan error, 1)
	go func() {
		_, err := do(live, f.ctx(), map[string]any{"do": "wait"})
		result <- err
	}()
	eventually(t, 5*time.Second, "the call is in flight", func() bool { return len(f.records("waiting")) == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(context.Background()) }()
	eventually(t, 5*time.Second, "new calls are refused", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := do(live, ctx, nil)
		return errors.Is(err, sdk.ErrPluginDown)
	})
	if err := os.WriteFile(filepath.Join(f.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestPanicsBecomeErrorsAndLeaveAStack(t *testing.T) {
	f := newFixture(t)
	live := f.ready(f.start(f.entry()))
	_, err := do(live, f.ctx(), map[string]any{"do": "panic"})
	if !errors.Is(err, sdk.ErrInternal) || !strings.Contains(err.Error(), "kaboom") {
		t.Fatalf("got %v", err)
	}
	eventually(t, 5*time.Second, "the stack is logged as an error", func() bool {
		rec, ok := f.log.find("fakeplugin/main.go")
		return ok && rec["@level"] == "error"
	})
	if _, err := do(live, f.ctx(), nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestRepeatedDeathsEndInQuarantine(t *testing.T) {
	f := newFixture(t)
	e := f.file("dies", "#!/bin/sh\nexit 3\n", 0o755)
	s := f.start(e)
	eventually(t, 20*time.Second, "it is quarantined", func() bool { return s.State() == StateQuarantined })
	begin := time.Now()
	_, err := s.Ready(f.ctx())
	if !errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), "exit status 3") || time.Since(begin) > busy.Limit(time.Second) {
		t.Errorf("Ready of a quarantined plugin: %v after %s", err, time.Since(begin))
	}
	if st := s.Status(); !strings.Contains(st.Fix, "cotal ext restart fake") && !strings.Contains(st.Reason, "exit status 3") {
		t.Errorf("status %+v", st)
	}
	if _, err := s.Restart(f.ctx()); err == nil || s.State() != StateQuarantined {
		t.Errorf("a restart that fails as well: %v, state %s", err, s.State())
	}
	e = f.file("dies", "#!/bin/sh\nexec "+fakeBinary+"\n", 0o755) // repaired
	if _, err := s.Replace(f.ctx(), e); err != nil || s.State() != StateReady {
		t.Errorf("a restart of a repaired plugin: %v, state %s", err, s.State())
	}
}

func TestKilledHostAtEveryFailpointLeavesNoPlugin(t *testing.T) {
	for _, point := range []string{"supervise.start.verified", "supervise.start.launched", "supervise.start.ready"} {
		t.Run(point, func(t *testing.T) {
			f := newFixture(t)
			host := f.host([]string{failpoint.EnvVar + "=" + point + "=crash"}, f.entry())
			_ = host.Wait()
			if got := host.ProcessState.String(); got != "signal: killed" {
				t.Fatalf("host ended with %s", got)
			}
			for _, pid := range f.records("starts") {
				eventually(t, 2*time.Second, "plugin "+pid+" is gone", func() bool { return gone(atoi(t, pid)) })
			}
			s := f.start(f.entry()) // sweeps, and is not disturbed by what was left
			f.ready(s)
		})
	}
}

func TestLongRunDirectoryIsRefusedBeforeAnythingStarts(t *testing.T) {
	f := newFixture(t)
	cfg := f.config(f.entry())
	cfg.RunDir = filepath.Join(f.run, strings.Repeat("x", 80))
	defer os.Remove(cfg.RunDir)
	s := New(cfg)
	defer s.Stop(context.Background())
	s.Start()
	_, err := s.Ready(f.ctx())
	if err == nil || !strings.Contains(err.Error(), "shorter run directory") {
		t.Fatal(err)
	}
	if fmt.Sprint(f.records("starts")) != "[]" {
		t.Error("a process was started")
	}
}
