//go:build linux

package auth

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/host/broker"
	"github.com/cotal-ai/cotal-host/host/bus"
	"github.com/cotal-ai/cotal-host/host/control"
	"github.com/cotal-ai/cotal-host/host/provision"
	"github.com/cotal-ai/cotal-host/host/trust"
	"github.com/cotal-ai/cotal-host/sdk/mesh"
	"github.com/cotal-ai/cotal-host/sdk/wire"
	"github.com/cotal-ai/cotal-host/test/busy"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// nobodyEnds is a retirement that is never asked for.
type nobodyEnds struct{ t *testing.T }

func (n nobodyEnds) Discard(context.Context, provision.Life) error {
	n.t.Error("a life was given up")
	return nil
}

// The broker is away for longer than the credentials of a host and of an agent live. Nothing can be renewed meanwhile, and an
// expired one is refused; both are on the mesh again by themselves once the broker is.
func TestRepair_CredentialsThatExpireWhileTheBrokerIsAwayNeedNone(t *testing.T) {
	t.Parallel()
	const space, instance = "main", "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	const life = 4 * time.Second // not stretched with the load: what expires now and then is part of it
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	store, err := trust.OpenFileStore(ctx, t.TempDir())
	must(err)
	keys, err := trust.MakeKeyring(ctx, store, space)
	must(err)
	b, err := keys.Bundle()
	must(err)
	cfg := broker.Config{
		StoreDir: t.TempDir(),
		Operator: &broker.Operator{Token: b.OperatorToken, System: b.System, Accounts: b.Accounts, Dir: t.TempDir()},
	}
	br, err := broker.Start(ctx, cfg)
	must(err)
	defer func() { br.Shutdown() }()
	cfg.Port = br.Port()
	auth, err := trust.NewStatic(trust.StaticConfig{Keys: keys, Instance: instance, Commands: []string{wire.CmdDescribe}, Reach: bus.Config{URL: br.URL()}})
	must(err)
	must(auth.With(ctx, trust.Request{Profile: trust.SetUp}, func(ctx context.Context, b *bus.Bus) error {
		nothing, anything := func(string) bool { return false }, func(string) error { return nil }
		if _, err := b.Records(ctx, space, nothing, anything); err != nil {
			return err
		}
		return b.SetUpMessaging(ctx, space, nothing, anything)
	}))
	contract, err := control.Contract(wire.OwnerLocal)
	must(err)
	must(auth.With(ctx, trust.Request{Profile: trust.Executor}, func(ctx context.Context, b *bus.Bus) error {
		rec, err := b.Rows(space)
		if err != nil {
			return err
		}
		_, err = b.Register(ctx, rec, bus.RegisterConfig{
			Endpoint: wire.EndpointManager, InstanceID: instance, Epoch: 1, Principal: "local.manager", Contract: contract,
		})
		return err
	}))

	// An agent whose credential is a file, and a host's connection whose credential is in memory.
	prov, err := provision.New(provision.Config{
		Auth: auth, Space: space, Instance: instance, Incarnation: wire.NewUID(), Store: store, Dir: store.Dir(), Retire: nobodyEnds{t},
	})
	must(err)
	d, err := prov.Draw(provision.Spec{Alias: "worker", Runtime: wire.RuntimeRef{Kind: "pty", ID: "0123456789abcdef0123456789abcdef"}, Write: []string{"team"}})
	must(err)
	for _, s := range prov.Steps(d) {
		must(s.Do(ctx))
	}
	d.Close()
	_, key, err := trust.InFile(store, d.File, d.Life.Actor)
	must(err)
	agent, err := auth.Stand(ctx, trust.Request{Profile: trust.Agent, Key: key, UID: d.Life.UID, Life: life, Scope: trust.Scope{Write: []string{"team"}}})
	must(err)
	write := trust.ToFile(store, d.File)
	must(write(ctx, agent.Current()))
	agent.Configure(trust.StandingConfig{Deliver: write})
	host, err := auth.Stand(ctx, trust.Request{Profile: trust.Supervisor, Life: life, Scope: trust.Scope{Epoch: 1}})
	must(err)
	running, rest := context.WithCancel(ctx)
	defer rest()
	go agent.Run(running)
	go host.Run(running)
	// Where a renewal takes longer than what is left of so short a life, there is a moment without one that is let in.
	var hb *bus.Bus
	harness.Eventually(t, patience, "the host is connected", func() (bool, string) {
		var err error
		hb, err = bus.Connect(ctx, bus.Config{URL: br.URL(), Credentials: host, OnState: func(connected bool, _ string) {
			if connected {
				auth.Retry() // as a host does
			}
		}})
		return err == nil, fmt.Sprint(err)
	})
	defer hb.Close()
	var c *mesh.Client
	harness.Eventually(t, patience, "the agent is connected", func() (bool, string) {
		var err error
		c, err = mesh.Connect(ctx, mesh.Config{URL: br.URL(), CredsFile: prov.Path(d.Life), Space: space, Name: "worker", Reconnect: true, Timeout: patience})
		return err == nil, fmt.Sprint(err)
	})
	defer c.Close()
	say := func() error {
		ctx, cancel := context.WithTimeout(ctx, busy.Limit(2*time.Second))
		defer cancel()
		_, err := c.Send(ctx, wire.Message{Channel: "team", Parts: mesh.Text("here")})
		return err
	}
	harness.Eventually(t, patience, "the agent speaks", func() (bool, string) {
		if err := say(); err != nil {
			return false, err.Error()
		}
		return true, ""
	})

	br.Shutdown()
	harness.Eventually(t, patience, "both credentials are past their ends", func() (bool, string) {
		a, _ := agent.Health()
		h, _ := host.Health()
		return a == trust.Expired && h == trust.Expired, string(a) + ", " + string(h)
	})
	if _, err := os.Stat(filepath.Join(prov.Path(d.Life))); err != nil {
		t.Errorf("the file of the agent: %v", err)
	}
	before := agent.Current().ID
	br, err = broker.Start(ctx, cfg)
	must(err)
	harness.Eventually(t, patience, "the agent speaks again", func() (bool, string) {
		if err := say(); err != nil {
			h, herr := agent.Health()
			return false, fmt.Sprintf("%v; its credential is %s, %v", err, h, herr)
		}
		return true, ""
	})
	harness.Eventually(t, patience, "the host is connected again", func() (bool, string) {
		_, err := host.Health()
		if err != nil {
			return false, err.Error()
		}
		return hb.Connected(), "not connected"
	})
	if agent.Current().ID == before {
		t.Error("the agent speaks with an expired credential")
	}
	if _, k, err := trust.InFile(store, d.File, d.Life.Actor); err != nil || k.Public != key.Public {
		t.Errorf("the file of the agent: of %s, %v; want %s", k.Public, err, key.Public)
	}
}
