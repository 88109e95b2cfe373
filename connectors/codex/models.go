package codex

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

const (
	// modelsTimeout bounds a catalogue; the one that comes with the program takes half a second.
	modelsTimeout = 60 * time.Second
	// maxCatalogue bounds the output read; the catalogue with its prompts is below 1 MiB.
	maxCatalogue = 16 << 20
)

// ListModels runs `codex debug models`: the catalogue that comes with the program, or with q.Refresh the one of
// the provider that the operator is logged in to. It starts a process, which BuildLaunch may not: with a deadline,
// in a process group of its own that is killed whatever happens, and with a home of its own.
//
// Errors: ErrNotFound (no binary), ErrUnavailable (it failed, took too long or printed too much).
func (c *Connector) ListModels(ctx context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	binary, err := q.Binary(binaryName)
	if err != nil {
		return sdk.ModelCatalog{}, err
	}
	if err := checkVersion(binary); err != nil {
		return sdk.ModelCatalog{}, err
	}
	home, err := os.MkdirTemp(c.stateDir, "models-")
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "make temporary directory: %v", err)
	}
	defer os.RemoveAll(home)
	args := []string{"debug", "models", "--bundled"}
	if q.Refresh {
		args = args[:2]
		if err := operatorsView(q.BaseEnv, home); err != nil {
			return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "look at your configuration of Codex: %v", err)
		}
	}
	cmd := exec.Command(native(binary), args...)
	cmd.Dir = home
	cmd.Env = sdk.SetEnv(sdk.UnsetEnv(q.BaseEnv, "COTAL_*"), "CODEX_HOME="+home)
	said, err := program.Question{Cmd: cmd, Name: "codex debug models", Limit: modelsTimeout, Max: maxCatalogue}.Ask(ctx)
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "%v", err)
	}
	models, err := parseModels(said.Out)
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "read the output of `codex debug models`: %v", err)
	}
	if len(models) == 0 {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "`codex debug models` lists none: %s", said.Last)
	}
	if _, err := os.Stat(filepath.Join(home, cacheFile)); q.Refresh && err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "your provider gave Codex no list of models, which it asks of one that takes a ChatGPT login alone: what it prints then comes with the program, as without a refresh")
	}
	return sdk.ModelCatalog{Source: "codex " + strings.Join(args, " "), Models: models}, nil
}

// cacheFile is what the program writes into its home when a provider has given it a list. When none has, it prints the
// one that comes with it, without a word, and ends well.
const cacheFile = "models_cache.json"

// operatorsView gives a home the operator's login and how his models are reached.
func operatorsView(env []string, home string) error {
	operator := operatorHome(env)
	if operator == "" {
		return nil
	}
	base, err := baseSettings(options{}, operator)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(home, "config.toml"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = encode(f, base)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Symlink(filepath.Join(operator, "auth.json"), filepath.Join(home, "auth.json"))
}

// parseModels reads the catalogue, without what the program does not offer to a person.
func parseModels(data []byte) ([]sdk.Model, error) {
	var in struct {
		Models []struct {
			Slug       string `json:"slug"`
			Name       string `json:"display_name"`
			Visibility string `json:"visibility"`
			Levels     []struct {
				Effort string `json:"effort"`
			} `json:"supported_reasoning_levels"`
		} `json:"models"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, err
	}
	var models []sdk.Model
	for _, m := range in.Models {
		if m.Slug == "" {
			return nil, errors.New("a model has no slug")
		}
		if m.Visibility == "hide" || m.Visibility == "none" {
			continue
		}
		model := sdk.Model{ID: m.Slug, Name: m.Name}
		for _, l := range m.Levels {
			model.Variants = append(model.Variants, l.Effort)
		}
		models = append(models, model)
	}
	return models, nil
}
