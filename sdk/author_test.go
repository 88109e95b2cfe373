package sdk_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

func TestSetEnvReplacesAndLeavesItsInputAlone(t *testing.T) {
	in := []string{"A=1", "AB=2", "A=3"}
	got := sdk.SetEnv(in, "A=4", "C=", "C=5")
	if want := []string{"AB=2", "A=4", "C=5"}; !slices.Equal(got, want) {
		t.Errorf("SetEnv = %q, want %q", got, want)
	}
	if want := []string{"A=1", "AB=2", "A=3"}; !slices.Equal(in, want) {
		t.Errorf("SetEnv changed its input to %q", in)
	}
	if got := sdk.Getenv(in, "A"); got != "3" {
		t.Errorf("Getenv of a repeated name = %q, want the last", got)
	}
	if got := sdk.Getenv(in, "B"); got != "" {
		t.Errorf("Getenv of an absent name = %q", got)
	}
}

func TestBinaryIsTheHostsPathOrARefusal(t *testing.T) {
	req := sdk.LaunchRequest{Binaries: map[string]string{"sh": "/bin/sh"}}
	if got, err := req.Binary("sh"); got != "/bin/sh" || err != nil {
		t.Errorf("Binary = %q, %v", got, err)
	}
	if _, err := req.Binary("zsh"); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("Binary of an unresolved name: %v, want ErrNotFound", err)
	}
}

func TestDecodeOptionsRefusesWhatItDoesNotKnow(t *testing.T) {
	type options struct {
		Argv  []string          `json:"argv"`
		Env   map[string]string `json:"env,omitempty"`
		Probe string            `json:"probe"`
	}
	for name, c := range map[string]struct {
		in   map[string]any
		want string // in the error; empty for none
	}{
		"good values are taken":                     {map[string]any{"argv": []any{"a", "b"}, "env": map[string]any{"K": "v"}}, ""},
		"no options at all are fine":                {nil, ""},
		"an unknown option is named":                {map[string]any{"argz": "x"}, `unknown launch option "argz"; this connector takes argv, env, probe`},
		"other capitals are another option":         {map[string]any{"Argv": []any{"x"}}, `unknown launch option "Argv"`},
		"a string is no list":                       {map[string]any{"argv": "ls -l"}, `launchOptions.argv must be a list of strings, as in ["npm", "start"], not a string`},
		"a list of something else is refused":       {map[string]any{"argv": []any{"a", 1.5}}, `["npm", "start"], not a number`},
		"a map of something else is refused":        {map[string]any{"env": map[string]any{"K": true}}, `launchOptions.env must be a map of strings, as in {"PORT": "8080"}, not a bool`},
		"an option without a value is not the zero": {map[string]any{"probe": nil}, "launchOptions.probe has no value"},
	} {
		t.Run(name, func(t *testing.T) {
			var got options
			err := sdk.DecodeOptions(c.in, &got)
			if c.want == "" {
				if err != nil {
					t.Fatalf("DecodeOptions(%v): %v", c.in, err)
				}
				return
			}
			if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("DecodeOptions(%v): %v, want ErrInvalid with %q", c.in, err, c.want)
			}
		})
	}
}
