// Package command is the connector for programs nobody wrote a connector for: the persona or the
// spawn names the argv, and that is what runs. It is also the reference for authors of connectors.
package command

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
)

// Info describes the connector. Prompt, model and sessions mean nothing to an arbitrary program, so none
// is declared. A persona body is allowed and unused: the persona file is where the argv stands.
func Info() sdk.Info {
	return sdk.Info{Name: "command", Version: "0.1.0", Connector: sdk.ConnectorFacts{
		SupportsFreshStart: true,
		ReadyBy:            sdk.ReadyByProcess,
		LaunchHint:         "the program is launchOptions.argv; on the command line it follows --",
	}}
}

// Connector implements sdk.Connector and sdk.Configurer.
type Connector struct {
	sdk.ConnectorDefaults
	bridge cmdline.Bundle // what Configure said
}

// options are the launch options; they come from the persona, --opt, and what follows -- on the command line.
type options struct {
	Argv       []string          `json:"argv"`       // the program and its arguments
	Env        map[string]string `json:"env"`        // added to the environment
	Probe      string            `json:"probe"`      // "127.0.0.1:8080": accepts connections once the program is ready
	Mesh       string            `json:"mesh"`       // presence, stdin or file: the program is on the mesh, and where its messages go
	MeshFile   string            `json:"meshFile"`   // with mesh file; a relative path is one of the working directory
	MeshFormat string            `json:"meshFormat"` // of a line: json (the default), or text: "name: text"
}

// BuildLaunch runs launchOptions.argv as it stands, or beneath the bridge.
func (c Connector) BuildLaunch(_ context.Context, req sdk.LaunchRequest) (sdk.LaunchSpec, error) {
	var opt options
	if err := sdk.DecodeOptions(req.LaunchOptions, &opt); err != nil {
		return sdk.LaunchSpec{}, err
	}
	if req.Prompt+req.Model+req.Variant+req.Resume+req.Continue != "" {
		return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrUnsupported, "connector command takes no prompt, model, variant or session; pass what the program needs in launchOptions.argv")
	}
	if i := slices.IndexFunc(opt.Argv, func(arg string) bool { return strings.Contains(arg, "\x00") }); i >= 0 {
		return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.argv.%d holds a NUL byte, which no program can be given", i)
	}
	if len(opt.Argv) == 0 || opt.Argv[0] == "" {
		return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrInvalid, `launchOptions.argv must start with a program, as in ["npm", "start"]; a shell line is ["sh", "-c", "<line>"]`)
	}
	env := req.Environment()
	for _, name := range slices.Sorted(maps.Keys(opt.Env)) { // sorted: the same request gives the same spec
		if name == "" || strings.HasPrefix(name, "COTAL_") || strings.ContainsAny(name, "=\x00") || strings.Contains(opt.Env[name], "\x00") {
			return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.env: %q cannot be set; names that start with COTAL_ are the host's", name)
		}
		env = sdk.SetEnv(env, name+"="+opt.Env[name])
	}
	spec := sdk.LaunchSpec{Args: opt.Argv[1:], Env: env}
	if opt.Probe != "" {
		if addr, err := netip.ParseAddrPort(opt.Probe); err != nil || !addr.Addr().IsLoopback() || addr.Port() == 0 {
			return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrInvalid, `launchOptions.probe must be a loopback address, as in "127.0.0.1:8080", not %q`, opt.Probe)
		}
		spec.Probe = &sdk.Probe{Addr: opt.Probe}
	}
	path, err := resolve(opt.Argv[0], req.Cwd, sdk.Getenv(env, "PATH"))
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	spec.Path = path
	return c.onMesh(spec, opt)
}

// resolve finds a program as a shell in cwd would: with a slash as a path, without one in PATH.
func resolve(name, cwd, path string) (string, error) {
	dirs := filepath.SplitList(path)
	if strings.Contains(name, "/") {
		dirs = []string{cwd}
	}
	for _, dir := range dirs {
		file := filepath.Join(dir, name)
		if filepath.IsAbs(name) {
			file = name
		}
		info, err := os.Stat(file)
		if err == nil && filepath.IsAbs(file) && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return file, nil
		}
	}
	return "", sdk.Errorf(sdk.ErrNotFound, "launchOptions.argv: no executable %q (directory %s, PATH %s)", name, cwd, path)
}
