package qwen_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/qwen"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// conformance uses a stand-in for the program: what the suite is about is the connector.
func conformance(t *testing.T) plugintest.Options {
	t.Helper()
	program := filepath.Join(t.TempDir(), "qwen")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	bin := harness.Bin(t)
	return plugintest.Options{
		Info: qwen.Info(), BundleDir: bin, Config: harness.PluginConfig(t, bin, sdk.KindConnector, "qwen"),
		Binaries: map[string]string{"qwen": program},
	}
}

// proves: CONN-2, CONN-3, CONN-4, CONN-6
func TestConformance(t *testing.T) {
	plugintest.Connector(t, func() sdk.Connector { return &qwen.Connector{} }, conformance(t))
}

func TestConformanceOfTheBinary(t *testing.T) {
	plugintest.Binary(t, filepath.Join(harness.Bin(t), "cotal-connector-qwen"), conformance(t))
}
