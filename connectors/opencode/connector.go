// Package opencode is the connector for OpenCode 1.x (npm package opencode-ai).
//
// A fresh start, and reopening a session without a prompt, is one process: the terminal program with its
// HTTP API on a loopback port. Everything else is two processes, because the program's own flags do not
// do it: -s with --prompt drops the prompt, --fork with --prompt sends it to a new, empty session, and a
// model that nobody offers is replaced by another without a word. Those launches run cotal-opencode-seat, a
// launcher inside the seat that starts the server, checks the model, forks or opens the session and posts
// the prompt over the API, and then runs the terminal client in the foreground.
//
// A seat with launch material is on the mesh: cotal-opencode-seat is the program's MCP server, and follows
// the program's API for its state (package member).
//
// docs/connectors.md describes what a user sees of this, with the measurements behind it.
package opencode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/cotal-ai/cotal-host/connectors/opencode/api"
	"github.com/cotal-ai/cotal-host/connectors/opencode/launcher"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// The program's facts.
const (
	binaryName = "opencode"
	tested     = "1.18.33" // the version the end-to-end tests run

	// stopGraceMs: the program took up to 7 s from SIGTERM to its exit.
	stopGraceMs = 10_000
	// readinessMs: booting takes 2 to 8 s, and 30 s were seen on a loaded machine.
	readinessMs = 120_000
	// submitDelayMs: Return right after a paste can be taken as part of it; 300 ms never was.
	submitDelayMs = 400
	// maxArgPrompt: Linux allows 128 KiB for one argument; a longer prompt goes over the API.
	maxArgPrompt = 100 << 10
)

// Names of what BuildLaunch writes into the request's directory, and Reap removes from it.
const (
	personaFile = "persona.md"
	planFile    = "launcher.json"
	logFile     = launcher.LogName
	tmpDir      = "tmp"
)

// Info describes the connector.
func Info() sdk.Info {
	return sdk.Info{
		Name: "opencode", Version: "0.1.0",
		Capabilities: []sdk.Capability{sdk.CapModels, sdk.CapMCPServers},
		Connector: sdk.ConnectorFacts{
			Requires:                    []string{binaryName},
			InstallHint:                 "npm install -g opencode-ai@" + tested,
			LaunchHint:                  "the first screen takes 2 to 8 seconds",
			SupportsResume:              true,
			SupportsSessionContinuation: true,
			SupportsFreshStart:          true,
			SupportsModel:               true,
			SupportsModelVariant:        true,
			SupportsPrompt:              true,
			SupportsPersona:             true,
			ReadinessTimeoutMs:          readinessMs,
			ReadyBy:                     sdk.ReadyByPresence,
			Permissions:                 []string{permissionAsk, permissionAllow, permissionConfig},
			StopGraceMs:                 stopGraceMs,
			Mints:                       sdk.MintCounts{Ports: 1, Secrets: 1},
			Input:                       sdk.InputFacts{SubmitDelayMs: submitDelayMs, AwaitField: true, BracketedPaste: true},
			// Where the user's configuration is. Keys that are good for a model provider and nothing else, and what it takes to reach one
			// from behind a proxy or a private certificate authority. Without the latter two the program's own npm install (see
			// docs/connectors.md) retries for minutes where the user's shell would not have waited.
			EnvAllow: sdk.AndNetworkEnv(
				configEnv, configDirEnv, "OPENCODE_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "NOUS_API_KEY",
				"GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY", "XAI_API_KEY",
				"DEEPSEEK_API_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_BEARER_TOKEN_BEDROCK", "AZURE_API_KEY", "AZURE_RESOURCE_NAME",
			),
		},
	}
}

// Connector implements sdk.Connector and sdk.Configurer.
type Connector struct {
	bundleDir, stateDir string
	config              config
}

var (
	_ sdk.Connector  = (*Connector)(nil)
	_ sdk.Configurer = (*Connector)(nil)
)

// config is [plugin.config].
type config struct {
	// LauncherSHA256 is the digest of cotal-opencode-seat in the bundle directory, in hex, checked before each launch
	// that runs it; empty: it is not.
	LauncherSHA256 string `json:"launcher_sha256"`
}

// Configure takes [plugin.config].
func (c *Connector) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var in config
	if err := cfg.Decode("opencode", &in); err != nil {
		return err
	}
	c.bundleDir, c.stateDir, c.config = cfg.BundleDir, cfg.StateDir, in
	return nil
}

// launcher returns the path of the launcher and checks that it is the one of this bundle.
func (c *Connector) launcher() (string, error) {
	return sdk.BundledProgram(c.bundleDir, launcherName, "launcher_sha256", c.config.LauncherSHA256)
}

var (
	sessionID = regexp.MustCompile(`^ses_[0-9A-Za-z]{1,64}$`)
	modelID   = regexp.MustCompile(`^[^/\s]+/\S+$`)
)

// BuildLaunch makes the launch of one seat. All refusals come before the first file is written.
func (c *Connector) BuildLaunch(_ context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	opt, err := readOptions(req)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := checkRequest(req); err != nil {
		return sdk.LaunchSpec{}, err
	}
	binary, err := req.Binary(binaryName)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := checkVersion(binary); err != nil {
		return sdk.LaunchSpec{}, err
	}
	l := launch{req: req, opt: opt, binary: binary, port: int(opt.Port), secret: req.Secrets[0]}
	if l.material = sdk.Getenv(req.BaseEnv, wire.LaunchMaterialEnv); l.material != "" {
		if l.member, err = c.launcher(); err != nil {
			return sdk.LaunchSpec{}, err
		}
	}
	if l.shared, err = readServers(req); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if l.port == 0 {
		l.port = req.Ports[0]
	}
	l.persona = strings.TrimSpace(req.Persona)
	if l.env, err = l.environment(); err != nil {
		return sdk.LaunchSpec{}, err
	}
	spec := l.single()
	if plan := l.plan(); plan != nil {
		path, err := c.launcher()
		if err != nil {
			return sdk.LaunchSpec{}, err
		}
		spec.Path, spec.Args = path, []string{filepath.Join(req.Dir, planFile)}
		if err := private.WriteJSON(filepath.Join(req.Dir, planFile), plan); err != nil {
			return sdk.LaunchSpec{}, err
		}
	}
	if err := l.write(); err != nil {
		return sdk.LaunchSpec{}, err
	}
	return spec, nil
}

// checkRequest is the backstop behind the host's checks of the declared facts.
func checkRequest(req sdk.LaunchRequest) error {
	if err := Info().CheckLaunch(req); err != nil {
		return err
	}
	if err := req.CheckSession(sessionID, "OpenCode session; `opencode session list` shows ids such as ses_2286eb545001lUN5"); err != nil {
		return err
	}
	switch {
	case req.Model != "" && !modelID.MatchString(req.Model):
		return sdk.Errorf(sdk.ErrInvalid, "model %q must be provider/model, as `opencode models` lists them", req.Model)
	case req.Variant != "" && req.Model == "":
		return sdk.Errorf(sdk.ErrInvalid, "variant %q needs a model: OpenCode ignores a variant without one", req.Variant)
	case req.Model != "" && req.Prompt == "" && req.Resume != "":
		// Tried: neither the model of the configuration nor the API's own call for it changes what the
		// terminal client uses for an existing session. A prompt that carries the model does. A session that is
		// reopened had the model already.
		return sdk.Errorf(sdk.ErrUnsupported, "OpenCode forks an existing session with that session's own model; give a prompt too, which changes it, or leave the model out")
	}
	return nil
}

// launch is one launch in the making.
type launch struct {
	req      sdk.LaunchRequest
	opt      options
	binary   string
	port     int
	secret   string
	persona  string
	material string         // path of the launch material; empty: the seat has no mesh
	member   string         // path of the program that is its MCP server
	shared   map[string]mcp // MCP servers that the operator shares with it
	env      []string
}

// record is the file that says how the API is reached.
func (l launch) record() string { return filepath.Join(l.req.Dir, api.RecordFile) }

// single is the launch of the terminal program itself.
func (l launch) single() sdk.LaunchSpec {
	args := []string{"--hostname", "127.0.0.1", "--port", strconv.Itoa(l.port)}
	if l.req.Continue != "" {
		args = append(args, "--session", l.req.Continue)
	}
	if l.req.Prompt != "" {
		args = append(args, "--prompt="+l.req.Prompt) // with =: a prompt may start with a dash
	}
	return sdk.LaunchSpec{Path: l.binary, Args: args, Env: l.env}
}

// plan is what the launcher is to do, or nil when the program's own flags do it.
func (l launch) plan() *launcher.Plan {
	p := launcher.Plan{
		Version: launcher.PlanVersion, Binary: l.binary, Port: l.port, Password: l.secret,
		Prompt: l.req.Prompt, Model: l.req.Model, Variant: l.req.Variant,
	}
	switch {
	case l.req.Resume != "":
		p.Action, p.Session = launcher.ActionFork, l.req.Resume
	case l.req.Continue != "" && l.req.Prompt != "":
		p.Action, p.Session = launcher.ActionOpen, l.req.Continue
	case l.req.Continue == "" && (len(l.req.Prompt) > maxArgPrompt || l.req.Model != ""):
		p.Action = launcher.ActionNew
	default:
		return nil
	}
	return &p
}

func (l launch) write() error {
	if err := os.Mkdir(filepath.Join(l.req.Dir, tmpDir), 0o700); err != nil && !os.IsExist(err) {
		return fmt.Errorf("make temporary directory: %w", err)
	}
	if l.persona != "" {
		if err := private.WriteFile(filepath.Join(l.req.Dir, personaFile), []byte(l.persona+"\n")); err != nil {
			return err
		}
	}
	if l.req.Continue != "" {
		if err := private.WriteFile(filepath.Join(l.req.Dir, api.SessionFile), []byte(l.req.Continue+"\n")); err != nil {
			return err
		}
	}
	return private.WriteJSON(l.record(), api.Record{Port: l.port, User: api.User, Password: l.secret, Material: l.material})
}
