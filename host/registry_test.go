package host

import (
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
