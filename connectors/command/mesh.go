package command

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
)

// bundle is where the host keeps its own programs.
type bundle struct {
	dir          string
	bridgeSHA256 string // hex; empty: not checked
}

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
	c.bundle = bundle{dir: cfg.BundleDir, bridgeSHA256: in.BridgeSHA256}
	return nil
}

// onMesh runs the program of a spec beneath the bridge, where the options ask for that.
func (c Connector) onMesh(spec sdk.LaunchSpec, opt options) (sdk.LaunchSpec, error) {
	flags := []string{"--messages", opt.Mesh}
	if opt.Mesh == "" {
		if opt.MeshFile+opt.MeshFormat != "" {
			return sdk.LaunchSpec{}, sdk.Errorf(sdk.ErrInvalid, "launchOptions.meshFile and meshFormat mean nothing without launchOptions.mesh")
		}
		return spec, nil
	}
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
	b, err := cmdline.Find(c.bundle.dir, c.bundle.bridgeSHA256, spec.Env)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	argv := b.Run(append([]string{spec.Path}, spec.Args...), flags...)
	spec.Path, spec.Args = argv[0], argv[1:]
	return spec, nil
}
