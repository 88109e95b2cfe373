package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/hashicorp/go-hclog"
)

func TestLogBudget(t *testing.T) {
	at := time.Now()
	var b logBudget
	for i := range windowLines {
		if !b.take(at, 10) {
			t.Fatalf("line %d of the window is dropped", i)
		}
	}
	if b.take(at.Add(logWindow/2), 10) || b.dropped != 1 || b.droppedBytes != 10 {
		t.Errorf("one line more: %+v", b)
	}
	if !b.take(at.Add(logWindow), windowBytes+1) {
		t.Error("the first line of a window is dropped: a long one would never be seen")
	}
	if b.take(at.Add(logWindow), 1) {
		t.Error("a window full of bytes takes more")
	}
	if !b.take(at.Add(2*logWindow), 1) || b.dropped != 2 {
		t.Errorf("after the second window: %+v", b)
	}
}

func TestFieldA7_APluginThatSpamsIsDrainedAnsweredAndLimited(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	slowest := time.Duration(0)
	answers := func() {
		begin := time.Now()
		if _, err := do(live, f.ctx(), nil); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(begin))
	}
	// One line of 5 MiB, then 10 MB without an end: more than any pipe holds.
	if _, err := do(live, f.ctx(), map[string]any{"do": "log", "bytes": 5 << 20}); err != nil {
		t.Fatal(err)
	}
	answers()
	if _, err := do(live, f.ctx(), map[string]any{"do": "flood", "bytes": 10 << 20}); err != nil {
		t.Fatal(err)
	}
	answers()
	before := len(f.log.String())
	begin := time.Now()
	if _, err := do(live, f.ctx(), map[string]any{"do": "spam", "bytes": 80, "lines": 300_000}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "all of the spam is drained", func() bool {
		answers()
		return len(f.records("spammed")) == 1
	})
	took := time.Since(begin)
	eventually(t, 5*time.Second, "it is said what was dropped", func() bool {
		_, ok := f.log.find("lines dropped")
		return ok
	})
	if slowest > busy.Limit(2*time.Second) {
		t.Errorf("a call took %s beside the spam", slowest)
	}
	got := strings.Count(f.log.String()[before:], "ssssssss\"")
	if most := windowLines * (int(took/logWindow) + 3); got > most || got == 0 {
		t.Errorf("%d lines of the spam in the log after %s, want at most %d", got, took, most)
	}
	// The last words are kept, whatever was dropped.
	tail := func() string { return live.proc.out.lastLines(tailLines) }
	eventually(t, 5*time.Second, "the tail has the last line", func() bool { return strings.HasSuffix(tail(), "the end of the spam") })
	if n := strings.Count(tail(), "\n") + 1; n != tailLines {
		t.Errorf("%d lines are kept, want %d", n, tailLines)
	}
}

func crashPath(f *fixture, e manifest.Entry) string {
	return filepath.Join(f.dir, "log", CrashFile(e.Kind, e.Name))
}

// proves: O11
func TestADeathLeavesAReportWithoutSecrets(t *testing.T) {
	f := newFixture(t)
	f.env["FAKE_API_KEY"] = "forwarded-key-0001"
	e := f.entry()
	e.Env = append(e.Env, "FAKE_API_KEY")
	e.Config = map[string]any{"db": map[string]any{"password": "configured-pass-02"}}
	cfg := f.config(e)
	cfg.Redact = &Redactor{}
	cfg.Redact.Hide("known-value-0003")
	s := New(cfg)
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s.Start()
	live := f.ready(s)
	if st := s.Status(); st.Crash != "" || st.Fix != "" {
		t.Errorf("before any death: %+v", st)
	}
	secrets := []string{"forwarded-key-0001", "configured-pass-02", "known-value-0003", "bearer-value-04", "json-value-05", "url-value-06"}
	for _, text := range []string{
		"forwarded-key-0001 configured-pass-02 known-value-0003", "Authorization: Bearer bearer-value-04",
		`{"@level":"warn","@message":"a record","client_secret":"json-value-05","deep":{"token":"json-value-05"},"n":1}`,
		"dial nats://url-value-06@127.0.0.1:4222", "panic: not \x1b[31mreally",
	} {
		if _, err := do(live, f.ctx(), map[string]any{"do": "say", "text": text}); err != nil {
			t.Fatal(err)
		}
	}
	// What a plugin prints, unlike what it logs and what a panic writes, comes through the connection: let it.
	eventually(t, 10*time.Second, "its words have arrived", func() bool {
		return strings.Contains(live.proc.out.lastLines(tailLines), "panic: not")
	})
	_, _ = do(live, f.ctx(), map[string]any{"do": "exit"})
	if _, err := s.After(f.ctx(), live.Attempt); err != nil {
		t.Fatal(err)
	}
	path := crashPath(f, e)
	if st := s.Status(); st.Crash != path {
		t.Fatalf("status %+v, want the report at %s", st, path)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v, want mode 0600", info, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	report := string(b)
	for _, want := range []string{
		"fake (connector, version 0.1.0", fakeDigest, fmt.Sprintf("pid %d", live.PID), "it was ready", "exit status 7", "a record", "panic: not ?[31mreally", "n=1",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	for _, secret := range secrets {
		if strings.Contains(report, secret) {
			t.Errorf("%s is in the report", secret)
		}
		if strings.Contains(f.log.String(), secret) {
			t.Errorf("%s is in the log", secret)
		}
	}
	if rec, ok := f.log.find("plugin is down"); !ok || rec["crash_report"] != path {
		t.Errorf("the log names no report: %v", rec)
	}
	if t.Failed() {
		t.Logf("report:\n%s", report)
	}

	// Reports do not pile up: the latest and the one before.
	for range 3 {
		live = f.ready(s)
		_, _ = do(live, f.ctx(), map[string]any{"do": "exit"})
		<-live.Gone()
		if _, err := s.Restart(f.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{filepath.Base(path), filepath.Base(path) + ".1"}; !slices.Equal(names, want) {
		t.Errorf("reports %v, want %v", names, want)
	}
}

func TestAFailedStartLeavesAReportAndHidesSecrets(t *testing.T) {
	f := newFixture(t)
	e := f.file("boom", "#!/bin/sh\necho 'connect with --api-key hidden-value-1' >&2\nexit 3\n", 0o755)
	se := f.startError(e)
	if strings.Contains(se.Error(), "hidden-value-1") || !strings.Contains(se.Error(), "--api-key [redacted]") {
		t.Errorf("the error: %v", se)
	}
	b, err := os.ReadFile(crashPath(f, e))
	if report := string(b); err != nil || strings.Contains(report, "hidden-value-1") || !strings.Contains(report, "it was being started") || !strings.Contains(report, "exit status 3") {
		t.Errorf("%v, report:\n%s", err, report)
	}
	// What was never started has nothing to report.
	f2 := newFixture(t)
	missing := f2.entry()
	missing.Command = "missing"
	f2.startError(missing)
	if _, err := os.Stat(crashPath(f2, missing)); err == nil {
		t.Error("a report on a file that does not exist")
	}
}

func TestAReportIsBounded(t *testing.T) {
	l := &pluginLog{log: hclog.NewNullLogger()}
	line := []byte(strings.Repeat("\xff", 4*tailLineMax))
	for range 3 * tailLines {
		l.stderrLine(line)
	}
	l.close()
	kept, _ := l.last(tailLines)
	c := crash{entry: manifest.Entry{Name: "x", Kind: sdk.KindRuntime}}
	for _, k := range kept {
		c.lines = append(c.lines, l.render(k))
	}
	if n := len(c.text()); len(kept) != tailLines || n > maxCrash+1<<10 {
		t.Errorf("%d lines, %d bytes", len(kept), n)
	}
}

func TestFieldA12_HelpersInTheirOwnSessionDoNotStaySilently(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descendants are found on Linux only")
	}
	ends := map[string]func(*fixture, *Supervisor, *Live){
		"stopped": func(f *fixture, s *Supervisor, _ *Live) {
			if err := s.Stop(context.Background()); err != nil {
				f.t.Error(err)
			}
		},
		"killed": func(f *fixture, s *Supervisor, live *Live) {
			if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
				f.t.Fatal(err)
			}
			if _, err := s.After(f.ctx(), live.Attempt); err != nil {
				f.t.Fatal(err)
			}
		},
		"replaced": func(f *fixture, s *Supervisor, live *Live) {
			if _, err := s.Restart(f.ctx()); err != nil {
				f.t.Fatal(err)
			}
			eventually(f.t, 5*time.Second, "the old one has ended", func() bool { return gone(live.PID) })
		},
	}
	for name, end := range ends {
		t.Run("those of a connector that is "+name+" are ended", func(t *testing.T) {
			f := newFixture(t)
			f.env["FAKE_MODE"] = "escapee"
			s := f.start(f.entry())
			live := f.ready(s)
			helper := atoi(t, f.records("escaped")[0])
			if gone(helper) {
				t.Fatal("the helper is not there")
			}
			f.env["FAKE_MODE"] = ""
			end(f, s, live)
			eventually(t, 5*time.Second, "the helper is gone", func() bool { return gone(helper) })
			eventually(t, 5*time.Second, "it is told", func() bool {
				rec, ok := f.log.find("left a process behind")
				return ok && rec["left_pid"] == float64(helper)
			})
		})
	}
	t.Run("those of a runtime are told, for they may be seats", func(t *testing.T) {
		f := newFixture(t)
		f.env["FAKE_MODE"], f.env["FAKE_KIND"] = "escapee", "runtime"
		e := f.entry()
		e.Kind = sdk.KindRuntime
		s := f.start(e)
		f.ready(s)
		helper := atoi(t, f.records("escaped")[0])
		t.Cleanup(func() { _ = syscall.Kill(helper, syscall.SIGKILL) })
		if err := s.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if rec, ok := f.log.find("left a process behind"); !ok || rec["left_pid"] != float64(helper) || gone(helper) {
			t.Errorf("record %v; gone %v, want it told and left alone", rec, gone(helper))
		}
	})
	t.Run("what carries the mark of a seat is neither ended nor told", func(t *testing.T) {
		f := newFixture(t)
		f.env["FAKE_MODE"], f.env["COTAL_SEAT_NONCE"] = "escapee", "n"
		e := f.entry()
		e.Env = append(e.Env, "COTAL_SEAT_NONCE") // a manifest cannot say that
		s := f.start(e)
		f.ready(s)
		helper := atoi(t, f.records("escaped")[0])
		t.Cleanup(func() { _ = syscall.Kill(helper, syscall.SIGKILL) })
		if err := s.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, told := f.log.find("left a process behind"); told || gone(helper) {
			t.Errorf("told %v, gone %v", told, gone(helper))
		}
	})
}

func TestFieldN5_HelpersOfAListingAreReapedWhateverEndsIt(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descendants are found on Linux only")
	}
	f := newFixture(t)
	s := f.start(f.entry())
	rounds := 50
	for i := range rounds {
		live := f.ready(s)
		ctx, cancel := context.WithCancel(f.ctx())
		done := make(chan error, 1)
		go func() {
			_, err := live.Client.Connector().ListModels(ctx, sdk.ModelQuery{Refresh: true})
			done <- err
		}()
		eventually(t, 10*time.Second, "the helper runs", func() bool { return len(f.records("helpers")) == i+1 })
		if i%10 == 9 { // the plugin dies under it
			if err := syscall.Kill(live.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-live.Gone()
			if _, err := s.Restart(f.ctx()); err != nil {
				t.Fatal(err)
			}
		} else {
			cancel()
		}
		if err := <-done; err == nil {
			t.Error("a listing that was given up has an answer")
		}
		cancel()
	}
	for _, pid := range f.records("helpers") {
		eventually(t, 5*time.Second, "helper "+pid+" is gone", func() bool { return gone(atoi(t, pid)) })
	}
}
