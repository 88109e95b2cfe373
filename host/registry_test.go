package host

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/catalog"
	"github.com/cotal-ai/cotal-host/plugins/supervise"
	"github.com/cotal-ai/cotal-host/sdk"
)

// proves: MULTI-11
func TestWhoTakesSpawnsOfTheClass(t *testing.T) {
	connector := func(state supervise.State, described bool) catalog.PluginStatus {
		p := catalog.PluginStatus{Name: "claude", Kind: sdk.KindConnector, State: state}
		if described {
			p.Info.Name = "claude"
		}
		return p
	}
	runtime := catalog.PluginStatus{Name: "pty", Kind: sdk.KindRuntime, State: supervise.StateReady}
	runtime.Info.Name = "pty"
	for _, c := range []struct {
		name      string
		plugins   []catalog.PluginStatus
		available bool // the binaries of what is described are there
		want      bool
	}{
		{"a host without connectors takes none", []catalog.PluginStatus{runtime}, true, false},
		{"a connector that is ready, and its program is there", []catalog.PluginStatus{runtime, connector(supervise.StateReady, true)}, true, true},
		{"a connector that is ready, and its program is not there", []catalog.PluginStatus{connector(supervise.StateReady, true)}, false, false},
		{"a connector that was not started yet is on its way", []catalog.PluginStatus{connector(supervise.StateStopped, false)}, false, true},
		{"a connector that starts is on its way", []catalog.PluginStatus{connector(supervise.StateStarting, false)}, false, true},
		{"a connector that comes back has been described before", []catalog.PluginStatus{connector(supervise.StateBackoff, true)}, true, true},
		{"a connector that never came is not", []catalog.PluginStatus{connector(supervise.StateBackoff, false)}, false, false},
		{"a connector that was given up is not", []catalog.PluginStatus{connector(supervise.StateQuarantined, true)}, true, false},
		{"one of several is enough", []catalog.PluginStatus{connector(supervise.StateQuarantined, true), connector(supervise.StateReady, true)}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := takesSpawns(c.plugins, func(p catalog.PluginStatus) bool { return p.Info.Name != "" && c.available }); got != c.want {
				t.Errorf("takes spawns: %v", got)
			}
		})
	}
}

// leaseOf is a lease that is held, or why it is not.
type leaseOf struct{ why error }

func (h leaseOf) Check() error                { return h.why }
func (h leaseOf) Await(context.Context) error { return h.why }

// A host whose store cannot be told of it begins nothing, though it holds its lease and may be able to note a goal: what it
// says when it starts is so. What it has goes on.
func TestAHostThatIsNotRegisteredStartsNothingNew(t *testing.T) {
	lost := errors.New("the lease is not held")
	for name, c := range map[string]struct {
		lease      error
		registered bool
		says       string
	}{
		"with its lease and registered":     {nil, true, ""},
		"registered, and without its lease": {lost, true, "lease is not held"},
		"with its lease and not registered": {nil, false, "not registered"},
		"with neither":                      {lost, false, "lease is not held"},
	} {
		t.Run(name, func(t *testing.T) {
			p := permit{leaseOf{c.lease}, func() bool { return c.registered }}
			if err := p.Check(); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("something new: %v, want %q", err, c.says)
			}
			if err := p.Await(t.Context()); !errors.Is(err, c.lease) {
				t.Errorf("a process that follows another one: %v", err)
			}
		})
	}
}
