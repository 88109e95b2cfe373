package pi

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

// ListModels runs `pi --list-models` and reads its table. Errors: ErrNotFound, ErrUnavailable.
func (c *Connector) ListModels(ctx context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	path := q.Binaries[binaryName]
	if path == "" {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrNotFound, "the host gave no path for %q", binaryName)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out := &program.Output{Max: 4 << 20}
	cmd := exec.Command(path, "--list-models", "--no-extensions")
	cmd.Env = sdk.SetEnv(q.BaseEnv, "PI_OFFLINE=1", "PI_TELEMETRY=0")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, time.Second // the table is on standard error
	if err := program.Run(ctx, cmd); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "`pi --list-models`: %v: %s", errors.Join(ctx.Err(), err), out.LastLine())
	}
	models := parse(string(out.Bytes()))
	if len(models) == 0 {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "`pi --list-models` lists none: %s", out.LastLine())
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
