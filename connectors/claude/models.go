package claude

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

const (
	// modelsTimeout bounds a catalogue; it takes a second on an idle machine.
	modelsTimeout = 30 * time.Second
	// maxCatalogue bounds the output read; it is some 50 KiB.
	maxCatalogue = 8 << 20
)

// initialize asks a program that is driven by JSON lines what it offers. It answers without asking a provider.
const initialize = `{"type":"control_request","request_id":"models","request":{"subtype":"initialize"}}` + "\n"

// ListModels asks the program itself, which knows what the user's login and provider offer. It starts a process,
// which BuildLaunch may not: with a deadline, in a process group of its own that is killed whatever happens, and in
// a configuration directory that is removed behind it.
//
// Errors: ErrNotFound (no binary), ErrUnsupported (its version), ErrUnavailable (it failed, took too long or printed
// too much).
func (c *Connector) ListModels(ctx context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	binary, err := q.Binary(binaryName)
	if err != nil {
		return sdk.ModelCatalog{}, err
	}
	if err := checkVersion(binary); err != nil {
		return sdk.ModelCatalog{}, err
	}
	dir, err := os.MkdirTemp(c.stateDir, "models-")
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "make temporary directory: %v", err)
	}
	defer os.RemoveAll(dir)
	l := launch{req: sdk.LaunchRequest{Dir: dir, BaseEnv: q.BaseEnv}, cwd: canonical(dir)}
	if err := os.Mkdir(l.path(homeDir), 0o700); err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "make temporary directory: %v", err)
	}
	if err := l.furnish(); err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "%v", err)
	}
	cmd := exec.Command(binary, "--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
		"--strict-mcp-config", "--permission-mode", "default", "--no-session-persistence")
	cmd.Dir, cmd.Env, cmd.Stdin = dir, sdk.UnsetEnv(l.environment(), "COTAL_*"), strings.NewReader(initialize)
	said, err := program.Question{Cmd: cmd, Name: filepath.Base(binary), Limit: modelsTimeout, Max: maxCatalogue}.Ask(ctx)
	var ended *program.EndError
	if err != nil && !errors.As(err, &ended) {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "%v", err)
	}
	models, err := parseModels(said.Out)
	if err != nil {
		// Whatever it ended with, a complete answer counts; without one, how it ended says most.
		if ended != nil {
			err = ended
		}
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "ask %s for its models: %v", filepath.Base(binary), err)
	}
	return sdk.ModelCatalog{Source: "Claude Code (" + filepath.Base(binary) + ")", Models: models}, nil
}

// parseModels reads the answer to initialize among what the program printed.
func parseModels(data []byte) ([]sdk.Model, error) {
	for line := range bytes.Lines(data) {
		var in struct {
			Type     string `json:"type"`
			Response struct {
				RequestID string `json:"request_id"`
				Subtype   string `json:"subtype"`
				Error     string `json:"error"`
				Response  struct {
					Models []struct {
						Value   string   `json:"value"`
						Name    string   `json:"displayName"`
						Efforts []string `json:"supportedEffortLevels"`
					} `json:"models"`
				} `json:"response"`
			} `json:"response"`
		}
		if json.Unmarshal(line, &in) != nil || in.Type != "control_response" || in.Response.RequestID != "models" {
			continue
		}
		if in.Response.Subtype != "success" {
			return nil, fmt.Errorf("it refused: %s", in.Response.Error)
		}
		var models []sdk.Model
		for _, m := range in.Response.Response.Models {
			if m.Value != "" {
				models = append(models, sdk.Model{ID: m.Value, Name: m.Name, Provider: "anthropic", Variants: m.Efforts})
			}
		}
		if len(models) == 0 {
			return nil, errors.New("it lists none")
		}
		return models, nil
	}
	return nil, errors.New("it did not answer")
}
