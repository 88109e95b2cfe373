package launch

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// proves: SPAWN-19, ENVMCP-1
func TestASeatGetsTheServersThatTheOperatorSharesAndItWasToHave(t *testing.T) {
	able := sdk.Info{Name: "able", Capabilities: []sdk.Capability{sdk.CapMCPServers}}
	unable := sdk.Info{Name: "unable"}
	declared := map[string]json.RawMessage{"files": []byte(`{"command":"f"}`), "web": []byte(`{"url":"https://x"}`)}
	for name, c := range map[string]struct {
		info     sdk.Info
		declared map[string]json.RawMessage
		asked    []string
		want     []string
		refusal  string
	}{
		"nothing is declared, nothing asked for":   {able, nil, nil, nil, ""},
		"nothing said: all that are declared":      {able, declared, nil, []string{"files", "web"}, ""},
		"none asked for: none":                     {able, declared, []string{}, nil, ""},
		"one asked for: that one":                  {able, declared, []string{"web"}, []string{"web"}, ""},
		"one that is not among the declared":       {able, declared, []string{"web", "db"}, nil, `shareTools: "db" is not declared: the operator of this host shares files, web with seats of connector able`},
		"one where nothing is declared":            {able, nil, []string{"db"}, nil, `shareTools: "db" is not declared: the operator of this host shares no MCP servers`},
		"a connector that gives its program none":  {unable, declared, nil, nil, "connector unable gives its program no MCP servers"},
		"a connector that has none to give either": {unable, declared, []string{}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Share(c.info, c.declared, c.asked)
			if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, c.want) {
				t.Errorf("it gets %v, want %v", names, c.want)
			}
			var r *Refusal
			if c.refusal == "" && err != nil || c.refusal != "" && (!errors.As(err, &r) || r.Code != wire.CodeFailedPrecondition || !strings.Contains(r.Message, c.refusal)) {
				t.Errorf("%v, want %q", err, c.refusal)
			}
		})
	}
}

// proves: ENVMCP-2
func TestVariablesOfSharedServersAreFoundInWhatIsExpanded(t *testing.T) {
	got := VariablesOf(map[string]json.RawMessage{
		"a": []byte(`{"command":"${A_BIN}","args":["x${A_ARG:-y}z","$PLAIN","${1BAD}"],"env":{"${NO_KEY}":"${A_ENV}"}}`),
		"b": []byte(`{"url":"https://${B_HOST}/${A_ENV}","headers":{"X":"Bearer ${B_TOKEN}"},"note":"${NO_NOTE}"}`),
	})
	if want := []string{"A_ARG", "A_BIN", "A_ENV", "B_HOST", "B_TOKEN"}; !slices.Equal(got, want) {
		t.Errorf("variables %v, want %v", got, want)
	}
}

func TestSharedServersAreInAFileOfTheUserAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, sdk.MCPServersFile)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(elsewhere, []byte("of somebody else"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	if err := WriteShared(dir, map[string]json.RawMessage{"files": []byte(`{"command":"f","env":{"T":"${T}"}}`)}); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Servers map[string]struct {
			Env map[string]string `json:"env"`
		} `json:"mcpServers"`
	}
	data, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(data, &got) != nil || got.Servers["files"].Env["T"] != "${T}" {
		t.Errorf("the file holds %s, %v", data, err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if was, err := os.ReadFile(elsewhere); err != nil || string(was) != "of somebody else" {
		t.Errorf("where a link led: %s, %v", was, err)
	}
	if err := WriteShared(dir, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("none is no file: %v", err)
	}
}
