// Package cmdline writes the command lines with which a connector points its agent program at cotal-bridge. It links
// nothing of the mesh, so that a connector stays small.
package cmdline

import (
	"path/filepath"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/wire"
)

// Program is the name of the bridge in the bundle directory.
const Program = "cotal-bridge"

// Deliver is the flag of a hook whose program reads what its hooks print: waiting messages come with it.
const Deliver = "--deliver"

// Bridge is the bridge of one launch.
type Bridge struct {
	Path     string // of the program, absolute
	Material string // the file of the launch material, absolute
}

// Find finds the bridge in bundleDir (sdk.PluginConfig.BundleDir) and the material of a launch in its BaseEnv. digest
// is the SHA-256 of the program in hex, bridge_sha256 of [plugin.config]; empty: it is not checked.
//
// Errors: sdk.ErrNotFound (the bundle has no bridge), sdk.ErrInvalid (another digest), sdk.ErrUnavailable (the host
// gave the launch no material: it has no mesh).
func Find(bundleDir, digest string, baseEnv []string) (Bridge, error) {
	b := Bridge{Material: sdk.Getenv(baseEnv, wire.LaunchMaterialEnv)}
	if !filepath.IsAbs(b.Material) {
		return Bridge{}, sdk.Errorf(sdk.ErrUnavailable, "this launch has no material (%s): the host has no mesh to join", wire.LaunchMaterialEnv)
	}
	var err error
	b.Path, err = sdk.BundledProgram(bundleDir, Program, "bridge_sha256", digest)
	return b, err
}

// Config is what [plugin.config] of a connector says of the bridge. Embed it in what sdk.PluginConfig.Decode fills.
type Config struct {
	// BridgeSHA256 is the digest of cotal-bridge, in hex, checked before each launch; empty: it is not.
	BridgeSHA256 string `json:"bridge_sha256"`
}

// In is the bridge of that configuration in a bundle directory.
func (c Config) In(bundleDir string) Bundle { return Bundle{dir: bundleDir, config: c} }

// Bundle is where a connector finds the bridge.
type Bundle struct {
	dir    string
	config Config
}

// Find is the function Find for this bundle.
func (b Bundle) Find(baseEnv []string) (Bridge, error) {
	return Find(b.dir, b.config.BridgeSHA256, baseEnv)
}

// MCP is the argv of the bridge as an MCP server of the program, with further flags such as "--wake", "host".
func (b Bridge) MCP(flags ...string) []string {
	return append([]string{b.Path, "mcp", "--material", b.Material}, flags...)
}

// Hook is the argv of a hook. event is the program's own name for it; empty: what the hook's JSON says.
func (b Bridge) Hook(event string, flags ...string) []string {
	argv := append([]string{b.Path, "hook", "--material", b.Material}, flags...)
	if event != "" {
		argv = append(argv, event)
	}
	return argv
}

// Next is the argv that waits for messages to an idle agent and prints them.
func (b Bridge) Next(flags ...string) []string {
	return append([]string{b.Path, "next", "--material", b.Material}, flags...)
}

// Run is the argv of a program that is on the mesh for as long as it runs.
func (b Bridge) Run(program []string, flags ...string) []string {
	argv := append([]string{b.Path, "run", "--material", b.Material}, flags...)
	return append(append(argv, "--"), program...)
}

// Shell is an argv as one line for a POSIX shell.
func Shell(argv []string) string {
	words := make([]string, len(argv))
	for i, arg := range argv {
		words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}
