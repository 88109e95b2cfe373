package pi_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/pi"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// conformance uses a stand-in for the program: what the suite is about is the connector.
func conformance(t *testing.T) plugintest.Options {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pi")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho 'verify model 1K 1K yes no' >&2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	bin := harness.Bin(t)
	return plugintest.Options{
		Info: pi.Info(), BundleDir: bin, Config: harness.PluginConfig(t, bin, sdk.KindConnector, "pi"),
		Binaries: map[string]string{"pi": program},
	}
}

// proves: CONN-2, CONN-3, CONN-4, CONN-6
func TestConformance(t *testing.T) {
	plugintest.Connector(t, func() sdk.Connector { return &pi.Connector{} }, conformance(t))
}

func TestConformanceOfTheBinary(t *testing.T) {
	plugintest.Binary(t, filepath.Join(harness.Bin(t), "cotal-connector-pi"), conformance(t))
}
