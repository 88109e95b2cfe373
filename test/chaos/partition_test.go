//go:build linux

package chaos

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
	"github.com/cotal-ai/cotal-host/test/relay"
)

// Partitions are this long; tenfold patience is granted beside them on a busy machine.
const (
	partitionRun = 10 * time.Second // under COTAL_LONG=1
	partitionCut = 2 * time.Second
	// hasty is the budget of a request that a partition outlives.
	hasty = 800 * time.Millisecond
)

func partition() time.Duration {
	if os.Getenv("COTAL_LONG") != "" {
		return partitionRun
	}
	return partitionCut
}

// apart is a host and its clients on a broker of its own, each behind a relay.
type apart struct {
	*harness.World
	t      *testing.T
	broker *harness.Broker
	url    string       // of the broker itself
	host   *relay.Relay // before the host
	client *relay.Relay // before clients
}

func newApart(t *testing.T) *apart {
	t.Helper()
	a := &apart{t: t, host: relay.New(t), client: relay.New(t)}
	w := harness.New(t)
	a.World, a.broker = w, w.StartBroker()
	a.url = a.broker.URL
	for _, r := range []*relay.Relay{a.host, a.client} {
		r.Lead(strings.TrimPrefix(a.url, "nats://"))
	}
	a.broker.URL = a.host.URL() // what hosts of this world are told
	w.Start(harness.HostOptions{})
	a.broker.URL = a.url
	for _, p := range w.Status().Plugins {
		w.PluginPID(p.Name)
	}
	return a
}

// dial connects a client to the broker, through the relay or not.
func (a *apart) dial(url string) *mesh.Client {
	a.t.Helper()
	c, err := mesh.Connect(a.t.Context(), mesh.Config{
		URL: url, TokenFile: a.broker.TokenFile, Space: a.Endpoint().Space, Name: "test", Timeout: harness.DefaultWait, Reconnect: true,
	})
	if err != nil {
		a.t.Fatalf("connect: %v", err)
	}
	a.t.Cleanup(c.Close)
	if _, err := c.Call(a.t.Context(), mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdPs}, nil); err != nil {
		a.t.Fatalf("ps: %v", err)
	}
	return c
}

// counted are the arguments of a seat whose agent leaves a line in a file each time that it is started.
func (a *apart) counted(name string) wire.SpawnArgs {
	return a.FakeArgs(name, fmt.Sprintf(`[{"append": {"file": %q, "text": "{pid}\n"}}, {"print": "up\n"}, {"hang": true}]`, a.Path("started."+name)))
}

// starts is how often the agent of a seat was started.
func (a *apart) starts(name string) int {
	got, _ := os.ReadFile(a.Path("started." + name)) // absent: never
	return strings.Count(string(got), "\n")
}

// typist starts a seat whose agent prints numbered lines and writes down what is typed to it.
func (a *apart) typist(c *mesh.Client, name string) *wire.Target {
	a.t.Helper()
	ready := a.Path("reads." + name)
	a.Write("typed."+name, "")
	l, err := harness.Launch(a.t.Context(), c, a.FakeArgs(name,
		fmt.Sprintf(`[{"raw": true}, {"fork": {"steps": [{"tick": {"everyMs": 50, "text": "tick"}}]}}, {"write": {"file": %q, "text": ""}}, {"hexlog": {"file": %q, "bytes": 100000000}}]`, ready, a.Path("typed."+name))))
	if err != nil {
		a.t.Fatal(err)
	}
	harness.Eventually(a.t, harness.DefaultWait, "the typist reads", func() (bool, string) {
		_, err := os.Stat(ready)
		return err == nil, fmt.Sprint(err)
	})
	return &wire.Target{Owner: l.Acceptance.Owner, Actor: l.Acceptance.Actor, LifecycleUID: l.Acceptance.UID}
}

// typed is what the agent of a typist has read so far.
func (a *apart) typed(name string) string {
	a.t.Helper()
	got, err := os.ReadFile(a.Path("typed." + name))
	if err != nil {
		a.t.Fatal(err)
	}
	text, err := hex.DecodeString(string(got))
	if err != nil {
		a.t.Fatalf("what was typed is %q", got)
	}
	return string(text)
}

func spawnCall(id string, args wire.SpawnArgs, d time.Duration) mesh.Call {
	return mesh.Call{Endpoint: wire.EndpointManager, Command: wire.CmdSpawn, ID: id, Args: args, Deadline: d}
}

func inputCall(to *wire.Target, text string, d time.Duration) mesh.Call {
	return mesh.Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdInput, Authz: wire.AuthzAny, Target: to,
		Args: wire.InputArgs{Text: text}, Deadline: d,
	}
}

func despawnCall(t *wire.Target, d time.Duration) mesh.Call {
	graceful := false
	return mesh.Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdDespawn, Authz: wire.AuthzAny, Target: t,
		Args: wire.DespawnArgs{Graceful: &graceful, WaitForExit: true}, Deadline: d,
	}
}

// verdicts are the answers of a host that came after whoever asked had given up: by request id.
type verdicts struct {
	mu sync.Mutex
	by map[string]*wire.Error // nil: it was carried out
}

// overhear listens to every answer of the space.
func (a *apart) overhear() *verdicts {
	a.t.Helper()
	token, err := mesh.ReadToken(a.broker.TokenFile)
	if err != nil {
		a.t.Fatal(err)
	}
	nc, err := nats.Connect(a.url, nats.Token(token))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(nc.Close)
	v := &verdicts{by: map[string]*wire.Error{}}
	_, err = nc.Subscribe("cotal."+a.Endpoint().Space+".ep.reply.>", func(m *nats.Msg) {
		var r wire.EndpointReply
		if json.Unmarshal(m.Data, &r) == nil {
			v.mu.Lock()
			v.by[r.ID] = r.Error
			v.mu.Unlock()
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}

func (v *verdicts) of(id string) (*wire.Error, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e, ok := v.by[id]
	return e, ok
}

// TestNothingStartsAfterItsDeadline: a host is cut off for longer than some callers wait. What they asked
// for reaches it when they are gone: it is refused as too late, not executed, and nothing of it is ever done.
// Whoever still waits is served, once.
//
// proves: OUT-1
func TestNothingStartsAfterItsDeadline(t *testing.T) {
	t.Parallel() // most of it is waiting
	a := newApart(t)
	c := a.dial(a.url)
	said := a.overhear()
	to := a.typist(c, "typist")
	victim, err := harness.Launch(t.Context(), c, a.counted("victim"))
	if err != nil {
		t.Fatal(err)
	}
	a.host.Hold(true, true)
	began := time.Now()
	patient := partition() + harness.DefaultWait
	calls := map[string]mesh.Call{
		"hasty spawn":   spawnCall("hasty-spawn", a.counted("hasty"), hasty),
		"hasty input":   inputCall(to, "hasty", hasty),
		"hasty despawn": despawnCall(&wire.Target{Owner: victim.Acceptance.Owner, Actor: victim.Acceptance.Actor, LifecycleUID: victim.Acceptance.UID}, hasty),
		"hasty read":    {Endpoint: wire.EndpointManager, Command: wire.CmdPs, Deadline: hasty},
		"patient spawn": spawnCall("patient-spawn", a.counted("patient"), patient),
		"patient input": inputCall(to, "patient", patient),
		"patient read":  {Endpoint: wire.EndpointManager, Command: wire.CmdPs, Deadline: patient},
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]error{}
	for what, call := range calls {
		call.ID = strings.ReplaceAll(what, " ", "-")
		wg.Go(func() {
			_, err := c.Call(t.Context(), call, nil)
			mu.Lock()
			got[what] = err
			mu.Unlock()
		})
	}
	harness.Eventually(t, harness.DefaultWait, "who is in a hurry has given up", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == 4, fmt.Sprint(got)
	})
	for what, err := range got {
		if !errors.Is(err, mesh.ErrNoReply) || mesh.OutcomeOf(err) != wire.OutcomeUnknown {
			t.Errorf("%s: %v, outcome %s; want no reply, unknown", what, err, mesh.OutcomeOf(err))
		}
	}
	<-time.After(time.Until(began.Add(partition()))) // the partition has a length
	a.host.Heal()
	wg.Wait()
	for what := range calls {
		id := strings.ReplaceAll(what, " ", "-")
		if strings.HasPrefix(what, "patient") {
			if got[what] != nil {
				t.Errorf("%s: %v", what, got[what])
			}
			continue
		}
		harness.Eventually(t, harness.DefaultWait, "the host answers "+what, func() (bool, string) {
			_, ok := said.of(id)
			return ok, "it has not"
		})
		if e, _ := said.of(id); e == nil || e.Code != wire.CodeDeadlineExceeded || e.Outcome != wire.OutcomeNotExecuted {
			t.Errorf("%s came too late, and the host said %v", what, e)
		}
	}
	harness.Eventually(t, harness.DefaultWait, "the patient seat runs", func() (bool, string) {
		return a.starts("patient") == 1, fmt.Sprint(a.starts("patient"))
	})
	if a.starts("hasty") != 0 || a.starts("victim") != 1 || !a.Alive(victim.Result.PID) {
		t.Errorf("hasty was started %d times, victim %d times and lives: %v", a.starts("hasty"), a.starts("victim"), a.Alive(victim.Result.PID))
	}
	if _, ok := a.Seat("hasty"); ok {
		t.Error("what came too late is a seat")
	}
	if typed := a.typed("typist"); typed != "patient\r" {
		t.Errorf("typed: %q", typed)
	}
	// Its name and its id are free.
	if _, err := c.Call(t.Context(), spawnCall("hasty-spawn", a.counted("hasty"), harness.DefaultWait), nil); err != nil {
		t.Errorf("the same once more, in time: %v", err)
	}
	harness.Eventually(t, harness.DefaultWait, "it runs", func() (bool, string) {
		return a.starts("hasty") == 1, fmt.Sprint(a.starts("hasty"))
	})
}

// TestALostAnswerIsNoSecondExecution: the answers to a client are held up until it has given up. It is
// told that it does not know; when it asks again it gets the answer that it did not get, and everything was
// done once.
func TestALostAnswerIsNoSecondExecution(t *testing.T) {
	t.Parallel() // most of it is waiting
	a := newApart(t)
	c := a.dial(a.client.URL())
	to := a.typist(c, "typist")
	a.client.Hold(false, true)
	inTime := busy.Limit(hasty) // the host is in time, its answer is not
	for what, call := range map[string]mesh.Call{
		"spawn": spawnCall("lost", a.counted("lost"), inTime), "input": inputCall(to, "once", inTime),
	} {
		_, err := c.Call(t.Context(), call, nil)
		if !errors.Is(err, mesh.ErrNoReply) || mesh.OutcomeOf(err) != wire.OutcomeUnknown {
			t.Errorf("%s: %v, outcome %s; want no reply, unknown", what, err, mesh.OutcomeOf(err))
		}
	}
	harness.Eventually(t, harness.DefaultWait, "both were carried out", func() (bool, string) {
		return a.starts("lost") == 1 && a.typed("typist") == "once\r", fmt.Sprint(a.starts("lost"), a.typed("typist"))
	})
	a.client.Heal()
	var first, second wire.Acceptance
	for _, dst := range []*wire.Acceptance{&first, &second} {
		if _, err := c.Call(t.Context(), spawnCall("lost", a.counted("lost"), harness.DefaultWait), dst); err != nil {
			t.Fatalf("asked again: %v", err)
		}
	}
	if first.UID == "" || first.UID != second.UID {
		t.Errorf("asked again, twice: %+v and %+v", first, second)
	}
	a.succeeds(c, "lost")
	if a.starts("lost") != 1 || a.typed("typist") != "once\r" {
		t.Errorf("started %d times, typed %q", a.starts("lost"), a.typed("typist"))
	}
}

// succeeds waits for the terminal of a goal through whatever fault there is.
func (a *apart) succeeds(c *mesh.Client, id string) {
	a.t.Helper()
	harness.Eventually(a.t, 2*harness.DefaultWait, "goal "+id+" has succeeded", func() (bool, string) {
		var g wire.GoalResultReply
		_, err := c.Call(context.WithoutCancel(a.t.Context()), mesh.Call{
			Endpoint: wire.EndpointManager, Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id}, Deadline: busy.Limit(time.Second),
		}, &g)
		if g.Result != nil && g.Result.State != wire.GoalSucceeded {
			a.t.Fatalf("goal %s ended %s: %v", id, g.Result.State, g.Result.Error)
		}
		return g.Result != nil, fmt.Sprint(err, g.Phase)
	})
}
