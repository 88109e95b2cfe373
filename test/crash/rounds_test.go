package crash

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// keyFiles are the files of the authority of a workspace, and what is in them. Credentials come and go.
func keyFiles(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	dir := filepath.Join(root, ".cotal", "auth")
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "creds":
			return fs.SkipDir
		case d.IsDir() || strings.HasPrefix(d.Name(), "revoked"):
			return nil
		}
		text, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTwoStartsAndAStopAtOnce: beside a host that may run or not, two others are started and one stop is asked for, all at
// once, again and again. Never do two hosts serve; whatever is refused says so; the seat goes on as the same process, in the
// same life, with a credential that works; the keys of the space are never made anew.
//
// proves: STOP-1, LEASE-9, START-24, H4
func TestTwoStartsAndAStopAtOnce(t *testing.T) {
	t.Parallel()
	rounds := 10
	if os.Getenv("COTAL_LONG") != "" {
		rounds = 50
	}
	seed := seedOfRun(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newAuthenticated(t)
	w.host = w.Start(harness.HostOptions{})
	w.spawnAndCheck("early", w.starts("early", `{"hang": true}`))
	early, keys := w.AwaitStatus("early", "running"), keyFiles(t, w.Root)
	t.Logf("COTAL_SEED=%d", seed)
	outcomes := map[string]int{}
	for round := range rounds {
		var starts [2]*harness.Host
		var stop harness.Result
		var wg sync.WaitGroup
		// The stop is asked for at some moment, and each start meets a host before it, in it or behind it.
		begun, stopAt := time.Now(), moment(rng, 150*time.Millisecond)
		wg.Go(func() {
			<-time.After(stopAt)
			stop = w.Host("stop")
		})
		at := []time.Duration{moment(rng, 400*time.Millisecond), moment(rng, 400*time.Millisecond)}
		slices.Sort(at)
		for i := range starts {
			<-time.After(time.Until(begun.Add(at[i])))
			starts[i] = w.Launch(harness.HostOptions{})
		}
		wg.Wait()
		outcomes[fmt.Sprintf("stop: exit code %d", stop.Code)]++
		if !slices.Contains([]int{0, 1, 3, 5}, stop.Code) {
			t.Errorf("round %d: the stop is neither done nor refused: %v", round, stop)
		}
		// Who serves, who was refused, who was stopped: in the end there is at most one.
		hosts := append(starts[:], w.host)
		var serving *harness.Host
		harness.Eventually(t, w.wait, "it is decided who serves", func() (bool, string) {
			serving = nil
			var state []string
			undecided := 0
			for _, h := range hosts {
				e, ended := h.WaitExit(time.Millisecond)
				f := hostFacts{ended: ended, alive: w.Alive(h.PID), stops: strings.Contains(h.Stderr(), "stopping: ")}
				f.ready = !ended && h.WaitReady(time.Millisecond) == nil
				verdict := f.verdict()
				switch {
				case verdict == hostServes && serving == nil:
					serving = h
				case verdict != hostEnded:
					undecided++
				}
				state = append(state, fmt.Sprintf("%d %s (%v)", h.PID, verdict, e))
			}
			return undecided == 0, strings.Join(state, "; ")
		})
		for _, h := range starts {
			if e, ended := h.WaitExit(0); ended {
				outcomes[fmt.Sprintf("start: %v", e)]++
				if e.Signal != 0 || e.Code == 2 || strings.Contains(h.Stderr(), "goroutine ") {
					t.Errorf("round %d: a start ended with %v:\n%s", round, e, h.Stderr())
				}
			}
		}
		if serving == nil {
			outcomes["nobody serves"]++
			serving = w.Start(harness.HostOptions{})
		}
		w.host = serving
		if got := w.AwaitStatus("early", "running"); got.PID != early.PID || got.LifecycleUID != early.LifecycleUID {
			t.Fatalf("round %d: the seat was %+v and is %+v", round, early, got)
		}
	}
	t.Logf("%v", outcomes)
	if n := w.executions("early"); n != 1 {
		t.Errorf("the seat was started %d times", n)
	}
	now := keyFiles(t, w.Root)
	for name, text := range keys {
		if now[name] != text {
			t.Errorf("the key file %s is another one", name)
		}
	}
	w.checkInvariants("after all rounds")
	w.spawnAndCheck("after", w.starts("after", `{"hang": true}`))
	w.stop("after")
	w.checkInvariants("after a spawn and a stop behind them")
}

// hostFacts are what is seen of one host, in this order.
type hostFacts struct {
	ended bool // its parent has waited for it
	alive bool // it is a process, and no zombie
	stops bool // it has said that it stops
	ready bool // it has said that it serves
}

// Verdicts of a host.
const (
	hostEnded  = "ended"
	hostServes = "serves"
	hostOpen   = "is neither ready nor ended"
)

// verdict is what becomes of a host. That it was ready once is not that it serves: whoever stopped it saw that its process was
// gone before its parent did.
func (f hostFacts) verdict() string {
	switch {
	case f.ended:
		return hostEnded
	case f.alive && f.ready && !f.stops:
		return hostServes
	}
	return hostOpen
}

// A host that had been stopped, and that its parent had not waited for yet, was once taken for the one that serves.
func TestAHostThatWasStoppedIsNotTakenForOneThatServes(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		f    hostFacts
		want string
	}{
		"it serves":                            {hostFacts{alive: true, ready: true}, hostServes},
		"it is being started":                  {hostFacts{alive: true}, hostOpen},
		"it was stopped and is on its way":     {hostFacts{alive: true, ready: true, stops: true}, hostOpen},
		"it is gone, and no parent says so":    {hostFacts{ready: true, stops: true}, hostOpen},
		"it was killed, and no parent says so": {hostFacts{ready: true}, hostOpen},
		"it has ended":                         {hostFacts{ended: true, ready: true, stops: true}, hostEnded},
		"it was refused":                       {hostFacts{ended: true}, hostEnded},
	} {
		if got := c.f.verdict(); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

// moment is one of the next ones.
func moment(rng *rand.Rand, within time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(within)))
}

// TestOneOfTwoHostsIsFrozenPastItsLease: two hosts serve one space with the same keys, each with a seat. One is stopped for longer
// than a lease lives. The other goes on, takes nothing of it, and is refused its names; what is frozen is what it was when it goes on:
// the same seat, its lease, nothing carried out that nobody waits for any more.
//
// proves: MULTI-4, MULTI-7, LEASE-6, LEASE-8
func TestOneOfTwoHostsIsFrozenPastItsLease(t *testing.T) {
	t.Parallel()
	w := newAuthenticated(t)
	w.StartBroker()
	w.host = w.Start(harness.HostOptions{})
	w.spawnAndCheck("early", w.starts("early", `{"hang": true}`))
	early, ok := w.live("early")
	if !ok {
		t.Fatal("the seat is not listed")
	}
	other := filepath.Join(w.Dir, "ws2")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	second := w.Start(harness.HostOptions{Args: []string{"--root", other, "--keys", w.Root}})
	defer second.Stop()
	frozen, awake := w.host, instanceOf(t, other)
	before := w.livesOnMesh()

	frozen.Signal(syscall.SIGSTOP)
	slept := time.Now()
	c, err := mesh.Connect(t.Context(), w.MeshConfig("beside"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := func(instance string, call mesh.Call, out any) error {
		call.Endpoint, call.Instance = wire.EndpointManager, instance
		_, err := c.Call(t.Context(), call, out)
		return err
	}
	// What nobody waits for any more when its host goes on is not carried out.
	late := w.FakeArgs("late", w.starts("late", `{"hang": true}`))
	if err := at(early.InstanceID, mesh.Call{Command: wire.CmdSpawn, ID: wire.NewID(), Args: late, Deadline: 2 * time.Second}, nil); err == nil {
		t.Error("a frozen host accepted a spawn")
	}
	for n := 0; time.Since(slept) < wire.LeaseTTL+3*time.Second; n++ {
		name := fmt.Sprintf("beside%d", n)
		var acc wire.Acceptance
		if err := at(awake, mesh.Call{Command: wire.CmdSpawn, ID: wire.NewID(), Args: w.FakeArgs(name, w.starts(name, `{"hang": true}`)), Deadline: w.wait}, &acc); err != nil {
			t.Fatalf("a spawn on the host that goes on: %v", err)
		}
		w.await(name+" was executed", func() (bool, string) { n := w.executions(name); return n == 1, fmt.Sprint(n) })
		err := at(awake, mesh.Call{
			Command: wire.CmdDespawn, Authz: wire.AuthzAny, Target: &wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID},
			Args: wire.DespawnArgs{Graceful: new(bool), WaitForExit: true}, Deadline: w.wait,
		}, nil)
		if err != nil {
			t.Fatalf("a stop on the host that goes on: %v", err)
		}
		<-time.After(500 * time.Millisecond)
	}
	if err := at(awake, mesh.Call{Command: wire.CmdSpawn, ID: wire.NewID(), Args: w.FakeArgs("early", w.starts("stolen", `{"hang": true}`)), Deadline: w.wait}, nil); err == nil {
		// Accepted: then it fails, since the name is the frozen host's.
		w.await("the name is not given to another", func() (bool, string) {
			_, ok := w.slotOf("early", early.LifecycleUID)
			return ok, "the slot is another life's"
		})
	}
	if s, ok := w.slotOf("early", early.LifecycleUID); !ok || s.Phase != wire.SlotActive {
		t.Errorf("beside its frozen host the slot is %+v", s)
	}
	if !w.Alive(early.PID) {
		t.Error("the seat of the frozen host ended")
	}

	frozen.Signal(syscall.SIGCONT)
	woke := time.Now()
	w.await("the host that slept serves again", func() (bool, string) {
		var rows []wire.AgentRow
		err := at(early.InstanceID, mesh.Call{Command: wire.CmdPs, Deadline: 5 * time.Second}, &rows)
		i := slices.IndexFunc(rows, func(r wire.AgentRow) bool { return r.LifecycleUID == early.LifecycleUID })
		return err == nil && i >= 0 && rows[i].Status == "running" && rows[i].PID == early.PID, fmt.Sprint(err, rows)
	})
	if took, limit := time.Since(woke), busy.Limit(wire.LeaseTTL); took > limit {
		t.Errorf("it took %v, at most %v are allowed", took, limit)
	}
	again := w.FakeArgs("again", w.starts("again", `{"hang": true}`))
	w.await("it starts something again", func() (bool, string) {
		err := at(early.InstanceID, mesh.Call{Command: wire.CmdSpawn, ID: wire.NewID(), Args: again, Deadline: 10 * time.Second}, nil)
		return err == nil, fmt.Sprint(err)
	})
	w.await("again was executed", func() (bool, string) { n := w.executions("again"); return n == 1, fmt.Sprint(n) })
	if n := w.executions("early"); n != 1 {
		t.Errorf("the seat was started %d times", n)
	}
	if n := w.executions("late") + w.executions("stolen"); n != 0 {
		t.Error("what was refused, or waited for by nobody, was executed")
	}
	if s, ok := w.slotOf("early", early.LifecycleUID); !ok || s.Phase != wire.SlotActive {
		t.Errorf("the slot is %+v, before it was in %+v", s, before.slots)
	}
}

// slotOf is the slot of an alias when it is that of a life.
func (w *world) slotOf(alias, uid string) (wire.Slot, bool) {
	l := w.livesOnMesh()
	for _, s := range l.slots {
		if s.Alias == alias && s.LifecycleUID == uid {
			return s, true
		}
	}
	return wire.Slot{}, false
}
