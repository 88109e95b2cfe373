package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// MeshConfig is how a client connects to the host of this world, by what endpoint.json says: as the operator where it
// names a credential, else with the token of an open mesh.
func (w *World) MeshConfig(name string) mesh.Config {
	w.t.Helper()
	e := w.Endpoint()
	return mesh.Config{URL: e.URL, TokenFile: e.TokenFile, CredsFile: e.CredsFile, Space: e.Space, Name: name, Timeout: DefaultWait}
}

// Mesh connects a client to the host of this world. It is closed with the test.
func (w *World) Mesh() *mesh.Client {
	w.t.Helper()
	c, err := mesh.Connect(context.Background(), w.MeshConfig("test"))
	if err != nil {
		w.t.Fatalf("connect to the host: %v", err)
	}
	w.t.Cleanup(c.Close)
	return c
}

// Launched is one spawn as its caller saw it. Times count from the moment the request was sent.
type Launched struct {
	Acceptance wire.Acceptance
	Result     wire.SpawnResult
	Accepted   time.Duration // the acceptance arrived
	Running    time.Duration // the first event arrived that says the process runs
	Settled    time.Duration // the event arrived that says the goal has its terminal
}

// FakeArgs are the arguments of spawn for the scripted agent through the command connector.
func (w *World) FakeArgs(name, script string) wire.SpawnArgs {
	return wire.SpawnArgs{
		Name: name, Agent: "command", Identity: name,
		LaunchOptions: map[string]any{"argv": w.FakeAgent(script)},
	}
}

// Launch spawns a seat over the mesh and waits for the terminal of its goal. Every terminal but
// succeeded is an error.
func Launch(ctx context.Context, c *mesh.Client, args wire.SpawnArgs) (Launched, error) {
	var l Launched
	id := wire.NewID()
	type event struct {
		wire.GoalProgress
		at time.Time
	}
	events := make(chan event, 16)
	stop, err := c.WatchGoal(ctx, wire.EndpointManager, "", id, func(p wire.GoalProgress) {
		select {
		case events <- event{p, time.Now()}:
		default: // nobody waits for it any more
		}
	})
	if err != nil {
		return l, err
	}
	defer stop()
	begun := time.Now()
	_, err = c.Call(ctx, mesh.Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdSpawn, ID: id, Args: args, Deadline: DefaultWait,
	}, &l.Acceptance)
	l.Accepted = time.Since(begun)
	if err != nil {
		return l, err
	}
	timeout := time.NewTimer(DefaultWait)
	defer timeout.Stop()
	for l.Settled == 0 {
		select {
		case e := <-events:
			at := e.at.Sub(begun)
			if e.Phase == wire.PhaseTerminal {
				l.Settled = at
			}
			if l.Running == 0 && (e.Phase == wire.PhaseLaunched || e.State == wire.GoalSucceeded) {
				l.Running = at
			}
		case <-ctx.Done():
			return l, ctx.Err()
		case <-timeout.C: // an event may be lost: the goal itself is the truth, and its time is unknown
			l.Settled = time.Since(begun)
		}
	}
	var reply wire.GoalResultReply
	_, _ = Poll(5*time.Second, func() (bool, string) { // the event may be ahead of the answer
		_, err = c.Call(ctx, mesh.Call{
			Endpoint: wire.EndpointManager, Command: wire.CmdGoalResult, Args: wire.GoalResultArgs{GoalID: id},
		}, &reply)
		return err != nil || reply.Result != nil, ""
	})
	switch {
	case err != nil:
		return l, err
	case reply.Result == nil:
		return l, fmt.Errorf("goal %s has no terminal after %v", id, l.Settled)
	case reply.Result.State != wire.GoalSucceeded:
		return l, fmt.Errorf("goal %s ended %s: %v", id, reply.Result.State, reply.Result.Error)
	}
	if err := json.Unmarshal(reply.Result.Data, &l.Result); err != nil {
		return l, fmt.Errorf("decode result of goal %s: %w", id, err)
	}
	return l, nil
}

// Despawn ends a seat over the mesh and waits for the proof.
func Despawn(ctx context.Context, c *mesh.Client, a wire.Acceptance) error {
	graceful := false
	_, err := c.Call(ctx, mesh.Call{
		Endpoint: wire.EndpointManager, Command: wire.CmdDespawn, Authz: wire.AuthzAny,
		Target:   &wire.Target{Owner: a.Owner, Actor: a.Actor, LifecycleUID: a.UID},
		Args:     wire.DespawnArgs{Graceful: &graceful, WaitForExit: true},
		Deadline: DefaultWait,
	}, nil)
	return err
}
