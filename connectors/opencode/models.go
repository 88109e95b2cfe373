package opencode

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/kept"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

const (
	// modelsTimeout bounds a catalogue; it takes 4 s on an idle machine, more when it is refreshed.
	modelsTimeout = 60 * time.Second
	// maxCatalogue bounds the output read; the public catalogue is below 3 MiB.
	maxCatalogue = 16 << 20
)

var modelLine = regexp.MustCompile(`^[A-Za-z0-9._-]+/\S+$`)

// ListModels runs `opencode models` and reads its listing. It starts a process, which BuildLaunch may
// not: with a deadline, in a process group of its own that is killed whatever happens.
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
	dir, err := os.MkdirTemp(c.stateDir, "models-")
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "make temporary directory: %v", err)
	}
	defer os.RemoveAll(dir)

	args := []string{"models", "--pure", "--verbose"} // pure: a user's plugins have no part in this
	if q.Refresh {
		args = append(args, "--refresh")
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.Env = sdk.SetEnv(sdk.UnsetEnv(q.BaseEnv, "COTAL_*", "OPENCODE_CONFIG_CONTENT"), "BUN_TMPDIR="+dir, "OPENCODE_DISABLE_AUTOUPDATE=1")
	before := fetched(q.BaseEnv)
	said, err := program.Question{Cmd: cmd, Name: "opencode models", Limit: modelsTimeout, Max: maxCatalogue}.Ask(ctx)
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "%v", err)
	}
	models, err := parseModels(said.Out)
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "read the output of `opencode models`: %v", err)
	}
	if len(models) == 0 {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "`opencode models` lists none: %s", said.Last)
	}
	if q.Refresh && !fetched(q.BaseEnv).After(before) {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "OpenCode could not fetch the catalogue of models anew, and what it prints then is the one that it had, or that comes with it, as without a refresh")
	}
	return sdk.ModelCatalog{Source: "opencode models (" + filepath.Base(binary) + ")", Models: models}, nil
}

// fetched is when the program last wrote the catalogue of models that it fetched into its cache; zero for never. When it
// cannot be fetched, `opencode models --refresh` says that it was refreshed all the same, and ends well.
func fetched(env []string) time.Time {
	cache := sdk.Getenv(env, "XDG_CACHE_HOME")
	if cache == "" {
		cache = filepath.Join(sdk.Getenv(env, "HOME"), ".cache")
	}
	var last time.Time
	found, _ := filepath.Glob(kept.Pattern(cache, "opencode", "models*.json"))
	for _, path := range found {
		if st, err := os.Stat(path); err == nil && st.ModTime().After(last) {
			last = st.ModTime()
		}
	}
	return last
}

// parseModels reads lines of provider/model, each optionally followed by a block of JSON.
func parseModels(data []byte) ([]sdk.Model, error) {
	var models []sdk.Model
	r := bufio.NewReader(bytes.NewReader(data))
	for {
		line, err := r.ReadString('\n')
		id := strings.TrimSpace(line)
		if modelLine.MatchString(id) {
			m := sdk.Model{ID: id}
			m.Provider, _, _ = strings.Cut(id, "/")
			if next, _ := r.Peek(1); len(next) == 1 && next[0] == '{' {
				block, err := readBlock(r)
				if err != nil {
					return nil, fmt.Errorf("block after %s: %w", id, err)
				}
				if err := describe(&m, block); err != nil {
					return nil, fmt.Errorf("block after %s: %w", id, err)
				}
			}
			models = append(models, m)
		}
		if err != nil {
			return models, nil // io.EOF: a bytes.Reader has no other
		}
	}
}

// readBlock reads an indented JSON object: up to a line that closes it in the first column.
func readBlock(r *bufio.Reader) ([]byte, error) {
	var block []byte
	for {
		line, err := r.ReadBytes('\n')
		block = append(block, line...)
		if t := bytes.TrimRight(line, "\r\n"); bytes.Equal(t, []byte("}")) || (len(block) == len(line) && json.Valid(block)) {
			return block, nil
		}
		if err != nil {
			return nil, errors.New("it does not end")
		}
	}
}

func describe(m *sdk.Model, block []byte) error {
	var in struct {
		Name     string `json:"name"`
		Provider string `json:"providerID"`
		Variants map[string]struct {
			Disabled bool `json:"disabled"`
		} `json:"variants"`
	}
	if err := json.Unmarshal(block, &in); err != nil {
		return err
	}
	m.Name = in.Name
	if in.Provider != "" {
		m.Provider = in.Provider
	}
	for _, name := range slices.Sorted(maps.Keys(in.Variants)) {
		if !in.Variants[name].Disabled {
			m.Variants = append(m.Variants, name)
		}
	}
	return nil
}
