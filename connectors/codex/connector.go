// Package codex is the connector for Codex (npm package @openai/codex).
//
// A seat is three processes: cotal-codex-seat, which is the seat's bridge to the mesh, and under it the
// program's own server (codex app-server) and its terminal program, which is a client of that server. The
// server tells structurally what the terminal only shows: that a turn runs, that it failed and why, that a
// person is asked. And it takes a turn from another client than the terminal, so that a message wakes the
// agent at once and nothing is ever typed. The program's hooks were the alternative; they say nothing when a
// turn is interrupted, nothing before the first prompt, and waking through its queue took up to 8 s.
//
// Each seat has a home of its own (CODEX_HOME), in its private directory. The operator's login is linked into
// it; of his configuration it has what concerns the model. docs/connectors.md describes what a user sees.
package codex

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/cotal-ai/cotal-host/connectors/codex/plan"
	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/kept"
	"github.com/cotal-ai/cotal-host/sdk/private"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// The program's facts.
const (
	binaryName = "codex"
	tested     = "0.171.0" // the version the end-to-end tests run

	// stopGraceMs: the program ends within a second of SIGTERM; a shell command under it may take longer.
	stopGraceMs = 10_000
	// readinessMs: server and session take half a second on an idle machine, and much more on a busy one.
	readinessMs = 60_000
	// submitDelayMs: Return within 300 ms of text is taken for a part of it.
	submitDelayMs = 400
)

// Names of what BuildLaunch writes into the request's directory, and Reap removes from it.
const (
	homeDir  = "codex-home"
	planFile = "launcher.json"
)

// Info describes the connector.
func Info() sdk.Info {
	return sdk.Info{
		Name: "codex", Version: "0.1.0",
		Capabilities: []sdk.Capability{sdk.CapModels, sdk.CapMCPServers},
		Connector: sdk.ConnectorFacts{
			Requires:                    []string{binaryName},
			InstallHint:                 "npm install -g @openai/codex@" + tested,
			SupportsResume:              true,
			SupportsSessionContinuation: true,
			SupportsFreshStart:          true,
			SupportsModel:               true,
			SupportsModelVariant:        true,
			SupportsPrompt:              true,
			SupportsPersona:             true,
			ReadinessTimeoutMs:          readinessMs,
			ReadyBy:                     sdk.ReadyByPresence,
			Permissions:                 []string{permissionsAsk, permissionsAllow, permissionsConfig},
			StopGraceMs:                 stopGraceMs,
			Input:                       sdk.InputFacts{SubmitDelayMs: submitDelayMs, AwaitField: true, BracketedPaste: true},
			// Where the operator's login and configuration are, the keys of the program's own provider, and
			// what it takes to reach it from behind a proxy or a private certificate authority.
			EnvAllow: sdk.AndNetworkEnv(
				"CODEX_HOME", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORGANIZATION",
				"OPENAI_PROJECT", "AZURE_OPENAI_API_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_BEARER_TOKEN_BEDROCK",
				"ALL_PROXY", "all_proxy", "CODEX_CA_CERTIFICATE",
			),
		},
	}
}

// Connector implements sdk.Connector and sdk.Configurer.
type Connector struct {
	bundleDir, stateDir, seatRoot string
	config                        config
	now                           func() time.Time // time.Now where it is nil
}

var (
	_ sdk.Connector  = (*Connector)(nil)
	_ sdk.Configurer = (*Connector)(nil)
)

// config is [plugin.config].
type config struct {
	// LauncherSHA256 is the digest of cotal-codex-seat in the bundle directory, in hex, checked before each launch;
	// empty: it is not.
	LauncherSHA256 string `json:"launcher_sha256"`
	kept.Bounds
}

// Configure takes [plugin.config].
func (c *Connector) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var in config
	if err := cfg.Decode("codex", &in); err != nil {
		return err
	}
	if err := in.Bounds.Check(); err != nil {
		return sdk.Errorf(sdk.ErrInvalid, "[plugin.config] of codex: %v", err)
	}
	c.bundleDir, c.stateDir, c.seatRoot, c.config = cfg.BundleDir, cfg.StateDir, cfg.SeatRoot, in
	return nil
}

// launcher returns the path of the launcher and checks that it is the one of this bundle.
func (c *Connector) launcher() (string, error) {
	return sdk.BundledProgram(c.bundleDir, launcherName, "launcher_sha256", c.config.LauncherSHA256)
}

var (
	sessionID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	modelID   = regexp.MustCompile(`^\S{1,200}$`)
	effort    = regexp.MustCompile(`^[a-z]{1,16}$`)
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
	seat, err := c.launcher()
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	operator := operatorHome(req.BaseEnv)
	rollout, err := findSession(req, operator)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	settings, err := settings(req, opt, operator, seat)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	home := filepath.Join(req.Dir, homeDir)
	p := plan.Plan{
		Version: plan.Version, Binary: native(binary), Home: home, Store: storeDir(req.WorkspaceRoot), Operator: operator, Cwd: req.Cwd,
		Action: plan.ActionNew, Session: req.Resume + req.Continue, Rollout: rollout,
		Prompt: req.Prompt, Model: req.Model, Effort: req.Variant,
	}
	switch {
	case req.Resume != "":
		p.Action = plan.ActionFork
	case req.Continue != "":
		p.Action = plan.ActionOpen
	}
	if err := os.Mkdir(home, 0o700); err != nil && !os.IsExist(err) {
		return sdk.LaunchSpec{}, fmt.Errorf("make home directory: %w", err)
	}
	if err := private.WriteFile(filepath.Join(home, "config.toml"), settings); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := private.WriteJSON(filepath.Join(req.Dir, planFile), p); err != nil {
		return sdk.LaunchSpec{}, err
	}
	return sdk.LaunchSpec{Path: seat, Args: []string{filepath.Join(req.Dir, planFile)}, Env: req.Environment("CODEX_HOME=" + home)}, nil
}

// checkRequest is the backstop behind the host's checks of the declared facts.
func checkRequest(req sdk.LaunchRequest) error {
	if err := Info().CheckLaunch(req); err != nil {
		return err
	}
	if err := req.CheckSession(sessionID, "Codex session; an id looks like 0199a213-81c0-7800-8aa1-bbab2a035a53 and is shown by /status"); err != nil {
		return err
	}
	for _, name := range []string{plan.APISocket, plan.ToolsSocket} {
		if _, err := private.SocketPath(req.Dir, name, func(key string) string { return sdk.Getenv(req.BaseEnv, key) }); err != nil {
			return sdk.Errorf(sdk.ErrInvalid, "%v", err)
		}
	}
	switch {
	case req.Model != "" && !modelID.MatchString(req.Model):
		return sdk.Errorf(sdk.ErrInvalid, "model %q must be one word, as `cotal models --agent codex` lists them", req.Model)
	case req.Variant != "" && !effort.MatchString(req.Variant):
		return sdk.Errorf(sdk.ErrInvalid, "variant %q must be a reasoning effort such as low, medium or high", req.Variant)
	case sdk.Getenv(req.BaseEnv, wire.LaunchMaterialEnv) == "":
		return sdk.Errorf(sdk.ErrInvalid, "the host gave no launch material (%s): a seat of Codex is on the mesh", wire.LaunchMaterialEnv)
	}
	return nil
}
