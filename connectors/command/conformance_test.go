package command_test

import (
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/command"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
	"github.com/cotal-ai/cotal-host/test/harness"
)

func conformance() plugintest.Options {
	return plugintest.Options{Info: command.Info(), LaunchOptions: map[string]any{"argv": []any{"true"}}}
}

// proves: CONN-2, CONN-3, CONN-6
func TestConformance(t *testing.T) {
	plugintest.Connector(t, func() sdk.Connector { return command.Connector{} }, conformance())
}

func TestConformanceOfTheBinary(t *testing.T) {
	plugintest.Binary(t, filepath.Join(harness.Bin(t), "cotal-connector-command"), conformance())
}
