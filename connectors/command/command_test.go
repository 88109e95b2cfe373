package command_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/golden"
)

// configured is the connector with its bundle beneath root.
func configured(t *testing.T, root, config string) *command.Connector {
	t.Helper()
	c := &command.Connector{}
	if err := c.Configure(t.Context(), sdk.PluginConfig{BundleDir: filepath.Join(root, "bundle"), Config: json.RawMessage(config)}); err != nil {
		t.Fatal(err)
	}
	return c
}

// proves: CONN-2, CONN-3
func TestBuildLaunch(t *testing.T) {
	golden.BuildLaunch(t, func(t *testing.T, root string) sdk.Connector { return configured(t, root, "") })
}

func TestTheBridgeIsTheOneOfTheBundle(t *testing.T) {
	root, err := filepath.Abs("testdata/tree")
	if err != nil {
		t.Fatal(err)
	}
	req := sdk.LaunchRequest{LaunchOptions: map[string]any{"argv": []any{"/bin/sh"}, "mesh": "presence"}, BaseEnv: []string{"COTAL_LAUNCH_MATERIAL=/m"}}
	if _, err := configured(t, root, `{"bridge_sha256":"`+strings.Repeat("0", 64)+`"}`).BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "bridge_sha256") {
		t.Errorf("a bridge of another digest: %v", err)
	}
	if _, err := configured(t, t.TempDir(), "").BuildLaunch(t.Context(), req); !errors.Is(err, sdk.ErrNotFound) || !strings.Contains(err.Error(), "cotal-bridge") {
		t.Errorf("a bundle without a bridge: %v", err)
	}
	err = (&command.Connector{}).Configure(t.Context(), sdk.PluginConfig{Config: json.RawMessage(`{"bridge":"x"}`)})
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), `"bridge"`) {
		t.Errorf("a key that there is none of: %v", err)
	}
}

func TestArgvMayNotHoldWhatExecCannotTake(t *testing.T) {
	_, err := command.Connector{}.BuildLaunch(t.Context(), sdk.LaunchRequest{
		LaunchOptions: map[string]any{"argv": []any{"/bin/sh", "a\x00b"}},
	})
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "launchOptions.argv.1 holds a NUL byte") {
		t.Errorf("argv with a NUL byte: %v, want ErrInvalid that names the argument", err)
	}
}

// proves: CONN-6
func TestThereIsNoCatalogueAndNothingToReap(t *testing.T) {
	if _, err := (command.Connector{}).ListModels(t.Context(), sdk.ModelQuery{}); !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("ListModels: %v, want ErrUnavailable", err)
	}
	for range 2 {
		report, err := command.Connector{}.Reap(t.Context(), sdk.LeftoverRequest{SeatID: "unknown"})
		if err != nil || report.Outcome != sdk.ReapAbsent || len(report.Evidence) == 0 {
			t.Errorf("Reap of an unknown seat: %+v, %v, want absent with evidence", report, err)
		}
	}
}
