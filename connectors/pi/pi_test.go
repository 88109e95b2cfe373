package pi

import (
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/test/golden"
)

// proves: CONN-2, CONN-3, CONN-4
func TestBuildLaunch(t *testing.T) {
	golden.BuildLaunch(t, func(t *testing.T, root string) sdk.Connector {
		c := &Connector{}
		if err := c.Configure(t.Context(), sdk.PluginConfig{BundleDir: filepath.Join(root, "bundle")}); err != nil {
			t.Fatal(err)
		}
		return c
	})
}

func TestModelTable(t *testing.T) {
	got := parse("Warning: no network\nprovider  model       context  max-out  thinking  images\nstub      other       100K     8K       no        no    \nstub      deep/er     1M       8K       yes       no\n")
	want := []sdk.Model{{ID: "stub/other", Provider: "stub"}, {ID: "stub/deep/er", Provider: "stub", Variants: levels}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("models %+v, want %+v", got, want)
	}
}

func TestWhatReachesAModelIsDeclared(t *testing.T) {
	for _, name := range []string{"PI_CODING_AGENT_DIR", "https_proxy", "SSL_CERT_FILE", "AZURE_OPENAI_RESOURCE_NAME", "DEEPSEEK_API_KEY", "HF_TOKEN"} {
		if !slices.Contains(Info().Connector.EnvAllow, name) {
			t.Errorf("%s does not reach the program", name)
		}
	}
}
