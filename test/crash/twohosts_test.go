package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// instanceOf is the instance of the host of a workspace.
func instanceOf(t *testing.T, root string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".cotal", "host", "endpoint.json"))
	var e wire.Endpoint
	if err == nil {
		err = json.Unmarshal(text, &e)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e.InstanceID
}

// TestTwoHostsOfOneSpaceCarryAGoalOutOnce: two clients of one caller submit the same goal to two hosts of a
// space at once. It is accepted once, as one identity that both are told, ends once, and is one process; a
// second submission that asks for something else is refused without effect.
//
// proves: GOAL-3, GOAL-10, MULTI-6, MULTI-13
func TestTwoHostsOfOneSpaceCarryAGoalOutOnce(t *testing.T) {
	rounds := 15
	if os.Getenv("COTAL_LONG") != "" {
		rounds = 100
	}
	w := newWorld(t)
	w.StartBroker()
	w.host = w.Start(harness.HostOptions{})
	other := filepath.Join(w.Dir, "ws2")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	second := w.Start(harness.HostOptions{Args: []string{"--root", other}})
	defer second.Stop() // the end of the world sees to the other one
	instances := []string{instanceOf(t, w.Root), instanceOf(t, other)}
	if instances[0] == instances[1] {
		t.Fatal("the two hosts are one instance")
	}
	clients := make([]*mesh.Client, len(instances))
	for i := range clients {
		e := w.Endpoint()
		c, err := mesh.Connect(t.Context(), mesh.Config{URL: e.URL, TokenFile: e.TokenFile, Space: e.Space, Caller: w.caller})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		clients[i] = c
	}
	won := make([]int, len(instances))
	for round := range rounds {
		name := fmt.Sprintf("shared-%d", round)
		differ := round%5 == 4 // both ask for the same id, and not for the same
		args := func(i int) wire.SpawnArgs {
			a := w.FakeArgs(name, w.starts(name, `{"hang": true}`))
			if differ {
				a.Role = fmt.Sprintf("role%d", i)
			}
			return a
		}
		id := wire.NewID()
		accs, errs := make([]wire.Acceptance, len(clients)), make([]error, len(clients))
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				_, errs[i] = c.Call(t.Context(), mesh.Call{
					Endpoint: wire.EndpointManager, Instance: instances[i], Command: wire.CmdSpawn, ID: id, Args: args(i), Deadline: w.wait,
				}, &accs[i])
			})
		}
		wg.Wait()
		first := 0
		if errs[0] != nil {
			first = 1
		}
		if errs[first] != nil || !differ && errs[1-first] != nil {
			t.Fatalf("round %d: %v", round, errs)
		}
		if differ {
			werr := wire.ErrorFrom(errs[1-first])
			if werr == nil || werr.Code != wire.CodeFailedPrecondition || werr.Outcome != wire.OutcomeNotExecuted {
				t.Fatalf("round %d: another request under the same id: %v", round, errs[1-first])
			}
		} else if a, b := accs[0], accs[1]; !reflect.DeepEqual(a, b) {
			t.Fatalf("round %d: two acceptances:\n%+v\n%+v", round, a, b)
		}
		acc := accs[first]
		for i, instance := range instances {
			if acc.Executor.LifecycleUID == instance {
				won[i]++
			}
		}
		if won[0]+won[1] != round+1 || acc.Executor.Epoch == 0 {
			t.Fatalf("round %d: the acceptance names %+v, which is neither host", round, acc.Executor)
		}
		var ends [2]wire.GoalResult
		for i, c := range clients {
			harness.Eventually(t, w.wait, "each host tells how the goal ended", func() (bool, string) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				var reply wire.GoalResultReply
				_, err := c.Call(ctx, mesh.Call{
					Endpoint: wire.EndpointManager, Instance: instances[i], Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id},
				}, &reply)
				if err != nil || reply.Result == nil {
					return false, fmt.Sprint(err)
				}
				ends[i] = *reply.Result
				return true, ""
			})
		}
		if ends[0].State != wire.GoalSucceeded || !reflect.DeepEqual(ends[0], ends[1]) {
			t.Fatalf("round %d: it ended %+v and %+v", round, ends[0], ends[1])
		}
		w.await(name+" was executed", func() (bool, string) { n := w.executions(name); return n >= 1, fmt.Sprint(n) })
		// A stop on the class rail reaches either host, and only one has the seat.
		_, err := clients[first].Call(t.Context(), mesh.Call{
			Endpoint: wire.EndpointManager, Instance: acc.Executor.LifecycleUID, Command: wire.CmdDespawn, Authz: wire.AuthzAny,
			Target: &wire.Target{Owner: acc.Owner, Actor: acc.Actor, LifecycleUID: acc.UID},
			Args:   wire.DespawnArgs{Graceful: new(bool), WaitForExit: true}, Deadline: w.wait,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := w.executions(name); n != 1 {
			t.Fatalf("round %d: %d processes were started", round, n)
		}
		w.accepted[id], w.goals[id] = acc, ends[0]
	}
	t.Logf("of %d rounds the hosts won %v", rounds, won)
	goals, index := w.goalsOnMesh()
	if len(index) != 0 {
		t.Errorf("the index still names %s", strings.Join(index, " "))
	}
	for id, g := range goals {
		if !g.accepted || g.terminal != wire.GoalSucceeded || g.status != wire.GoalSucceeded {
			t.Errorf("goal %s: %+v", id, g)
		}
	}
}
