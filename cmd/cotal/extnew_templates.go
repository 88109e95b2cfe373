package main

// templates are the files of a new project, by kind and name. What is in them is compiled, tried by the conformance
// suite and installed by the tests.
var templates = map[string]map[string]string{
	"connector": {"main.go": connectorMain, "main_test.go": connectorTest, "README.md": scaffoldReadme},
	"runtime":   {"main_test.go": runtimeTest, "README.md": scaffoldReadme},
}

const connectorMain = `// Command {{.Command}} teaches cotal-host to run {{.Program}}.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cotal-ai/cotal-host/sdk"
)

func info() sdk.Info {
	return sdk.Info{Name: "{{.Name}}", Version: "0.1.0", Connector: sdk.ConnectorFacts{
		Requires:           []string{"{{.Program}}"}, // the host finds it, or refuses with the hint
		InstallHint:        "put {{.Program}} into the PATH of the host",
		SupportsFreshStart: true,
		SupportsPersona:    true,
		SupportsPrompt:     true,
		ReadyBy:            sdk.ReadyByProcess, // sdk.ReadyByPresence once the program joins the mesh
	}}
}

type connector struct{ sdk.ConnectorDefaults } // no model catalogue, nothing to reap

// options are what a persona's launchOptions and --opt may say.
type options struct {
	Args []string ` + "`json:\"args\"`" + ` // given to the program as they are
}

func (connector) BuildLaunch(_ context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	var opt options
	if err := sdk.DecodeOptions(req.LaunchOptions, &opt); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if req.Model+req.Variant+req.Resume+req.Continue != "" { // the host refuses these for us; this is the backstop
		return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrUnsupported, "{{.Program}} is given no model and no session yet")
	}
	bin, err := req.Binary("{{.Program}}") // resolved by the host, never by a PATH search of yours
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	// All refusals are behind us: now files may be written, and only inside req.Dir. How the program really takes
	// its instructions is the one thing to change here.
	persona, prompt := filepath.Join(req.Dir, "persona.txt"), filepath.Join(req.Dir, "prompt.txt")
	for file, text := range map[string]string{persona: req.Persona, prompt: req.Prompt} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return sdk.LaunchSpec{}, fmt.Errorf("write launch file: %w", err)
		}
	}
	env := sdk.SetEnv(req.BaseEnv, "{{.Var}}_PERSONA_FILE="+persona, "{{.Var}}_PROMPT_FILE="+prompt)
	return sdk.LaunchSpec{Path: bin, Args: opt.Args, Env: env}, nil
}

func main() { sdk.ServeConnector(info(), connector{}) }
`

const connectorTest = `package main

import (
	"testing"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/plugintest"
)

// What every host relies on. Add what only this connector knows.
func TestConformance(t *testing.T) {
	plugintest.Connector(t, func() sdk.Connector { return connector{} }, plugintest.Options{Info: info()})
}
`

const runtimeTest = `package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cotal-ai/cotal-host/sdk/plugintest"
)

// What every host relies on, tried on the binary as a host starts it.
func TestConformance(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "{{.Command}}")
	build := exec.Command("go", "build", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	plugintest.Binary(t, bin, plugintest.Options{})
}
`

const scaffoldReadme = `# {{.Command}}

A {{.Kind}} of cotal-host, named {{.Name}}.

    go test ./...                              # the conformance suite
    CGO_ENABLED=0 go build -o {{.Command}} .
    cotal ext install ./{{.Command}}           # shows the digest and asks
    cotal ext upgrade {{.Name}} ./{{.Command}}    # the next version of it
`
