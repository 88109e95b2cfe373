package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// stormWorkers start and stop seats at the same time, each under one name again and again.
const stormWorkers = 6

// TestAuthenticatedStorm: seats are started and stopped by several callers at once, each under its own name, while the host and the
// broker are killed at random moments. What a caller was told is so: a spawn that was refused or failed has left nothing, one
// that succeeded is one process, a stop that was answered ended it, and the name is free for the next. In the end nothing is left.
//
// proves: DOWN-7, RECON-1
func TestAuthenticatedStorm(t *testing.T) {
	t.Parallel()
	lasts := 6 * time.Second
	if os.Getenv("COTAL_LONG") != "" {
		lasts = 90 * time.Second
	}
	seed := seedOfRun(t)
	t.Logf("COTAL_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newAuthenticated(t)
	br := w.StartBroker()
	w.host = w.Start(harness.HostOptions{})
	w.spawnAndCheck("early", w.starts("early", `{"hang": true}`))
	w.hangUp()

	var over atomic.Bool
	var spawned, failed, refused atomic.Int64
	var wg sync.WaitGroup
	cfg := w.MeshConfig("storm") // the credential is renewed by every host, in the same file
	for k := range stormWorkers {
		s := &stormer{w: w, name: fmt.Sprintf("storm%d", k), cfg: cfg, over: &over, spawned: &spawned, failed: &failed, refused: &refused}
		wg.Go(s.run)
	}
	hosts, brokers := 0, 0
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		<-time.After(300*time.Millisecond + moment(rng, 2*time.Second))
		if rng.IntN(4) == 0 {
			br.Kill()
			<-time.After(moment(rng, 500*time.Millisecond))
			br.Restart()
			brokers++
			continue
		}
		w.host.Kill()
		hosts++
		w.host = w.Launch(harness.HostOptions{})
		w.ready()
	}
	over.Store(true)
	wg.Wait()
	t.Logf("%d spawns succeeded, %d failed, %d were refused; the host was killed %d times, the broker %d times", spawned.Load(), failed.Load(), refused.Load(), hosts, brokers)
	if spawned.Load() == 0 || hosts == 0 {
		t.Error("nothing was started, or nothing struck")
	}
	w.checkInvariants("after the storm")
	w.lastRestart()
	for k := range stormWorkers {
		name := fmt.Sprintf("storm%d", k)
		os.Remove(w.startsFile(name))
		w.spawnAndCheck(name, w.starts(name, `{"hang": true}`))
	}
	w.checkInvariants("once every name was taken again")
}

// stormer starts and stops one name until the storm is over.
type stormer struct {
	w       *world
	name    string
	cfg     mesh.Config
	over    *atomic.Bool
	client  *mesh.Client
	spawned *atomic.Int64
	failed  *atomic.Int64
	refused *atomic.Int64
}

func (s *stormer) run() {
	defer s.hangUp()
	for n := 0; !s.over.Load(); n++ {
		s.life(fmt.Sprintf("%s-%d", s.name, n))
	}
}

func (s *stormer) hangUp() {
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}

// life is one spawn, and its stop when it succeeded. mark names the file in which the process leaves that it was started.
func (s *stormer) life(mark string) {
	t := s.w.t
	args := s.w.FakeArgs(s.name, s.w.starts(mark, `{"hang": true}`))
	id := wire.NewID()
	var acc wire.Acceptance
	if err := s.ask(mesh.Call{Command: wire.CmdSpawn, ID: id, Args: args}, &acc); err != nil {
		s.refused.Add(1)
		var werr *wire.Error
		if errors.As(err, &werr) && werr.Outcome == wire.OutcomeNotExecuted && s.w.executions(mark) > 0 {
			t.Errorf("%s: the refusal says not-executed, and it was: %v", mark, err)
		}
		<-time.After(50 * time.Millisecond) // its name may be held by an end that goes on
		return
	}
	var end *wire.GoalResult
	s.until(mark+" has an end", func() bool {
		var reply wire.GoalResultReply
		if err := s.ask(mesh.Call{Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id}}, &reply); err != nil {
			return false
		}
		end = reply.Result
		return end != nil
	})
	if end == nil {
		return
	}
	if n := s.w.executions(mark); n > 1 {
		t.Errorf("%s was started %d times", mark, n)
	}
	if end.State != wire.GoalSucceeded {
		s.failed.Add(1)
		return
	}
	s.spawned.Add(1)
	s.until(mark+" is stopped", func() bool {
		err := s.ask(mesh.Call{
			Command: wire.CmdDespawn, Authz: wire.AuthzAny, Target: &wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID},
			Args: wire.DespawnArgs{Graceful: new(bool), WaitForExit: true},
		}, nil)
		var werr *wire.Error
		return err == nil || errors.As(err, &werr) && (werr.Code == wire.CodeNotFound || werr.Code == wire.CodeExpired)
	})
	for _, p := range s.w.ProcsLike(s.w.startsFile(mark)) {
		if strings.Contains(p.Args, "cotal-fakeagent") {
			t.Errorf("%s was stopped, and runs: %v", mark, p)
		}
	}
}

// until asks again until something is so, for as long as a world waits for a fact.
func (s *stormer) until(what string, is func() bool) {
	begin := time.Now()
	for !is() {
		if busy.Over(begin, s.w.wait) {
			s.w.t.Errorf("after %v still not: %s", time.Since(begin).Round(time.Second), what)
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

// ask repeats a request, with the same id, until a host answers it.
func (s *stormer) ask(c mesh.Call, out any) error {
	if c.ID == "" {
		c.ID = wire.NewID()
	}
	c.Endpoint, c.Deadline = wire.EndpointManager, 15*time.Second
	var err error
	for begin := time.Now(); ; {
		err = s.once(c, out)
		if err == nil || answered(err) || busy.Over(begin, s.w.wait) {
			return err
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (s *stormer) once(c mesh.Call, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), busy.Limit(5*time.Second))
	defer cancel()
	if s.client == nil {
		var err error
		if s.client, err = mesh.Connect(ctx, s.cfg); err != nil {
			return err
		}
	}
	_, err := s.client.Call(ctx, c, out)
	if err != nil && !answered(err) {
		s.hangUp()
	}
	return err
}
