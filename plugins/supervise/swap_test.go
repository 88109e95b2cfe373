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

// call makes one call on whatever process is the current one, as the catalog does.
func call(s *Supervisor, ctx context.Context, opts map[string]any) (sdk.LaunchSpec, *Live, error) {
	for {
		live, err := s.Ready(ctx)
		if err != nil {
			return sdk.LaunchSpec{}, nil, err
		}
		if !live.Enter() {
			continue
		}
		spec, err := do(live, ctx, opts)
		live.Leave()
		return spec, live, err
	}
}

func TestAReplacementIsReadyBeforeTheOldProcessEnds(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	old := f.ready(s)
	inFlight := make(chan error, 1)
	go func() {
		_, _, err := call(s, f.ctx(), map[string]any{"do": "wait"})
		inFlight <- err
	}()
	eventually(t, 5*time.Second, "a call is in flight", func() bool { return len(f.records("waiting")) == 1 })

	// Callers all the time: none may notice.
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
				if _, _, err := call(s, f.ctx(), nil); err != nil {
					t.Errorf("a call during the swap: %v", err)
					return
				}
			}
		}()
	}
	done, err := s.Restart(f.ctx())
	if err != nil || done.OldPID != old.PID || done.PID == old.PID || done.Info.Name != "fake" {
		t.Fatalf("%+v, %v", done, err)
	}
	select {
	case <-old.Retired():
	default:
		t.Error("the old process is not retired")
	}
	live := f.ready(s)
	if live.PID != done.PID || live.Attempt <= old.Attempt {
		t.Errorf("ready is %+v", live)
	}
	if next, err := s.After(f.ctx(), old.Attempt); err != nil || next != live {
		t.Errorf("after the old one: %+v, %v", next, err)
	}
	if gone(old.PID) {
		t.Error("the old process is gone while a call is in flight on it")
	}
	close(stop)
	callers.Wait()
	if err := os.WriteFile(filepath.Join(f.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-inFlight; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	eventually(t, 5*time.Second, "the old process has ended", func() bool { return gone(old.PID) })
	if st := s.Status(); st.State != StateReady || st.PID != live.PID || st.Restarts != 1 || st.Crash != "" {
		t.Errorf("status %+v", st)
	}
}

func TestAReplacementThatDoesNotStartChangesNothing(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	bad := f.file("bad", "#!/bin/sh\necho broken >&2\nexit 3\n", 0o755)
	_, err := s.Replace(f.ctx(), bad)
	var se *StartError
	if !errors.As(err, &se) || se.Reason != ReasonExited || !strings.Contains(err.Error(), "broken") {
		t.Fatalf("got %v", err)
	}
	if now := f.ready(s); now != live || gone(live.PID) || s.Entry().Command != "fakeplugin" {
		t.Errorf("after a failed replacement: %+v, entry %+v", now, s.Entry())
	}
	if st := s.Status(); st.State != StateReady || st.Reason != "" {
		t.Errorf("status %+v", st)
	}
	other := f.entry()
	other.Name = "other"
	if _, err := s.Prepare(f.ctx(), other); err == nil {
		t.Error("an entry of another name is taken")
	}
}

func TestADiscardedReplacementLeavesNothing(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	p, err := s.Prepare(f.ctx(), s.Entry())
	if err != nil {
		t.Fatal(err)
	}
	pid := p.in.proc.cmd.Process.Pid
	if pid == live.PID || gone(pid) {
		t.Fatal("there is no second process")
	}
	p.Discard()
	if !gone(pid) || f.ready(s) != live {
		t.Errorf("gone %v, ready %+v", gone(pid), f.ready(s))
	}
}

func TestAPreparedProcessThatDiedTakesNothingOver(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	live := f.ready(s)
	newer := f.file("newer", "#!/bin/sh\nexec "+fakeBinary+"\n", 0o755)
	p, err := s.Prepare(f.ctx(), newer)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.in.proc.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.in.proc.gone
	var se *StartError
	if done, err := p.Commit(); !errors.As(err, &se) || se.Reason != ReasonExited || se.Status != "signal: killed" || done.PID != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	if f.ready(s) != live || gone(live.PID) || s.Entry().Command == "newer" {
		t.Errorf("ready %+v, entry %+v", f.ready(s), s.Entry())
	}
}

func TestStopDuringASwapEndsBoth(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	old := f.ready(s)
	go func() { _, _, _ = call(s, f.ctx(), map[string]any{"do": "wait"}) }()
	eventually(t, 5*time.Second, "a call is in flight", func() bool { return len(f.records("waiting")) == 1 })
	done, err := s.Restart(f.ctx())
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > busy.Limit(StopTimeout) {
		t.Errorf("took %s", d)
	}
	if !gone(old.PID) || !gone(done.PID) {
		t.Errorf("old gone %v, new gone %v", gone(old.PID), gone(done.PID))
	}
	if _, err := s.Restart(f.ctx()); !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("a restart after the stop: %v", err)
	}
}

func TestAReplacedProcessThatIsStuckIsKilledInTheEnd(t *testing.T) {
	f := newFixture(t)
	s := f.start(f.entry())
	old := f.ready(s)
	suspend(t, old.PID)
	if _, err := s.Restart(f.ctx()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := call(s, f.ctx(), nil); err != nil {
		t.Errorf("the new process: %v", err)
	}
	eventually(t, StopTimeout+5*time.Second, "the stuck process is gone", func() bool { return gone(old.PID) })
}
