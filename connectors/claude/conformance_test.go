package claude_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/connectors/claude"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// conformance uses a stand-in for the program: what the suite is about is the connector.
func conformance(t *testing.T) plugintest.Options {
	t.Helper()
	program := filepath.Join(t.TempDir(), "claude")
	text := "#!/bin/sh\n" + `echo '{"type":"control_response","response":{"subtype":"success","request_id":"models","response":{"models":[{"value":"m"}]}}}'` + "\n"
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	bin := harness.Bin(t)
	return plugintest.Options{
		Info: claude.Info(), BundleDir: bin, Config: harness.PluginConfig(t, bin, sdk.KindConnector, "claude"),
		Binaries: map[string]string{"claude": program}, Model: "verify-model",
	}
}

// proves: CONN-2, CONN-3, CONN-4
func TestConformance(t *testing.T) {
	plugintest.Connector(t, func() sdk.Connector { return &claude.Connector{} }, conformance(t))
}

func TestConformanceOfTheBinary(t *testing.T) {
	plugintest.Binary(t, filepath.Join(harness.Bin(t), "cotal-connector-claude"), conformance(t))
}
