package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrNotOffered: no provider of the server offers the model, or not in that variant.
var ErrNotOffered = errors.New("the model cannot be used")

// Offered is what a server's providers offer: for each provider its models, for each model its variants.
type Offered map[string]map[string][]string

// Offered asks the server until it answers.
func (c *Client) Offered(ctx context.Context) (Offered, error) {
	var in struct {
		Providers []struct {
			ID     string `json:"id"`
			Models map[string]struct {
				Variants map[string]struct {
					Disabled bool `json:"disabled"`
				} `json:"variants"`
			} `json:"models"`
		} `json:"providers"`
	}
	if err := c.Get(ctx, OpenTimeout, "/config/providers", &in); err != nil {
		return nil, fmt.Errorf("ask for the providers: %w", err)
	}
	all := Offered{}
	for _, p := range in.Providers {
		models := map[string][]string{}
		for id, m := range p.Models {
			models[id] = nil
			for _, name := range slices.Sorted(maps.Keys(m.Variants)) {
				if !m.Variants[name].Disabled {
					models[id] = append(models[id], name)
				}
			}
		}
		all[p.ID] = models
	}
	return all, nil
}

// Check says what is wrong with a model, as provider/model, and its variant, which may be empty: the program itself
// passes to another model without a word. Errors: ErrNotOffered.
func (o Offered) Check(model, variant string) error {
	provider, id, _ := strings.Cut(model, "/")
	models, known := o[provider]
	variants, offered := models[id]
	switch {
	case !known:
		return fmt.Errorf("%w: %q: this OpenCode has no provider %q, it has %s; `opencode models` lists their models", ErrNotOffered, model, provider, some(slices.Sorted(maps.Keys(o))))
	case !offered:
		return fmt.Errorf("%w: %q is not offered by provider %q, which offers %s; `opencode models %s` lists them", ErrNotOffered, model, provider, some(slices.Sorted(maps.Keys(models))), provider)
	case variant != "" && !slices.Contains(variants, variant):
		return fmt.Errorf("%w: %q has no variant %q, it has %s", ErrNotOffered, model, variant, some(variants))
	}
	return nil
}

// some is a list in words, of five at most.
func some(names []string) string {
	switch more := len(names) - 5; {
	case len(names) == 0:
		return "none"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), more)
	}
	return strings.Join(names, ", ")
}
