package sdk_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
)

func TestALaunchThatACannotBeIsRefusedByItsField(t *testing.T) {
	all := sdk.Info{Name: "demo", Connector: sdk.ConnectorFacts{
		SupportsPrompt: true, SupportsModel: true, SupportsModelVariant: true, SupportsResume: true, SupportsSessionContinuation: true,
		Mints: sdk.MintCounts{Ports: 1, Secrets: 2},
	}}
	none := sdk.Info{Name: "demo"}
	full := sdk.LaunchRequest{Prompt: "p", Model: "m", Variant: "v", Resume: "r", Ports: []int{1}, Secrets: []string{"a", "b"}}
	with := func(change func(*sdk.LaunchRequest)) sdk.LaunchRequest {
		req := full
		change(&req)
		return req
	}
	for name, c := range map[string]struct {
		info sdk.Info
		req  sdk.LaunchRequest
		code error
		says string
	}{
		"all that is declared is taken":            {all, full, nil, ""},
		"nothing is taken of who declares nothing": {none, sdk.LaunchRequest{}, nil, ""},
		"a prompt that is not declared":            {none, sdk.LaunchRequest{Prompt: "p"}, sdk.ErrUnsupported, "demo does not support prompt; leave it out"},
		"a model that is not declared":             {none, sdk.LaunchRequest{Model: "m"}, sdk.ErrUnsupported, "model"},
		"a variant that is not declared":           {none, sdk.LaunchRequest{Variant: "v"}, sdk.ErrUnsupported, "variant"},
		"a fork that is not declared":              {none, sdk.LaunchRequest{Resume: "r"}, sdk.ErrUnsupported, "resume"},
		"a continuation that is not declared":      {none, sdk.LaunchRequest{Continue: "c"}, sdk.ErrUnsupported, "continueSession"},
		"what is to be minted is missing":          {all, with(func(r *sdk.LaunchRequest) { r.Secrets = nil }), sdk.ErrInvalid, "needs one port and 2 secrets minted by the host"},
		"a fork and a continuation":                {all, with(func(r *sdk.LaunchRequest) { r.Continue = "c" }), sdk.ErrInvalid, "exclude each other"},
		"a blank prompt":                           {all, with(func(r *sdk.LaunchRequest) { r.Prompt = " \n" }), sdk.ErrInvalid, "the prompt is blank"},
		"a prompt that no program can be given":    {all, with(func(r *sdk.LaunchRequest) { r.Prompt = "a\x00b" }), sdk.ErrInvalid, "NUL"},
	} {
		err := c.info.CheckLaunch(c.req)
		if !errors.Is(err, c.code) || err != nil && (!strings.Contains(err.Error(), c.says) || sdk.OutcomeOf(err) != sdk.OutcomeNotExecuted) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.code, c.says)
		}
	}
}

func TestASessionIDThatIsNoneIsRefusedByItsField(t *testing.T) {
	id := regexp.MustCompile(`^d-\d+$`)
	for name, c := range map[string]struct {
		req  sdk.LaunchRequest
		says string
	}{
		"none is named":          {sdk.LaunchRequest{}, ""},
		"one of its own":         {sdk.LaunchRequest{Resume: "d-1"}, ""},
		"one to fork that is no": {sdk.LaunchRequest{Resume: "../x"}, `resume "../x" is no session of Demo; ids look like d-1`},
		"one to reopen":          {sdk.LaunchRequest{Continue: "x"}, `continueSession "x"`},
	} {
		err := c.req.CheckSession(id, "session of Demo; ids look like d-1")
		if (err != nil) != (c.says != "") || err != nil && (!errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestAnOptionThatIsOneOfAFewNamesThem(t *testing.T) {
	if err := sdk.OneOf("permissions", "ask", "ask", "allow"); err != nil {
		t.Error(err)
	}
	for want, takes := range map[string][]string{
		`launchOptions.permissions is allow, not "x"`:                {"allow"},
		`launchOptions.permissions is ask or allow, not "x"`:         {"ask", "allow"},
		`launchOptions.permissions is ask, allow or config, not "x"`: {"ask", "allow", "config"},
	} {
		if err := sdk.OneOf("permissions", "x", takes...); !errors.Is(err, sdk.ErrInvalid) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestAPathOfAnOptionIsOfTheWorkspaceAndOfItsKind(t *testing.T) {
	root := t.TempDir()
	file, dir := filepath.Join(root, "file"), filepath.Join(root, "dir")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	req := sdk.LaunchRequest{WorkspaceRoot: root}
	for name, c := range map[string]struct {
		path string
		look func(option, path string) (string, error)
		want string
		code error
	}{
		"none stays none":           {"", req.OptionFile, "", nil},
		"one of the workspace":      {"file", req.OptionFile, file, nil},
		"an absolute one":           {dir, req.OptionDir, dir, nil},
		"one that is not there":     {"none", req.OptionFile, "", sdk.ErrNotFound},
		"a directory for a file":    {"dir", req.OptionFile, "", sdk.ErrInvalid},
		"a file for a directory":    {"file", req.OptionDir, "", sdk.ErrInvalid},
		"a device is no plain file": {"/dev/null", req.OptionFile, "", sdk.ErrInvalid},
	} {
		got, err := c.look("config", c.path)
		if got != c.want || !errors.Is(err, c.code) || err != nil && !strings.Contains(err.Error(), "launchOptions.config") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestTheEnvironmentSaysWhichSeatItIs(t *testing.T) {
	req := sdk.LaunchRequest{BaseEnv: []string{"A=1", "COTAL_NAME=old"}, Space: "main", Name: "ann"}
	if got, want := req.Environment("B=2"), []string{"A=1", "COTAL_SPACE=main", "COTAL_NAME=ann", "B=2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	req.Role = "r"
	if got := sdk.Getenv(req.Environment(), "COTAL_ROLE"); got != "r" {
		t.Errorf("the role is %q", got)
	}
}

func TestVariablesAreTakenOutByNameAndByPrefix(t *testing.T) {
	got := sdk.UnsetEnv([]string{"A=1", "AB=2", "C_X=3", "C_=4", "CX=5"}, "A", "C_*")
	if want := []string{"AB=2", "CX=5"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAConfigurationOfAnUnknownKeyIsRefused(t *testing.T) {
	type inner struct {
		Keep *int `json:"keep_days"`
	}
	type config struct {
		SHA string `json:"sha"`
		inner
	}
	var in config
	if err := (sdk.PluginConfig{}).Decode("demo", &in); err != nil || in.SHA != "" {
		t.Errorf("none: %+v, %v", in, err)
	}
	if err := (sdk.PluginConfig{Config: json.RawMessage(`{"sha":"x"}`)}).Decode("demo", &in); err != nil || in.SHA != "x" {
		t.Errorf("one that it has: %+v, %v", in, err)
	}
	for name, text := range map[string]string{"unknown": `{"sah":"x"}`, "of the wrong type": `{"sha":1}`} {
		err := sdk.PluginConfig{Config: json.RawMessage(text)}.Decode("demo", &in)
		if !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "[plugin.config] of demo takes sha, keep_days: ") {
			t.Errorf("a key that is %s: %v", name, err)
		}
	}
}
