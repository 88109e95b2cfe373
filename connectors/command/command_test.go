package command_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/golden"
)

// proves: CONN-2, CONN-3
func TestBuildLaunch(t *testing.T) {
	golden.BuildLaunch(t, func(*testing.T, string) sdk.Connector { return command.Connector{} })
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
