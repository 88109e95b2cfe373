package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// proves: L10
func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want Config
		err  string
	}{
		"an empty file gives the defaults": {"", Config{MaxSeats: DefaultMaxSeats, Cooling: DefaultCooling}, ""},
		"every key": {
			"maxSeats = 3\ncooling = \"1m30s\"\nresultRetention = \"36h\"\ndefaultAgent = \"opencode\"\neventsRequired = true\n[spawn]\nenv = [\"HTTPS_PROXY\", \"_x1\"]\n",
			Config{MaxSeats: 3, EventsRequired: true, Cooling: 90 * time.Second, ResultRetention: 36 * time.Hour, DefaultAgent: "opencode", SpawnEnv: []string{"HTTPS_PROXY", "_x1"}},
			"",
		},
		"what roles may run on": {
			"[modelPolicy.reviewer]\nmodels = [\"p/a\", \"p/b\"]\nvariants = [\"low\"]\n[modelPolicy.tester]\nmodels = [\"p/a\"]\n",
			Config{MaxSeats: DefaultMaxSeats, Cooling: DefaultCooling, ModelPolicy: map[string]ModelRule{
				"reviewer": {Models: []string{"p/a", "p/b"}, Variants: []string{"low"}}, "tester": {Models: []string{"p/a"}},
			}},
			"",
		},
		"a rule without models":          {"[modelPolicy.reviewer]\nvariants = [\"low\"]\n", Config{}, "modelPolicy.reviewer: models: a list with at least one id"},
		"a rule with an empty list":      {"[modelPolicy.reviewer]\nmodels = []\n", Config{}, "modelPolicy.reviewer: models: a list with at least one id"},
		"a rule with no variant at all":  {"[modelPolicy.reviewer]\nmodels = [\"a\"]\nvariants = []\n", Config{}, "modelPolicy.reviewer: variants: a list with at least one id"},
		"a rule with an empty id":        {"[modelPolicy.reviewer]\nmodels = [\" \"]\n", Config{}, "modelPolicy.reviewer: models: there is an empty id"},
		"a rule with a number":           {"[modelPolicy.reviewer]\nmodels = [1]\n", Config{}, "line 2"},
		"a rule with an unknown key":     {"[modelPolicy.reviewer]\nmodels = [\"a\"]\nmodel = \"a\"\n", Config{}, "line 3: modelPolicy.reviewer.model is not a known key"},
		"an unknown key":                 {"\nmaxSeat = 3\n", Config{}, "line 2: maxSeat is not a known key"},
		"an unknown key in a table":      {"[spawn]\nenvs = []\n", Config{}, "line 2: spawn.envs is not a known key"},
		"an unknown table":               {"[other]\nx = 1\n", Config{}, "line 1: other"},
		"a text where a number is due":   {"maxSeats = \"3\"\n", Config{}, "line 1"},
		"a list where a text is due":     {"\ndefaultAgent = []\n", Config{}, "line 2"},
		"a key twice":                    {"maxSeats = 1\nmaxSeats = 2\n", Config{}, "line 2"},
		"broken TOML":                    {"maxSeats = \n", Config{}, "line 1"},
		"no seats":                       {"maxSeats = 0\n", Config{}, "maxSeats: 0 is not within 1..4096"},
		"too many seats":                 {"maxSeats = 5000\n", Config{}, "maxSeats"},
		"no cooling":                     {"cooling = \"0s\"\n", Config{MaxSeats: DefaultMaxSeats}, ""},
		"a cooling without a unit":       {"\ncooling = \"10\"\n", Config{}, `line 2: cooling: "10" is not a duration`},
		"a cooling that is a number":     {"cooling = 10\n", Config{}, "line 1"},
		"a cooling below nothing":        {"cooling = \"-1s\"\n", Config{}, "not within"},
		"a cooling without end":          {"cooling = \"2h\"\n", Config{}, "not within 0s..1h"},
		"a retention without a unit":     {"\nresultRetention = \"24\"\n", Config{}, `line 2: resultRetention: "24" is not a duration`},
		"a retention of minutes":         {"resultRetention = \"59m\"\n", Config{}, "not within 1h..2160h"},
		"a retention without end":        {"resultRetention = \"2161h\"\n", Config{}, "not within 1h..2160h"},
		"required events in words":       {"\neventsRequired = \"yes\"\n", Config{}, "line 2"},
		"an empty agent":                 {"defaultAgent = \"\"\n", Config{}, "defaultAgent"},
		"an agent that is a path":        {"defaultAgent = \"../x\"\n", Config{}, "defaultAgent"},
		"a variable with a value":        {"[spawn]\nenv = [\"A=1\"]\n", Config{}, `"A=1" is not the name of a variable`},
		"a variable with a digit first":  {"[spawn]\nenv = [\"1A\"]\n", Config{}, "spawn.env"},
		"an enrollment secret":           {"[spawn]\nenv = [\"COTAL_ENROLLMENT_FILE\"]\n", Config{}, "cannot be handed on"},
		"another name of the host's own": {"[spawn]\nenv = [\"cotal_token\"]\n", Config{}, "cannot be handed on"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse("c.toml", []byte(tc.text))
			if tc.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), "c.toml: ") || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %v", err)
				}
				return
			}
			tc.want.Path = "c.toml"
			if tc.want.ResultRetention == 0 {
				tc.want.ResultRetention = wire.ResultRetention
			}
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	root := t.TempDir()
	if c, err := Load(root); err != nil || c.MaxSeats != DefaultMaxSeats || c.Cooling != DefaultCooling || c.ResultRetention != wire.ResultRetention || c.Path != Path(root) {
		t.Errorf("no file: %+v, %v", c, err)
	}
	if err := os.MkdirAll(filepath.Dir(Path(root)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(Path(root), []byte("maxSeats = 2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(root); err != nil || c.MaxSeats != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.WriteFile(Path(root), []byte(strings.Repeat("#", maxSize+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(root); err == nil {
		t.Error("a huge file was read")
	}
	if err := os.Remove(Path(root)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(Path(root), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(root); err == nil || !strings.Contains(err.Error(), Path(root)) {
		t.Errorf("a directory: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("maxSeats = 3\ndefaultAgent = \"opencode\"\n[spawn]\nenv = [\"HTTPS_PROXY\"]\n")
	f.Add("spawn = {env = []}")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("c.toml", []byte(text))
		if err == nil && (c.MaxSeats < 1 || c.MaxSeats > MaxMaxSeats || c.Cooling < 0 || c.Cooling > MaxCooling) {
			t.Fatalf("%+v", c)
		}
	})
}
