//go:build linux

package tmux

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
	"github.com/cotal-ai/cotal-host/test/harness"
)

// proves: RT-5, RT-7
func TestConformance(t *testing.T) {
	plugintest.Runtime(t, func() sdk.Runtime { return New() }, plugintest.Options{
		Info: Info(), BundleDir: built.dir, Config: json.RawMessage(`{"holder_sha256":"` + built.holderSHA256 + `"}`),
	})
}

func TestConformanceOfTheBinary(t *testing.T) {
	t.Parallel() // it looks at processes of its own
	bin := harness.Bin(t)
	plugintest.Binary(t, filepath.Join(bin, "cotal-runtime-tmux"), plugintest.Options{
		BundleDir: bin, Config: harness.PluginConfig(t, bin, sdk.KindRuntime, Name),
	})
}
