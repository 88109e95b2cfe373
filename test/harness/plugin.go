package harness

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/plugins/manifest"
	"github.com/cotal-ai/cotal-host/sdk"
)

// PluginConfig returns the configuration that the manifest of a directory of binaries gives a plugin.
func PluginConfig(t testing.TB, bin string, kind sdk.Kind, name string) json.RawMessage {
	t.Helper()
	m, err := manifest.Load(filepath.Join(bin, manifest.FileName))
	if err != nil {
		t.Fatal(err)
	}
	entry, ok := m.Find(kind, name)
	if !ok {
		t.Fatalf("%s names no %s %s", m.Path, kind, name)
	}
	config, err := entry.ConfigJSON()
	if err != nil {
		t.Fatal(err)
	}
	return config
}
