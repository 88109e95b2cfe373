package qwen

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
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

func TestTheModelsAreThoseOfTheUsersSettings(t *testing.T) {
	home := t.TempDir()
	q := sdk.ModelQuery{BaseEnv: []string{"HOME=" + home}}
	if got, err := (&Connector{}).ListModels(t.Context(), q); !errors.Is(err, sdk.ErrUnavailable) {
		t.Errorf("without settings: %+v, %v; want ErrUnavailable", got, err)
	}
	for name, c := range map[string]struct {
		settings string
		want     []sdk.Model
		err      error
	}{
		"of every provider": {
			`{"modelProviders":{"openai":[{"id":"b","name":"B","envKey":"KEY"},{"name":"no id"}],"gemini":[{"id":"a"}],"other":[{"id":"b"}]}}`,
			[]sdk.Model{{ID: "a", Provider: "gemini"}, {ID: "b", Name: "B", Provider: "openai"}},
			nil,
		},
		"of another shape": {`{"modelProviders":["a"]}`, nil, sdk.ErrUnavailable},
		"with a comment":   {"{ // mine\n}", nil, sdk.ErrUnavailable},
		"without any":      {"{}", nil, sdk.ErrUnavailable},
	} {
		if err := os.MkdirAll(filepath.Join(home, ".qwen"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, ".qwen", settingsFile), []byte(c.settings), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := (&Connector{}).ListModels(t.Context(), q)
		if !errors.Is(err, c.err) || !reflect.DeepEqual(got.Models, c.want) {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got.Models, err, c.want, c.err)
		}
	}
}

// Settings of wherever the plugin runs were read, and a path with a tilde was one to nothing: the seat had no login.
func TestAConfigurationDirectoryThatIsNoPlaceIsRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, settingsFile, `{"modelProviders":{"openai":[{"id":"of-the-working-directory"}]}}`)
	for _, env := range [][]string{nil, {homeEnv + "=~/mine"}, {homeEnv + "=mine"}, {"HOME=."}} {
		if dir, err := userDir(env); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%q: %q, %v; want it refused", env, dir, err)
		}
		if got, err := (&Connector{}).ListModels(t.Context(), sdk.ModelQuery{BaseEnv: env}); !errors.Is(err, sdk.ErrUnavailable) {
			t.Errorf("%q: models %+v, %v; want none", env, got, err)
		}
	}
}

func TestASharedServerWithoutItsVariableIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, sdk.MCPServersFile), []byte(`{"mcpServers":{"files":{"command":"files-mcp","args":["${TOKEN}"]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := servers(sdk.LaunchRequest{Dir: dir, BaseEnv: []string{"OTHER=x"}})
	if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), `"files"`) || !strings.Contains(err.Error(), "TOKEN") {
		t.Errorf("%v; want the server and the variable named", err)
	}
}

func TestWhatReachesAModelIsDeclared(t *testing.T) {
	for _, name := range []string{homeEnv, runtimeEnv, "https_proxy", "SSL_CERT_FILE", "OPENAI_BASE_URL", "DASHSCOPE_API_KEY"} {
		if !slices.Contains(Info().Connector.EnvAllow, name) {
			t.Errorf("%s does not reach the program", name)
		}
	}
}
