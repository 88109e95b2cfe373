package supervise

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/busy"
)

func TestPluginsIgnoreInterruptsAndLeaveGracefullyOnTerm(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	// Ctrl-C in a terminal reaches everything in the foreground; a plugin's end is its host's to say.
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE} {
		if err := syscall.Kill(live.PID, sig); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := do(live, f.ctx(), nil); err != nil {
		t.Fatalf("after signals: %v", err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := do(live, f.ctx(), map[string]any{"do": "wait"})
		result <- err
	}()
	eventually(t, 5*time.Second, "the call is in flight", func() bool { return len(f.records("waiting")) == 1 })
	if err := syscall.Kill(live.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "new calls are refused", func() bool {
		_, err := do(live, f.ctx(), nil)
		return errors.Is(err, sdk.ErrPluginDown)
	})
	if err := os.WriteFile(filepath.Join(f.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	eventually(t, 5*time.Second, "it left with status 0", func() bool {
		return strings.Contains(f.log.String(), "ended with exit status 0")
	})
}

func TestAPluginThatDoesNotAnswerIsReplaced(t *testing.T) {
	f := newFixture(t)
	s := New(f.config(f.entry()))
	s.healthEvery, s.healthTimeout = 10*time.Millisecond, 300*time.Millisecond
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s.Start()
	live := f.ready(s)
	suspend(t, live.PID)
	_, err := do(live, f.ctx(), nil)
	if !errors.Is(err, sdk.ErrPluginDown) {
		t.Errorf("a call to a stuck process: %v", err)
	}
	eventually(t, 20*time.Second, "another process serves", func() bool {
		st := s.Status()
		return st.State == StateReady && st.PID != live.PID
	})
}

func TestAPluginThatLosesItsConnectionIsReplaced(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	// The nearest thing to a plugin whose server is stuck: nobody at the socket, the process there.
	suspend(t, live.PID)
	next, err := s.After(f.ctx(), live.Attempt)
	if err != nil || next.PID == live.PID || !gone(live.PID) {
		t.Fatalf("%+v, %v; the old one is gone: %v", next, err, gone(live.PID))
	}
}

func TestStartsThatDieRightAfterTheHandshakeLeakNothing(t *testing.T) {
	f := newFixture(t) // checks goroutines and directories at the end
	e := f.file("liar", "#!/bin/sh\necho \"1|1|unix|$PLUGIN_UNIX_SOCKET_DIR/none|grpc|\"\nexit 5\n", 0o755)
	s := f.start(e)
	_, err := s.Ready(f.ctx())
	var se *StartError
	if !errors.As(err, &se) || se.Reason != ReasonExited || se.Status != "exit status 5" {
		t.Errorf("got %v", err)
	}
	eventually(t, 20*time.Second, "it is quarantined", func() bool { return s.State() == StateQuarantined })
}

func TestAnAddressElsewhereIsRefused(t *testing.T) {
	f := newFixture(t)
	e := f.file("elsewhere", "#!/bin/sh\necho '1|1|unix|/tmp/elsewhere|grpc|'\nsleep 60\n", 0o755)
	se := f.startError(e)
	if se.Reason != ReasonHandshake || !strings.Contains(se.Error(), "/tmp/elsewhere") {
		t.Errorf("got %v", se)
	}
}

func TestStopDuringAStartEndsIt(t *testing.T) {
	f := newFixture(t)
	f.env["FAKE_MODE"] = "slow-once"
	s := f.start(f.entry())
	eventually(t, 10*time.Second, "the process hangs", func() bool { return len(f.records("pids")) == 1 })
	begin := time.Now()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > busy.Limit(StartTimeout/2) || !gone(atoi(t, f.records("pids")[0])) {
		t.Errorf("took %s", d)
	}
}

func TestSweepTakesOnlyWhatNobodyHolds(t *testing.T) {
	f := newFixture(t)
	held, err := newInstanceDir(f.run, "held")
	if err != nil {
		t.Fatal(err)
	}
	stale, err := newInstanceDir(f.run, "stale")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stale.path, "plugin123"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stale.lock.Close() // what the death of its host does
	foreign := filepath.Join(f.run, "plug-foreign")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	removed, err := Sweep(f.run)
	if err != nil || len(removed) != 1 || removed[0] != stale.path {
		t.Fatalf("removed %v, %v", removed, err)
	}
	for _, p := range []string{held.path, foreign} {
		if _, err := os.Stat(p); err != nil {
			t.Error(err)
		}
	}
	if err := held.remove(); err != nil {
		t.Error(err)
	}
	os.Remove(foreign)
}

func TestSweepersAndCreatorsDoNotDisturbEachOther(t *testing.T) {
	f := newFixture(t)
	stop := make(chan struct{})
	var sweepers, creators sync.WaitGroup
	for range 2 {
		sweepers.Add(1)
		go func() {
			defer sweepers.Done()
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := Sweep(f.run); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}()
	}
	for range 2 {
		creators.Add(1)
		go func() {
			defer creators.Done()
			for range 200 {
				d, err := newInstanceDir(f.run, "x")
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(d.path); err != nil {
					t.Errorf("a held directory is gone: %v", err)
				}
				if err := d.remove(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	creators.Wait()
	close(stop)
	sweepers.Wait()
	if _, err := Sweep(f.run); err != nil {
		t.Fatal(err)
	}
}
