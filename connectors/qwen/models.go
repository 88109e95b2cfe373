package qwen

import (
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"

	"github.com/cotal-ai/cotal-host/sdk"
)

// ListModels lists the models of the user's settings: the program has no list of its own. Errors: ErrUnavailable
// (there are no settings, or none are in them).
func (c *Connector) ListModels(_ context.Context, q sdk.ModelQuery) (sdk.ModelCatalog, error) {
	dir, err := userDir(q.BaseEnv)
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "%v", err)
	}
	catalog := sdk.ModelCatalog{Source: "modelProviders of " + filepath.Join(dir, settingsFile)}
	var in struct {
		Providers map[string][]struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		} `json:"modelProviders"`
	}
	settings, err := readSettings(dir)
	if err == nil {
		var data []byte
		if data, err = json.Marshal(settings); err == nil {
			err = json.Unmarshal(data, &in)
		}
	}
	if err != nil {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "%s: %v", catalog.Source, err)
	}
	for _, provider := range slices.Sorted(maps.Keys(in.Providers)) {
		for _, m := range in.Providers[provider] {
			if m.ID != "" && !slices.ContainsFunc(catalog.Models, func(o sdk.Model) bool { return o.ID == m.ID }) {
				catalog.Models = append(catalog.Models, sdk.Model{ID: m.ID, Name: m.Name, Provider: provider})
			}
		}
	}
	if len(catalog.Models) == 0 {
		return sdk.ModelCatalog{}, sdk.Errorf(sdk.ErrUnavailable, "there are no %s: Qwen Code has the model that its login or OPENAI_MODEL says", catalog.Source)
	}
	return catalog, nil
}
