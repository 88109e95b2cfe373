// Package pi is the connector for pi (npm package @mariozechner/pi-coding-agent).
//
// The program has no MCP and no hooks, and extensions that can be both: cotal.ts, which is written into the seat's
// directory, gives it the tools of cotal-bridge, tells the bridge what it does, and begins a turn with the messages
// that wake it.
package pi

import (
	"context"
	_ "embed"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
	"github.com/cotal-ai/cotal-host/sdk/private"
)

const (
	binaryName    = "pi"
	tested        = "0.73.1"
	extensionFile = "cotal.ts"
	personaFile   = "persona.md"
	maxPrompt     = 100 << 10 // Linux allows 128 KiB for one argument
)

//go:embed cotal.ts
var extension []byte

// levels of thinking are the variants of every model that thinks.
var levels = []string{"off", "minimal", "low", "medium", "high", "xhigh"}

// Info describes the connector.
func Info() sdk.Info {
	return sdk.Info{Name: "pi", Version: "0.1.0", Capabilities: []sdk.Capability{sdk.CapModels}, Connector: sdk.ConnectorFacts{
		Requires: []string{binaryName}, InstallHint: "npm install -g @mariozechner/pi-coding-agent@" + tested,
		SupportsResume: true, SupportsSessionContinuation: true, SupportsFreshStart: true,
		SupportsModel: true, SupportsModelVariant: true, SupportsPrompt: true, SupportsPersona: true,
		ReadinessTimeoutMs: 60_000, ReadyBy: sdk.ReadyByPresence,
		Permissions: []string{permissionsAllow}, // it asks nobody
		Input:       sdk.InputFacts{SubmitDelayMs: 300, BracketedPaste: true},
		EnvAllow: sdk.AndNetworkEnv(
			"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "GROQ_API_KEY", "XAI_API_KEY", "MISTRAL_API_KEY",
			"CEREBRAS_API_KEY", "DEEPSEEK_API_KEY", "HF_TOKEN",
			"AZURE_OPENAI_API_KEY", "AZURE_OPENAI_API_VERSION", "AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_DEPLOYMENT_NAME_MAP", "AZURE_OPENAI_RESOURCE_NAME",
			"PI_CODING_AGENT_DIR", "PI_OFFLINE",
		),
	}}
}

// Connector implements sdk.Connector and sdk.Configurer.
type Connector struct {
	sdk.ConnectorDefaults
	bridge cmdline.Bundle
}

// Configure takes [plugin.config]: of the bridge.
func (c *Connector) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var in cmdline.Config
	if err := cfg.Decode("pi", &in); err != nil {
		return err
	}
	c.bridge = in.In(cfg.BundleDir)
	return nil
}

// permissionsAllow is the only value of launchOptions.permissions: the program asks for nothing.
const permissionsAllow = "allow"

// options are the launch options.
type options struct {
	Permissions string `json:"permissions"` // allow: the program asks for nothing
	Home        string `json:"home"`        // PI_CODING_AGENT_DIR, absolute or relative to the workspace
}

// BuildLaunch makes the launch of one seat. All refusals come before the first file is written.
func (c *Connector) BuildLaunch(_ context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	var opt options
	if err := sdk.DecodeOptions(req.LaunchOptions, &opt); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := check(req, opt); err != nil {
		return sdk.LaunchSpec{}, err
	}
	path, err := req.Binary(binaryName)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	bridge, err := c.bridge.Find(req.BaseEnv)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	env := req.Environment("COTAL_BRIDGE="+bridge.Path, "PI_TELEMETRY=0")
	if opt.Home != "" {
		if !filepath.IsAbs(opt.Home) {
			opt.Home = filepath.Join(req.WorkspaceRoot, opt.Home)
		}
		env = sdk.SetEnv(env, "PI_CODING_AGENT_DIR="+opt.Home)
	}
	args := []string{"--extension", filepath.Join(req.Dir, extensionFile)}
	switch {
	case req.Resume != "":
		args = append(args, "--fork", req.Resume)
	case req.Continue != "":
		args = append(args, "--session", req.Continue)
	}
	if req.Model != "" {
		args = append(args, "--model", req.Model)
	}
	if req.Variant != "" {
		args = append(args, "--thinking", req.Variant)
	}
	files := map[string][]byte{extensionFile: extension}
	if persona := strings.TrimSpace(req.Persona); persona != "" {
		args = append(args, "--append-system-prompt", filepath.Join(req.Dir, personaFile))
		files[personaFile] = []byte(persona + "\n")
	}
	if req.Prompt != "" {
		args = append(args, req.Prompt)
	}
	for name, text := range files {
		if err := private.WriteFile(filepath.Join(req.Dir, name), text); err != nil {
			return sdk.LaunchSpec{}, err
		}
	}
	return sdk.LaunchSpec{Path: path, Args: args, Env: env}, nil
}

// check is the backstop behind the host's checks of the declared facts.
func check(req sdk.LaunchRequest, opt options) error {
	if err := Info().CheckLaunch(req); err != nil {
		return err
	}
	switch {
	case opt.Permissions != "" && opt.Permissions != permissionsAllow:
		return sdk.Errorf(sdk.ErrInvalid, "launchOptions.permissions: pi asks for no permissions, so it can only be allow, not %q", opt.Permissions)
	case strings.HasPrefix(req.Resume, "-"), strings.HasPrefix(req.Continue, "-"):
		return sdk.Errorf(sdk.ErrInvalid, "a session is named by its id or its file, which do not begin with a dash")
	case req.Model != "" && !strings.Contains(req.Model, "/"):
		return sdk.Errorf(sdk.ErrInvalid, "model %q must be provider/model, as `pi --list-models` lists them", req.Model)
	case req.Variant != "" && !slices.Contains(levels, req.Variant):
		return sdk.Errorf(sdk.ErrInvalid, "variant %q is no level of thinking: %s", req.Variant, strings.Join(levels, ", "))
	case strings.HasPrefix(req.Prompt, "-"), strings.HasPrefix(req.Prompt, "@"), len(req.Prompt) > maxPrompt:
		return sdk.Errorf(sdk.ErrInvalid, "pi takes its first prompt as an argument: it must not begin with - or @, hold a NUL byte, or have more than %d bytes", maxPrompt)
	}
	return nil
}
