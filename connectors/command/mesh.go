package command

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
)

// Configure takes bridge_sha256 from [plugin.config]: the digest of cotal-bridge in the bundle directory, checked
// before each launch that runs it.
func (c *Connector) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var in struct {
		BridgeSHA256 string `json:"bridge_sha256"`
	}
	if len(cfg.Config) > 0 {
		dec := json.NewDecoder(strings.NewReader(string(cfg.Config)))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&in); err != nil {
			return sdk.Errorf(sdk.ErrInvalid, "[plugin.config] of command takes bridge_sha256 alone: %v", err)
		}
	}
	c.bundleDir, c.bridgeSHA256 = cfg.BundleDir, in.BridgeSHA256
	return nil
}

// onMesh runs the program of a spec beneath the bridge.
func (c Connector) onMesh(spec sdk.LaunchSpec, opt options) (sdk.LaunchSpec, error) {
	flags := []string{"--messages", opt.Mesh}
	switch {
	case !slices.Contains([]string{"presence", "stdin", "file"}, opt.Mesh):
		return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.mesh must be presence, stdin or file, not %q", opt.Mesh)
	case opt.Mesh == "presence":
		flags[1] = "none"
	case opt.Mesh == "file" && (opt.MeshFile == "" || strings.Contains(opt.MeshFile, "\x00")):
		return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.mesh file needs launchOptions.meshFile, the file that messages are appended to")
	}
	switch opt.MeshFormat {
	case "", "json":
	case "text":
		flags = append(flags, "--text")
	default:
		return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.meshFormat must be json or text, not %q", opt.MeshFormat)
	}
	if opt.Mesh == "file" {
		flags = append(flags, "--file", opt.MeshFile)
	}
	b, err := cmdline.Find(c.bundleDir, c.bridgeSHA256, spec.Env)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	argv := b.Run(append([]string{spec.Path}, spec.Args...), flags...)
	spec.Path, spec.Args = argv[0], argv[1:]
	return spec, nil
}
