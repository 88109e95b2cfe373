package command

import (
	"context"
	"slices"
	"strings"

	"github.com/cotal-ai/cotal-host/sdk"
	"github.com/cotal-ai/cotal-host/sdk/bridge/cmdline"
)

// Configure takes [plugin.config]: of the bridge, for launches that run it.
func (c *Connector) Configure(_ context.Context, cfg sdk.PluginConfig) error {
	var in cmdline.Config
	if err := cfg.Decode("command", &in); err != nil {
		return err
	}
	c.bridge = in.In(cfg.BundleDir)
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
	b, err := c.bridge.Find(spec.Env)
	if err != nil {
		return sdk.LaunchSpec{}, err
	}
	argv := b.Run(append([]string{spec.Path}, spec.Args...), flags...)
	spec.Path, spec.Args = argv[0], argv[1:]
	return spec, nil
}
