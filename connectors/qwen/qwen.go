// Package qwen is the connector for Qwen Code (npm package @qwen-code/qwen-code).
//
// A seat has a configuration directory of its own: the user's settings without his MCP servers, and hooks that tell the
// bridge what the program does. Its sessions are the user's. A message to an idle agent comes through a file of
// commands that the program watches. Nothing is read from its screen.
package qwen

import (
	"cmp"
	"context"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
	"github.com/cotal-ai/cotal-host/sdk/program"
)

const (
	binaryName  = "qwen"
	packageName = "@qwen-code/qwen-code"
	tested      = "0.24.4"
	maxArg      = 100 << 10 // Linux allows 128 KiB for one argument
)

// Info describes the connector.
func Info() sdk.Info {
	return sdk.Info{Name: "qwen", Version: "0.1.0", Capabilities: []sdk.Capability{sdk.CapModels, sdk.CapMCPServers}, Connector: sdk.ConnectorFacts{
		Requires: []string{binaryName}, InstallHint: "npm install -g " + packageName + "@" + tested,
		SupportsResume: true, SupportsSessionContinuation: true, SupportsFreshStart: true,
		SupportsModel: true, SupportsPrompt: true, SupportsPersona: true,
		ReadinessTimeoutMs: 60_000, ReadyBy: sdk.ReadyByPresence, Permissions: []string{"ask", "allow"},
		Input: sdk.InputFacts{SubmitDelayMs: 300, BracketedPaste: true},
		EnvAllow: sdk.AndNetworkEnv(
			"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "DASHSCOPE_API_KEY", "BAILIAN_CODING_PLAN_API_KEY",
			"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "GEMINI_API_KEY", "GEMINI_MODEL", "OPENROUTER_API_KEY",
			homeEnv, runtimeEnv,
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
	if err := cfg.Decode("qwen", &in); err != nil {
		return err
	}
	c.bridge = in.In(cfg.BundleDir)
	return nil
}

// options are the launch options.
type options struct {
	Permissions string `json:"permissions"` // ask or allow
}

// BuildLaunch makes the launch of one seat. All refusals come before the first file is written.
func (c *Connector) BuildLaunch(_ context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	opt := options{Permissions: "ask"}
	if err := sdk.DecodeOptions(req.LaunchOptions, &opt); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := check(req, opt); err != nil {
		return sdk.LaunchSpec{}, err
	}
	binary, err := req.Binary(binaryName)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	h := home{req: req}
	if h.user, err = userDir(req.BaseEnv); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if h.bridge, err = c.bridge.Find(req.BaseEnv); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if h.settings, err = readSettings(h.user); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if h.servers, err = servers(req); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := h.furnish(); err != nil {
		return sdk.LaunchSpec{}, err
	}
	spec := sdk.LaunchSpec{Path: binary, Env: req.Environment(homeEnv+"="+h.path(homeDir), runtimeEnv+"="+cmp.Or(sdk.Getenv(req.BaseEnv, runtimeEnv), h.user))}
	// The command of the package is a process in front of the program that signals do not pass.
	if dir, _ := program.NPMPackage(binary, func(name string) bool { return name == packageName }); dir != "" {
		spec.Path, spec.Args = "/usr/bin/env", []string{"node", "--expose-gc", filepath.Join(dir, "cli.js")}
	}
	arg := func(flag, value string) {
		if value != "" {
			spec.Args = append(spec.Args, flag+"="+value)
		}
	}
	arg("--mcp-config", h.path(mcpFile))
	arg("--allowed-mcp-server-names", strings.Join(h.names(), ","))
	arg("--input-file", h.path(inputFile))
	arg("--approval-mode", map[string]string{"ask": "default", "allow": "yolo"}[opt.Permissions])
	arg("--model", req.Model)
	arg("--append-system-prompt", strings.TrimSpace(req.Persona))
	arg("--resume", req.Resume+req.Continue)
	if req.Resume != "" {
		spec.Args = append(spec.Args, "--fork-session")
	}
	arg("--prompt-interactive", req.Prompt)
	return spec, nil
}

// sessionID is a UUID.
var sessionID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// check is the backstop behind the host's checks of the declared facts.
func check(req sdk.LaunchRequest, opt options) error {
	if err := Info().CheckLaunch(req); err != nil {
		return err
	}
	if err := sdk.OneOf("permissions", opt.Permissions, "ask", "allow"); err != nil {
		return err
	}
	if err := req.CheckSession(sessionID, "session of Qwen Code; `qwen --resume` lists yours, with ids such as 3f0c1c4e-8a55-4a0c-9d0a-2f6b1c8e7d90"); err != nil {
		return err
	}
	for _, arg := range []struct{ name, text string }{{"prompt", req.Prompt}, {"persona", req.Persona}, {"model", req.Model}} {
		if strings.Contains(arg.text, "\x00") || len(arg.text) > maxArg {
			return sdk.Errorf(sdk.ErrInvalid, "Qwen Code takes the %s as an argument: it must not hold a NUL byte or have more than %d bytes", arg.name, maxArg)
		}
	}
	return nil
}
