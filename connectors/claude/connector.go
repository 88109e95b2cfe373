// Package claude is the connector for Claude Code (npm package @anthropic-ai/claude-code).
//
// A seat has a configuration directory of its own, in which the questions of a first start are answered, and
// shares of the user's what a seat is not to have a copy of: the login, memory, commands, skills. Its MCP servers
// are the bridge and what is shared, and no others. Its hooks tell the bridge what it does; a hook in the
// background is what begins a turn when a message comes to an idle agent. Nothing is read from its screen.
//
// docs/connectors.md describes what a user sees of this, with the measurements behind it.
package claude

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
	"github.com/cotal-ai/cotal-host/sdk/kept"
	"github.com/cotal-ai/cotal-host/sdk/private"
)

// The program's facts.
const (
	binaryName  = "claude"
	packageName = "@anthropic-ai/claude-code"
	tested      = "2.1.332" // the version the end-to-end tests run

	// stopGraceMs: it ends 0.2 s after SIGTERM; a machine under load takes longer.
	stopGraceMs = 8_000
	// readinessMs: its MCP servers start 0.7 to 1.4 s after its start, and much later on a loaded machine.
	readinessMs = 60_000
	// submitDelayMs: Return right after a paste was always taken. The pause costs nothing and is what other
	// programs of its kind need.
	submitDelayMs = 300
	// maxArgPrompt: Linux allows 128 KiB for one argument.
	maxArgPrompt = 100 << 10
)

// Names of what BuildLaunch writes into the request's directory.
const (
	homeDir      = "claude" // its configuration directory
	tmpDir       = "claude-tmp"
	personaFile  = "persona.md"
	settingsFile = "settings.json"
	mcpFile      = "mcp.json"
)

// efforts are what --effort takes.
var efforts = []string{"low", "medium", "high", "xhigh", "max"}

// Info describes the connector.
func Info() sdk.Info {
	return sdk.Info{
		Name: "claude", Version: "0.1.0",
		Capabilities: []sdk.Capability{sdk.CapModels, sdk.CapMCPServers},
		Connector: sdk.ConnectorFacts{
			Requires:                    []string{binaryName},
			InstallHint:                 "npm install -g " + packageName + "@" + tested,
			LaunchHint:                  "it shows up on the mesh 1 to 2 seconds after its start",
			SupportsResume:              true,
			SupportsSessionContinuation: true,
			SupportsFreshStart:          true,
			SupportsModel:               true,
			SupportsModelVariant:        true,
			SupportsPrompt:              true,
			SupportsPersona:             true,
			ReadinessTimeoutMs:          readinessMs,
			ReadyBy:                     sdk.ReadyByPresence,
			Permissions:                 []string{permissionsAsk, permissionsAllow},
			StopGraceMs:                 stopGraceMs,
			Mints:                       sdk.MintCounts{SessionIDs: 1},
			Input:                       sdk.InputFacts{SubmitDelayMs: submitDelayMs, BracketedPaste: true},
			EnvAllow:                    envAllow,
		},
	}
}

// Connector implements sdk.Connector and sdk.Configurer.
type Connector struct {
	bridge   cmdline.Bundle
	stateDir string
	seatRoot string
	bounds   kept.Bounds
	euid     func() int       // os.Geteuid where it is nil
	now      func() time.Time // time.Now where it is nil
}

var (
	_ sdk.Connector  = (*Connector)(nil)
	_ sdk.Configurer = (*Connector)(nil)
)

// config is [plugin.config]: of the bridge, and how many sessions are kept.
type config struct {
	cmdline.Config
	kept.Bounds
}

// Configure takes [plugin.config].
func (c *Connector) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var in config
	if err := cfg.Decode("claude", &in); err != nil {
		return err
	}
	if err := in.Bounds.Check(); err != nil {
		return sdk.Errorf(sdk.ErrInvalid, "[plugin.config] of claude: %v", err)
	}
	c.bridge, c.bounds, c.stateDir, c.seatRoot = in.Config.In(cfg.BundleDir), in.Bounds, cfg.StateDir, cfg.SeatRoot
	return nil
}

// modelID is what --model takes: an alias or an id, also one of Bedrock (with a version behind a colon), Vertex
// (behind an @) or with a context size in brackets.
var modelID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@\[\]-]*$`)

// BuildLaunch makes the launch of one seat. All refusals come before the first file is written.
func (c *Connector) BuildLaunch(_ context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	opt, err := readOptions(req.LaunchOptions)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := checkRequest(req); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := c.checkPermissions(opt, req.BaseEnv); err != nil {
		return sdk.LaunchSpec{}, err
	}
	l := launch{req: req, opt: opt, session: sessionOf(req.SessionIDs[0]), persona: strings.TrimSpace(req.Persona)}
	if l.binary, err = req.Binary(binaryName); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if err := checkVersion(l.binary); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if l.bridge, err = c.bridge.Find(req.BaseEnv); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if l.shared, err = req.MCPServers(serverName); err != nil {
		return sdk.LaunchSpec{}, err
	}
	l.cwd = canonical(req.Cwd)
	if id := req.Resume + req.Continue; id != "" {
		if l.transcript, err = c.find(id, l); err != nil {
			return sdk.LaunchSpec{}, err
		}
	}
	if err := l.write(); err != nil {
		return sdk.LaunchSpec{}, err
	}
	return sdk.LaunchSpec{Path: l.binary, Args: l.args(), Env: l.environment()}, nil
}

// checkRequest is the backstop behind the host's checks of the declared facts.
func checkRequest(req sdk.LaunchRequest) error {
	if err := Info().CheckLaunch(req); err != nil {
		return err
	}
	if err := req.CheckSession(sessionID, "session of Claude Code; its ids look like 3f0c1c4e-8a55-4a0c-9d0a-2f6b1c8e7d90, and `claude --resume` lists yours"); err != nil {
		return err
	}
	switch {
	case strings.Contains(req.Model, "/") && !strings.HasPrefix(req.Model, "arn:"):
		return sdk.Errorf(sdk.ErrInvalid, "model %q names a provider, and Claude Code takes the model alone, as in sonnet or claude-sonnet-4-5; `cotal models --agent claude` lists them", req.Model)
	case req.Model != "" && !strings.HasPrefix(req.Model, "arn:") && !modelID.MatchString(req.Model):
		return sdk.Errorf(sdk.ErrInvalid, "model %q is none; `cotal models --agent claude` lists them", req.Model)
	case req.Variant != "" && !slices.Contains(efforts, req.Variant):
		return sdk.Errorf(sdk.ErrInvalid, "variant %q is no effort of Claude Code: %s", req.Variant, strings.Join(efforts, ", "))
	case len(req.Prompt) > maxArgPrompt:
		return sdk.Errorf(sdk.ErrInvalid, "the prompt has %d bytes and Claude Code is started with at most %d; put it into a file and name that, or send it with cotal input", len(req.Prompt), maxArgPrompt)
	}
	return nil
}

// checkPermissions refuses what the program would refuse with an exit that nobody sees.
func (c *Connector) checkPermissions(opt options, env []string) error {
	euid := c.euid
	if euid == nil {
		euid = os.Geteuid
	}
	if opt.Permissions == permissionsAllow && euid() == 0 && sdk.Getenv(env, "IS_SANDBOX") != "1" {
		return sdk.Errorf(sdk.ErrUnsupported, "launchOptions.permissions: Claude Code does not run without asking as root, except in a sandbox: use ask, run the host as another user, or, where this machine is a sandbox, start the host with IS_SANDBOX=1")
	}
	return nil
}

// launch is one launch in the making.
type launch struct {
	req        sdk.LaunchRequest
	opt        options
	binary     string
	bridge     cmdline.Bridge
	session    string // of the new session
	persona    string
	cwd        string // canonical
	shared     map[string]sdk.MCPServer
	transcript string // of the session that is forked or reopened
}

func (l launch) path(elem ...string) string {
	return filepath.Join(append([]string{l.req.Dir}, elem...)...)
}

// home is the seat's own configuration directory; "" where it uses the user's.
func (l launch) home() string {
	if l.opt.Config == configUser {
		return ""
	}
	return l.path(homeDir)
}

// args: --mcp-config takes any number of values, so another option follows it. Behind -- comes the prompt, which
// may start with a dash.
func (l launch) args() []string {
	mode := "default"
	if l.opt.Permissions == permissionsAllow {
		mode = "bypassPermissions"
	}
	args := []string{
		"--settings", l.path(settingsFile), "--mcp-config", l.path(mcpFile), "--strict-mcp-config",
		"--permission-mode", mode,
	}
	if l.persona != "" {
		args = append(args, "--append-system-prompt-file", l.path(personaFile))
	}
	if l.req.Model != "" {
		args = append(args, "--model", l.req.Model)
	}
	if l.req.Variant != "" {
		args = append(args, "--effort", l.req.Variant)
	}
	switch {
	case l.req.Resume != "":
		args = append(args, "--resume", l.req.Resume, "--fork-session", "--session-id", l.session)
	case l.req.Continue != "":
		args = append(args, "--resume", l.req.Continue)
	default:
		args = append(args, "--session-id", l.session)
	}
	if l.req.Prompt != "" {
		args = append(args, "--", l.req.Prompt)
	}
	return args
}

// write writes the files of the launch.
func (l launch) write() error {
	for _, dir := range []string{tmpDir, homeDir} {
		if dir == homeDir && l.home() == "" {
			continue
		}
		if err := os.Mkdir(l.path(dir), 0o700); err != nil && !os.IsExist(err) {
			return fmt.Errorf("make directory of the launch: %w", err)
		}
	}
	if l.persona != "" {
		if err := private.WriteFile(l.path(personaFile), []byte(l.persona+"\n")); err != nil {
			return err
		}
	}
	if err := private.WriteJSON(l.path(settingsFile), l.settings()); err != nil {
		return err
	}
	if err := private.WriteJSON(l.path(mcpFile), l.servers()); err != nil {
		return err
	}
	if l.home() == "" {
		return nil
	}
	if err := l.furnish(); err != nil {
		return err
	}
	if l.transcript == "" {
		return nil
	}
	return copySession(l.transcript, l.path(homeDir, "projects", projectDir(l.cwd), filepath.Base(l.transcript)))
}

// canonical is a path as the program names it: it looks up whether a directory is trusted under its real path.
func canonical(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}
