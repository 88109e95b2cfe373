package pi

import (
	"context"
	"os/exec"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// ListModels runs `pi --list-models` and reads its table. Errors: ErrNotFound, ErrUnavailable.
func (c *Connector) ListModels(ctx context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	path, err := q.Binary(binaryName)
	if err != nil {
		return sdk.ModelCatalog{}, err
	}
	cmd := exec.Command(path, "--list-models", "--no-extensions")
	cmd.Env = sdk.SetEnv(q.BaseEnv, "PI_OFFLINE=1", "PI_TELEMETRY=0")
	said, err := program.Question{Cmd: cmd, Name: "pi --list-models", Limit: 30 * time.Second, Max: 4 << 20, Both: true}.Ask(ctx) // the table is on standard error
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "%v", err)
	}
	models := parse(string(said.Out))
	if len(models) == 0 {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "`pi --list-models` lists none: %s", said.Last)
	}
	return sdk.ModelCatalog{Source: "pi --list-models", Models: models}, nil
}

// parse reads the table: provider, model, context, max-out, thinking, images.
func parse(table string) []sdk.Model {
	var models []sdk.Model
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) != 6 || f[0] == "provider" || f[4] != "yes" && f[4] != "no" {
			continue
		}
		m := sdk.Model{ID: f[0] + "/" + f[1], Provider: f[0]}
		if f[4] == "yes" {
			m.Variants = levels
		}
		models = append(models, m)
	}
	return models
}
